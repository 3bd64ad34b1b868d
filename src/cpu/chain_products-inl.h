// Products of matrices whose every element is one chain of fused multiply-adds in order of k, for the sizes of
// attention; compiled once for each instruction set.
//
// As in f32_linear-inl.h, four rows by three vectors of columns are summed at once, and K is cut into blocks, between
// which the sums wait in the output. A block of m by those columns is copied side by side where many rows read it: rows
// of m that are a power of two apart would share few sets of the cache. 128 rows by 64 by 512 columns make 55 of the
// 56 GMAC/s that one core can; four steps in one turn of the loop made 51, because GCC 12 spilled sums.
#pragma once

#include <cstddef>

#include "base/inline.h"
#include "semantics/f32_linear.h"

namespace kvant::cpu {

template <class L>
struct ChainBlocking {
  static constexpr std::size_t kWidth = L::kWidth;
  static constexpr std::size_t kRows = 4;
  static constexpr std::size_t kVectors = 3;
  static constexpr std::size_t kColumns = kVectors * kWidth;
  static constexpr std::size_t kDepth = 128;        // by kColumns: 12 KiB on AVX2, a third of L1
  static constexpr std::size_t kRowsToCopyFor = 8;  // fewer rows read m where it is
};

// One to three vectors of a row.
template <class L, int kVectors>
struct ChainSums {
  using F = typename L::F;
  F a, b, c;

  static KVANT_INLINE ChainSums load(const typename L::C* p) {
    ChainSums sums = {L::get(p), L::set(0), L::set(0)};
    if constexpr (kVectors > 1) sums.b = L::get(p + L::kWidth);
    if constexpr (kVectors > 2) sums.c = L::get(p + 2 * L::kWidth);
    return sums;
  }
  KVANT_INLINE void store(typename L::C* p) const {
    L::put(p, a);
    if constexpr (kVectors > 1) L::put(p + L::kWidth, b);
    if constexpr (kVectors > 2) L::put(p + 2 * L::kWidth, c);
  }
  KVANT_INLINE void step(const typename L::C* x, const ChainSums& m) {
    const F v = L::broadcast(x);
    a = semantics::chain_step<L>(v, m.a, a);
    if constexpr (kVectors > 1) b = semantics::chain_step<L>(v, m.b, b);
    if constexpr (kVectors > 2) c = semantics::chain_step<L>(v, m.c, c);
  }
};

// Rows of numbers in memory, so many elements apart.
template <class T>
struct RowsAt {
  T* data;
  std::size_t stride;

  KVANT_INLINE T* row(std::size_t i) const { return data + i * stride; }
};

// `begin`: nothing is in `out` yet.
template <class L, int kRows, int kVectors>
void multiply_chain_tile(const RowsAt<const typename L::C>& x, const RowsAt<const typename L::C>& m, std::size_t depth,
                         bool begin, const RowsAt<typename L::C>& out) {
  using Sums = ChainSums<L, kVectors>;
  // Rows that there are not are the first one again, and never read.
  const typename L::C* const x0 = x.data;
  const typename L::C* const x1 = kRows > 1 ? x.row(1) : x0;
  const typename L::C* const x2 = kRows > 2 ? x.row(2) : x0;
  const typename L::C* const x3 = kRows > 3 ? x.row(3) : x0;
  Sums r0 = {L::set(0), L::set(0), L::set(0)}, r1 = r0, r2 = r0, r3 = r0;
  if (!begin) {
    r0 = Sums::load(out.row(0));
    if constexpr (kRows > 1) r1 = Sums::load(out.row(1));
    if constexpr (kRows > 2) r2 = Sums::load(out.row(2));
    if constexpr (kRows > 3) r3 = Sums::load(out.row(3));
  }
  const typename L::C* next = m.data;
  const auto step = [&](std::size_t k) KVANT_INLINE_LAMBDA {
    const Sums w = Sums::load(next);
    next += m.stride;
    r0.step(x0 + k, w);
    if constexpr (kRows > 1) r1.step(x1 + k, w);
    if constexpr (kRows > 2) r2.step(x2 + k, w);
    if constexpr (kRows > 3) r3.step(x3 + k, w);
  };
  for (std::size_t k = 0; k < depth; ++k) step(k);
  r0.store(out.row(0));
  if constexpr (kRows > 1) r1.store(out.row(1));
  if constexpr (kRows > 2) r2.store(out.row(2));
  if constexpr (kRows > 3) r3.store(out.row(3));
}

template <class L, int kVectors>
KVANT_INLINE void multiply_chain_rows(std::size_t rows, const RowsAt<const typename L::C>& x,
                                      const RowsAt<const typename L::C>& m, std::size_t depth, bool begin,
                                      const RowsAt<typename L::C>& out) {
  switch (rows) {
    case 1: return multiply_chain_tile<L, 1, kVectors>(x, m, depth, begin, out);
    case 2: return multiply_chain_tile<L, 2, kVectors>(x, m, depth, begin, out);
    case 3: return multiply_chain_tile<L, 3, kVectors>(x, m, depth, begin, out);
    default: return multiply_chain_tile<L, 4, kVectors>(x, m, depth, begin, out);
  }
}

template <class L>
class ChainProducts {
  using C = typename L::C;

