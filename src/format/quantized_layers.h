// The quantized Linears of a checkpoint: found by the names that the layout gives their tensors (compressed_tensors.h),
// and their codes, scales and zero points read in rows. compare and verify read checkpoints through it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/quantization_config.h"
#include "format/scheme.h"
#include "io/checkpoint.h"
#include "kvant/element.h"
#include "kvant/status.h"

namespace kvant::format {

struct QuantizedLayer {
  std::string module;
  std::uint64_t rows = 0;     // out_features
  std::uint64_t columns = 0;  // in_features
  ElementKind code = ElementKind::s8;
  Storage storage = Storage::elements;
  std::uint64_t group_size = 0;  // columns that share a scale; `columns` where all do
  io::TensorPlace codes = {};
  io::TensorPlace scales = {};
  std::optional<io::TensorPlace> zero_points = {};  // of weights
  std::optional<io::TensorPlace> input_scale = {};

  // Scales of a row.
  std::uint64_t groups() const { return group_size == columns ? 1 : columns / group_size; }
  int bits() const { return bits_per_element(code); }
  // The max code.
  int q_max() const { return code_range(code).max; }
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
