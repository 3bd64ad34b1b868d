// The products of the AVX2 micro-kernel: strips of up to four rows by the sixteen columns of a panel, for each kind of
// panel. Include only where the compiler targets AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "cpu/lanes/avx2.h"
#include "cpu/micro/avx2_format.h"

namespace kvant::cpu {

struct Avx2Products : Avx2Format {
  static constexpr std::int64_t kStrip = 4;  // rows whose sums fit the registers

  // Sums of up to four rows by sixteen columns. Named members, because GCC 12 spills arrays of vectors.
  template <int kStripRows>
  struct Sums {
    __m256i a0, a1, b0, b1, c0, c1, d0, d1;

    KVANT_INLINE explicit Sums(const std::int32_t* p) {
      load(p, a0, a1);
      if constexpr (kStripRows > 1) load(p + kColumns, b0, b1);
      if constexpr (kStripRows > 2) load(p + 2 * kColumns, c0, c1);
      if constexpr (kStripRows > 3) load(p + 3 * kColumns, d0, d1);
    }
    KVANT_INLINE void store(std::int32_t* p) const {
      store(p, a0, a1);
      if constexpr (kStripRows > 1) store(p + kColumns, b0, b1);
      if constexpr (kStripRows > 2) store(p + 2 * kColumns, c0, c1);
      if constexpr (kStripRows > 3) store(p + 3 * kColumns, d0, d1);
    }
    // f(row, sums of columns 0-7, sums of columns 8-15) for every row.
    template <class Function>
    KVANT_INLINE void for_each_row(const Function& f) {
      f(0, a0, a1);
      if constexpr (kStripRows > 1) f(1, b0, b1);
      if constexpr (kStripRows > 2) f(2, c0, c1);
      if constexpr (kStripRows > 3) f(3, d0, d1);
    }

   private:
    static KVANT_INLINE void load(const std::int32_t* p, __m256i& lo, __m256i& hi) {
      lo = load_256(p);
      hi = load_256(p + 8);
    }
    static KVANT_INLINE void store(std::int32_t* p, __m256i lo, __m256i hi) {
      store_256(p, lo, false);
      store_256(p + 8, hi, false);
    }
  };

  static KVANT_INLINE __m256i broadcast_32(const std::byte* p) {
    std::int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm256_set1_epi32(bits);
  }

  // How far ahead of its weights a single strip fetches, in bytes.
  static constexpr std::int64_t kAhead = 2048;

  // Weights that come next are fetched while the present ones are multiplied, a little in every step: the strips that
  // share a block of weights share the work, so that a step may be less than a line.
  struct Fetch {
    const std::byte* next;
    std::int64_t step;  // bytes
    // `panel` is where a step reads: a row that is alone fetches at a fixed distance and saves the addition.
    template <std::int64_t kSpread>
    KVANT_INLINE void one(const std::byte* panel) {
      if constexpr (kSpread == 1) {
        __builtin_prefetch(panel + kAhead);
      } else {
        __builtin_prefetch(next);
        next += step;
      }
    }
    Fetch after(std::int64_t steps) const { return {next + steps * step, step}; }
  };

  // Column group by column group: more weights held at once would not leave registers for the sums.
  template <int kStripRows, std::int64_t kSpread>
  [[gnu::noinline]] static void multiply_quads(const std::byte* tile, const std::byte* panel, std::int64_t depth,
                                               Fetch fetch, std::int32_t* out) {
    Sums<kStripRows> sums(out);
    const __m256i ones = _mm256_set1_epi16(1);
    for (const std::byte* end = tile + depth * kSpread; tile != end; tile += 8 * kSpread, panel += 8 * kColumns) {
      fetch.template one<kSpread>(panel);
      const auto products = [&](int row, __m256i first, __m256i second) KVANT_INLINE_LAMBDA {
        const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(broadcast_32(tile + 4 * row), first),
                                             _mm256_maddubs_epi16(broadcast_32(tile + 4 * kSpread + 4 * row), second));
        return _mm256_madd_epi16(sum, ones);
      };
      const __m256i w00 = load_256(panel), w01 = load_256(panel + 64);
      sums.for_each_row([&](int row, __m256i& lo, __m256i&)
                            KVANT_INLINE_LAMBDA { lo = _mm256_add_epi32(lo, products(row, w00, w01)); });
      // Broadcasts again: the compiler would keep eight of them, and spill the sums.
      asm("" : "+r"(tile));
      const __m256i w10 = load_256(panel + 32), w11 = load_256(panel + 96);
      sums.for_each_row([&](int row, __m256i&, __m256i& hi)
                            KVANT_INLINE_LAMBDA { hi = _mm256_add_epi32(hi, products(row, w10, w11)); });
    }
    sums.store(out);
  }

  template <int kStripRows, std::int64_t kSpread>
  [[gnu::noinline]] static void multiply_pairs(const std::byte* tile, const std::byte* panel, std::int64_t depth,
                                               Fetch fetch, std::int32_t* out) {
    Sums<kStripRows> sums(out);
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (const std::byte* end = tile + depth * kSpread; tile != end; tile += 4 * kSpread, panel += 4 * kColumns) {
      fetch.template one<kSpread>(panel);
      const __m256i w0 = load_256(panel), w1 = load_256(panel + 32);
      sums.for_each_row([&](int row, __m256i& lo, __m256i& hi) KVANT_INLINE_LAMBDA {
        const __m256i x = broadcast_32(tile + 4 * row);
        lo = _mm256_add_epi32(lo, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w0), ones));
        hi = _mm256_add_epi32(hi, _mm256_madd_epi16(_mm256_maddubs_epi16(x, w1), ones));
      });
    }
    sums.store(out);
  }

  // Weights in 16 bits, or as the bytes of a wide panel.
  struct Widened {
    static constexpr std::int64_t kBytes = 4 * kColumns;  // for 2 of k
    static KVANT_INLINE __m256i load(const std::byte* p, int half) { return load_256(p + 32 * half); }
  };
  struct WidenedOnTheWay {
    static constexpr std::int64_t kBytes = 2 * kColumns;
    static KVANT_INLINE __m256i load(const std::byte* p, int half) {
      return _mm256_cvtepi8_epi16(load_128(p + 16 * half));
    }
  };
  template <int kStripRows, std::int64_t kSpread, class Weights>
  [[gnu::noinline]] static void multiply_wide(const std::byte* tile, const std::byte* weights, std::int64_t depth,
                                              Fetch fetch, std::int32_t* out) {
    Sums<kStripRows> sums(out);
    for (const std::byte* end = tile + depth * kSpread * 2; tile != end;
         tile += 4 * kSpread, weights += Weights::kBytes) {
      fetch.template one<kSpread>(weights);
      const __m256i w0 = Weights::load(weights, 0), w1 = Weights::load(weights, 1);
      sums.for_each_row([&](int row, __m256i& lo, __m256i& hi) KVANT_INLINE_LAMBDA {
        const __m256i x = broadcast_32(tile + 4 * row);
        lo = _mm256_add_epi32(lo, _mm256_madd_epi16(x, w0));
        hi = _mm256_add_epi32(hi, _mm256_madd_epi16(x, w1));
      });
    }
    sums.store(out);
  }

  // A block of a wide panel in 16 bits, for rows that pass by it several times. `panel` is at its first code.
  static void widen_panel(const std::byte* panel, std::int64_t depth, std::byte* widened) {
    for (std::int64_t i = 0; i < depth * kColumns; i += 16)
      store_256(widened + 2 * i, _mm256_cvtepi8_epi16(load_128(panel + i)), false);
  }
};

}  // namespace kvant::cpu
