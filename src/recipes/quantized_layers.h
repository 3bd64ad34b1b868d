// What a quantized checkpoint says of itself: the scheme in its config.json, and for every Linear its codes, scales and
// zero points in the compressed-tensors layout (scheme.h). compare and verify read checkpoints through it.
//
//   int-quantized   X.weight I8 [out, in]                 X.weight_scale [out, 1]
//                   X.input_scale [1], X.input_zero_point I8 [1] for static activations
//   pack-quantized  X.weight_packed I32 [out, in / 8]     X.weight_scale [out, in / group]    X.weight_shape I64 [2]
//                   X.weight_zero_point I32 [ceil(out / 8), in / group] if asymmetric
//
// A packed word holds eight codes u = q + 8, element i in bits 4i to 4i + 3; zero points are packed so along the first
// dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "kvant/status.h"
#include "recipes/scheme.h"

namespace kvant::recipes {

// The scheme and the ignore list that "quantization_config" names, in config.json or in the metadata of a single file.
struct QuantizationConfig {
  Scheme scheme;
  std::vector<std::string> ignore;
};
// Refuses with the reason: no quantization_config, another method, a form that kvant does not write.
Result<QuantizationConfig> read_quantization_config(const io::Checkpoint& checkpoint);

struct QuantizedLayer {
  std::string module;
  std::uint64_t rows = 0;     // out_features
  std::uint64_t columns = 0;  // in_features
  int bits = 8;
  std::uint64_t group_size = 0;  // columns that share a scale; `columns` for int-quantized
  io::TensorPlace codes;
  io::TensorPlace scales;
  std::optional<io::TensorPlace> zero_points;  // of weights
};
// Every quantized Linear of the checkpoint by name. Refuses tensors whose shapes or dtypes do not agree.
Result<std::vector<QuantizedLayer>> find_quantized_layers(const io::Checkpoint& checkpoint,
                                                          const QuantizationConfig& config);

// Rows [row, row + count) of a layer: codes as signed bytes, scales as f32, zero points (0 without).
struct LayerRows {
  std::vector<std::int8_t> codes;         // count * columns
  std::vector<float> scales;              // count * columns / group_size
  std::vector<std::int32_t> zero_points;  // as many
};
Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 LayerRows& rows);

}  // namespace kvant::recipes
