#include "io/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <tuple>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "io/safetensors.h"

namespace kvant::io {
namespace {

using base::invalid_problem;

static_assert(std::endian::native == std::endian::little, "numbers are taken from the file as they are");

constexpr std::string_view kMagic = "GGUF";
constexpr std::uint64_t kDefaultAlignment = 32;
// What ggml allows.
constexpr std::uint64_t kMaxGgufDimensions = 4;
constexpr std::uint64_t kMaxNameBytes = 64;
constexpr std::uint64_t kMaxKeyBytes = 65535;
// The least that an entry takes in the file: a length, a type and one byte; a length, two numbers and an offset.
constexpr std::uint64_t kLeastEntryBytes = 13;
constexpr std::uint64_t kLeastTensorBytes = 24;
// In memory they are much larger than the least in the file. Files have about a hundred entries, and a few thousand
// tensors.
constexpr std::uint64_t kMaxEntries = 65536;
constexpr std::uint64_t kMaxTensors = 1'000'000;
constexpr std::uint64_t kFirstLoad = std::uint64_t{1} << 20;

constexpr std::array<GgufTypeInfo, 30> kTypes{{
    {GgufType::f32, "F32", 1, 4},
    {GgufType::f16, "F16", 1, 2},
    {GgufType::q4_0, "Q4_0", 32, 18},
    {GgufType::q4_1, "Q4_1", 32, 20},
    {GgufType::q5_0, "Q5_0", 32, 22},
    {GgufType::q5_1, "Q5_1", 32, 24},
    {GgufType::q8_0, "Q8_0", 32, 34},
    {GgufType::q2_k, "Q2_K", 256, 84},
    {GgufType::q3_k, "Q3_K", 256, 110},
    {GgufType::q4_k, "Q4_K", 256, 144},
    {GgufType::q5_k, "Q5_K", 256, 176},
    {GgufType::q6_k, "Q6_K", 256, 210},
    {GgufType::iq2_xxs, "IQ2_XXS", 256, 66},
    {GgufType::iq2_xs, "IQ2_XS", 256, 74},
    {GgufType::iq3_xxs, "IQ3_XXS", 256, 98},
    {GgufType::iq1_s, "IQ1_S", 256, 50},
    {GgufType::iq4_nl, "IQ4_NL", 32, 18},
    {GgufType::iq3_s, "IQ3_S", 256, 110},
    {GgufType::iq2_s, "IQ2_S", 256, 82},
    {GgufType::iq4_xs, "IQ4_XS", 256, 136},
    {GgufType::i8, "I8", 1, 1},
    {GgufType::i16, "I16", 1, 2},
    {GgufType::i32, "I32", 1, 4},
    {GgufType::i64, "I64", 1, 8},
    {GgufType::f64, "F64", 1, 8},
    {GgufType::iq1_m, "IQ1_M", 256, 56},
    {GgufType::bf16, "BF16", 1, 2},
    {GgufType::tq1_0, "TQ1_0", 256, 54},
    {GgufType::tq2_0, "TQ2_0", 256, 66},
    {GgufType::mxfp4, "MXFP4", 32, 17},
}};

struct ValueTypeTraits {
  std::string_view name;
  std::size_t bytes;  // of one; 0: it says so itself
};

constexpr std::array<ValueTypeTraits, 13> kValueTypes{{
    {"u8", 1},
    {"i8", 1},
    {"u16", 2},
    {"i16", 2},
    {"u32", 4},
    {"i32", 4},
    {"f32", 4},
    {"bool", 1},
    {"string", 0},
    {"array", 0},
    {"u64", 8},
    {"i64", 8},
    {"f64", 8},
}};
static_assert(kValueTypes.size() == static_cast<std::size_t>(GgufValueType::f64) + 1);

std::size_t bytes_of(GgufValueType type) { return kValueTypes[static_cast<std::size_t>(type)].bytes; }

template <class T>
T loaded_as(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

GgufNumber number_at(GgufValueType type, const char* from) {
  switch (type) {
    case GgufValueType::u8: return std::uint64_t{loaded_as<std::uint8_t>(from)};
    case GgufValueType::i8: return std::int64_t{loaded_as<std::int8_t>(from)};
    case GgufValueType::u16: return std::uint64_t{loaded_as<std::uint16_t>(from)};
    case GgufValueType::i16: return std::int64_t{loaded_as<std::int16_t>(from)};
    case GgufValueType::u32: return std::uint64_t{loaded_as<std::uint32_t>(from)};
    case GgufValueType::i32: return std::int64_t{loaded_as<std::int32_t>(from)};
    case GgufValueType::f32: return static_cast<double>(loaded_as<float>(from));
    case GgufValueType::boolean: return *from != 0;
    case GgufValueType::u64: return loaded_as<std::uint64_t>(from);
    case GgufValueType::i64: return loaded_as<std::int64_t>(from);
    case GgufValueType::f64: return loaded_as<double>(from);
    default: return false;
  }
}

// One that two of them have; null: none. Sorted rather than hashed: nobody can choose names that make it slow.
template <class Item>
const std::string* twice(const std::vector<Item>& items, std::string Item::*text) {
  std::vector<const std::string*> texts;
  texts.reserve(items.size());
  for (const Item& item : items) texts.push_back(&(item.*text));
  std::sort(texts.begin(), texts.end(), [](const std::string* a, const std::string* b) { return *a < *b; });
  const auto found = std::adjacent_find(texts.begin(), texts.end(),
                                        [](const std::string* a, const std::string* b) { return *a == *b; });
  return found == texts.end() ? nullptr : *found;
}

template <class Item>
std::vector<std::uint32_t> order_by(const std::vector<Item>& items, std::string Item::*text) {
  std::vector<std::uint32_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return items[a].*text < items[b].*text; });
  return order;
}

template <class Item>
const Item* found_by(const std::vector<Item>& items, std::string Item::*text, const std::vector<std::uint32_t>& order,
                     std::string_view wanted) {
  const auto at = std::lower_bound(order.begin(), order.end(), wanted,
                                   [&](std::uint32_t i, std::string_view name) { return items[i].*text < name; });
  if (at == order.end() || items[*at].*text != wanted) return nullptr;
  return &items[*at];
}

// ---- The parser -----------------------------------------------------------------------------------------------

class Parser {
 public:
  Parser(std::string_view loaded, std::uint64_t file_bytes, std::string_view file_name)
      : loaded_(loaded), file_bytes_(file_bytes), file_(printable(file_name)) {}

