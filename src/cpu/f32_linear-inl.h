// F32 linear layers, compiled once for each instruction set. Every output is one chain of fused multiply-adds in order
// of k, so lanes run along the outputs, never along k.
//
// Four rows by three vectors of columns are summed at once: with three vectors of the weight and one number of the
// input they fill 16 registers. K is cut into blocks, so that a slice of a panel stays in L1 while all rows pass by it;
// between two blocks the sums wait in the output, which loses nothing. On Zen 3, one core, this makes 50 to 55 of the
// 56 GMAC/s that its multipliers can; six rows by two vectors made 47.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/divide_up.h"
#include "base/inline.h"
#include "core/guarantee.h"
#include "cpu/f32_linear_kernel.h"
#include "cpu/lanes/block.h"
#include "cpu/lanes/scalar.h"
#include "kvant/element.h"
#include "semantics/f32_linear.h"

namespace kvant::cpu {

using detail::FloatMatrix;

template <class L>
struct F32Blocking {
  static constexpr std::int64_t kRows = 4;
  static constexpr std::int64_t kColumns = 3 * L::kWidth;
  static constexpr std::int64_t kDepth = 256;     // a slice of a panel: 24 KiB in f32 on AVX2
  static constexpr std::int64_t kRowBlock = 256;  // by kDepth of the input: 256 KiB, half of L2
};

// ---- A tile of sums ----

// The part of the next slice that a tile asks for while it computes: so many cache lines with every four k, into L2. In
// L1 they would take the place of this slice: 8 rows by a weight out of memory made 26 GMAC/s so, and make 50.
struct SliceFetch {
  const std::byte* next;
  std::int64_t lines;
};

// Three vectors of one row. Named members, because GCC 12 spills arrays of vectors to the stack.
template <class L>
struct RowSums {
  using F = typename L::F;
  F a, b, c;

  static KVANT_INLINE RowSums zero() { return {L::set(0), L::set(0), L::set(0)}; }
  template <class W>
  static KVANT_INLINE RowSums load(const W* p) {
    return {L::get(p), L::get(p + L::kWidth), L::get(p + 2 * L::kWidth)};
  }
  KVANT_INLINE void store(float* p) const {
    L::put(p, a);
    L::put(p + L::kWidth, b);
    L::put(p + 2 * L::kWidth, c);
  }
  KVANT_INLINE void step(const float* x, const RowSums& weight) {
    const F v = L::broadcast(x);
    a = semantics::chain_step<L>(v, weight.a, a);
    b = semantics::chain_step<L>(v, weight.b, b);
    c = semantics::chain_step<L>(v, weight.c, c);
  }
  KVANT_INLINE void add_bias(const RowSums& bias) {
    a = semantics::with_bias<L>(a, bias.a);
    b = semantics::with_bias<L>(b, bias.b);
    c = semantics::with_bias<L>(c, bias.c);
  }
};

// f(i, row i) for each of kRows rows, without an array.
template <int kRows, class Row, class Function>
KVANT_INLINE void for_each_row(Row& r0, Row& r1, Row& r2, Row& r3, const Function& f) {
  f(0, r0);
  if constexpr (kRows > 1) f(1, r1);
  if constexpr (kRows > 2) f(2, r2);
  if constexpr (kRows > 3) f(3, r3);
}

// Where the sums of a tile are between two blocks of K, and in the end.
struct TileSums {
  std::byte* data;
  std::int64_t stride;  // bytes
  bool begin;           // nothing is there yet
  const float* bias;    // to be added: this block of K is the last one; null: not yet, or none
};

template <class L, int kRows, class W>
void multiply_tile(const float* x, const W* weight, std::int64_t depth, const TileSums& sums, const SliceFetch& fetch) {
  using Row = RowSums<L>;
  constexpr std::int64_t kColumns = F32Blocking<L>::kColumns;
  const auto row_at = [&](int i) KVANT_INLINE_LAMBDA { return reinterpret_cast<float*>(sums.data + i * sums.stride); };
  Row r0 = Row::zero(), r1 = r0, r2 = r0, r3 = r0;
  if (!sums.begin)
    for_each_row<kRows>(r0, r1, r2, r3, [&](int i, Row& row) KVANT_INLINE_LAMBDA { row = Row::load(row_at(i)); });
  const auto step = [&](std::int64_t k) KVANT_INLINE_LAMBDA {
    const Row w = Row::load(weight + k * kColumns);
    for_each_row<kRows>(r0, r1, r2, r3, [&](int i, Row& row) KVANT_INLINE_LAMBDA { row.step(x + k * kRows + i, w); });
  };
  const std::byte* next = fetch.next;
  std::int64_t k = 0;
  for (; k + 4 <= depth; k += 4) {
    for (std::int64_t line = 0; line < fetch.lines; ++line, next += 64) __builtin_prefetch(next, 0, 2);
    step(k);
    step(k + 1);
    step(k + 2);
    step(k + 3);
  }
  for (; k < depth; ++k) step(k);
  if (sums.bias != nullptr) {
    const Row bias = Row::load(sums.bias);
    for_each_row<kRows>(r0, r1, r2, r3, [&](int, Row& row) KVANT_INLINE_LAMBDA { row.add_bias(bias); });
  }
  for_each_row<kRows>(r0, r1, r2, r3, [&](int i, Row& row) KVANT_INLINE_LAMBDA { row.store(row_at(i)); });
}

// ---- Panels by rows ----

template <class L, class W>
class F32LinearRunner {
 public:
  KVANT_INLINE F32LinearRunner(const F32LinearWork& job, const LinearPart& part) : job_(job), part_(part) {}

