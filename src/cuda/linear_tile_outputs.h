// From the sums of linear_tile to its outputs, through shared memory: what is known of the tile's rows and columns is
// shared by all warps, and each warp's sums are turned so that a thread stores 16 bytes at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device.h"
#include "cuda/grid.h"
#include "cuda/linear_epilogue.h"
#include "cuda/linear_launch.h"
#include "cuda/linear_tile_products.h"
#include "cuda/linear_tile_shape.h"
#include "kvant/element.h"

namespace kvant::cuda {

// The parameters of the tile's columns to shared memory; there are too many to keep in registers besides the sums.
template <class Out, class Tile>
KVANT_DEVICE void share_columns(const LinearLaunch& launch, const TilePlace& place) {
  using Scale = compute_t<Out>;
  using C = semantics::sum_t<Out>;
  static_assert(Tile::kColumns <= kTileThreads);
  const LinearEpilogue<Out> epilogue{launch.job};
  const unsigned own = device::linear_thread();
  const std::int64_t column = place.column + own;
  if (own >= Tile::kColumns) return;
  const bool exists = column < launch.job.columns;
  device::shared_store(Tile::kColumnScales + own * unsigned{sizeof(Scale)},
                       exists ? epilogue.weight_scale(column) : Scale(0));
  device::shared_store(Tile::kColumnBias + own * unsigned{sizeof(C)}, exists ? epilogue.bias(column) : C(0));
  if (launch.needs_row_sums)
    device::shared_store(Tile::kColumnZeroPoints + own * 4, exists ? epilogue.weight_zero_point(column) : 0);
}

// Σ a and Σ w of the tile to shared memory, without the bytes that fill up the last step.
template <class Tile, class Sums>
KVANT_DEVICE void share_code_sums(const LinearLaunch& launch, const TileThread<Tile>& at, std::int32_t padding,
                                  const Sums& sums) {
  using Sum = typename Tile::Sum;
  const auto over_quad = [](Sum sum) {
    sum += device::shuffle_xor(sum, 1);
    return sum + device::shuffle_xor(sum, 2);
  };
  const unsigned group = at.lane / 4;
  const bool writes = at.lane % 4 == 0;
  if (launch.needs_row_sums) {
    const Sum extra = launch.job.activation_is_unsigned ? padding * kFlipOffset : 0;
    const bool has_rows = at.warp_column < Tile::kRowTiles;
    KVANT_UNROLL
    for (unsigned i = 0; i < 2; ++i) {
      const Sum sum = over_quad(sums.rows[i]) - extra;
      const unsigned row = at.first_row + at.warp_column * 16 + i * 8 + group;
      if (writes && has_rows) device::shared_store(Tile::kRowSums + row * unsigned{sizeof(Sum)}, sum);
    }
  }
  if (launch.needs_column_sums) {
    const Sum extra = launch.job.weight_is_unsigned ? padding * kFlipOffset : 0;
    constexpr unsigned kOwn = TileSums<Tile>::kOwnColumnTiles;
    KVANT_UNROLL
    for (unsigned j = 0; j < kOwn; ++j) {
      const Sum sum = over_quad(sums.columns[j]) - extra;
      const unsigned column = at.first_column + (at.warp_row * kOwn + j) * 8 + group;
      if (writes) device::shared_store(Tile::kColumnSums + column * unsigned{sizeof(Sum)}, sum);
    }
  }
}

// The outputs of a thread in one row: 16 bytes, or four codes. More of them would spill, and a warp stores 32 codes of
// a row side by side anyway.
template <class Out>
inline constexpr unsigned kOutputsOfThread = sizeof(Out) == 1 ? 4 : 16 / sizeof(Out);

// They take as few registers as they fill: four codes share one, and two numbers of 16 bits.
template <class Out>
struct OutputWords {
  Packed<Out, kOutputsOfThread<Out>> outputs;
  KVANT_DEVICE void set_pair(unsigned n, Out first, Out second) {
    outputs.v[n] = first;
    outputs.v[n + 1] = second;
  }
  KVANT_DEVICE Out at(unsigned n) const { return outputs.v[n]; }
  KVANT_DEVICE const auto& all() const { return outputs; }
};
template <class Out>
requires(sizeof(Out) == 2) struct OutputWords<Out> {
  device::Words4 words;
  KVANT_DEVICE void set_pair(unsigned n, Out first, Out second) {
    words.w[n / 2] = first.bits | static_cast<std::uint32_t>(second.bits) << 16;
  }
  KVANT_DEVICE Out at(unsigned n) const { return {static_cast<std::uint16_t>(words.w[n / 2] >> (16 * (n % 2)))}; }
  KVANT_DEVICE const auto& all() const { return words; }
};
template <class Out>
requires(sizeof(Out) == 1) struct OutputWords<Out> {
  std::uint32_t word = 0;
  KVANT_DEVICE void set_pair(unsigned n, Out first, Out second) {
    word |= (first.bits | static_cast<std::uint32_t>(second.bits) << 8) << (8 * n);
  }
  KVANT_DEVICE Out at(unsigned n) const { return {static_cast<std::uint8_t>(word >> (8 * n))}; }
  KVANT_DEVICE const auto& all() const { return word; }
};

// Sums to outputs. A warp passes them through shared memory 16 rows at a time, after which each thread has as many
// neighbours of one row as it stores at once, always of the same columns.
template <class Out, class Tile, class Sums>
KVANT_DEVICE void write_tile(const LinearLaunch& launch, const TileThread<Tile>& at, const TilePlace& place,
                             std::int32_t padding, const Sums& sums) {
  using Scale = compute_t<Out>;
  using C = semantics::sum_t<Out>;
  using Sum = typename Tile::Sum;
  constexpr unsigned kSumBytes = sizeof(Sum);
  constexpr unsigned kOutBytes = sizeof(Out);
  constexpr unsigned kCount = kOutputsOfThread<Out>;
  constexpr unsigned kLanesInRow = Tile::kWarpColumns / kCount;
  constexpr unsigned kRowsAtOnce = kWarp / kLanesInRow;
  static_assert(16 % kRowsAtOnce == 0);

  const LinearProduct& job = launch.job;
  const LinearEpilogue<Out> epilogue{job};
  const bool corrects = launch.needs_row_sums || launch.needs_column_sums;
  const std::int32_t extra =
      job.activation_is_unsigned && job.weight_is_unsigned ? padding * (kFlipOffset * kFlipOffset) : 0;

  const unsigned tile_column = at.first_column + at.lane % kLanesInRow * kCount;
  const std::int64_t column = place.column + tile_column;
  const std::int64_t columns_left = job.columns - column;
  const unsigned slice = Tile::kSlices + at.warp * Tile::kSliceBytes;
  const unsigned write_to = slice + at.lane / 4 * Tile::kSlicePitch + at.lane % 4 * 2 * kSumBytes;
  const unsigned read_from = slice + at.lane % kLanesInRow * kCount * kSumBytes;
  KVANT_UNROLL
  for (unsigned t = 0; t < Tile::kRowTiles; ++t) {
    device::sync_warp();  // the slice before has been read
    KVANT_UNROLL
    for (unsigned j = 0; j < Tile::kColumnTiles; ++j) {
      const auto& c = sums.products[t][j];
      const unsigned to = write_to + j * 8 * kSumBytes;
      device::shared_store(to, Packed<Sum, 2>{{c[0], c[1]}});
      device::shared_store(to + 8 * Tile::kSlicePitch, Packed<Sum, 2>{{c[2], c[3]}});
    }
    device::sync_warp();
    for (unsigned r = at.lane / kLanesInRow; r < 16; r += kRowsAtOnce) {
      const unsigned tile_row = at.first_row + t * 16 + r;
      const std::int64_t row = place.row + tile_row;
      if (row >= job.rows || columns_left <= 0) continue;
      const Scale act_scale = epilogue.act_scale(row);
      const std::int32_t act_zero_point = launch.needs_column_sums ? epilogue.act_zero_point(row) : 0;
      const Sum row_sum =
          launch.needs_row_sums ? device::shared_load<Sum>(Tile::kRowSums + tile_row * kSumBytes) : Sum(0);
      OutputWords<Out> out;
      KVANT_UNROLL
      for (unsigned n = 0; n < kCount; n += 2) {
        const auto products = device::shared_load<Packed<Sum, 2>>(read_from + r * Tile::kSlicePitch + n * kSumBytes);
        C sum[2];
        if (corrects) {
          Packed<Sum, 2> column_sums = {};
          Packed<std::int32_t, 2> zero_points = {};
          if (launch.needs_column_sums)
            column_sums = device::shared_load<Packed<Sum, 2>>(Tile::kColumnSums + (tile_column + n) * kSumBytes);
          if (launch.needs_row_sums)
            zero_points = device::shared_load<Packed<std::int32_t, 2>>(Tile::kColumnZeroPoints + (tile_column + n) * 4);
          KVANT_UNROLL
          for (unsigned i = 0; i < 2; ++i)
            sum[i] = device::to_real<C>(
                epilogue.corrected(products.v[i] - extra, row_sum, column_sums.v[i], act_zero_point, zero_points.v[i]));
        } else {
          using Exact = std::conditional_t<Tile::kDeep, long long, int>;
          KVANT_UNROLL
          for (unsigned i = 0; i < 2; ++i) sum[i] = device::to_real<C>(static_cast<Exact>(products.v[i] - extra));
        }
        const auto weight_scales =
            device::shared_load<Packed<Scale, 2>>(Tile::kColumnScales + (tile_column + n) * unsigned{sizeof(Scale)});
        const auto biases =
            device::shared_load<Packed<C, 2>>(Tile::kColumnBias + (tile_column + n) * unsigned{sizeof(C)});
        out.set_pair(n, epilogue.output(sum[0], act_scale, weight_scales.v[0], biases.v[0]),
                     epilogue.output(sum[1], act_scale, weight_scales.v[1], biases.v[1]));
      }
      std::byte* to = job.out + row * job.out_stride + column * kOutBytes;
      if (launch.out_is_aligned && columns_left >= kCount) {
        device::store(to, out.all());
      } else {
        KVANT_UNROLL
        for (unsigned n = 0; n < kCount; ++n)
          if (n < columns_left) device::store(to + n * kOutBytes, out.at(n));
      }
    }
  }
}

}  // namespace kvant::cuda