  // 0, or how many bytes would have to be loaded for the parser to get further.
  std::uint64_t wanted() const { return wanted_; }

  Result<GgufHeader> run() {
    if (Status s = read_front(); !s.ok()) return s;
    for (std::uint64_t i = 0; i < entries_; ++i)
      if (Status s = read_entry(); !s.ok()) return s;
    if (const std::string* key = twice(header_.metadata, &GgufEntry::key))
      return invalid_problem("{}: key \"{}\" is there twice", file_, printable(*key));
    if (Status s = read_facts(); !s.ok()) return s;
    for (std::uint64_t i = 0; i < tensors_; ++i)
      if (Status s = read_tensor(i); !s.ok()) return s;
    if (const std::string* name = twice(header_.tensors, &GgufTensor::name))
      return invalid_problem("{}: tensor \"{}\" is there twice", file_, printable(*name));
    header_.data_offset = (position_ + header_.alignment - 1) / header_.alignment * header_.alignment;
    if (Status s = check_places(); !s.ok()) return s;
    return std::move(header_);
  }

 private:
  // The next bytes of the file; `what` they are, for the sentence.
  Result<const char*> take(std::uint64_t bytes, std::string_view what) {
    if (bytes > file_bytes_ - position_)
      return invalid_problem("{}: {} at byte {} needs {} bytes, the file ends at {}", file_, what, position_, bytes,
                             file_bytes_);
    if (position_ + bytes > kMaxHeaderBytes)
      return invalid_problem("{}: {} at byte {} needs {} bytes, the header must have at most {}", file_, what,
                             position_, bytes, kMaxHeaderBytes);
    if (position_ + bytes > loaded_.size()) {
      wanted_ = position_ + bytes;
      return invalid_problem("{}: {} at byte {} needs {} bytes, {} are loaded", file_, what, position_, bytes,
                             loaded_.size());
    }
    const char* const at = loaded_.data() + position_;
    position_ += bytes;
    return at;
  }