  KVANT_INLINE void run() {
    for (std::int64_t panel = part_.first_panel; panel < part_.end_panel; ++panel) {
      std::int64_t k = 0;
      do {  // once for K = 0 too: its outputs are biases
        const std::int64_t depth = smaller(B::kDepth, job_.depth - k);
        run_slice(panel, k, depth);
        k += depth;
      } while (k < job_.depth);
    }
  }

 private:
  using B = F32Blocking<L>;
  static constexpr std::int64_t kBytesPerK = B::kColumns * static_cast<std::int64_t>(sizeof(W));  // of a panel
  // A slice of 16-bit weights is widened once for all tiles, unless there is but one, which widens it as it goes.
  static constexpr std::int64_t kWideningRows = B::kRows;

  static KVANT_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  // Of a packed weight, from k on; null: the weight is raw.
  KVANT_INLINE const W* slice(std::int64_t panel, std::int64_t k) const {
    if (job_.panels == nullptr) return nullptr;
    const std::int64_t panel_bytes = detail::f32_panel_bytes(job_.depth, kBytesPerK);
    return reinterpret_cast<const W*>(job_.panels + panel * panel_bytes + k * kBytesPerK);
  }

  KVANT_INLINE void run_slice(std::int64_t panel, std::int64_t k, std::int64_t depth) {
    first_column_ = panel * B::kColumns;
    columns_ = smaller(B::kColumns, job_.columns - first_column_);
    has_bias_ = job_.bias != nullptr && k + depth == job_.depth;
    if (has_bias_)
      __builtin_memcpy(bias_, job_.bias + first_column_ * 4, static_cast<std::size_t>(columns_) * sizeof(float));
    const W* packed = slice(panel, k);
    if (packed == nullptr) {
      widen_raw(k, depth);
      return run_tiles(wide_, k, depth, nullptr);
    }
    const auto* after = reinterpret_cast<const std::byte*>(packed + depth * B::kColumns);
    if constexpr (!std::is_same_v<W, float>)
      if (part_.end_row - part_.first_row > kWideningRows) {
        for (std::int64_t i = 0; i < depth * B::kColumns; i += L::kWidth) L::put(wide_ + i, L::get(packed + i));
        return run_tiles(wide_, k, depth, after);
      }
    run_tiles(packed, k, depth, after);
  }

