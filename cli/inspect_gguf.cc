#include "cli/inspect_gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <variant>

#include "base/text.h"
#include "cli/messages.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "io/gguf.h"
#include "io/json.h"

namespace kvant::cli {
namespace {

// Of an array; a vocabulary has a hundred thousand.
constexpr std::size_t kShownElements = 8;

io::Json json_of(const io::GgufNumber& number) {
  if (const auto* const value = std::get_if<double>(&number)) return io::json_number(*value);
  if (const auto* const value = std::get_if<bool>(&number)) return *value;
  if (const auto* const value = std::get_if<std::int64_t>(&number)) return *value;
  return std::get<std::uint64_t>(number);
}

io::Json json_of(const io::GgufArray& array) {
  io::Json first = io::Json::array();
  for (std::size_t i = 0; i < std::min(array.size(), kShownElements); ++i)
    first.push_back(array.element == io::GgufValueType::string ? io::json_name(array.strings[i])
                                                               : json_of(array.number(i)));
  return {{"type", name(array.element)}, {"count", array.size()}, {"first", std::move(first)}};
}

io::Json json_of(const io::GgufEntry& entry) {
  if (const auto* const text = std::get_if<std::string>(&entry.value)) return io::json_name(*text);
  if (const auto* const array = std::get_if<io::GgufArray>(&entry.value)) return json_of(*array);
  return json_of(std::get<io::GgufNumber>(entry.value));
}

std::string text_of(const io::GgufEntry& entry) {
  if (const auto* const text = std::get_if<std::string>(&entry.value)) return io::printable(*text);
  const auto* const array = std::get_if<io::GgufArray>(&entry.value);
  if (array == nullptr) return json_of(entry).dump();
  std::string text = fmt::format("{} of {}:", grouped_digits(array->size()), name(array->element));
  const io::Json shown = json_of(*array);
  for (const io::Json& value : shown["first"])
    text += " " + (value.is_string() ? io::printable(value.get_ref<const std::string&>()) : value.dump());
  return array->size() > kShownElements ? text + " …" : text;
}

std::uint64_t bytes_of(const io::GgufFile& file) {
  std::uint64_t bytes = 0;
  for (const io::GgufTensor& tensor : file.tensors()) bytes += tensor.bytes();
  return bytes;
}

void print_text(const io::GgufFile& file) {
  Table table({{"tensor", Column::Align::left, true}, {"type"}, {"shape"}, {"size", Column::Align::right}});
  for (const io::GgufTensor& tensor : file.tensors())
    table.add({io::printable(tensor.name), std::string(info(tensor.type).name), base::bracketed(tensor.shape),
               byte_size(tensor.bytes())});
  print(table.text(Terminal::of(1)));
  print(fmt::format("\n{}: {}, {}, GGUF version {}\nmetadata:\n", io::printable_path(file.file().path()),
                    counted(file.tensors().size(), "tensor"), byte_size(bytes_of(file)), file.version()));
  for (const io::GgufEntry& entry : file.metadata())
    print(fmt::format("  {} = {}\n", io::printable(entry.key), text_of(entry)));
}

// In pieces, as there may be a million tensors.
void print_document(const io::GgufFile& file) {
  io::Json::object_t metadata;
  for (const io::GgufEntry& entry : file.metadata()) metadata.Container::emplace_back(entry.key, json_of(entry));
  const io::Json head = {{"format", "kvant-inspect-gguf-1"},
                         {"path", io::json_name(file.file().path().string())},
                         {"version", file.version()},
                         {"bytes", bytes_of(file)},
                         {"metadata", std::move(metadata)}};
  const std::string text = head.dump(2);
  print(std::string_view(text).substr(0, text.size() - 2));  // all but the end of the object
  print(",\n  \"tensors\": [");
  std::string_view separator = "\n    ";
  for (const io::GgufTensor& tensor : file.tensors()) {
    print(separator);
    const io::Json entry = {
        {"name", tensor.name}, {"type", info(tensor.type).name}, {"shape", tensor.shape}, {"bytes", tensor.bytes()}};
    print(entry.dump());
    separator = ",\n    ";
  }
  print(file.tensors().empty() ? "]\n}\n" : "\n  ]\n}\n");
}

}  // namespace

int inspect_gguf(const std::filesystem::path& path, bool json) {
  const auto file = io::GgufFile::open(path);
  if (!file.ok()) return fail(file.status());
  if (json)
    print_document(*file);
  else
    print_text(*file);
  return kDone;
}

}  // namespace kvant::cli
