// How a matrix that need not fit in memory is cut: bands of whole rows where a row fits, else pieces of rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::quantize {

struct TilePlace {
  std::uint64_t row, rows, column, columns;
};

struct Bands {
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t width = 0;              // bytes of an element
  std::uint64_t rows_per_band = 0;      // the last band may have fewer
  std::uint64_t columns_per_piece = 0;  // all of them where a row fits
  std::uint64_t bands = 0;
  bool splits_spans = false;  // a piece is less than the columns that belong together

  std::uint64_t rows_of(std::uint64_t band) const { return std::min(rows_per_band, rows - band * rows_per_band); }
  TilePlace place(std::uint64_t band, std::uint64_t column) const {
    return {band * rows_per_band, rows_of(band), column, std::min(columns_per_piece, columns - column)};
  }
};

// `span`: columns that belong together (they share a scale), a divisor of `columns`; `row_unit`: rows that do. A tile
// takes at most `tile_bytes`, but for the least that makes progress: row_unit rows of 8 columns.
inline Bands make_bands(std::uint64_t rows, std::uint64_t columns, std::uint64_t width, std::uint64_t span,
                        std::uint64_t row_unit, std::uint64_t tile_bytes) {
  Bands bands{.rows = rows, .columns = columns, .width = width};
  const std::uint64_t fit = tile_bytes / width / row_unit;  // elements, for one of row_unit rows
  if (columns <= fit) {
    bands.rows_per_band = columns == 0 ? rows : fit / columns * row_unit;
    bands.columns_per_piece = columns;
  } else {
    bands.rows_per_band = row_unit;
    bands.splits_spans = span > fit;
    bands.columns_per_piece = bands.splits_spans ? std::max<std::uint64_t>(fit / 8 * 8, 8) : fit / span * span;
  }
  bands.rows_per_band = std::clamp<std::uint64_t>(bands.rows_per_band, 1, std::max<std::uint64_t>(rows, 1));
  if (bands.rows_per_band < rows && bands.rows_per_band % row_unit != 0)
    bands.rows_per_band += row_unit - bands.rows_per_band % row_unit;
  bands.columns_per_piece = std::max<std::uint64_t>(bands.columns_per_piece, 1);
  bands.bands = (rows + bands.rows_per_band - 1) / bands.rows_per_band;
  return bands;
}

// Fills `to` with the tile, dense.
inline Status read_tile(const io::Checkpoint& checkpoint, const io::TensorPlace& place, const Bands& bands,
                        const TilePlace& tile, std::vector<std::byte>& to) {
  const std::uint64_t row_bytes = tile.columns * bands.width;
  to.resize(tile.rows * row_bytes);
  const std::span<std::byte> all(to);
  if (tile.columns == bands.columns) return checkpoint.read(place, tile.row * row_bytes, all);
  for (std::uint64_t r = 0; r < tile.rows; ++r) {
    const std::uint64_t from = ((tile.row + r) * bands.columns + tile.column) * bands.width;
    if (Status s = checkpoint.read(place, from, all.subspan(r * row_bytes, row_bytes)); !s.ok()) return s;
  }
  return {};
}

}  // namespace kvant::quantize
