// A weight in the caller's own layout, which nobody packed: its sums, its products with a single row, and blocks of it
// in 16 bits for the products of many rows. Include only where the compiler targets AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "base/inline.h"
#include "core/linear_kernel.h"
#include "cpu/lanes/avx2.h"
#include "cpu/micro/avx2_format.h"
#include "cpu/micro/operands.h"

namespace kvant::cpu {

struct Avx2RawWeight : Avx2Format {
  static KVANT_INLINE std::int64_t sum_of_row(const detail::CodeMatrix& weight, std::int64_t row) {
    const std::byte* p = weight.data + row * weight.stride;
    // As u8, which is 128 more; codes beyond the end are 0, so 128 here too.
    const __m256i to_u8 = _mm256_set1_epi8(static_cast<char>(weight.flip ^ 0x80));
    __m256i sum = _mm256_setzero_si256();
    std::int64_t k = 0;
    for (; k + 32 <= weight.depth; k += 32)
      sum = _mm256_add_epi64(sum, _mm256_sad_epu8(_mm256_xor_si256(load_256(p + k), to_u8), _mm256_setzero_si256()));
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    for (; k < weight.depth; k += 16)
      half = _mm_add_epi64(half,
                           _mm_sad_epu8(_mm_xor_si128(codes_at(weight, row, k), _mm_set1_epi8(static_cast<char>(0x80))),
                                        _mm_setzero_si128()));
    return _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1) - 128 * k;
  }

  // Adds the products of a single row, which meets the weights as they lie, for codes [first, first + depth).
  static void multiply_row(const LinearPanel& panel, const LinearRows& rows, std::int64_t first, std::int64_t depth,
                           std::int32_t* sums) {
    const detail::CodeMatrix& weight = *panel.raw;
    const __m128i flip = _mm_set1_epi8(static_cast<char>(weight.flip));
    const std::byte* codes = rows.wide_tiles + 2 * first;
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const std::int64_t column = panel.index * kColumns + n;
      if (column >= weight.rows) return;
      const std::byte* w = weight.data + column * weight.stride + first;
      __m256i a = _mm256_setzero_si256(), b = a;
      const auto products = [&](std::int64_t k, __m128i eight_bits) KVANT_INLINE_LAMBDA {
        return _mm256_madd_epi16(_mm256_cvtepi8_epi16(eight_bits), load_256(codes + 2 * k));
      };
      std::int64_t k = 0;
      for (; k + 32 <= depth; k += 32) {
        a = _mm256_add_epi32(a, products(k, _mm_xor_si128(load_128(w + k), flip)));
        b = _mm256_add_epi32(b, products(k + 16, _mm_xor_si128(load_128(w + k + 16), flip)));
      }
      for (; k < depth; k += 16) a = _mm256_add_epi32(a, products(k, codes_at(weight, column, first + k)));
      const __m256i sum = _mm256_add_epi32(a, b);
      const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      const __m128i pair = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
      sums[n] = _mm_cvtsi128_si32(
          _mm_add_epi32(_mm_cvtsi32_si128(sums[n]), _mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0x55))));
    }
  }

  // Codes [first, first + depth) of the columns from `column` on in 16 bits; zero beyond the ends of the matrix.
  static void widen(const detail::CodeMatrix& weight, std::int64_t column, std::int64_t first, std::int64_t depth,
                    std::byte* widened) {
    for (std::int64_t k = 0; k < depth; k += 16)
      for (std::int64_t n = 0; n < kColumns; n += 8)
        widen_square(weight, column + n, first + k, widened + k * kColumns * 2 + n * 4, depth - k);
  }

 private:
  // Sixteen codes from k on; zero beyond the ends of the matrix.
  static KVANT_INLINE __m128i codes_at(const detail::CodeMatrix& weight, std::int64_t column, std::int64_t k) {
    if (column >= weight.rows) return _mm_setzero_si128();
    const std::byte* p = weight.data + column * weight.stride + k;
    const __m128i flip = _mm_set1_epi8(static_cast<char>(weight.flip));
    if (k + 16 <= weight.depth) return _mm_xor_si128(load_128(p), flip);
    std::uint8_t rest[16] = {};
    for (std::int64_t i = 0; k + i < weight.depth; ++i)
      rest[i] = static_cast<std::uint8_t>(std::to_integer<std::uint8_t>(p[i]) ^ weight.flip);
    return load_128(rest);
  }

  // Eight columns by sixteen codes: each column becomes eight pairs of int16, which are transposed.
  static KVANT_INLINE void widen_square(const detail::CodeMatrix& weight, std::int64_t column, std::int64_t k,
                                        std::byte* to, std::int64_t wanted) {
    const auto row = [&](std::int64_t n)
                         KVANT_INLINE_LAMBDA { return _mm256_cvtepi8_epi16(codes_at(weight, column + n, k)); };
    const __m256i a = row(0), b = row(1), c = row(2), d = row(3), e = row(4), f = row(5), g = row(6), h = row(7);
    const __m256i ab_lo = _mm256_unpacklo_epi32(a, b), ab_hi = _mm256_unpackhi_epi32(a, b);
    const __m256i cd_lo = _mm256_unpacklo_epi32(c, d), cd_hi = _mm256_unpackhi_epi32(c, d);
    const __m256i ef_lo = _mm256_unpacklo_epi32(e, f), ef_hi = _mm256_unpackhi_epi32(e, f);
    const __m256i gh_lo = _mm256_unpacklo_epi32(g, h), gh_hi = _mm256_unpackhi_epi32(g, h);
    const __m256i lo[4] = {_mm256_unpacklo_epi64(ab_lo, cd_lo), _mm256_unpackhi_epi64(ab_lo, cd_lo),
                           _mm256_unpacklo_epi64(ab_hi, cd_hi), _mm256_unpackhi_epi64(ab_hi, cd_hi)};
    const __m256i hi[4] = {_mm256_unpacklo_epi64(ef_lo, gh_lo), _mm256_unpackhi_epi64(ef_lo, gh_lo),
                           _mm256_unpacklo_epi64(ef_hi, gh_hi), _mm256_unpackhi_epi64(ef_hi, gh_hi)};
    for (int pair = 0; pair < 4; ++pair) {
      store_256(to + pair * 64, _mm256_permute2x128_si256(lo[pair], hi[pair], 0x20), false);
      if (wanted > 8) store_256(to + (4 + pair) * 64, _mm256_permute2x128_si256(lo[pair], hi[pair], 0x31), false);
    }
  }
};

}  // namespace kvant::cpu