  template <class T>
  Status take_number(T& value, std::string_view what) {
    const auto at = take(sizeof value, what);
    if (!at.ok()) return at.status();
    value = loaded_as<T>(*at);
    return {};
  }

  Status take_string(std::string& text, std::uint64_t most, std::string_view what) {
    std::uint64_t bytes = 0;
    if (Status s = take_number(bytes, what); !s.ok()) return s;
    if (bytes > most)
      return invalid_problem("{}: {} at byte {} has {} bytes, must have at most {}", file_, what, position_, bytes,
                             most);
    const auto at = take(bytes, what);
    if (!at.ok()) return at.status();
    text.assign(*at, bytes);
    return {};
  }

  Status take_name(std::string& text, std::uint64_t most, std::string_view what) {
    if (Status s = take_string(text, most, what); !s.ok()) return s;
    if (is_utf8(text)) return {};
    return invalid_problem("{}: {} \"{}\" is not UTF-8", file_, what, printable(text));
  }

  Status read_front() {
    const auto magic = take(kMagic.size(), "the magic");
    if (!magic.ok()) return magic.status();
    if (const std::string_view found(*magic, kMagic.size()); found != kMagic)
      return invalid_problem("{}: begins with \"{}\", a GGUF begins with \"{}\"", file_, printable(found), kMagic);
    if (Status s = take_number(header_.version, "the version"); !s.ok()) return s;
    if (header_.version != 0 && header_.version % 65536 == 0)
      return base::unsupported("{}: is a big-endian GGUF, only little-endian ones are read", file_);
    if (header_.version != 2 && header_.version != 3)
      return base::unsupported("{}: is of GGUF version {}, only 2 and 3 are read", file_, header_.version);
    if (Status s = take_number(tensors_, "the number of tensors"); !s.ok()) return s;
    if (Status s = take_number(entries_, "the number of metadata entries"); !s.ok()) return s;
    const std::uint64_t left = file_bytes_ - position_;
    if (tensors_ > left / kLeastTensorBytes)
      return invalid_problem("{}: says that it has {} tensors, its {} bytes have room for {}", file_, tensors_,
                             file_bytes_, left / kLeastTensorBytes);
    if (entries_ > left / kLeastEntryBytes)
      return invalid_problem("{}: says that it has {} metadata entries, its {} bytes have room for {}", file_, entries_,
                             file_bytes_, left / kLeastEntryBytes);
    if (tensors_ > kMaxTensors)
      return invalid_problem("{}: has {} tensors, must have at most {}", file_, tensors_, kMaxTensors);
    if (entries_ > kMaxEntries)
      return invalid_problem("{}: has {} metadata entries, must have at most {}", file_, entries_, kMaxEntries);
    return {};
  }

  Status take_value_type(GgufValueType& type, const std::string& key) {
    std::uint32_t number = 0;
    if (Status s = take_number(number, "a value type"); !s.ok()) return s;
    if (number >= kValueTypes.size())
      return invalid_problem("{}: \"{}\": value type {} is unknown", file_, printable(key), number);
    type = static_cast<GgufValueType>(number);
    return {};
  }

