// safetensors files: 8 bytes of header length, a JSON header, the data of all tensors without holes.
//
// The reader trusts nothing. It refuses, with the file, the tensor and the numbers in the sentence:
//   - a length beyond the file or beyond 100,000,000; a header that is not one JSON object that begins with '{', or not
//   UTF-8;
//     nesting deeper than the format has; anything but spaces after the object
//   - an entry without exactly dtype, shape and data_offsets; a field or a name twice (also where they are equal only
//   after
//     escapes are resolved); "__metadata__" that is not an object of strings
//   - an unknown dtype; shapes and offsets that are not integers of 0 to 2^63 - 1; more than 64 dimensions; a product
//   of
//     sizes that overflows, also where a 0 stands beside it; a size that is not the product of the shape and the dtype
//   - offsets that do not begin at 0, overlap, leave a hole or end before or after the end of the file
// Empty tensors and tensors without dimensions are legal. Memory is a small multiple of the header's length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/file.h"
#include "kvant/status.h"

namespace kvant::io {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Every dtype of the format. The ones below 8 bits are passed through unread.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  f16,
  bf16,
  f32,
  f64,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  c64,
  f4,
  f6_e2m3,
  f6_e3m2,
};
std::string_view name(DType dtype);
// "float32", "bfloat16": what torch, and so config.json, calls F32, F16 and BF16.
std::string_view torch_name(DType dtype);  // "BF16"
std::optional<DType> dtype_named(std::string_view text);
int bits(DType dtype);

struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // in the data
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

// The bytes of a tensor of that shape. Nothing if they overflow 63 bits (a 0 beside sizes that overflow does not excuse
// them) or are no whole number.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::uint64_t> shape);

// What a header says, checked by itself; `data_bytes` is what the file has after it.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their data; empty ones by name where they share a place
  std::map<std::string, std::string> metadata;
};
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                   std::string_view file_name);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorInfo* find(std::string_view name) const;  // null: none
  const InputFile& file() const { return file_; }

  // Bytes [offset, offset + to.size()) of a tensor of this file.
  Status read(const TensorInfo& tensor, std::uint64_t offset, std::span<std::byte> to) const;

 private:
  SafetensorsFile(InputFile file, SafetensorsHeader header, std::uint64_t data_offset);
  InputFile file_;
  SafetensorsHeader header_;
  std::uint64_t data_offset_ = 0;
  std::vector<std::uint32_t> by_name_;  // indices, sorted by name
};

// The header of a new file: tensors get their places in the order given (their begin and end are ignored), the JSON is
// padded with spaces to a multiple of 8 bytes. Refuses duplicate names and sizes that overflow.
struct SafetensorsLayout {
  std::string header;               // length and JSON
  std::vector<TensorInfo> tensors;  // with their places
  std::uint64_t file_bytes = 0;
};
Result<SafetensorsLayout> lay_out_safetensors(std::vector<TensorInfo> tensors,
                                              const std::map<std::string, std::string>& metadata);

}  // namespace kvant::io
