#include "quantize/checksums.h"

#include <cstdint>
#include <system_error>
#include <utility>

#include "base/refuse.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "quantize/output_folder.h"

namespace kvant::quantize {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kChecksumsFormat = "kvant-checksums-1";
constexpr std::string_view kHashKey = "xxh3_128";
constexpr std::uint64_t kMaxChecksumsBytes = std::uint64_t{64} << 20;

fs::path checksums_path(const fs::path& folder) { return folder / kOwnFolder / kChecksumsName; }

}  // namespace

Status add_checksum(const fs::path& folder, const std::string& name, const Stream& stream, Checksums& checksums) {
  const auto file = io::InputFile::open(folder / name);
  if (!file.ok()) return file.status();
  base::Silence silence;
  auto made = io::checksum(*file, stream, silence);
  if (!made.ok()) return made.status();
  checksums.insert_or_assign(io::json_name(name).get<std::string>(), std::move(made).value());
  return {};
}

Status write_checksums(const fs::path& folder, Checksums checksums, std::string_view config, bool overwrite) {
  checksums.insert_or_assign(std::string(io::kConfigName), io::checksum(config));
  io::Json files = io::Json::array();
  for (const auto& [name, checksum] : checksums)
    files.push_back({{"name", name}, {"bytes", checksum.bytes}, {kHashKey, checksum.hash}});
  const io::Json document = {{"format", kChecksumsFormat}, {"files", std::move(files)}};
  return io::write_file(checksums_path(folder), document.dump(2) + "\n", overwrite);
}

Result<std::optional<Checksums>> read_checksums(const fs::path& folder) {
  const fs::path path = checksums_path(folder);
  std::error_code error;
  if (!fs::exists(path, error)) return std::optional<Checksums>();
  const auto text = io::read_text(path, kMaxChecksumsBytes);
  if (!text.ok()) return text.status();
  const auto document = io::parse_json(*text, path.string());
  if (!document.ok()) return document.status();
  const auto damaged = [&] {
    return base::invalid_problem("{}: is not a list of checksums of kvant", io::printable_path(path));
  };
  const auto at = [](const io::Json& object, std::string_view key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found == object.end() ? io::Json() : *found;
  };
  if (at(*document, "format") != kChecksumsFormat || !at(*document, "files").is_array()) return damaged();
  Checksums checksums;
  for (const io::Json& file : at(*document, "files")) {
    const io::Json name = at(file, "name"), bytes = at(file, "bytes"), hash = at(file, kHashKey);
    if (!name.is_string() || !bytes.is_number_unsigned() || !hash.is_string()) return damaged();
    checksums.insert_or_assign(name.get<std::string>(),
                               io::Checksum{bytes.get<std::uint64_t>(), hash.get<std::string>()});
  }
  return std::optional(std::move(checksums));
}

}  // namespace kvant::quantize
