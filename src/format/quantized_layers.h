// The quantized Linears of a checkpoint: found by the names that the layout gives their tensors (compressed_tensors.h),
// and their codes, scales and zero points read in rows. compare and verify read checkpoints through it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/divide_up.h"
#include "format/quantization_config.h"
#include "format/scheme.h"
#include "io/checkpoint.h"
#include "kvant/element.h"
#include "kvant/status.h"

namespace kvant::format {

// How the codes, scales and zero points of a layer lie in their tensors.
enum class Arrangement : std::uint8_t {
  by_rows,  // as compressed_tensors.h says
  // Words along the input, [in / 8 or 4, out], the first code in the lowest bits. Scales [groups, out]. Zero points in
  // words along the output, [groups, out / 8 or 4], each less 1.
  gptq,
  gptq_v2,  // the same with zero points as they are
  // Words along the output, [in, out / 8], in the order of awq_place(); zero points [groups, out / 8] in the same.
  awq,
};

struct QuantizedLayer {
  std::string module;
  std::uint64_t rows = 0;     // out_features
  std::uint64_t columns = 0;  // in_features
  Scheme scheme = {};
  std::uint64_t scale_rows = 1;  // rows that share a scale
  std::uint64_t group_size = 0;  // columns that do; `columns` where all do
  io::TensorPlace codes = {};
  io::TensorPlace scales = {};
  std::optional<io::TensorPlace> zero_points = {};  // of weights
  std::optional<io::TensorPlace> input_scale = {};
  std::optional<io::TensorPlace> input_zero_point = {};
  std::optional<io::TensorPlace> input_global_scale = {};
  float global_scale = 1;  // that scales are divided by, or multiplied with
  // Of ModelOpt, whose global scales are factors: `global_scale` multiplies, and input_global_scale is an inverse.
  bool globals_multiply = false;
  Arrangement arrangement = Arrangement::by_rows;
  // Of groups that are no neighbours (GPTQ's act-order): the group of each column. Then group_size is 1 here.
  std::shared_ptr<const std::vector<std::uint32_t>> group_of_column = nullptr;

  // Scales of a row.
  std::uint64_t groups() const { return group_size >= columns ? 1 : base::parts_of(columns, group_size); }
  std::uint64_t scale_count() const { return base::parts_of(rows, scale_rows) * groups(); }
  ElementKind code() const { return scheme.weights.code; }
  int bits() const { return bits_per_element(code()); }
};
// Whether all values stay the same when a global scale that multiplies becomes its inverse, which divides.
bool survives_dividing(const QuantizedLayer& layer);
// The largest magnitude of a code in steps of its scale, over the largest distance between two neighbours: how many
// codes of the coarsest part of the grid there would be. 127 of s8, 14 of e4m3.
double coarse_levels(ElementKind code);
// That distance: 1 of integers, 32 of e4m3, 2 of e2m1.
double coarsest_step(ElementKind code);

// Every quantized Linear of the checkpoint by name. Refuses tensors whose shapes or dtypes do not agree.
Result<std::vector<QuantizedLayer>> find_quantized_layers(const io::Checkpoint& checkpoint,
                                                          const QuantizationConfig& config);
// The layers that are right, and a sentence for everything that is not.
std::vector<QuantizedLayer> find_quantized_layers(const io::Checkpoint& checkpoint, const QuantizationConfig& config,
                                                  std::vector<std::string>& problems);

// Rows [row, row + count) of a layer: codes one to a byte (integers with their sign, others as their bits), scales as
// the f32 that they mean, zero points (0 without).
struct LayerRows {
  std::vector<std::int8_t> codes;         // count * columns
  std::uint64_t first_group = 0;          // that the columns touch
  std::uint64_t groups = 0;               // how many they touch
  std::vector<float> scales;              // count * groups
  std::vector<std::int16_t> zero_points;  // as many; GPTQ's reach one beyond the codes

  std::vector<std::byte> bytes;  // as read; kept for the next call
  std::vector<float> line;       // likewise
};
Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 LayerRows& rows);
// Only columns [column, column + columns) of these rows; `column` is a multiple of 8.
Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 std::uint64_t column, std::uint64_t columns, LayerRows& rows);

// The values of rows [row, row + count), in f32: scale * (q - zero_point), or scale * number(q), rounded once. `rows`
// is scratch.
Status read_values(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                   std::uint64_t count, std::uint64_t column, std::uint64_t columns, LayerRows& rows, float* to);

// `count` numbers of a tensor in F32, F16, BF16, F8_E4M3 or e8m0 (U8), from element `first` on. `bytes` is scratch.
Status read_scales(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t first,
                   std::span<float> to, std::vector<std::byte>& bytes);

}  // namespace kvant::format
