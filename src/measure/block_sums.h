// Sums over a matrix whose bits depend on neither tiles nor threads: a row is summed in blocks of kBlock columns,
// blocks are added in their order to rows, and rows to the whole. Tiles end where blocks do; threads take tiles in any
// order and keep the sums of every block, which are then added on one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/divide_up.h"
#include "base/for_each_part.h"
#include "io/tiling.h"
#include "kvant/error_sums.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::measure {

// Columns that are summed together.
inline constexpr std::uint64_t kBlock = ErrorSums::kMaxCount;

inline std::uint64_t blocks_in_row(const io::Tile& tile) { return base::parts_of(tile.columns, kBlock); }

// f(row, column, count) for the blocks of a tile, row by row; both count from the tile's first.
template <class Function>
void for_each_block(const io::Tile& tile, const Function& f) {
  for (std::uint64_t r = 0; r < tile.rows; ++r)
    for (std::uint64_t c = 0; c < tile.columns; c += kBlock)
      f(r, c, static_cast<std::size_t>(std::min(kBlock, tile.columns - c)));
}

// A tile stays in a core's cache between reading it and adding it up.
inline constexpr std::uint64_t kMaxTileBytes = std::uint64_t{1} << 20;

// Tiles of about `tile_bytes`, but never less than a block of one row; `element_bytes` and `row_bytes` as in
// TilingRequest.
inline io::Tiling tiling_in_blocks(std::uint64_t rows, std::uint64_t columns, std::uint64_t element_bytes,
                                   std::uint64_t row_bytes, std::uint64_t tile_bytes) {
  return io::Tiling({.rows = rows,
                     .columns = columns,
                     .tile_bytes = tile_bytes,
                     .element_bytes = element_bytes,
                     .row_bytes = row_bytes,
                     .column_unit = kBlock,
                     .min_columns = kBlock});
}

// The blocks of the largest tile.
inline std::uint64_t max_blocks(const io::Tiling& tiling) {
  return tiling.tile_rows() * base::parts_of(tiling.tile_columns(), kBlock);
}

// Calls work(worker, tile, blocks, result) for every tile on the stream's threads, with a Block for each of the tile's
// blocks, row by row; and add(tile, blocks, result) for every tile in their order on this one. Keeps about
// `kept_blocks` of them at a time.
template <class Block, class TileResult, class Work, class Add>
Status sum_in_order(const Stream& stream, const io::Tiling& tiling, std::uint64_t kept_blocks, const Work& work,
                    const Add& add) {
  const std::uint64_t per_tile = std::max(max_blocks(tiling), std::uint64_t{1});
  const std::uint64_t wave = std::max(kept_blocks / per_tile, static_cast<std::uint64_t>(stream.threads()));
  std::vector<Block> blocks;
  std::vector<TileResult> results;
  for (std::uint64_t first = 0; first < tiling.count(); first += wave) {
    const std::uint64_t last = first + std::min(wave, tiling.count() - first);
    blocks.resize(static_cast<std::size_t>((last - first) * per_tile));
    results.assign(static_cast<std::size_t>(last - first), {});
    const auto blocks_of = [&](std::uint64_t i, const io::Tile& tile) {
      return std::span(blocks).subspan(static_cast<std::size_t>((i - first) * per_tile),
                                       static_cast<std::size_t>(tile.rows * blocks_in_row(tile)));
    };
    Status done = base::for_each_part(stream, first, last, [&](std::size_t worker, std::uint64_t i) {
      const io::Tile tile = tiling[i];
      return work(worker, tile, blocks_of(i, tile), results[static_cast<std::size_t>(i - first)]);
    });
    if (!done.ok()) return done;
    for (std::uint64_t i = first; i < last; ++i) {
      const io::Tile tile = tiling[i];
      add(tile, std::span<const Block>(blocks_of(i, tile)), results[static_cast<std::size_t>(i - first)]);
    }
  }
  return {};
}

}  // namespace kvant::measure