  // So many numbers that follow one another.
  Result<const char*> take_numbers(GgufValueType type, std::uint64_t count, const std::string& key) {
    const std::uint64_t width = bytes_of(type);
    if (count > kMaxFileBytes / width)
      return invalid_problem("{}: \"{}\": an array of {} {} overflows", file_, printable(key), count, name(type));
    auto at = take(count * width, "a value");
    if (!at.ok() || type != GgufValueType::boolean) return at;
    for (std::uint64_t i = 0; i < count; ++i)
      if (const auto byte = static_cast<unsigned char>((*at)[i]); byte > 1)
        return invalid_problem("{}: \"{}\": a boolean is {}, must be 0 or 1", file_, printable(key), byte);
    return at;
  }

  Status read_array(GgufArray& array, const std::string& key) {
    if (Status s = take_value_type(array.element, key); !s.ok()) return s;
    if (array.element == GgufValueType::array)
      return invalid_problem("{}: \"{}\": is an array of arrays, which are not read", file_, printable(key));
    std::uint64_t count = 0;
    if (Status s = take_number(count, "the length of an array"); !s.ok()) return s;
    if (array.element != GgufValueType::string) {
      const auto at = take_numbers(array.element, count, key);
      if (!at.ok()) return at.status();
      array.numbers.assign(*at, count * bytes_of(array.element));
      return {};
    }
    // Each has a length at least.
    if (count > (file_bytes_ - position_) / sizeof(std::uint64_t))
      return invalid_problem("{}: \"{}\": says that it has {} strings, the file has {} bytes left", file_,
                             printable(key), count, file_bytes_ - position_);
    array.strings.reserve(std::min(count, (loaded_.size() - position_) / sizeof(std::uint64_t)));
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string text;
      if (Status s = take_string(text, kMaxHeaderBytes, "a string"); !s.ok()) return s;
      array.strings.push_back(std::move(text));
    }
    return {};
  }

  Status read_entry() {
    GgufEntry entry;
    if (Status s = take_name(entry.key, kMaxKeyBytes, "the key"); !s.ok()) return s;
    if (Status s = take_value_type(entry.type, entry.key); !s.ok()) return s;
    if (entry.type == GgufValueType::array) {
      if (Status s = read_array(entry.value.emplace<GgufArray>(), entry.key); !s.ok()) return s;
    } else if (entry.type == GgufValueType::string) {
      if (Status s = take_string(entry.value.emplace<std::string>(), kMaxHeaderBytes, "a string"); !s.ok()) return s;
    } else {
      const auto at = take_numbers(entry.type, 1, entry.key);
      if (!at.ok()) return at.status();
      entry.value = number_at(entry.type, *at);
    }
    header_.metadata.push_back(std::move(entry));
    return {};
  }

  // Of a key that must have an integer that is not negative, where it is there.
  Result<std::uint64_t> count_or(std::string_view key, std::uint64_t otherwise) const {
    for (const GgufEntry& entry : header_.metadata) {
      if (entry.key != key) continue;
      const auto* const number = std::get_if<GgufNumber>(&entry.value);
      const auto* const count = number == nullptr ? nullptr : std::get_if<std::uint64_t>(number);
      if (count != nullptr) return *count;
      const auto* const integer = number == nullptr ? nullptr : std::get_if<std::int64_t>(number);
      if (integer != nullptr && *integer >= 0) return static_cast<std::uint64_t>(*integer);
      return invalid_problem("{}: {} is of type {} or negative, must be an integer from 0 on", file_, key,
                             name(entry.type));
    }
    return otherwise;
  }

  Status read_facts() {
    const auto alignment = count_or("general.alignment", kDefaultAlignment), parts = count_or("split.count", 1);
    if (!alignment.ok()) return alignment.status();
    if (!parts.ok()) return parts.status();
    header_.alignment = *alignment;
    if (!std::has_single_bit(header_.alignment) || header_.alignment > kMaxHeaderBytes)
      return invalid_problem("{}: general.alignment {} must be a power of two and at most {}", file_, header_.alignment,
                             kMaxHeaderBytes);
    if (*parts > 1)
      return base::unsupported(
          "{}: is one of {} parts (split.count); files in parts are not read, join them first with llama-gguf-split "
          "--merge",
          file_, *parts);
    return {};
  }

