// The kernels of linear layers: exact integer sums of 8-bit products, then the floating-point end of
// semantics/linear.h. Everything is s8 inside: the bytes of u8 codes get their top bit flipped, which takes 128 off
// each, and the zero points follow.
//
// - linear_tile: blocks of 128 × 128 outputs on the matrix units, or of 64 × 64 where those would be too few. Its deep
//   form takes any depth: 32-bit sums move into 64-bit ones from time to time.
// - linear_small: up to 16 rows, where all that counts is how fast the weight streams in: no shared memory, one warp
//   for four columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/linear_product.h"
#include "cuda/device.h"
#include "cuda/grid.h"
#include "cuda/lanes.h"
#include "cuda/numbers.h"
#include "cuda/parameters.h"
#include "kvant/element.h"
#include "semantics/linear.h"
#include "semantics/quantize.h"

namespace kvant::cuda {

// A job, and what the host worked out about it once. All branches on these are uniform.
struct LinearLaunch {
  LinearProduct job;
  bool activation_is_aligned = false;  // every row of it starts at a multiple of 16 bytes
  bool weight_is_aligned = false;
  bool out_is_aligned = false;
  bool needs_row_sums = false;     // a weight zero point may be other than 0, as s8
  bool needs_column_sums = false;  // an activation zero point may be
};

inline constexpr unsigned kChunkBytes = 16;  // what a thread moves at once

// u8 codes to s8: 128 less.
inline constexpr std::uint32_t kFlip = 0x80808080u;
inline constexpr std::int32_t kFlipOffset = -128;
// dot4 with it adds four bytes up.
inline constexpr std::uint32_t kOnes = 0x01010101u;

// Numbers that move as one.
template <class T, int count>
struct alignas(sizeof(T) * count) Packed {
  T v[count];
};

// ---- What codes, zero points and scales mean ----

// Four bytes from any address, the first in the lowest bits; bytes beyond `count` are not read and become those of
// `fill`.
KVANT_DEVICE std::uint32_t gather4(const std::byte* from, std::int64_t count, std::uint32_t fill) {
  if (count >= 4 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0) return device::load<std::uint32_t>(from);
  std::uint32_t word = 0;
  KVANT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t byte = i < count ? device::load<std::uint8_t>(from + i) : (fill >> (8 * i)) & 0xFFu;
    word |= byte << (8 * i);
  }
  return word;
}

KVANT_DEVICE device::Words4 flipped(device::Words4 words) {
  KVANT_UNROLL
  for (int i = 0; i < 4; ++i) words.w[i] ^= kFlip;
  return words;
}

// The floating-point end, one output at a time.
template <class Out>
struct LinearEpilogue {
  using C = compute_t<Out>;
  using L = DeviceLanes<C>;

  const LinearProduct& job;

  KVANT_DEVICE C act_scale(std::int64_t row) const { return scale_at<C>(job.act_scale, row); }
  KVANT_DEVICE C weight_scale(std::int64_t column) const { return scale_at<C>(job.weight_scale, column); }
  // Zero points of the codes as s8.
  KVANT_DEVICE std::int32_t act_zero_point(std::int64_t row) const {
    return semantics::limit_zero_point<L>(zero_point_at(job.act_zero_point, row)) +
           (job.activation_is_unsigned ? kFlipOffset : 0);
  }
  KVANT_DEVICE std::int32_t weight_zero_point(std::int64_t column) const {
    const std::int32_t least = job.weight_is_unsigned ? 0 : -128;
    const std::int32_t given = zero_point_at(job.weight_zero_point, column);
    return L::min_int(L::max_int(given, least), least + 255) + (job.weight_is_unsigned ? kFlipOffset : 0);
  }
  KVANT_DEVICE C bias(std::int64_t column) const {
    if (job.bias == nullptr) return C(0);
    if (!job.bias_is_output_kind) return device::load<C>(job.bias + column * static_cast<std::int64_t>(sizeof(C)));
    return widen(device::load<Out>(job.bias + column * static_cast<std::int64_t>(sizeof(Out))));
  }