 public:
  static void run(const C* x, std::size_t x_stride, const C* m, std::size_t m_stride, std::size_t rows,
                  std::size_t depth, std::size_t columns, C* out, std::size_t out_stride) {
    ChainProducts products({x, x_stride}, {m, m_stride}, {out, out_stride}, rows);
    for (std::size_t j = 0; j < columns; j += B::kColumns) {
      std::size_t k = 0;
      do {  // once for K = 0 too: its outputs are 0
        const std::size_t block = smaller(B::kDepth, depth - k);
        products.run_block(j, smaller(B::kColumns, columns - j), k, block);
        k += block;
      } while (k < depth);
    }
  }

 private:
  using B = ChainBlocking<L>;

  KVANT_INLINE ChainProducts(const RowsAt<const C>& x, const RowsAt<const C>& m, const RowsAt<C>& out, std::size_t rows)
      : x_(x), m_(m), out_(out), rows_(rows) {}

  static KVANT_INLINE std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

  // So many columns from the j-th on, over so many k.
  KVANT_INLINE void run_block(std::size_t j, std::size_t columns, std::size_t k, std::size_t depth) {
    const bool whole = columns % B::kWidth == 0;
    RowsAt<const C> m = {m_.data + k * m_.stride + j, m_.stride};
    if (!whole || rows_ > B::kRowsToCopyFor) m = copied(m, columns, depth);
    for (std::size_t r = 0; r < rows_; r += B::kRows) {
      const std::size_t rows = smaller(B::kRows, rows_ - r);
      const RowsAt<const C> x = {x_.row(r) + k, x_.stride};
      const RowsAt<C> out = {out_.row(r) + j, out_.stride};
      if (whole) {
        multiply(rows, columns, x, m, depth, k == 0, out);
        continue;
      }
      // The last vector has columns that the output lacks: its sums visit a whole tile.
      const RowsAt<C> tile = {tile_, B::kColumns};
      for (std::size_t i = 0; i < rows && k != 0; ++i) __builtin_memcpy(tile.row(i), out.row(i), columns * sizeof(C));
      multiply(rows, columns, x, m, depth, k == 0, tile);
      for (std::size_t i = 0; i < rows; ++i) __builtin_memcpy(out.row(i), tile.row(i), columns * sizeof(C));
    }
  }

  KVANT_INLINE RowsAt<const C> copied(const RowsAt<const C>& m, std::size_t columns, std::size_t depth) {
    for (std::size_t k = 0; k < depth; ++k) {
      const C* from = m.row(k);
      C* to = copy_ + k * B::kColumns;
      std::size_t i = 0;
      for (; i + B::kWidth <= columns; i += B::kWidth) L::put(to + i, L::get(from + i));
      if constexpr (B::kWidth > 1)
        if (i < columns) L::put(to + i, L::get_first(from + i, static_cast<int>(columns - i), 0));
    }
    return {copy_, B::kColumns};
  }

  static KVANT_INLINE void multiply(std::size_t rows, std::size_t columns, const RowsAt<const C>& x,
                                    const RowsAt<const C>& m, std::size_t depth, bool begin, const RowsAt<C>& out) {
    if (columns > 2 * B::kWidth) return multiply_chain_rows<L, 3>(rows, x, m, depth, begin, out);
    if (columns > B::kWidth) return multiply_chain_rows<L, 2>(rows, x, m, depth, begin, out);
    return multiply_chain_rows<L, 1>(rows, x, m, depth, begin, out);
  }

  const RowsAt<const C> x_, m_;
  const RowsAt<C> out_;
  const std::size_t rows_;
  alignas(64) C copy_[B::kDepth * B::kColumns];
  alignas(64) C tile_[B::kRows * B::kColumns];
};

// Squares of as many rows as a vector is wide; what is left over, number by number.
template <class L>
void transpose_rows(const float* x, std::size_t x_stride, std::size_t rows, std::size_t columns, float* out,
                    std::size_t out_stride) {
  constexpr std::size_t kWidth = L::kWidth;
  const RowsAt<const float> from = {x, x_stride};
  const RowsAt<float> to = {out, out_stride};
  const std::size_t whole_rows = rows / kWidth * kWidth, whole_columns = columns / kWidth * kWidth;
  for (std::size_t r = 0; r < whole_rows; r += kWidth)
    for (std::size_t c = 0; c < whole_columns; c += kWidth) {
      typename L::F v[kWidth];
      for (std::size_t i = 0; i < kWidth; ++i) v[i] = L::get(from.row(r + i) + c);
      L::transpose(v);
      for (std::size_t i = 0; i < kWidth; ++i) L::put(to.row(c + i) + r, v[i]);
    }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) to.row(c)[r] = from.row(r)[c];
}

}  // namespace kvant::cpu
