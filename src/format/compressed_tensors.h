// The tensors that take the place of a Linear's weight in the compressed-tensors layout: their names, dtypes and
// shapes, for those who write them and those who read them.
//
//   int-quantized   X.weight I8 [out, in]                 X.weight_scale [out, 1]
//                   X.input_scale [1], X.input_zero_point I8 [1] for static activations
//   pack-quantized  X.weight_packed I32 [out, ceil(in / 8)] X.weight_scale [out, in / group]    X.weight_shape I64 [2]
//                   X.weight_zero_point I32 [ceil(out / 8), in / group] if asymmetric
//
// A packed word holds eight codes u = q + 8, element i in bits 4i to 4i + 3; zero points are packed so along the first
// dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/scheme.h"
#include "io/safetensors.h"

namespace kvant::format {

inline constexpr ElementKind kPacked = ElementKind::s4;  // the codes that words hold
inline constexpr std::uint64_t kPerWord = codes_per_word(kPacked);

enum class TensorKind : std::uint8_t {
  codes,             // X.weight
  packed_codes,      // X.weight_packed
  scales,            // X.weight_scale
  weight_shape,      // X.weight_shape
  zero_points,       // X.weight_zero_point
  input_scale,       // X.input_scale
  input_zero_point,  // X.input_zero_point
};

// One of them. A scheme has it, or must not have it.
struct TensorSpec {
  TensorKind kind;
  std::string_view suffix;  // ".weight_scale"
  std::string_view needed;  // why a Linear cannot do without
};

// All of them, in the order in which they are written.
std::span<const TensorSpec> tensor_specs();
const TensorSpec& spec_of(TensorKind kind);

// Why a Linear of the scheme must not have it; empty: it must.
std::string why_absent(TensorKind kind, const Scheme& scheme);

// Of a Linear with a weight [rows, columns].
struct LinearShape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
};
// The dtypes that a reader takes. A writer takes the first, or for scales that of scale_dtype().
std::span<const io::DType> dtypes_of(TensorKind kind, const Scheme& scheme);
std::vector<std::uint64_t> shape_of(TensorKind kind, const Scheme& scheme, const LinearShape& linear);

// The module whose codes the tensor holds, by its name and dtype; nothing: it holds none.
std::optional<std::string_view> module_of_codes(const io::TensorInfo& tensor);
// The module that the tensor is stored for, if it is one of these by its name (X.weight: if it holds codes); nothing:
// it is none.
std::optional<std::string_view> module_of_quantized(const io::TensorInfo& tensor);

// What a Linear's weight becomes.
struct LayerOutput {
  TensorKind kind;
  io::TensorInfo info;  // without a place
};
// Of the Linear `module` with a weight [rows, columns] of `dtype`. `columns` is a multiple of the group size where the
// scheme has groups.
std::vector<LayerOutput> layer_outputs(const Scheme& scheme, std::string_view module, io::DType dtype,
                                       std::uint64_t rows, std::uint64_t columns);

// Four-bit codes of words, as signed bytes. The last word may hold more than `count` needs.
void unpack_codes(const std::byte* words, std::uint64_t count, std::int8_t* codes);
// Zero points of rows, eight to a word: [rows, groups] to [ceil(rows / 8), groups], the first row in the lowest bits, 0
// for rows that are missing.
void pack_zero_points(std::span<const std::int32_t> zero_points, std::uint64_t groups,
                      std::vector<std::uint32_t>& words);
// The zero point of a row in its word.
std::int8_t unpack_zero_point(std::uint32_t word, std::uint64_t row);

}  // namespace kvant::format