  // Σ (a - za)(w - zw) from Σ a w, Σ a and Σ w.
  KVANT_DEVICE long long corrected(std::int64_t products, std::int64_t row_sum, std::int64_t column_sum,
                                   std::int32_t act_zero_point, std::int32_t weight_zero_point) const {
    return products - act_zero_point * column_sum - weight_zero_point * (row_sum - job.depth * act_zero_point);
  }
  // Without products there is nothing to scale: not even infinity or NaN.
  KVANT_DEVICE Out output(C sum, C act_scale, C weight_scale, C bias) const {
    C y = semantics::scaled_sum<L>(act_scale, weight_scale, sum);
    if (job.bias != nullptr) y = L::add(y, bias);
    return narrow<Out>(job.depth == 0 ? bias : y);
  }
};

// ---- Tiles ----

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
// 2^14 times this, the largest sum of products, must fit an int32; a whole number of steps.
inline constexpr std::int64_t kMostShallowDepth = (1 << 17) - ShallowTile::kStep;
// A deep tile empties its 32-bit sums after so many steps, 2^16 of depth.
inline constexpr std::int64_t kStepsBetweenFlushes = (1 << 16) / DeepTile::kStep;

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

// Where 16-byte chunk `chunk` of a row of 64 is in shared memory. Eight rows at the same chunk, which is what
// load_matrices reads at once, lie in different banks.
KVANT_DEVICE unsigned swizzled(unsigned row, unsigned chunk) {
  return row * 64 + ((chunk ^ ((row >> 1) & 3)) * kChunkBytes);
}

// A thread's part in bringing one operand's rows to shared memory: one chunk of every 64th row.
template <class Depth, int rows>
class TileSource {
 public:
  KVANT_DEVICE TileSource(const std::byte* data, std::int64_t stride, bool aligned, std::int64_t first_row,
                          std::int64_t end_row, Depth depth, unsigned to)
      : aligned_(aligned) {
    const unsigned row = device::linear_thread() / 4, chunk = device::linear_thread() % 4;
    to_ = to + swizzled(row, chunk);
    KVANT_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const std::int64_t at = first_row + row + kRowStep * i;
      const bool exists = at < end_row;
      from_[i] = data + (exists ? at : first_row) * stride + chunk * kChunkBytes;
      left_[i] = (exists ? depth : Depth(0)) - static_cast<Depth>(chunk * kChunkBytes);
    }
  }

  // The next step's bytes, to a stage. What lies beyond the operand becomes zero.
  KVANT_DEVICE void fetch(unsigned stage_offset) {
    KVANT_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const unsigned to = to_ + stage_offset + kRowStep * 64 * static_cast<unsigned>(i);
      const int bytes = left_[i] >= 16 ? 16 : left_[i] > 0 ? static_cast<int>(left_[i]) : 0;
      if (aligned_) {
        device::copy_async16(to, from_[i], bytes);
      } else {
        device::Words4 words;
        KVANT_UNROLL
        for (int w = 0; w < 4; ++w) words.w[w] = gather4(from_[i] + 4 * w, bytes - 4 * w, 0);
        device::shared_store(to, words);
      }
      from_[i] += 64;
      left_[i] -= 64;
    }
  }

 private:
  static constexpr int kRowStep = kTileThreads / 4;
  static constexpr int kCount = rows / kRowStep;

  bool aligned_;
  unsigned to_;
  const std::byte* from_[kCount];
  Depth left_[kCount];
};

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

