// The reader and the writer of safetensors. Long for one reason: the header is parsed by a strict SAX handler of its
// own, which must know at every step what the format allows there, and both sides share its limits. The reader of
// safetensors headers is a handler of JSON events: it knows the one shape a header may have and stops at the first
// event that has no place in it, so that no tree of the document is ever built.
#include "io/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"

namespace kvant::io {
namespace {

using base::invalid_problem;

constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kShownBytes = 1000;  // of a name, as printable() walks all of it
constexpr std::string_view kMetadata = "__metadata__";

struct DTypeTraits {
  std::string_view name;
  int bits;
};

constexpr std::array<DTypeTraits, 22> kDTypes{{
    {"BOOL", 8}, {"U8", 8},      {"I8", 8},      {"I16", 16},    {"U16", 16},        {"I32", 32},
    {"U32", 32}, {"I64", 64},    {"U64", 64},    {"F16", 16},    {"BF16", 16},       {"F32", 32},
    {"F64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    {"C64", 64}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},
}};
static_assert(kDTypes.size() == static_cast<std::size_t>(DType::f6_e3m2) + 1);

// A text from the file as a sentence shows it: escaped, and cut, as it may be 100 MB.
std::string shown(std::string_view text) {
  if (text.size() <= kShownBytes) return printable(text);
  std::size_t end = kShownBytes;
  while (end > kShownBytes - 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // inside a character
  return printable(text.substr(0, end)) + "...";
}

Status out_of_memory(std::string_view who, std::uint64_t header_bytes) {
  return base::refuse(StatusCode::Internal, "{}: not enough memory for a header of {} bytes", who, header_bytes);
}

// ---- Sizes ----------------------------------------------------------------------------------------------------

// The product of the sizes that are not 0.
std::optional<std::uint64_t> nonzero_product(std::span<const std::uint64_t> shape) {
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) {
    if (size == 0) continue;
    if (__builtin_mul_overflow(product, size, &product) || product > kMaxFileBytes) return std::nullopt;
  }
  return product;
}

// Eight elements take as many bytes as one has bits: the bits themselves need not fit into 64.
struct ByteCount {
  std::uint64_t whole;
  std::uint64_t bits_left;
};

std::optional<ByteCount> count_bytes(DType dtype, std::span<const std::uint64_t> shape) {
  const auto product = nonzero_product(shape);
  if (!product) return std::nullopt;
  const auto width = static_cast<std::uint64_t>(bits(dtype));
  const std::uint64_t rest = *product % 8 * width;
  std::uint64_t whole = 0;
  if (__builtin_mul_overflow(*product / 8, width, &whole) || whole > kMaxFileBytes - rest / 8) return std::nullopt;
  if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) return ByteCount{0, 0};
  return ByteCount{whole + rest / 8, rest % 8};
}

// What is wrong with a shape of that dtype, as the end of a sentence. Empty: nothing.
std::string size_problem(DType dtype, std::span<const std::uint64_t> shape) {
  const auto count = count_bytes(dtype, shape);
  if (!count)
    return fmt::format("shape {} of {} overflows, must have at most {} bytes", base::bracketed(shape), name(dtype),
                       kMaxFileBytes);
  if (count->bits_left != 0)
    return fmt::format("shape {} of {} has {} bytes and {} bits, must be whole bytes", base::bracketed(shape),
                       name(dtype), count->whole, count->bits_left);
  return {};
}

// ---- Names ----------------------------------------------------------------------------------------------------

std::vector<std::uint32_t> order_by_name(const std::vector<TensorInfo>& tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

// A name that two tensors have; null: none. Sorted by their hashes, as numbers compare faster than names, and then by
// name: a hash table could be given names that all collide.
const std::string* name_twice(const std::vector<TensorInfo>& tensors) {
  struct Hashed {
    std::size_t hash;
    const std::string* name;
  };
  std::vector<Hashed> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back({std::hash<std::string>()(tensor.name), &tensor.name});
  std::sort(names.begin(), names.end(),
            [](const Hashed& a, const Hashed& b) { return a.hash != b.hash ? a.hash < b.hash : *a.name < *b.name; });
  const auto twice = std::adjacent_find(names.begin(), names.end(), [](const Hashed& a, const Hashed& b) {
    return a.hash == b.hash && *a.name == *b.name;
  });
  return twice == names.end() ? nullptr : twice->name;
}

// ---- Events of the parser -------------------------------------------------------------------------------------

// The header's bytes as the parser sees them: a run of white space outside of strings is one space. The parser keeps
// everything since the last string for its message, eight bytes for each line feed, and would need gigabytes for it.
class HeaderBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  // `last_read` is kept at the byte that was read last.
  HeaderBytes(const char* at, const char* end, const char** last_read) : at_(at), end_(end), last_read_(last_read) {}

  char operator*() const { return outside_space() ? ' ' : *at_; }
  HeaderBytes& operator++() {
    *last_read_ = at_;
    const bool space = outside_space();
    follow_strings();
    ++at_;
    if (space)
      while (at_ != end_ && is_space(*at_)) ++at_;
    return *this;
  }
  HeaderBytes operator++(int) {
    HeaderBytes old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const HeaderBytes& a, const HeaderBytes& b) { return a.at_ == b.at_; }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
  bool outside_space() const { return !in_string_ && is_space(*at_); }
  void follow_strings() {
    const bool quote = *at_ == '"' && !escaped_;
    escaped_ = in_string_ && *at_ == '\\' && !escaped_;
    in_string_ ^= quote;
  }

  const char* at_;
  const char* end_;
  const char** last_read_;
  bool in_string_ = false;
  bool escaped_ = false;
};

// Where in a header the next event stands.
enum class Place : std::uint8_t {
  header,          // before everything
  names,           // among the names of tensors
  tensor,          // after a name
  fields,          // among the fields of a tensor
  dtype,           // after that field's name
  shape,           // after that field's name
  sizes,           // inside its brackets
  offsets,         // after that field's name
  begin_end,       // inside its brackets
  metadata,        // after that name
  metadata_names,  // among its names
  metadata_value,  // after one of them
};

class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(std::string_view json, std::string_view file_name) : json_(json), file_name_(file_name) {}

