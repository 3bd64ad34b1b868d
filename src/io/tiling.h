// A matrix of a file that need not fit in memory, in tiles that do: bands of whole rows where a row fits, else pieces
// of few rows. What belongs together stays in one tile, as far as it fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/safetensors.h"
#include "kvant/status.h"

namespace kvant::io {

struct Tile {
  std::uint64_t row = 0, rows = 0;
  std::uint64_t column = 0, columns = 0;
};

struct TilingRequest {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t tile_bytes = 0;     // that a tile may take; it takes more where row_unit * min_columns elements do
  std::uint64_t element_bytes = 0;  // what an element takes while its tile is worked on
  std::uint64_t row_bytes = 0;      // what a row takes besides its elements
  std::uint64_t row_unit = 1;       // rows that belong together
  std::uint64_t column_unit = 1;    // columns that do
  std::uint64_t min_columns = 8;    // pieces of a unit that does not fit are multiples of it
};

class Tiling {
 public:
  Tiling() = default;
  explicit Tiling(const TilingRequest& request);

  // Bands of rows, each in as many pieces. None of a matrix without elements.
  std::uint64_t bands() const { return bands_; }
  std::uint64_t pieces() const { return pieces_; }
  std::uint64_t count() const { return bands_ * pieces_; }
  Tile at(std::uint64_t band, std::uint64_t piece) const;
  // In the order of rows, then of columns.
  Tile operator[](std::uint64_t i) const { return at(i / pieces_, i % pieces_); }

  std::uint64_t columns() const { return columns_; }  // of the matrix
  // Of the largest tile.
  std::uint64_t tile_rows() const { return tile_rows_; }
  std::uint64_t tile_columns() const { return tile_columns_; }
  // Whether a tile is narrower than the columns that belong together.
  bool splits_units() const { return splits_units_; }

 private:
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  std::uint64_t tile_rows_ = 0;
  std::uint64_t tile_columns_ = 0;
  std::uint64_t bands_ = 0;
  std::uint64_t pieces_ = 0;
  bool splits_units_ = false;
};

// Fills `to` with the tile, dense. The tensor holds a matrix of `columns`.
Status read_tile(const SafetensorsFile& file, const TensorInfo& tensor, std::uint64_t columns, const Tile& tile,
                 std::vector<std::byte>& to);

}  // namespace kvant::io