  // Columns of a raw weight become a slice in f32; a vector of them at a time where all exist.
  KVANT_INLINE void widen_raw(std::int64_t k, std::int64_t depth) {
    const auto column = [&](std::int64_t n) KVANT_INLINE_LAMBDA {
      return reinterpret_cast<const W*>(job_.raw_weight.data + (first_column_ + n) * job_.raw_weight.stride) + k;
    };
    const std::int64_t whole = depth / L::kWidth * L::kWidth;
    for (std::int64_t n = 0; n < B::kColumns; n += L::kWidth) {
      const bool exists = n + L::kWidth <= columns_;
      for (std::int64_t i = 0; i < whole && exists; i += L::kWidth) {
        typename L::F v[L::kWidth];
        for (int j = 0; j < L::kWidth; ++j) v[j] = L::get(column(n + j) + i);
        L::transpose(v);
        for (int j = 0; j < L::kWidth; ++j) L::put(wide_ + (i + j) * B::kColumns + n, v[j]);
      }
      for (int j = 0; j < L::kWidth; ++j)
        for (std::int64_t i = exists ? whole : 0; i < depth; ++i)
          wide_[i * B::kColumns + n + j] =
              n + j < columns_ ? ScalarLanes<float>::widen(load_unaligned(column(n + j) + i)) : 0.0f;
    }
  }

  // `after`: what follows the slice in a packed weight, to be fetched by all tiles together; it need not exist.
  template <class V>
  KVANT_INLINE void run_tiles(const V* weight, std::int64_t k, std::int64_t depth, const std::byte* after) {
    const std::int64_t steps = depth / 4, tiles = base::divide_up(part_.end_row - part_.first_row, B::kRows);
    std::int64_t lines = after == nullptr ? 0 : depth * kBytesPerK / 64;
    const std::int64_t lines_per_step = steps == 0 ? 0 : base::divide_up(lines, steps * tiles);
    for (std::int64_t row = part_.first_row; row < part_.end_row; row += B::kRows) {
      const SliceFetch fetch{after, lines > 0 ? lines_per_step : 0};
      run_tile(job_.tiles + k * job_.rows + row * depth, weight, row, k == 0, depth, fetch);
      after += fetch.lines * steps * 64;
      lines -= fetch.lines * steps;
    }
  }

  template <class V>
  KVANT_INLINE void run_tile(const float* x, const V* weight, std::int64_t row, bool begin, std::int64_t depth,
                             const SliceFetch& fetch) {
    const std::int64_t rows = smaller(B::kRows, part_.end_row - row);
    std::byte* out = job_.out + row * job_.out_stride + first_column_ * 4;
    const float* bias = has_bias_ ? bias_ : nullptr;
    if (columns_ == B::kColumns) return multiply(rows, x, weight, depth, {out, job_.out_stride, begin, bias}, fetch);
    // The last panel has columns that the output lacks: its sums visit a whole tile.
    constexpr std::int64_t kStride = B::kColumns * 4;
    const auto bytes = static_cast<std::size_t>(columns_) * sizeof(float);
    auto* whole = reinterpret_cast<std::byte*>(whole_);
    for (std::int64_t r = 0; r < rows && !begin; ++r)
      __builtin_memcpy(whole + r * kStride, out + r * job_.out_stride, bytes);
    multiply(rows, x, weight, depth, {whole, kStride, begin, bias}, fetch);
    for (std::int64_t r = 0; r < rows; ++r) __builtin_memcpy(out + r * job_.out_stride, whole + r * kStride, bytes);
  }

  template <class V>
  static KVANT_INLINE void multiply(std::int64_t rows, const float* x, const V* weight, std::int64_t depth,
                                    const TileSums& sums, const SliceFetch& fetch) {
    switch (rows) {
      case 1: return multiply_tile<L, 1>(x, weight, depth, sums, fetch);
      case 2: return multiply_tile<L, 2>(x, weight, depth, sums, fetch);
      case 3: return multiply_tile<L, 3>(x, weight, depth, sums, fetch);
      default: return multiply_tile<L, 4>(x, weight, depth, sums, fetch);
    }
  }