  // Success, or why an event was answered with false.
  const Status& status() const { return status_; }
  SafetensorsHeader take() { return std::move(header_); }
  HeaderBytes begin() { return {json_.data(), json_.data() + json_.size(), &last_read_}; }
  HeaderBytes end() { return {json_.data() + json_.size(), json_.data() + json_.size(), &last_read_}; }

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  // Called for what has a minus sign only.
  bool number_integer(number_integer_t value) override {
    return unexpected(value == 0 ? std::string("-0") : base::text("{}", value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > kMaxFileBytes) return unexpected(base::text("{}", value));
    if (place_ == Place::sizes) return add_size(value);
    if (place_ == Place::begin_end) return add_offset(value);
    return unexpected(base::text("{}", value));
  }
  // Also integers beyond 64 bits.
  bool number_float(number_float_t /*value*/, const string_t& text) override { return unexpected(shown(text)); }
  bool binary(binary_t& /*value*/) override { return unexpected("binary"); }

  bool string(string_t& value) override {
    if (place_ == Place::dtype) return set_dtype(value);
    if (place_ != Place::metadata_value) return unexpected(fmt::format("the string \"{}\"", shown(value)));
    metadata_value_->second = value;
    place_ = Place::metadata_names;
    return true;
  }

  bool start_object(std::size_t /*elements*/) override {
    switch (place_) {
      case Place::header: place_ = Place::names; return true;
      case Place::tensor: place_ = Place::fields; return true;
      case Place::metadata: place_ = Place::metadata_names; return true;
      default: return unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    switch (place_) {
      case Place::names: return name == kMetadata ? start_metadata() : start_tensor(name);
      case Place::fields: return start_field(name);
      default: return add_metadata(name);
    }
  }

  bool end_object() override {
    const bool good = place_ != Place::fields || finish_tensor();
    place_ = Place::names;
    return good;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("an array");
    place_ = place_ == Place::shape ? Place::sizes : Place::begin_end;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::begin_end && offsets_ != 2)
      return refuse_tensor("data_offsets has {} integers, must have 2", offsets_);
    place_ = Place::fields;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& token,
                   const nlohmann::json::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) return unexpected(shown(token));
    return refuse("header is not JSON in UTF-8 at byte {}: {}", last_read_ - json_.data(), reason(error.what()));
  }

