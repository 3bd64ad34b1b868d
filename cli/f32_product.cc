#include "cli/f32_product.h"

#include <algorithm>

#include "cpu/instruction_sets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvant::cli {
namespace {

// A block of K: 3 rows of W take 12 KiB of the first cache, 128 rows of x 512 KiB of the second.
constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kRows = 4, kColumns = 3;

struct Operands {
  const float* x;
  const float* w;
  float* y;
  std::int64_t m, n, k;
};

// Adds the products over [begin, end) of K to y[row, column].
void add_one(const Operands& o, std::int64_t row, std::int64_t column, std::int64_t begin, std::int64_t end) {
  const float* const x = o.x + row * o.k;
  const float* const w = o.w + column * o.k;
  float a = 0, b = 0, c = 0, d = 0;
  std::int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    a += x[i] * w[i];
    b += x[i + 1] * w[i + 1];
    c += x[i + 2] * w[i + 2];
    d += x[i + 3] * w[i + 3];
  }
  for (; i < end; ++i) a += x[i] * w[i];
  o.y[row * o.n + column] += (a + b) + (c + d);
}

using Tile = void (*)(const Operands&, std::int64_t row, std::int64_t column, std::int64_t begin, std::int64_t end);

// kRows by kColumns sums.
void add_tile_portable(const Operands& o, std::int64_t row, std::int64_t column, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::int64_t c = 0; c < kColumns; ++c) add_one(o, row + r, column + c, begin, end);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) inline float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}

// Named variables: GCC 12 would spill sums that are held in an array. 12 sums, 3 of W and 1 of x fill the 16 registers.
__attribute__((target("avx2,fma"))) void add_tile_avx2(const Operands& o, std::int64_t row, std::int64_t column,
                                                       std::int64_t begin, std::int64_t end) {
  const float *const x0 = o.x + row * o.k, *const x1 = x0 + o.k, *const x2 = x1 + o.k, *const x3 = x2 + o.k;
  const float *const w0 = o.w + column * o.k, *const w1 = w0 + o.k, *const w2 = w1 + o.k;
  __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, b0 = a0, b1 = a0, b2 = a0;
  __m256 c0 = a0, c1 = a0, c2 = a0, d0 = a0, d1 = a0, d2 = a0;
  std::int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    const __m256 v0 = _mm256_loadu_ps(w0 + i), v1 = _mm256_loadu_ps(w1 + i), v2 = _mm256_loadu_ps(w2 + i);
    __m256 u = _mm256_loadu_ps(x0 + i);
    a0 = _mm256_fmadd_ps(u, v0, a0);
    a1 = _mm256_fmadd_ps(u, v1, a1);
    a2 = _mm256_fmadd_ps(u, v2, a2);
    u = _mm256_loadu_ps(x1 + i);
    b0 = _mm256_fmadd_ps(u, v0, b0);
    b1 = _mm256_fmadd_ps(u, v1, b1);
    b2 = _mm256_fmadd_ps(u, v2, b2);
    u = _mm256_loadu_ps(x2 + i);
    c0 = _mm256_fmadd_ps(u, v0, c0);
    c1 = _mm256_fmadd_ps(u, v1, c1);
    c2 = _mm256_fmadd_ps(u, v2, c2);
    u = _mm256_loadu_ps(x3 + i);
    d0 = _mm256_fmadd_ps(u, v0, d0);
    d1 = _mm256_fmadd_ps(u, v1, d1);
    d2 = _mm256_fmadd_ps(u, v2, d2);
  }
  float *const y0 = o.y + row * o.n + column, *const y1 = y0 + o.n, *const y2 = y1 + o.n, *const y3 = y2 + o.n;
  y0[0] += sum_of(a0), y0[1] += sum_of(a1), y0[2] += sum_of(a2);
  y1[0] += sum_of(b0), y1[1] += sum_of(b1), y1[2] += sum_of(b2);
  y2[0] += sum_of(c0), y2[1] += sum_of(c1), y2[2] += sum_of(c2);
  y3[0] += sum_of(d0), y3[1] += sum_of(d1), y3[2] += sum_of(d2);
  for (std::int64_t r = 0; r < kRows && i < end; ++r)
    for (std::int64_t c = 0; c < kColumns; ++c) add_one(o, row + r, column + c, i, end);
}
#endif

Tile best_tile() {
#if defined(__x86_64__)
  if (cpu::can_run(ArchSku::avx2)) return add_tile_avx2;
#endif
  return add_tile_portable;
}

// Columns [first, last) of y.
void product_band(const Operands& o, Tile tile, std::int64_t first, std::int64_t last) {
  for (std::int64_t row = 0; row < o.m; ++row) std::fill(o.y + row * o.n + first, o.y + row * o.n + last, 0.0f);
  for (std::int64_t begin = 0; begin < o.k; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, o.k);
    for (std::int64_t column = first; column < last; column += kColumns) {
      std::int64_t row = 0;
      if (column + kColumns <= last)
        for (; row + kRows <= o.m; row += kRows) tile(o, row, column, begin, end);
      for (; row < o.m; ++row)
        for (std::int64_t c = column; c < std::min(column + kColumns, last); ++c) add_one(o, row, c, begin, end);
    }
  }
}

}  // namespace

Status f32_product(const Stream& stream, const float* x, const float* w, float* y, std::int64_t m, std::int64_t n,
                   std::int64_t k) {
  constexpr std::int64_t kBand = 16 * kColumns;
  const Operands operands{x, w, y, m, n, k};
  const Tile tile = best_tile();
  const auto band = [&](std::int64_t part) {
    product_band(operands, tile, part * kBand, std::min((part + 1) * kBand, n));
  };
  return stream.parallel_for(
      (n + kBand - 1) / kBand,
      Task([](const void* context, std::int64_t part) { (*static_cast<const decltype(band)*>(context))(part); },
           &band));
}

}  // namespace kvant::cli
