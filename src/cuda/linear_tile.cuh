// linear_tile: blocks of 128 × 128 outputs on the matrix units, or of 64 × 64 where those would be too few. Its deep
// form takes any depth: 32-bit sums move into 64-bit ones from time to time.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "cuda/linear_launch.h"
#include "cuda/linear_tile_outputs.h"
#include "cuda/linear_tile_products.h"
#include "cuda/linear_tile_shape.h"
#include "cuda/linear_tile_source.h"

namespace kvant::cuda {

template <class Out, class Tile>
KVANT_KERNEL KVANT_BLOCK(kTileThreads, 2) void linear_tile(LinearLaunch launch) {
  using Depth = typename Tile::Depth;
  const LinearProduct& job = launch.job;
  const TileThread<Tile> at;
  const Depth depth = static_cast<Depth>(job.depth);
  const Depth steps = (depth + (Tile::kStep - 1)) / Tile::kStep;
  const std::int32_t padding = static_cast<std::int32_t>(steps * Tile::kStep - depth);
  const std::int64_t row_tiles = (job.rows + Tile::kRows - 1) / Tile::kRows;
  const std::int64_t column_tiles = (job.columns + Tile::kColumns - 1) / Tile::kColumns;

  for (std::int64_t tile = device::block_index().x; tile < row_tiles * column_tiles; tile += device::grid_size().x) {
    const TilePlace place = tile_place<Tile>(tile, row_tiles, column_tiles);
    TileSource<Depth, Tile::kRows> activation(job.activation, job.activation_stride, launch.activation_is_aligned,
                                              place.row, job.rows, depth, 0);
    TileSource<Depth, Tile::kColumns> weight(job.weight, job.weight_stride, launch.weight_is_aligned, place.column,
                                             job.columns, depth, Tile::kRows * Tile::kStep);
    typename TileSums<Tile>::template Set<std::int32_t> sums;
    typename TileSums<Tile>::template Set<std::int64_t> long_sums;
    sums.clear();
    if constexpr (Tile::kDeep) long_sums.clear();

    // Fetches run kAhead steps ahead of the products; the first rounds only fetch. One barrier a step: after it every
    // thread's part of this step's stage has arrived, and the stage that is filled next has been used up.
    constexpr int kAhead = Tile::kStages - 1;
    unsigned fill = 0, use = 0;
    for (Depth step = -kAhead; step < steps; ++step) {
      if (step >= 0) {
        device::copy_async_wait<kAhead - 1>();
        device::sync_block();
      }
      if (step + kAhead < steps) {
        activation.fetch(fill);
        weight.fetch(fill);
        fill = fill == kAhead * Tile::kStageBytes ? 0 : fill + Tile::kStageBytes;
      }
      device::copy_async_commit();
      if (step < 0) continue;
      multiply_stage<Tile>(launch, at, use, sums);
      use = use == kAhead * Tile::kStageBytes ? 0 : use + Tile::kStageBytes;
      if constexpr (Tile::kDeep) {
        if ((step + 1) % kStepsBetweenFlushes == 0) {
          long_sums.add(sums);
          sums.clear();
        }
      }
    }
    device::sync_block();  // shared memory changes hands
    share_columns<Out, Tile>(launch, place);
    if constexpr (Tile::kDeep) {
      long_sums.add(sums);
      share_code_sums<Tile>(launch, at, padding, long_sums);
      device::sync_block();
      write_tile<Out, Tile>(launch, at, place, padding, long_sums);
    } else {
      share_code_sums<Tile>(launch, at, padding, sums);
      device::sync_block();
      write_tile<Out, Tile>(launch, at, place, padding, sums);
    }
    device::sync_block();  // and back
  }
}

}  // namespace kvant::cuda
