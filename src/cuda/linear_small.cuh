// linear_small: up to 16 rows, where all that counts is how fast the weight streams in. No shared memory, one warp for
// four columns. tests/cuda/cuda_model.py reads the constants.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/grid.h"
#include "cuda/linear_epilogue.h"
#include "cuda/linear_launch.h"
#include "kvant/element.h"
#include "semantics/linear.h"

namespace kvant::cuda {

inline constexpr int kMaxSmallRows = 16;
// A lane's 32-bit sums take a 32nd of the depth, which is 2^16 products and a few more.
inline constexpr std::int64_t kMaxSmallDepth = 1 << 21;
static_assert(semantics::sum_fits_32_bits(semantics::kMaxProductS8S8, kMaxSmallDepth / kWarp + 256));
inline constexpr int kSmallColumns = 4;  // of a warp
// Small blocks spread evenly over the multiprocessors.
inline constexpr unsigned kSmallThreads = 64;

template <class T, int count>
struct Values {
  T v[count] = {};
};

// The sums over all lanes of `count` values in each, spread over the lanes: lane l gets number l * count / 32 and, if
// count is 64, the next one. Lanes exchange halves of what they have, `mask` telling with whom, until there is one
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
  using C = semantics::sum_t<Out>;
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
    const compute_t<Out> act_scale = epilogue.act_scale(row);
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
