#include "io/tiling.h"

#include <algorithm>
#include <span>

#include "base/divide_up.h"

namespace kvant::io {

Tiling::Tiling(const TilingRequest& request) : rows_(request.rows), columns_(request.columns) {
  if (rows_ == 0 || columns_ == 0) return;
  // Elements of a row that fit, where as many rows as belong together are in the tile.
  const std::uint64_t of_row = request.tile_bytes / request.row_unit;
  const std::uint64_t fit = of_row > request.row_bytes ? (of_row - request.row_bytes) / request.element_bytes : 0;
  if (columns_ <= fit) {
    const std::uint64_t whole_row = columns_ * request.element_bytes + request.row_bytes;
    tile_rows_ = request.tile_bytes / (request.row_unit * whole_row) * request.row_unit;
    tile_columns_ = columns_;
  } else {
    tile_rows_ = request.row_unit;
    splits_units_ = request.column_unit > fit;
    const std::uint64_t unit = splits_units_ ? request.min_columns : request.column_unit;
    tile_columns_ = std::min(columns_, std::max<std::uint64_t>(fit / unit, 1) * unit);
  }
  tile_rows_ = std::min(tile_rows_, rows_);
  bands_ = base::parts_of(rows_, tile_rows_);
  pieces_ = base::parts_of(columns_, tile_columns_);
}

Tile Tiling::at(std::uint64_t band, std::uint64_t piece) const {
  Tile tile;
  tile.row = band * tile_rows_;
  tile.rows = std::min(tile_rows_, rows_ - tile.row);
  tile.column = piece * tile_columns_;
  tile.columns = std::min(tile_columns_, columns_ - tile.column);
  return tile;
}

Status read_tile(const SafetensorsFile& file, const TensorInfo& tensor, std::uint64_t columns, const Tile& tile,
                 std::vector<std::byte>& to) {
  const std::uint64_t width = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
  const std::uint64_t row_bytes = tile.columns * width;
  to.resize(static_cast<std::size_t>(tile.rows * row_bytes));
  const std::span<std::byte> all(to);
  // Whole rows follow each other in the file.
  const std::uint64_t reads = tile.columns == columns ? 1 : tile.rows;
  const std::uint64_t bytes = reads == 1 ? to.size() : row_bytes;
  for (std::uint64_t r = 0; r < reads; ++r) {
    const std::uint64_t from = ((tile.row + r) * columns + tile.column) * width;
    if (Status s = file.read(tensor, from, all.subspan(r * row_bytes, bytes)); !s.ok()) return s;
  }
  return {};
}

}  // namespace kvant::io