 private:
  enum Field : unsigned { kDType = 1, kShape = 2, kOffsets = 4 };

  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    status_ = invalid_problem("{}: {}", printable(file_name_), fmt::format(format, std::forward<Args>(args)...));
    return false;
  }
  template <class... Args>
  bool refuse_tensor(fmt::format_string<Args...> format, Args&&... args) {
    return refuse("tensor \"{}\": {}", shown(tensor_.name), fmt::format(format, std::forward<Args>(args)...));
  }

  // The part of the parser's message between what it was parsing and what it had read, which can be as long as the
  // file.
  static std::string reason(std::string_view what) {
    if (const std::size_t start = what.find(" - "); start != std::string_view::npos) what.remove_prefix(start + 3);
    return std::string(what.substr(0, what.find("; last read: ")));
  }

  // A value that cannot stand at this place.
  bool unexpected(std::string_view found) {
    switch (place_) {
      case Place::tensor: return refuse_tensor("is {}, must be an object", found);
      case Place::dtype: return refuse_tensor("dtype is {}, must be a string", found);
      case Place::shape: return refuse_tensor("shape is {}, must be an array of integers", found);
      case Place::sizes: return refuse_tensor("shape has {}, must have integers from 0 to {}", found, kMaxFileBytes);
      case Place::offsets: return refuse_tensor("data_offsets is {}, must be an array of 2 integers", found);
      case Place::begin_end:
        return refuse_tensor("data_offsets has {}, must have integers from 0 to {}", found, kMaxFileBytes);
      case Place::metadata: return refuse("\"{}\" is {}, must be an object of strings", kMetadata, found);
      case Place::metadata_value:
        return refuse("\"{}\": \"{}\" is {}, must be a string", kMetadata, shown(metadata_value_->first), found);
      default: return refuse("header is {}, must be an object", found);
    }
  }

  bool start_metadata() {
    if (std::exchange(has_metadata_, true)) return refuse("\"{}\" is there twice", kMetadata);
    place_ = Place::metadata;
    return true;
  }

  bool add_metadata(const std::string& name) {
    const std::size_t count = header_.metadata.size();
    metadata_value_ = header_.metadata.try_emplace(header_.metadata.end(), name);  // the hint: often in order
    if (header_.metadata.size() == count) return refuse("\"{}\": \"{}\" is there twice", kMetadata, shown(name));
    place_ = Place::metadata_value;
    return true;
  }

  bool start_tensor(const std::string& name) {
    tensor_.name = name;
    dimensions_ = 0;
    offsets_ = 0;
    fields_ = 0;
    place_ = Place::tensor;
    return true;
  }

  bool start_field(std::string_view name) {
    if (name == "dtype") return start_field(name, kDType, Place::dtype);
    if (name == "shape") return start_field(name, kShape, Place::shape);
    if (name == "data_offsets") return start_field(name, kOffsets, Place::offsets);
    return refuse_tensor("field \"{}\" is unknown, must have exactly dtype, shape and data_offsets", shown(name));
  }

  bool start_field(std::string_view name, Field field, Place place) {
    if ((fields_ & field) != 0) return refuse_tensor("{} is there twice", name);
    fields_ |= field;
    place_ = place;
    return true;
  }

  bool set_dtype(std::string_view text) {
    const auto dtype = dtype_named(text);
    if (!dtype) return refuse_tensor("dtype \"{}\" is unknown", shown(text));
    tensor_.dtype = *dtype;
    place_ = Place::fields;
    return true;
  }

  bool add_size(std::uint64_t size) {
    if (dimensions_ == kMaxDimensions) return refuse_tensor("shape has more than {} dimensions", kMaxDimensions);
    shape_[dimensions_++] = size;
    return true;
  }

  bool add_offset(std::uint64_t offset) {
    if (offsets_ == 2) return refuse_tensor("data_offsets has more than 2 integers");
    (offsets_++ == 0 ? tensor_.begin : tensor_.end) = offset;
    return true;
  }

