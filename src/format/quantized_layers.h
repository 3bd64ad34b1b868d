// What a quantized checkpoint says of itself: the scheme in its config.json, and for every Linear its codes, scales and
// zero points in the compressed-tensors layout (scheme.h). compare and verify read checkpoints through it.
//
//   int-quantized   X.weight I8 [out, in]                 X.weight_scale [out, 1]
//                   X.input_scale [1], X.input_zero_point I8 [1] for static activations
//   pack-quantized  X.weight_packed I32 [out, ceil(in / 8)] X.weight_scale [out, in / group]    X.weight_shape I64 [2]
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

#include "format/scheme.h"
#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::format {

// The scheme and the lists that "quantization_config" names, in config.json or in the metadata of a single file.
struct QuantizationConfig {
  Scheme scheme;
  std::vector<std::string> ignore;
  std::vector<std::string> targets = {"Linear"};
};
// Refuses with the reason: no quantization_config, another method, a form that kvant does not write.
Result<QuantizationConfig> read_quantization_config(const io::Checkpoint& checkpoint);

// The same in two steps, for those who want all that is wrong: where it stands and what it says (nothing: the
// checkpoint has none), and what that means. Sentences go to `problems`; without a scheme that can be made out of it,
// nothing comes back.
struct QuantizationConfigText {
  std::string where;  // "out/config.json: quantization_config"
  io::Json value;
};
Result<std::optional<QuantizationConfigText>> find_quantization_config(const io::Checkpoint& checkpoint);
std::optional<QuantizationConfig> parse_quantization_config(const QuantizationConfigText& text,
                                                            std::vector<std::string>& problems);

// "w8a8", "w8a8-static, asymmetric", "w4a16, groups of 128"
std::string describe(const Scheme& scheme);

struct QuantizedLayer {
  std::string module;
  std::uint64_t rows = 0;     // out_features
  std::uint64_t columns = 0;  // in_features
  int bits = 8;
  std::uint64_t group_size = 0;  // columns that share a scale; `columns` for int-quantized
  io::TensorPlace codes = {};
  io::TensorPlace scales = {};
  std::optional<io::TensorPlace> zero_points = {};  // of weights
  std::optional<io::TensorPlace> input_scale = {};

  // Scales of a row.
  std::uint64_t groups() const { return bits == 8 ? 1 : columns / group_size; }
  // The greatest code.
  int q_max() const { return bits == 8 ? 127 : 7; }
};
// Every quantized Linear of the checkpoint by name. Refuses tensors whose shapes or dtypes do not agree.
Result<std::vector<QuantizedLayer>> find_quantized_layers(const io::Checkpoint& checkpoint,
                                                          const QuantizationConfig& config);
// The layers that are right, and a sentence for everything that is not.
std::vector<QuantizedLayer> find_quantized_layers(const io::Checkpoint& checkpoint, const QuantizationConfig& config,
                                                  std::vector<std::string>& problems);

// Rows [row, row + count) of a layer: codes as signed bytes, scales as f32, zero points (0 without).
struct LayerRows {
  std::vector<std::int8_t> codes;        // count * columns
  std::uint64_t first_group = 0;         // that the columns touch
  std::uint64_t groups = 0;              // how many they touch
  std::vector<float> scales;             // count * groups
  std::vector<std::int8_t> zero_points;  // as many

  std::vector<std::byte> bytes;  // as read; kept for the next call
};
Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 LayerRows& rows);
// Only columns [column, column + columns) of these rows; `column` is a multiple of 8.
Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 std::uint64_t column, std::uint64_t columns, LayerRows& rows);

// `count` scales of a tensor in F32, F16 or BF16, from element `first` on. `bytes` is scratch.
Status read_scales(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t first,
                   std::span<float> to, std::vector<std::byte>& bytes);

}  // namespace kvant::format
