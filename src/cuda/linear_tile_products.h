// The products of linear_tile, on the matrix units, and the sums of codes that zero points need.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "cuda/linear_launch.h"
#include "cuda/linear_tile_shape.h"

namespace kvant::cuda {

// A warp's sums of products, and its share of the sums of codes: the warps abreast have the same rows and each adds up
// one tile of them; the warps above each other have the same columns and each adds up half of them.
template <class Tile>
struct TileSums {
  static constexpr int kOwnColumnTiles = Tile::kColumnTiles / 2;

  template <class T>
  struct Set {
    T products[Tile::kRowTiles][Tile::kColumnTiles][4];
    T rows[2];  // g and g + 8 of mma_s8
    T columns[kOwnColumnTiles];

    KVANT_DEVICE void clear() {
      KVANT_UNROLL
      for (int i = 0; i < Tile::kRowTiles; ++i) {
        KVANT_UNROLL
        for (int j = 0; j < Tile::kColumnTiles; ++j) {
          KVANT_UNROLL
          for (int c = 0; c < 4; ++c) products[i][j][c] = 0;
        }
      }
      rows[0] = rows[1] = 0;
      KVANT_UNROLL
      for (int j = 0; j < kOwnColumnTiles; ++j) columns[j] = 0;
    }
    template <class Other>
    KVANT_DEVICE void add(const Other& other) {
      KVANT_UNROLL
      for (int i = 0; i < Tile::kRowTiles; ++i) {
        KVANT_UNROLL
        for (int j = 0; j < Tile::kColumnTiles; ++j) {
          KVANT_UNROLL
          for (int c = 0; c < 4; ++c) products[i][j][c] += other.products[i][j][c];
        }
      }
      rows[0] += other.rows[0];
      rows[1] += other.rows[1];
      KVANT_UNROLL
      for (int j = 0; j < kOwnColumnTiles; ++j) columns[j] += other.columns[j];
    }
  };
};

// One stage's products.
template <class Tile, class Sums>
KVANT_DEVICE void multiply_stage(const LinearLaunch& launch, const TileThread<Tile>& at, unsigned stage, Sums& sums) {
  // Lanes in groups of eight name the rows of four matrices: for A two of rows, then two of depth; for B the other way
  // round, so that words 0, 1 and 2, 3 are the operands of two tiles of columns.
  const unsigned a_row = at.first_row + at.lane % 16, a_chunk = at.lane / 16;
  const unsigned b_row = at.first_column + at.lane % 8 + at.lane / 16 * 8, b_chunk = at.lane / 8 % 2;
  const unsigned b_rows = stage + Tile::kRows * Tile::kStep;
  KVANT_UNROLL
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned a_from = stage + swizzled(a_row, 2 * half + a_chunk);
    const unsigned b_from = b_rows + swizzled(b_row, 2 * half + b_chunk);
    std::uint32_t b[Tile::kColumnTiles][2];
    KVANT_UNROLL
    for (unsigned j = 0; j < Tile::kColumnTiles / 2; ++j) {
      device::Words4 words = device::load_matrices(b_from + j * 16 * Tile::kStep);
      if (launch.job.weight_is_unsigned) words = flipped(words);
      KVANT_UNROLL
      for (unsigned i = 0; i < 4; ++i) b[2 * j + i / 2][i % 2] = words.w[i];
    }
    if (launch.needs_column_sums) {
      constexpr int kOwn = TileSums<Tile>::kOwnColumnTiles;
      KVANT_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const bool lower = at.warp_row != 0;
        sums.columns[j] = device::dot4(lower ? b[kOwn + j][0] : b[j][0], kOnes, sums.columns[j]);
        sums.columns[j] = device::dot4(lower ? b[kOwn + j][1] : b[j][1], kOnes, sums.columns[j]);
      }
    }
    KVANT_UNROLL
    for (unsigned i = 0; i < Tile::kRowTiles; ++i) {
      device::Words4 a = device::load_matrices(a_from + i * 16 * Tile::kStep);
      if (launch.job.activation_is_unsigned) a = flipped(a);
      if (launch.needs_row_sums && at.warp_column == i) {
        KVANT_UNROLL
        for (int w = 0; w < 4; ++w) sums.rows[w % 2] = device::dot4(a.w[w], kOnes, sums.rows[w % 2]);
      }
      KVANT_UNROLL
      for (int j = 0; j < Tile::kColumnTiles; ++j) device::mma_s8(sums.products[i][j], a.w, b[j]);
    }
  }
}

}  // namespace kvant::cuda
