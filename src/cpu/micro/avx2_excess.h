// Excess: how weights are kept from saturating a 16-bit sum, and how what was taken off them is added again.
//
// vpmaddubsw adds products of u8 by s8 in saturating 16 bits, where 255 * 127 * 2 does not fit. So the weights that
// meet in one sum are reduced until those of one sign add up to at most 128; the rest of each is an entry of a list,
// which is multiplied exactly. Include only where the compiler targets AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "cpu/lanes/avx2.h"
#include "cpu/micro/avx2_format.h"

namespace kvant::cpu {

struct Avx2Excess : Avx2Format {
  // ---- Making the lists ----

  // Where a packed panel's lists grow.
  struct List {
    std::byte* entries;
    std::int64_t count;
    std::int64_t limit;
    bool add(std::int64_t k, std::int64_t column, int amount) {
      if (count == limit) return false;
      write_u32(entries, count++, entry(k, column, amount));
      return true;
    }
  };

  // Reduces the weights w[i] of one 16-bit sum that have the sign of `sign` until they add up to 128 at most. False if
  // the list is full.
  template <int kMembers>
  static KVANT_INLINE bool reduce(std::int8_t* w, const int (&members)[kMembers], int sign, std::int64_t k,
                                  std::int64_t n, List& list) {
    constexpr int kLimit = 128;  // 255 * 128 = 32640
    int total = 0;
    for (const int i : members) total += sign * w[i] > 0 ? sign * w[i] : 0;
    while (total > kLimit) {
      int largest = members[0];
      for (const int i : members)
        if (sign * w[i] > sign * w[largest]) largest = i;
      const int size = sign * w[largest];
      // Fits 8 bits: positive weights are at most 127, negative ones at least -128.
      const int amount = total - kLimit < size ? total - kLimit : size;
      if (!list.add(k + largest, n, sign * amount)) return false;
      w[largest] = static_cast<std::int8_t>(w[largest] - sign * amount);
      total -= amount;
    }
    return true;
  }

  // ---- Adding them ----

  // A single row needs no vectors for it.
  [[gnu::noinline]] static void add_to_row(const std::byte* entries, const std::byte* end, const std::byte* tile,
                                           const std::byte* next, std::int32_t* sums) {
#pragma GCC unroll 2
    for (; entries != end; entries += 4) {
      std::uint16_t place;
      std::memcpy(&place, entries, sizeof place);
      std::int8_t amount;
      std::memcpy(&amount, entries + 3, sizeof amount);
      const std::int32_t code = std::to_integer<std::int32_t>(tile[k_of_entry(place)]);
      std::int32_t& sum = sums[std::to_integer<std::size_t>(entries[2])];
      sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum) + static_cast<std::uint32_t>(code * amount));
      __builtin_prefetch(next);
      next += 64;
    }
  }

  // Sums of excess for two tiles.
  using Found = std::int32_t[kColumns][2][kRows];

  // Adds the excess of one block to what was found for two tiles, or for one. In a tile, the codes of eight rows at k
  // are 4 bytes apart: a mask leaves each alone in its 32 bits. The tiles begin with the block's first code. `next` is
  // fetched on the way: a single tile would wait for it afterwards.
  template <int kTiles>
  [[gnu::noinline]] static void find(const std::byte* entries, const std::byte* end, const std::byte* tile,
                                     const std::byte* second_tile, const std::byte* next, Found& found) {
    const __m256i mask = _mm256_set1_epi32(0xFF);
    for (; entries != end; entries += 4) {
      std::uint16_t place;
      std::memcpy(&place, entries, sizeof place);
      auto& sums = found[std::to_integer<std::size_t>(entries[2])];
      const __m256i amount = _mm256_srai_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(read_u32(entries, 0))), 24);
      const auto add = [&](const std::byte* codes, std::int32_t* sum) KVANT_INLINE_LAMBDA {
        const __m256i product = _mm256_madd_epi16(_mm256_and_si256(load_256(codes + place), mask), amount);
        store_256(sum, _mm256_add_epi32(load_256(sum), product), false);
      };
      add(tile, sums[0]);
      if constexpr (kTiles == 2) {
        add(second_tile, sums[1]);
      } else {
        __builtin_prefetch(next);
        next += 64;
      }
    }
  }
  static void add_found(const Found* found, std::int64_t tiles, std::int32_t* sums) {
    for (std::int64_t t = 0; t < tiles; ++t)
      for (std::int64_t n = 0; n < kColumns; n += 4)
        for (std::int64_t r = 0; r < kRows; r += 4)
          add_transposed(&found[t / 2][n][t % 2][r], sums + (t * kRows + r) * kColumns + n);
  }
  // Four columns of four rows, to four rows of the sums.
  static KVANT_INLINE void add_transposed(const std::int32_t* columns, std::int32_t* sums) {
    const __m128i a = load_128(columns), b = load_128(columns + 2 * kRows);
    const __m128i c = load_128(columns + 4 * kRows), d = load_128(columns + 6 * kRows);
    const __m128i ab_lo = _mm_unpacklo_epi32(a, b), ab_hi = _mm_unpackhi_epi32(a, b);
    const __m128i cd_lo = _mm_unpacklo_epi32(c, d), cd_hi = _mm_unpackhi_epi32(c, d);
    const auto add = [&](int row, __m128i v) KVANT_INLINE_LAMBDA {
      store_128(sums + row * kColumns, _mm_add_epi32(load_128(sums + row * kColumns), v), false);
    };
    add(0, _mm_unpacklo_epi64(ab_lo, cd_lo));
    add(1, _mm_unpackhi_epi64(ab_lo, cd_lo));
    add(2, _mm_unpacklo_epi64(ab_hi, cd_hi));
    add(3, _mm_unpackhi_epi64(ab_hi, cd_hi));
  }
};

}  // namespace kvant::cpu
