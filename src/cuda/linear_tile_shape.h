// The shapes of linear_tile: how a block shares a tile of outputs, what its shared memory holds, and in which order
// tiles run. tests/cuda/cuda_model.py reads the constants.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device.h"
#include "cuda/grid.h"
#include "cuda/linear_launch.h"
#include "semantics/linear.h"

namespace kvant::cuda {

// How a block of eight warps, two above each other and four abreast, shares a tile of outputs.
template <int rows, int columns, bool deep>
struct LinearTile {
  static constexpr int kRows = rows;
  static constexpr int kColumns = columns;
  static constexpr bool kDeep = deep;
  static constexpr int kWarpRows = rows / 2;
  static constexpr int kWarpColumns = columns / 4;
  static constexpr int kRowTiles = kWarpRows / 16;  // of a warp: mma_s8 makes 16 × 8 outputs
  static constexpr int kColumnTiles = kWarpColumns / 8;
  static_assert(kRowTiles <= 4 && kColumnTiles % 2 == 0);

  using Sum = std::conditional_t<deep, std::int64_t, std::int32_t>;
  using Depth = Sum;  // int32 where the depth is limited anyway

  // Depth passes through shared memory in steps of 64 bytes, in as many stages as 48 KiB hold: one is computed on, the
  // others are on their way.
  static constexpr int kStep = 64;
  static constexpr unsigned kStageBytes = static_cast<unsigned>((rows + columns) * kStep);
  static constexpr int kStages = static_cast<int>(49152 / kStageBytes);

  // Afterwards the same memory holds Σ a of the tile's rows, Σ w of its columns and their parameters, and a slice of 16
  // rows for each warp. The pitch puts the pairs of 32-bit sums that a half-warp stores into different banks.
  static constexpr unsigned kRowSums = 0;
  static constexpr unsigned kColumnSums = kRowSums + rows * sizeof(Sum);
  static constexpr unsigned kColumnZeroPoints = kColumnSums + columns * sizeof(Sum);
  static constexpr unsigned kColumnScales = kColumnZeroPoints + columns * sizeof(std::int32_t);
  static constexpr unsigned kColumnBias = kColumnScales + columns * sizeof(double);
  static constexpr unsigned kSlices = kColumnBias + columns * sizeof(double);
  static constexpr unsigned kSlicePitch = (kWarpColumns + 32 / sizeof(Sum)) * sizeof(Sum);
  static constexpr unsigned kSliceBytes = 16 * kSlicePitch;

  static constexpr unsigned kSharedBytes = kStages * kStageBytes;
  static_assert(kSharedBytes <= 49152, "more would need an attribute of the kernel");
  static_assert(kSlices + 8 * kSliceBytes <= kSharedBytes);
};

using ShallowTile = LinearTile<128, 128, false>;
using QuarterTile = LinearTile<64, 64, false>;  // where large tiles would be too few for the device
using DeepTile = LinearTile<64, 64, true>;

inline constexpr unsigned kTileThreads = 256;
// The sums of a tile that is not deep fit an int32 up to this depth, a whole number of steps.
inline constexpr std::int64_t kMaxShallowDepth = (1 << 17) - ShallowTile::kStep;
static_assert(semantics::sum_fits_32_bits(semantics::kMaxProductS8S8, kMaxShallowDepth));
// A deep tile empties its 32-bit sums after so many steps, 2^16 of depth.
inline constexpr std::int64_t kStepsBetweenFlushes = (1 << 16) / DeepTile::kStep;
static_assert(semantics::sum_fits_32_bits(semantics::kMaxProductS8S8, kStepsBetweenFlushes* DeepTile::kStep));

// Tiles run in groups of so many rows of tiles, column by column in a group: the blocks that run together then share
// both weights and activations.
inline constexpr std::int64_t kTileGroup = 8;

struct TilePlace {
  std::int64_t row;
  std::int64_t column;
};
template <class Tile>
KVANT_DEVICE TilePlace tile_place(std::int64_t index, std::int64_t row_tiles, std::int64_t column_tiles) {
  const std::int64_t group = index / (kTileGroup * column_tiles);
  const std::int64_t within = index - group * kTileGroup * column_tiles;
  const std::int64_t rest = row_tiles - group * kTileGroup;
  const std::int64_t height = rest < kTileGroup ? rest : kTileGroup;
  return {(group * kTileGroup + within % height) * Tile::kRows, within / height * Tile::kColumns};
}

// Where a thread stands in its block.
template <class Tile>
struct TileThread {
  unsigned lane = device::linear_thread() % kWarp;
  unsigned warp = device::linear_thread() / kWarp;
  unsigned warp_row = warp / 4;
  unsigned warp_column = warp % 4;
  unsigned first_row = warp_row * Tile::kWarpRows;  // of the warp's part of the tile
  unsigned first_column = warp_column * Tile::kWarpColumns;
};

// Where 16-byte chunk `chunk` of a row of 64 is in shared memory. Eight rows at the same chunk, which is what
// load_matrices reads at once, lie in different banks.
KVANT_DEVICE unsigned swizzled(unsigned row, unsigned chunk) {
  return row * 64 + ((chunk ^ ((row >> 1) & 3)) * kChunkBytes);
}

}  // namespace kvant::cuda