  template <class... Args>
  Status refuse(const GgufTensor& tensor, fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_problem("{}: tensor \"{}\": {}", file_, printable(tensor.name),
                           base::text(format, std::forward<Args>(args)...));
  }

  Status read_tensor(std::uint64_t index) {
    GgufTensor tensor;
    if (Status s = take_name(tensor.name, kMaxNameBytes, base::text("the name of tensor {}", index)); !s.ok()) return s;
    std::uint32_t dimensions = 0, number = 0;
    if (Status s = take_number(dimensions, "the number of dimensions"); !s.ok()) return s;
    if (dimensions > kMaxGgufDimensions)
      return refuse(tensor, "has {} dimensions, must have at most {}", dimensions, kMaxGgufDimensions);
    tensor.shape.resize(dimensions);
    for (std::uint64_t& size : tensor.shape)
      if (Status s = take_number(size, "a size"); !s.ok()) return s;
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    if (Status s = take_number(number, "a type"); !s.ok()) return s;
    const GgufTypeInfo* const type = find_gguf_type(number);
    if (type == nullptr) return refuse(tensor, "type {} is unknown", number);
    tensor.type = type->type;
    if (Status s = take_number(tensor.begin, "an offset"); !s.ok()) return s;
    if (tensor.begin > kMaxFileBytes || tensor.begin % header_.alignment != 0)
      return refuse(tensor, "offset {} is no multiple of the alignment {}", tensor.begin, header_.alignment);
    if (Status s = set_size(tensor, *type); !s.ok()) return s;
    header_.tensors.push_back(std::move(tensor));
    return {};
  }

  Status set_size(GgufTensor& tensor, const GgufTypeInfo& type) const {
    const std::uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % type.block_elements != 0)
      return refuse(tensor, "a row of {} elements is no whole number of blocks of {}, which have {}", row, type.name,
                    type.block_elements);
    std::uint64_t elements = 1;
    bool empty = false;
    for (const std::uint64_t size : tensor.shape) {
      empty |= size == 0;
      if (size != 0 && (__builtin_mul_overflow(elements, size, &elements) || elements > kMaxFileBytes))
        return refuse(tensor, "shape {} overflows", base::bracketed(tensor.shape));
    }
    std::uint64_t bytes = 0;
    if (!empty && (__builtin_mul_overflow(elements / type.block_elements, type.block_bytes, &bytes) ||
                   bytes > kMaxFileBytes - tensor.begin))
      return refuse(tensor, "shape {} of {} at offset {} overflows", base::bracketed(tensor.shape), type.name,
                    tensor.begin);
    tensor.end = tensor.begin + bytes;
    return {};
  }

  Status check_places() {
    std::vector<GgufTensor>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const GgufTensor& a, const GgufTensor& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    const std::uint64_t data_bytes = file_bytes_ - std::min(file_bytes_, header_.data_offset);
    const GgufTensor* previous = nullptr;
    for (const GgufTensor& tensor : tensors) {
      if (tensor.end > data_bytes)
        return refuse(tensor, "its bytes [{}, {}] end beyond the {} bytes of data of the file", tensor.begin,
                      tensor.end, data_bytes);
      if (previous != nullptr && tensor.begin < previous->end)
        return refuse(tensor, "begins at {}, an overlap with \"{}\", which ends at {}", tensor.begin,
                      printable(previous->name), previous->end);
      previous = &tensor;
    }
    return {};
  }

  std::string_view loaded_;
  std::uint64_t file_bytes_;
  std::string file_;
  std::uint64_t position_ = 0;
  std::uint64_t wanted_ = 0;
  std::uint64_t tensors_ = 0, entries_ = 0;
  GgufHeader header_;
};