  bool finish_tensor() {
    for (const auto& [field, name] : {std::pair(kDType, "dtype"), {kShape, "shape"}, {kOffsets, "data_offsets"}})
      if ((fields_ & field) == 0) return refuse_tensor("{} is missing", name);
    tensor_.shape.assign(shape_.begin(), shape_.begin() + static_cast<std::ptrdiff_t>(dimensions_));
    if (!check_size()) return false;
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  bool check_size() {
    const DType dtype = tensor_.dtype;
    const std::span<const std::uint64_t> shape = tensor_.shape;
    const std::uint64_t begin = tensor_.begin, end = tensor_.end;
    if (begin > end) return refuse_tensor("data_offsets [{}, {}] end before they begin", begin, end);
    if (const std::string problem = size_problem(dtype, shape); !problem.empty()) return refuse_tensor("{}", problem);
    const std::uint64_t needed = *tensor_bytes(dtype, shape);
    if (tensor_.bytes() == needed) return true;
    return refuse_tensor("data_offsets [{}, {}] are {} bytes, shape {} of {} needs {}", begin, end, tensor_.bytes(),
                         base::bracketed(shape), name(dtype), needed);
  }

  std::string_view json_;
  std::string_view file_name_;
  const char* last_read_ = json_.data();
  Status status_;
  SafetensorsHeader header_;
  Place place_ = Place::header;
  TensorInfo tensor_;                                  // the one that is being read
  std::array<std::uint64_t, kMaxDimensions> shape_{};  // so that each tensor's own vector is made at its final size
  std::size_t dimensions_ = 0;
  int offsets_ = 0;
  unsigned fields_ = 0;  // of Field
  bool has_metadata_ = false;
  std::map<std::string, std::string>::iterator metadata_value_;
};

// ---- The header as a whole ------------------------------------------------------------------------------------

// What the parser would let pass: it takes a byte 0 for the end, and any white space around the object.
Status check_ends(std::string_view json, std::string_view file) {
  if (json.empty()) return invalid_problem("{}: header is empty, must begin with '{{'", file);
  if (json.front() != '{')
    return invalid_problem("{}: header begins with byte {:#04x}, must begin with '{{'", file,
                           static_cast<unsigned char>(json.front()));
  const std::size_t last = json.find_last_not_of(' ');
  if (json[last] != '}')
    return invalid_problem("{}: header ends with byte {:#04x} at {}, must end with '}}' and spaces", file,
                           static_cast<unsigned char>(json[last]), last);
  if (const std::size_t zero = json.find('\0'); zero != std::string_view::npos)
    return invalid_problem("{}: header is not JSON: byte 0x00 at {}", file, zero);
  return {};
}

void sort_by_place(std::vector<TensorInfo>& tensors) {
  const auto before = [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), before)) std::sort(tensors.begin(), tensors.end(), before);
}

Status check_places(const SafetensorsHeader& header, std::uint64_t data_bytes, std::string_view file) {
  std::uint64_t expected = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != expected && previous == nullptr)
      return invalid_problem("{}: tensor \"{}\": data_offsets begin at {}, the first must begin at 0", file,
                             shown(tensor.name), tensor.begin);
    if (tensor.begin != expected)
      return invalid_problem("{}: tensor \"{}\": data_offsets begin at {}, {} with \"{}\", which ends at {}", file,
                             shown(tensor.name), tensor.begin, tensor.begin < expected ? "an overlap" : "a hole",
                             shown(previous->name), expected);
    expected = tensor.end;
    previous = &tensor;
  }
  if (expected == data_bytes) return {};
  if (previous == nullptr) return invalid_problem("{}: there are no tensors, but {} bytes of data", file, data_bytes);
  return invalid_problem("{}: tensor \"{}\": data_offsets end at {}, the file has {} bytes of data", file,
                         shown(previous->name), expected, data_bytes);
}

Result<SafetensorsHeader> parse(std::string_view json, std::uint64_t data_bytes, std::string_view file_name) {
  const std::string file = printable(file_name);
  if (json.size() > kMaxHeaderBytes)
    return invalid_problem("{}: header has {} bytes, must be at most {}", file, json.size(), kMaxHeaderBytes);
  if (Status status = check_ends(json, file); !status.ok()) return status;
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  HeaderHandler handler(json, file_name);
  if (!nlohmann::json::sax_parse(handler.begin(), handler.end(), &handler)) return handler.status();
  SafetensorsHeader header = handler.take();
  sort_by_place(header.tensors);
  if (const std::string* twice = name_twice(header.tensors))
    return invalid_problem("{}: tensor \"{}\" is there twice", file, shown(*twice));
  if (Status status = check_places(header, data_bytes, file); !status.ok()) return status;
  return header;
}

