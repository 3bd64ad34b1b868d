// The tensors that take the place of a Linear's weight in the compressed-tensors layout: their names, dtypes and
// shapes, for those who write them and those who read them.
//
//   int-quantized         X.weight I8 [out, in]                          X.weight_scale as below
//   float-quantized       X.weight F8_E4M3 [out, in]
//   mxfp8-quantized       X.weight F8_E4M3 [out, in]                     X.weight_scale U8 (e8m0) [out, in / 32]
//   pack-quantized        X.weight_packed I32 [out, ceil(in / 8 or 4)]   X.weight_shape I64 [2]
//                         X.weight_zero_point I32 [ceil(out / 8 or 4), in / group] if asymmetric
//   mxfp4-pack-quantized  X.weight_packed U8 [out, in / 2]               X.weight_scale U8 (e8m0) [out, in / 32]
//   nvfp4-pack-quantized  X.weight_packed U8 [out, in / 2]               X.weight_scale F8_E4M3 [out, in / 16]
//                         X.weight_global_scale F32 [1], which scales are divided by
//
//   X.weight_scale        [1] for a tensor, [out, 1] for channels, [out, in / group], or
//                         [ceil(out / rows), ceil(in / columns)] for blocks
//   X.input_scale [1], X.input_zero_point I8 [1] for static activations, X.input_global_scale F32 [1] for local ones
//
// A word holds eight codes u = q + 8, element i in bits 4i to 4i + 3, or four of u = q + 128; zero points are packed so
// along the first dimension. A byte of nibbles has the even element in its lower half.
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

enum class TensorKind : std::uint8_t {
  codes,               // X.weight
  packed_codes,        // X.weight_packed
  scales,              // X.weight_scale
  global_scale,        // X.weight_global_scale
  weight_shape,        // X.weight_shape
  zero_points,         // X.weight_zero_point
  input_scale,         // X.input_scale
  input_zero_point,    // X.input_zero_point
  input_global_scale,  // X.input_global_scale
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
// Of the Linear `module` with a weight [rows, columns] of `dtype`. `columns` is a multiple of column_unit().
std::vector<LayerOutput> layer_outputs(const Scheme& scheme, std::string_view module, io::DType dtype,
                                       std::uint64_t rows, std::uint64_t columns);

// Bytes that a row of so many codes takes.
std::uint64_t bytes_of_codes(const WeightScheme& weights, std::uint64_t count);
// Bits that a code takes in its tensor.
std::uint64_t stored_bits(const WeightScheme& weights);
// The other way than unpack_codes(). Words and bytes are full: `count` is a multiple of column_unit().
void pack_codes(const WeightScheme& weights, const std::int8_t* codes, std::uint64_t count, std::byte* stored);
// Stored codes, one to a byte: integers with their sign, others as their bits. The last word, or byte, may hold more
// than `count` needs.
void unpack_codes(const WeightScheme& weights, const std::byte* stored, std::uint64_t count, std::int8_t* codes);
// Zero points of rows, as many to a word as codes: [rows, groups] to [ceil(rows / 8 or 4), groups], the first row in
// the lowest bits, 0 for rows that are missing.
void pack_zero_points(ElementKind code, std::span<const std::int32_t> zero_points, std::uint64_t groups,
                      std::vector<std::uint32_t>& words);
// The zero point of a row in its word.
std::int8_t unpack_zero_point(ElementKind code, std::uint32_t word, std::uint64_t row);

}  // namespace kvant::format
