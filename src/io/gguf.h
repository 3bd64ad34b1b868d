// GGUF files, llama.cpp's format, versions 2 and 3, little endian: metadata as typed key-value pairs, a list of
// tensors, then their data, each aligned.
//
// The reader trusts nothing. It refuses, with the file, the tensor or key and the numbers in the sentence:
//   - another magic or version, a big-endian file; counts for which the file has no room; a header beyond 100,000,000
//     bytes
//   - a string or an array beyond the end of the file; a value type that is unknown; an array of arrays; a boolean that
//     is neither 0 nor 1; a key or a name twice, too long or not UTF-8
//   - general.alignment that is no power of two; split.count above 1: a file in parts is not read
//   - more than 4 dimensions; sizes that overflow, also where a 0 stands beside them; a type that is unknown; rows that
//     are no whole number of blocks
//   - offsets that are not aligned, overlap, or end beyond the end of the file
// Values that are strings may be any bytes. Memory is a small multiple of the header's length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/file.h"
#include "kvant/status.h"

namespace kvant::io {

// ---- Types of tensors -------------------------------------------------------------------------------------------

// What a tensor is stored in; the number is the file's. Some are only known by name and size.
enum class GgufType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
};

struct GgufTypeInfo {
  GgufType type;
  std::string_view name;  // "Q4_K"
  std::uint64_t block_elements;
  std::uint64_t block_bytes;
};
std::span<const GgufTypeInfo> gguf_types();
const GgufTypeInfo* find_gguf_type(std::uint32_t number);  // null: there is none
const GgufTypeInfo& info(GgufType type);

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  std::vector<std::uint64_t> shape;  // the last dimension varies fastest; the file lists them the other way round
  std::uint64_t begin = 0;           // in the data
  std::uint64_t end = 0;

  std::uint64_t bytes() const { return end - begin; }
};

// ---- Metadata ---------------------------------------------------------------------------------------------------

// In the order of the file's numbers.
enum class GgufValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view name(GgufValueType type);  // "u32"

using GgufNumber = std::variant<bool, std::uint64_t, std::int64_t, double>;

struct GgufArray {
  GgufValueType element = GgufValueType::u8;
  std::string numbers;               // as the file has them, so that a large array takes no more room than there
  std::vector<std::string> strings;  // of an array of strings

  std::size_t size() const;
  // Of an array of numbers or booleans; i is below size().
  GgufNumber number(std::size_t i) const;
};

struct GgufEntry {
  std::string key;
  GgufValueType type = GgufValueType::u8;
  std::variant<GgufNumber, std::string, GgufArray> value;
};

// ---- Files ------------------------------------------------------------------------------------------------------

struct GgufHeader {
  std::uint32_t version = 0;
  std::uint64_t alignment = 0;
  std::uint64_t data_offset = 0;
  std::vector<GgufEntry> metadata;  // in the order of the file
  std::vector<GgufTensor> tensors;  // in the order of their data; empty ones by name where they share a place
};

// `loaded` is the beginning of a file of `file_bytes` bytes. Where the header goes on behind it, that is a refusal and
// `wanted` says how many bytes are needed at least; in all other cases `wanted` is 0.
Result<GgufHeader> parse_gguf_header(std::string_view loaded, std::uint64_t file_bytes, std::string_view file_name,
                                     std::uint64_t& wanted);

class GgufFile {
 public:
  static Result<GgufFile> open(const std::filesystem::path& path);

  std::uint32_t version() const { return header_.version; }
  const std::vector<GgufEntry>& metadata() const { return header_.metadata; }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }
  const GgufEntry* find_entry(std::string_view key) const;     // null: none
  const GgufTensor* find_tensor(std::string_view name) const;  // null: none
  const InputFile& file() const { return file_; }

  // Bytes [offset, offset + to.size()) of a tensor of this file.
  Status read(const GgufTensor& tensor, std::uint64_t offset, std::span<std::byte> to) const;

 private:
  GgufFile(InputFile file, GgufHeader header);
  InputFile file_;
  GgufHeader header_;
  std::vector<std::uint32_t> tensors_by_name_;  // indices, sorted
  std::vector<std::uint32_t> entries_by_key_;
};

// Whether a regular file begins like a GGUF. False also where it cannot be read: whoever opens it then says why.
bool is_gguf(const std::filesystem::path& path);

}  // namespace kvant::io
