// The tensors that take the place of a Linear's weight, in the compressed-tensors layout.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/scheme.h"
#include "io/safetensors.h"
#include "quantize/weight_tile.h"

namespace kvant::format {

enum class OutputKind : std::uint8_t {
  codes,             // X.weight, or X.weight_packed
  scales,            // X.weight_scale
  zero_points,       // X.weight_zero_point, packed
  weight_shape,      // X.weight_shape
  input_scale,       // X.input_scale
  input_zero_point,  // X.input_zero_point
};

struct LayerOutput {
  OutputKind kind;
  io::TensorInfo info;  // without a place
};

// Of the Linear `module` with a weight [rows, columns] of `dtype`. `columns` is a multiple of the group size where the
// scheme has groups.
std::vector<LayerOutput> layer_outputs(const Scheme& scheme, std::string_view module, io::DType dtype,
                                       std::uint64_t rows, std::uint64_t columns);

// The dtype of its scales: what the scheme says, or the weight's own (F32 for F64, which no loader takes).
io::DType scale_dtype(const Scheme& scheme, io::DType weight);
quantize::WeightForm weight_form(const Scheme& scheme, io::DType weight);
// How many columns share a scale.
std::uint64_t columns_of_a_scale(const Scheme& scheme, std::uint64_t columns);

}  // namespace kvant::format
