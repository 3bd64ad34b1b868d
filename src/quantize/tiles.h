// A matrix in tiles that fit in memory: bands of whole rows, or pieces of one row where a row alone is too long. Pieces
// end at multiples of kBlock columns, so that what is summed block by block has the same bits for any tiling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::quantize {

// Columns that are summed together. Beyond it, sums are added in the order of blocks.
inline constexpr std::uint64_t kBlock = 4096;

struct Tile {
  std::uint64_t row = 0;
  std::uint64_t rows = 0;
  std::uint64_t column = 0;
  std::uint64_t columns = 0;

  std::uint64_t blocks_per_row() const { return columns / kBlock + (columns % kBlock != 0 ? 1 : 0); }
  std::uint64_t blocks() const { return rows * blocks_per_row(); }
};

class Tiling {
 public:
  // `element_bytes` and `row_bytes` are what an element, and a row besides its elements, takes while a tile is worked
  // on; a tile takes about `tile_bytes`, but is never less than a block of one row.
  Tiling(std::uint64_t rows, std::uint64_t columns, std::uint64_t element_bytes, std::uint64_t row_bytes,
         std::uint64_t tile_bytes);

  std::uint64_t count() const { return bands_ * pieces_; }
  // In the order of rows, then of columns.
  Tile operator[](std::uint64_t i) const;
  // The most that a tile has.
  std::uint64_t most_blocks() const;

 private:
  std::uint64_t rows_;
  std::uint64_t columns_;
  std::uint64_t tile_rows_ = 1;
  std::uint64_t tile_columns_ = 0;
  std::uint64_t bands_ = 0;
  std::uint64_t pieces_ = 0;
};

// Calls work(worker, i) once for each i in [first, last), on the stream's threads; `worker` is below stream.threads(),
// and no two calls with the same one run at once. Stops at a refusal and returns it (of several, that of the least i).
Status for_each_tile(const Stream& stream, std::uint64_t first, std::uint64_t last,
                     const std::function<Status(std::size_t worker, std::uint64_t i)>& work);

}  // namespace kvant::quantize