  const F32LinearWork& job_;
  const LinearPart& part_;
  std::int64_t first_column_ = 0;
  std::int64_t columns_ = 0;  // of the panel that exist
  bool has_bias_ = false;
  alignas(64) float bias_[B::kColumns] = {};
  alignas(64) float whole_[B::kRows * B::kColumns] = {};
  alignas(64) float wide_[B::kDepth * B::kColumns];
};

template <class L, class W>
void run_f32_linear(const F32LinearWork& job, const LinearPart& part) {
  F32LinearRunner<L, W>(job, part).run();
}

// ---- Packing ----

template <class L, class W>
void pack_f32_panel(const FloatMatrix& weight, std::int64_t index, std::byte* panel) {
  constexpr std::int64_t kColumns = F32Blocking<L>::kColumns;
  constexpr std::int64_t kBytesPerK = kColumns * static_cast<std::int64_t>(sizeof(W));
  const std::int64_t first = index * kColumns, size = weight.depth * kBytesPerK;
  for (std::int64_t k = 0; k < weight.depth; ++k)
    for (std::int64_t n = 0; n < kColumns; ++n) {
      std::byte* to = panel + (k * kColumns + n) * static_cast<std::int64_t>(sizeof(W));
      if (first + n < weight.rows)
        __builtin_memcpy(to, reinterpret_cast<const W*>(weight.data + (first + n) * weight.stride) + k, sizeof(W));
      else
        __builtin_memset(to, 0, sizeof(W));
    }
  __builtin_memset(panel + size, 0, static_cast<std::size_t>(detail::f32_panel_bytes(weight.depth, kBytesPerK) - size));
}

// All tiles of the first kDepth of k, then those of the next: so the block of the input that a pass needs has no gaps,
// whose distance could be one that the cache maps to few of its sets.
template <class L>
void pack_f32_tile(const FloatMatrix& input, std::int64_t index, float* tiles) {
  using B = F32Blocking<L>;
  const std::int64_t first = index * B::kRows;
  const std::int64_t rows = input.rows - first < B::kRows ? input.rows - first : B::kRows;
  for (std::int64_t k = 0; k < input.depth; k += B::kDepth) {
    const std::int64_t depth = input.depth - k < B::kDepth ? input.depth - k : B::kDepth;
    float* tile = tiles + k * input.rows + first * depth;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const float*>(input.data + (first + r) * input.stride) + k;
      for (std::int64_t i = 0; i < depth; ++i) tile[i * rows + r] = load_unaligned(row + i);
    }
  }
}

// ---- The table ----

template <class Isa, class W>
constexpr F32LinearKernel f32_linear_kernel() {
  using L = typename Isa::template Lanes<float>;
  using B = F32Blocking<L>;
  F32LinearKernel kernel = {};
  kernel.sku = detail::bit_stable_sku<float>(Isa::kArch, QuantizeKind::f32_linear, kind_of<W>, ElementKind::f32);
  kernel.sku.epilogue = EpilogueKind::bias;
  kernel.sku.precision_guarantee.accumulator = AccumulatorKind::f32_chain;
  kernel.panel_columns = B::kColumns;
  kernel.panel_bytes_per_k = B::kColumns * static_cast<std::int64_t>(sizeof(W));
  kernel.pack_panel = &pack_f32_panel<L, W>;
  kernel.workspace_size = &f32_linear_workspace;
  kernel.launch = &launch_f32_linear;
  kernel.tile_rows = B::kRows;
  kernel.row_block = B::kRowBlock;
  kernel.pack_tile = &pack_f32_tile<L>;
  kernel.run = &run_f32_linear<L, W>;
  return kernel;
}

template <class Isa>
constexpr auto make_f32_linear_kernels() {
  return std::array{f32_linear_kernel<Isa, float>(), f32_linear_kernel<Isa, Half>(),
                    f32_linear_kernel<Isa, BFloat16>()};
}

}  // namespace kvant::cpu