// The parameters of the tile's columns to shared memory; there are too many to keep in registers besides the sums.
template <class Out, class Tile>
KVANT_DEVICE void share_columns(const LinearLaunch& launch, const TilePlace& place) {
  using C = compute_t<Out>;
  constexpr unsigned kBytes = sizeof(C);
  static_assert(Tile::kColumns <= kTileThreads);
  const LinearEpilogue<Out> epilogue{launch.job};
  const unsigned own = device::linear_thread();
  const std::int64_t column = place.column + own;
  if (own >= Tile::kColumns) return;
  const bool exists = column < launch.job.columns;
  device::shared_store(Tile::kColumnScales + own * kBytes, exists ? epilogue.weight_scale(column) : C(0));
  device::shared_store(Tile::kColumnBias + own * kBytes, exists ? epilogue.bias(column) : C(0));
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

// 16 bytes of outputs, in as few registers as they fill: numbers of 16 bits share one.
template <class Out>
struct OutputWords {
  Packed<Out, 16 / sizeof(Out)> outputs;
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

// Sums to outputs. A warp passes them through shared memory 16 rows at a time, after which each thread has as many
// neighbours of one row as make 16 bytes of output, always of the same columns.
template <class Out, class Tile, class Sums>
KVANT_DEVICE void write_tile(const LinearLaunch& launch, const TileThread<Tile>& at, const TilePlace& place,
                             std::int32_t padding, const Sums& sums) {
  using C = compute_t<Out>;
  using Sum = typename Tile::Sum;
  constexpr unsigned kSumBytes = sizeof(Sum);
  constexpr unsigned kOutBytes = sizeof(Out);
  constexpr unsigned kCount = 16 / kOutBytes;  // outputs of a thread in one row
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
      const C act_scale = epilogue.act_scale(row);
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
        const unsigned parameters = (tile_column + n) * unsigned{sizeof(C)};
        const auto weight_scales = device::shared_load<Packed<C, 2>>(Tile::kColumnScales + parameters);
        const auto biases = device::shared_load<Packed<C, 2>>(Tile::kColumnBias + parameters);
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

    // Fetches run kAhead steps ahead of the products; the first rounds only fetch. One barrier a step: behind it every
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

// ---- Few rows ----

inline constexpr int kMostSmallRows = 16;
// A lane's 32-bit sums take a 32nd of the depth, which is 2^16 products of at most 2^14, and a few more.
inline constexpr std::int64_t kMostSmallDepth = 1 << 21;
static_assert((kMostSmallDepth / kWarp + 256) << 14 < std::int64_t{1} << 31);
inline constexpr int kSmallColumns = 4;  // of a warp
// Small blocks spread evenly over the multiprocessors.
inline constexpr unsigned kSmallThreads = 64;

template <class T, int count>
struct Values {
  T v[count] = {};
};

// The sums over all lanes of `count` values in each, spread over the lanes: lane l gets number l * count / 32 and, if
// count is 64, the one behind. Lanes exchange halves of what they have, `mask` telling with whom, until there is one
// left; from then on they add up copies.
template <class Sum, unsigned mask = kWarp / 2, class T, int count>
KVANT_DEVICE auto spread_sums(const Values<T, count>& values, unsigned lane) {
  constexpr int kLeft = count > 1 ? count / 2 : 1;
  const bool upper = (lane & mask) != 0;
  Values<Sum, kLeft> sums;
  KVANT_UNROLL
  for (int i = 0; i < kLeft; ++i) {
    const T first = values.v[i], second = values.v[count - kLeft + i];
    const T kept = upper ? second : first, given = upper ? first : second;
    sums.v[i] = Sum{kept} + Sum{device::shuffle_xor(given, mask)};
  }
  if constexpr (mask > 1) {
    return spread_sums<Sum, mask / 2>(sums, lane);
  } else {
    return sums;
  }
}

// A lane's sums.
template <int rows>
struct SmallSums {
  Values<std::int32_t, rows * kSmallColumns> products;
  Values<std::int32_t, rows> row;
  Values<std::int32_t, kSmallColumns> column;
};

// One warp's operands: rows [0, rows) of the activation and kSmallColumns of the weight, of which those beyond the last
// repeat it.
template <int rows>
class SmallOperands {
 public:
  KVANT_DEVICE SmallOperands(const LinearLaunch& launch, std::int64_t first_column) : launch_(launch) {
    const LinearProduct& job = launch.job;
    KVANT_UNROLL
    for (int n = 0; n < kSmallColumns; ++n) {
      const std::int64_t column = first_column + n < job.columns ? first_column + n : job.columns - 1;
      weight_[n] = job.weight + column * job.weight_stride;
    }
  }

  // `chunks` chunks of 16 bytes, `kWarp` of them apart, from depth k on. Rows must be aligned.
  template <int chunks>
  KVANT_DEVICE void add_chunks(std::int32_t k, SmallSums<rows>& sums) const {
    const LinearProduct& job = launch_.job;
    device::Words4 w[chunks][kSmallColumns];
    KVANT_UNROLL
    for (int c = 0; c < chunks; ++c) {
      KVANT_UNROLL
      for (int n = 0; n < kSmallColumns; ++n) w[c][n] = device::load<device::Words4>(weight_[n] + k + c * kLaneStride);
    }
    KVANT_UNROLL
    for (int c = 0; c < chunks; ++c) {
      if (job.weight_is_unsigned) {
        KVANT_UNROLL
        for (int n = 0; n < kSmallColumns; ++n) w[c][n] = flipped(w[c][n]);
      }
      if (launch_.needs_column_sums) {
        KVANT_UNROLL
        for (int n = 0; n < kSmallColumns; ++n) sums.column.v[n] = dot16(w[c][n], sums.column.v[n]);
      }
      const std::byte* from = job.activation + k + c * kLaneStride;
      KVANT_UNROLL
      for (int m = 0; m < rows; ++m, from += job.activation_stride) {
        if (m >= job.rows) continue;
        device::Words4 a = device::load<device::Words4>(from);
        if (job.activation_is_unsigned) a = flipped(a);
        if (launch_.needs_row_sums) sums.row.v[m] = dot16(a, sums.row.v[m]);
        KVANT_UNROLL
        for (int n = 0; n < kSmallColumns; ++n) {
          std::int32_t& sum = sums.products.v[m * kSmallColumns + n];
          KVANT_UNROLL
          for (int i = 0; i < 4; ++i) sum = device::dot4(a.w[i], w[c][n].w[i], sum);
        }
      }
    }
  }

  // The four bytes at depth k, or as many as there are.
  KVANT_DEVICE void add_word(std::int32_t k, SmallSums<rows>& sums) const {
    const LinearProduct& job = launch_.job;
    const std::int64_t left = job.depth - k;
    const std::uint32_t flip_a = job.activation_is_unsigned ? kFlip : 0, flip_w = job.weight_is_unsigned ? kFlip : 0;
    std::uint32_t w[kSmallColumns];
    KVANT_UNROLL
    for (int n = 0; n < kSmallColumns; ++n) {
      w[n] = gather4(weight_[n] + k, left, flip_w) ^ flip_w;
      sums.column.v[n] = device::dot4(w[n], kOnes, sums.column.v[n]);
    }
    const std::byte* from = job.activation + k;
    KVANT_UNROLL
    for (int m = 0; m < rows; ++m, from += job.activation_stride) {
      if (m >= job.rows) continue;
      const std::uint32_t a = gather4(from, left, flip_a) ^ flip_a;
      sums.row.v[m] = device::dot4(a, kOnes, sums.row.v[m]);
      KVANT_UNROLL
      for (int n = 0; n < kSmallColumns; ++n) {
        std::int32_t& sum = sums.products.v[m * kSmallColumns + n];
        sum = device::dot4(a, w[n], sum);
      }
    }
  }

  static constexpr std::int32_t kLaneStride = kWarp * kChunkBytes;

 private:
  static KVANT_DEVICE std::int32_t dot16(const device::Words4& words, std::int32_t sum) {
    KVANT_UNROLL
    for (int i = 0; i < 4; ++i) sum = device::dot4(words.w[i], kOnes, sum);
    return sum;
  }

  const LinearLaunch& launch_;
  const std::byte* weight_[kSmallColumns];
};

// `rows` is the job's rounded up to a power of two.
template <class Out, int rows>
KVANT_KERNEL KVANT_BLOCK(kSmallThreads, 8) void linear_small(LinearLaunch launch) {
  using C = compute_t<Out>;
  constexpr int kValues = rows * kSmallColumns;
  constexpr int kOutputs = kValues == 64 ? 2 : 1;                                        // of a lane
  constexpr unsigned kCopies = kValues < static_cast<int>(kWarp) ? kWarp / kValues : 1;  // of an output
  constexpr unsigned kWarps = kSmallThreads / kWarp;
  // With few rows there are registers left to have more of the weight on its way.
  constexpr int kChunks = rows <= 4 ? 2 : 1;

  const LinearProduct& job = launch.job;
  const LinearEpilogue<Out> epilogue{job};
  const unsigned lane = device::linear_thread() % kWarp;
  const std::int32_t depth = static_cast<std::int32_t>(job.depth);
  const std::int32_t whole = launch.activation_is_aligned && launch.weight_is_aligned ? depth / 16 * 16 : 0;
  const std::int64_t groups = (job.columns + kSmallColumns - 1) / kSmallColumns;
  const std::int64_t step = static_cast<std::int64_t>(device::grid_size().x) * kWarps;

  for (std::int64_t group =
           static_cast<std::int64_t>(device::block_index().x) * kWarps + device::linear_thread() / kWarp;
       group < groups; group += step) {
    using Operands = SmallOperands<rows>;
    const Operands operands(launch, group * kSmallColumns);
    SmallSums<rows> sums;
    std::int32_t k = static_cast<std::int32_t>(lane * kChunkBytes);
    for (; k + (kChunks - 1) * Operands::kLaneStride < whole; k += kChunks * Operands::kLaneStride)
      operands.template add_chunks<kChunks>(k, sums);
    if constexpr (kChunks > 1)
      if (k < whole) operands.template add_chunks<1>(k, sums);
    for (k = whole + static_cast<std::int32_t>(lane * 4); k < depth; k += 4 * kWarp) operands.add_word(k, sums);

    const Values<std::int64_t, kOutputs> products = spread_sums<std::int64_t>(sums.products, lane);
    Values<std::int32_t, 1> row_sum;
    if (launch.needs_row_sums) row_sum = spread_sums<std::int32_t>(sums.row, lane);
    if (launch.needs_column_sums) {
      KVANT_UNROLL
      for (int n = 0; n < kSmallColumns; ++n) {
        KVANT_UNROLL
        for (unsigned mask = kWarp / 2; mask != 0; mask /= 2)
          sums.column.v[n] += device::shuffle_xor(sums.column.v[n], mask);
      }
    }

    const std::int64_t row = lane * kOutputs / kCopies / kSmallColumns;
    if (row >= job.rows || lane % kCopies != 0) continue;
    const std::int32_t act_zero_point = launch.needs_column_sums ? epilogue.act_zero_point(row) : 0;
    const C act_scale = epilogue.act_scale(row);
    KVANT_UNROLL
    for (unsigned i = 0; i < kOutputs; ++i) {
      const unsigned own = (lane * kOutputs / kCopies + i) % kSmallColumns;
      const std::int64_t column = group * kSmallColumns + own;
      if (column >= job.columns) continue;
      std::int32_t column_sum = sums.column.v[0];
      KVANT_UNROLL
      for (unsigned n = 1; n < kSmallColumns; ++n) column_sum = own == n ? sums.column.v[n] : column_sum;
      const std::int32_t weight_zero_point = launch.needs_row_sums ? epilogue.weight_zero_point(column) : 0;
      const C sum = device::to_real<C>(
          epilogue.corrected(products.v[i], row_sum.v[0], column_sum, act_zero_point, weight_zero_point));
      device::store(job.out + row * job.out_stride + column * static_cast<std::int64_t>(sizeof(Out)),
                    epilogue.output(sum, act_scale, epilogue.weight_scale(column), epilogue.bias(column)));
    }
  }
}

}  // namespace kvant::cuda