Status no_memory(std::string_view file_name, std::uint64_t bytes) {
  return base::refuse(StatusCode::Internal, "{}: not enough memory for a header of at least {} bytes",
                      printable(file_name), bytes);
}

}  // namespace

std::span<const GgufTypeInfo> gguf_types() { return kTypes; }

const GgufTypeInfo* find_gguf_type(std::uint32_t number) {
  const auto* const found = std::find_if(kTypes.begin(), kTypes.end(), [&](const GgufTypeInfo& info) {
    return static_cast<std::uint32_t>(info.type) == number;
  });
  return found == kTypes.end() ? nullptr : found;
}

const GgufTypeInfo& info(GgufType type) { return *find_gguf_type(static_cast<std::uint32_t>(type)); }

std::string_view name(GgufValueType type) { return kValueTypes[static_cast<std::size_t>(type)].name; }

std::size_t GgufArray::size() const {
  return element == GgufValueType::string ? strings.size() : numbers.size() / bytes_of(element);
}

GgufNumber GgufArray::number(std::size_t i) const { return number_at(element, numbers.data() + i * bytes_of(element)); }

Result<GgufHeader> parse_gguf_header(std::string_view loaded, std::uint64_t file_bytes, std::string_view file_name,
                                     std::uint64_t& wanted) {
  wanted = 0;
  try {
    Parser parser(loaded, file_bytes, file_name);
    auto header = parser.run();
    wanted = parser.wanted();
    return header;
  } catch (const std::bad_alloc&) {
    return no_memory(file_name, loaded.size());
  }
}

GgufFile::GgufFile(InputFile file, GgufHeader header)
    : file_(std::move(file)),
      header_(std::move(header)),
      tensors_by_name_(order_by(header_.tensors, &GgufTensor::name)),
      entries_by_key_(order_by(header_.metadata, &GgufEntry::key)) {}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  auto input = InputFile::open(path);
  if (!input.ok()) return input.status();
  // Nothing says how long the header is: as much as it turns out to need.
  std::uint64_t bytes = std::min(kFirstLoad, input->size());
  try {
    for (;;) {
      std::string loaded(bytes, '\0');
      if (Status s = input->read(0, std::as_writable_bytes(std::span(loaded))); !s.ok()) return s;
      std::uint64_t wanted = 0;
      auto header = parse_gguf_header(loaded, input->size(), path.native(), wanted);
      if (header.ok()) return GgufFile(std::move(*input), std::move(*header));
      if (wanted <= bytes) return header.status();
      bytes = std::min({std::max(wanted, 4 * bytes), input->size(), kMaxHeaderBytes});
    }
  } catch (const std::bad_alloc&) {
    return no_memory(path.native(), bytes);
  }
}

const GgufEntry* GgufFile::find_entry(std::string_view key) const {
  return found_by(header_.metadata, &GgufEntry::key, entries_by_key_, key);
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  return found_by(header_.tensors, &GgufTensor::name, tensors_by_name_, name);
}

Status GgufFile::read(const GgufTensor& tensor, std::uint64_t offset, std::span<std::byte> to) const {
  if (offset > tensor.bytes() || to.size() > tensor.bytes() - offset)
    return invalid_problem("{}: tensor \"{}\": has {} bytes, wanted {} from {}", printable_path(file_.path()),
                           printable(tensor.name), tensor.bytes(), to.size(), offset);
  return file_.read(header_.data_offset + tensor.begin + offset, to);
}

bool is_gguf(const std::filesystem::path& path) {
  const auto file = InputFile::open(path);
  if (!file.ok() || file->size() < kMagic.size()) return false;
  std::array<char, kMagic.size()> magic{};
  return file->read(0, std::as_writable_bytes(std::span(magic))).ok() &&
         std::string_view(magic.data(), magic.size()) == kMagic;
}

}  // namespace kvant::io
