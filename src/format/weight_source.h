// The weights of one Linear wherever a checkpoint has them: a tensor, a matrix inside a tensor of several dimensions,
// or codes, which are read as the values that they stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "io/tiling.h"
#include "kvant/element.h"
#include "kvant/status.h"

namespace kvant::format {

struct WeightSource {
  ElementKind kind = ElementKind::f32;  // what read_tile() gives: the tensor's own type, f32 for codes
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  io::TensorPlace place = {};
  // Where in the tensor element [r, c] is: first + r * row_stride + c * column_stride. One of the strides is 1.
  std::uint64_t first = 0;
  std::uint64_t row_stride = 0;
  std::uint64_t column_stride = 1;
  std::optional<QuantizedLayer> codes = std::nullopt;  // in place of numbers
  // Of codes: so many experts, whose matrices are stored one after the other and wanted turned. Then `rows` are the
  // inputs of all experts and `columns` the outputs of one. 0: the matrix is as it is stored.
  std::uint64_t turned_experts = 0;

  // All of a tensor with two dimensions. Its dtype is one that weights come in.
  static WeightSource of(const io::Checkpoint& checkpoint, const io::TensorPlace& place);
  static WeightSource of(QuantizedLayer layer);
  static WeightSource of_turned(QuantizedLayer layer, std::uint64_t experts);

  // In the file.
  std::uint64_t stored_bytes() const;
  std::uint64_t element_bytes() const { return static_cast<std::uint64_t>(bits_per_element(kind)) / 8; }
};

// What reading takes besides; belongs to one thread.
struct SourceScratch {
  LayerRows rows;
  std::vector<std::byte> turned;
};

// Fills `to` with the tile, dense. Columns of tiles of codes begin at multiples of 8.
Status read_tile(const io::Checkpoint& checkpoint, const WeightSource& source, const io::Tile& tile,
                 SourceScratch& scratch, std::vector<std::byte>& to);

}  // namespace kvant::format