// ---- Files ----------------------------------------------------------------------------------------------------

std::uint64_t little_endian(std::span<const std::byte, kLengthBytes> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

Result<std::uint64_t> header_length(const InputFile& input, std::string_view file) {
  if (input.size() < kLengthBytes)
    return invalid_problem("{}: has {} bytes, the header's length alone takes {}", file, input.size(), kLengthBytes);
  std::array<std::byte, kLengthBytes> bytes{};
  if (Status status = input.read(0, bytes); !status.ok()) return status;
  const std::uint64_t length = little_endian(bytes);
  if (length > kMaxHeaderBytes)
    return invalid_problem("{}: header has {} bytes, must be at most {}", file, length, kMaxHeaderBytes);
  if (length > input.size() - kLengthBytes)
    return invalid_problem("{}: header has {} bytes, the file has {} after its length", file, length,
                           input.size() - kLengthBytes);
  return length;
}

// ---- New files ------------------------------------------------------------------------------------------------

constexpr std::string_view kLayOut = "safetensors";  // stands for the file, whose name is not known yet

// As JSON; nothing if it is not UTF-8.
std::optional<std::string> quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    return std::nullopt;
  }
}

// Gives the tensor its place after `position` and moves that on.
Status place_tensor(TensorInfo& tensor, std::uint64_t& position) {
  const auto refuse = [&](const std::string& problem) {
    return invalid_problem("{}: tensor \"{}\": {}", kLayOut, shown(tensor.name), problem);
  };
  if (tensor.name == kMetadata) return refuse("is reserved for the metadata");
  if (tensor.shape.size() > kMaxDimensions)
    return refuse(fmt::format("shape has {} dimensions, must have at most {}", tensor.shape.size(), kMaxDimensions));
  if (const std::string problem = size_problem(tensor.dtype, tensor.shape); !problem.empty()) return refuse(problem);
  const std::uint64_t bytes = *tensor_bytes(tensor.dtype, tensor.shape);
  if (bytes > kMaxFileBytes - position)
    return refuse(
        fmt::format("{} bytes after {} overflow, all tensors must have at most {}", bytes, position, kMaxFileBytes));
  tensor.begin = position;
  tensor.end = position += bytes;
  return {};
}

Status append_metadata(std::string& json, const std::map<std::string, std::string>& metadata) {
  if (metadata.empty()) return {};
  json += fmt::format("\"{}\":{{", kMetadata);
  for (const auto& [key, value] : metadata) {
    const auto quoted_key = quoted(key), quoted_value = quoted(value);
    if (!quoted_key || !quoted_value)
      return invalid_problem("{}: \"{}\": \"{}\": \"{}\" is not UTF-8", kLayOut, kMetadata, shown(key), shown(value));
    json += fmt::format("{}:{},", *quoted_key, *quoted_value);
  }
  json.back() = '}';
  json += ',';
  return {};
}

Status append_tensor(std::string& json, const TensorInfo& tensor) {
  const auto key = quoted(tensor.name);
  if (!key) return invalid_problem("{}: tensor \"{}\": its name is not UTF-8", kLayOut, shown(tensor.name));
  json += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", *key, name(tensor.dtype),
                      base::joined(tensor.shape, ","), tensor.begin, tensor.end);
  return {};
}

// Padded, so that the data begins at a multiple of 8.
Result<std::string> header_json(const std::vector<TensorInfo>& tensors,
                                const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (Status status = append_metadata(json, metadata); !status.ok()) return status;
  for (const TensorInfo& tensor : tensors)
    if (Status status = append_tensor(json, tensor); !status.ok()) return status;
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > kMaxHeaderBytes)
    return invalid_problem("{}: header of {} tensors has {} bytes, must be at most {}", kLayOut, tensors.size(),
                           json.size(), kMaxHeaderBytes);
  return json;
}

std::string with_length(const std::string& json) {
  std::string header;
  header.reserve(kLengthBytes + json.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return header += json;
}

Result<SafetensorsLayout> lay_out(std::vector<TensorInfo> tensors, const std::map<std::string, std::string>& metadata) {
  std::uint64_t position = 0;
  for (TensorInfo& tensor : tensors)
    if (Status status = place_tensor(tensor, position); !status.ok()) return status;
  if (const std::string* twice = name_twice(tensors))
    return invalid_problem("{}: tensor \"{}\" is there twice", kLayOut, shown(*twice));
  const auto json = header_json(tensors, metadata);
  if (!json.ok()) return json.status();
  SafetensorsLayout layout{with_length(*json), std::move(tensors), 0};
  if (layout.header.size() > kMaxFileBytes - position)
    return invalid_problem("{}: {} bytes of header and {} of data overflow, must have at most {}", kLayOut,
                           layout.header.size(), position, kMaxFileBytes);
  layout.file_bytes = layout.header.size() + position;
  return layout;
}

}  // namespace

std::string_view name(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    default: return "float32";
  }
}

int bits(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bits; }

std::optional<DType> dtype_named(std::string_view text) {
  const auto* const found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeTraits& traits) { return traits.name == text; });
  if (found == kDTypes.end()) return std::nullopt;
  return static_cast<DType>(found - kDTypes.begin());
}

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::uint64_t> shape) {
  const auto count = count_bytes(dtype, shape);
  if (!count || count->bits_left != 0) return std::nullopt;
  return count->whole;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                   std::string_view file_name) {
  try {
    return parse(json, data_bytes, file_name);
  } catch (const std::bad_alloc&) {
    return out_of_memory(printable(file_name), json.size());
  }
}

SafetensorsFile::SafetensorsFile(InputFile file, SafetensorsHeader header, std::uint64_t data_offset)
    : file_(std::move(file)),
      header_(std::move(header)),
      data_offset_(data_offset),
      by_name_(order_by_name(header_.tensors)) {}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  auto input = InputFile::open(path);
  if (!input.ok()) return input.status();
  const std::string file = printable(path.native());
  const auto length = header_length(*input, file);
  if (!length.ok()) return length.status();
  try {
    std::string json(*length, '\0');
    if (Status status = input->read(kLengthBytes, std::as_writable_bytes(std::span(json))); !status.ok()) return status;
    const std::uint64_t data_offset = kLengthBytes + *length;
    auto header = parse(json, input->size() - data_offset, path.native());
    if (!header.ok()) return header.status();
    return SafetensorsFile(std::move(*input), std::move(*header), data_offset);
  } catch (const std::bad_alloc&) {
    return out_of_memory(file, *length);
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name, [&](std::uint32_t index, auto wanted) {
    return header_.tensors[index].name < wanted;
  });
  if (at == by_name_.end() || header_.tensors[*at].name != name) return nullptr;
  return &header_.tensors[*at];
}

Status SafetensorsFile::read(const TensorInfo& tensor, std::uint64_t offset, std::span<std::byte> to) const {
  const std::uint64_t data_bytes = file_.size() - data_offset_;
  if (tensor.begin > tensor.end || tensor.end > data_bytes)
    return invalid_problem("{}: tensor \"{}\": data_offsets [{}, {}] are not in its {} bytes of data",
                           printable(file_.path().native()), shown(tensor.name), tensor.begin, tensor.end, data_bytes);
  if (offset > tensor.bytes() || to.size() > tensor.bytes() - offset)
    return invalid_problem("{}: tensor \"{}\": has {} bytes, wanted {} from {}", printable(file_.path().native()),
                           shown(tensor.name), tensor.bytes(), to.size(), offset);
  return file_.read(data_offset_ + tensor.begin + offset, to);
}

Result<SafetensorsLayout> lay_out_safetensors(std::vector<TensorInfo> tensors,
                                              const std::map<std::string, std::string>& metadata) {
  const std::size_t count = tensors.size();
  try {
    return lay_out(std::move(tensors), metadata);
  } catch (const std::bad_alloc&) {
    return base::refuse(StatusCode::Internal, "{}: not enough memory for the header of {} tensors", kLayOut, count);
  }
}

}  // namespace kvant::io
