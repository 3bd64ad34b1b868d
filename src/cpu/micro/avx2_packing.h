// Packing for the AVX2 micro-kernel: a weight's columns into panels, an activation's rows into tiles. Include only
// where the compiler targets AVX2.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "core/linear_kernel.h"
#include "cpu/lanes/avx2.h"
#include "cpu/micro/avx2_excess.h"
#include "cpu/micro/avx2_format.h"

namespace kvant::cpu {

struct Avx2Packing : Avx2Format {
  static void pack_panel(const detail::CodeMatrix& weight, std::int64_t index, std::byte* panel) {
    const std::int64_t depth = weight.depth;
    const std::int64_t first = index * kColumns;
    PanelTail t;
    if (!pack_reduced(weight, first, panel, quads, kQuads, t) && !pack_reduced(weight, first, panel, pairs, kPairs, t))
      pack_wide(weight, first, panel, t);
    std::memcpy(const_cast<std::byte*>(tail_of(panel, depth)), &t, sizeof t);
    std::byte* unused = const_cast<std::byte*>(excess(panel, depth)) + 4 * std::int64_t{t.excess_count};
    std::memset(unused, 0, static_cast<std::size_t>(panel + panel_bytes(depth) - unused));
  }

  static void pack_tile(const detail::CodeMatrix& activation, std::int64_t index, std::byte* tile, std::byte* wide,
                        std::int64_t* row_sums) {
    const std::int64_t depth = activation.depth;
    if (activation.rows == 1) {
      row_sums[0] = pack_row<1>(activation, 0, tile);
      for (std::int64_t k = 0; wide != nullptr && k < depth; k += 8)
        store_128(wide + 2 * k, _mm_cvtepu8_epi16(load_64(tile + k)), false);
      return;
    }
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t row = index * kRows + r;
      if (row < activation.rows) {
        row_sums[row] = pack_row<kRows>(activation, row, tile + r * 4);
      } else {
        for (std::int64_t k = 0; k < padded(depth); k += 4) std::memset(tile + r * 4 + k * kRows, 0, 4);
      }
    }
    if (wide != nullptr) widen_tile(tile, wide, depth);
  }

 private:
  using Excess = Avx2Excess;

  // ---- A weight ----

  // The weights of one column, eight at a time, zero beyond the end.
  struct ColumnReader {
    const std::int8_t* row;  // null: a column beyond the last
    std::int64_t depth;
    std::uint8_t flip;
    void read8(std::int64_t k, std::int8_t* w) const {
      const std::int64_t n = row == nullptr ? 0 : depth - k < 8 ? depth - k : 8;
      for (std::int64_t i = 0; i < 8; ++i)
        w[i] = i < n ? static_cast<std::int8_t>(static_cast<std::uint8_t>(row[k + i]) ^ flip) : std::int8_t{0};
    }
  };
  static ColumnReader column(const detail::CodeMatrix& weight, std::int64_t n) {
    return {n < weight.rows ? reinterpret_cast<const std::int8_t*>(weight.data + n * weight.stride) : nullptr,
            weight.depth, weight.flip};
  }

  static constexpr int kQuads[2][4] = {{0, 1, 4, 5}, {2, 3, 6, 7}};
  static constexpr int kPairs[4][2] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};

  // False if the lists would be longer than the kind of panel allows.
  template <int kGroups, int kMembers>
  static bool pack_reduced(const detail::CodeMatrix& weight, std::int64_t first, std::byte* panel, PanelKind kind,
                           const int (&groups)[kGroups][kMembers], PanelTail& t) {
    const std::int64_t depth = weight.depth;
    t = {};
    t.kind = kind;
    std::byte* ends = const_cast<std::byte*>(list_ends(panel, depth));
    Excess::List list{const_cast<std::byte*>(excess(panel, depth)), 0, max_excess(depth, kind)};
    ColumnReader columns[kColumns];
    for (std::int64_t n = 0; n < kColumns; ++n) columns[n] = column(weight, first + n);
    // All columns at one k after the other: so the list's neighbours belong to different columns.
    for (std::int64_t k = 0; k < depth; k += 8) {
      if (k % kBlock == 0 && k != 0) write_u32(ends, k / kBlock - 1, static_cast<std::uint32_t>(list.count));
      for (std::int64_t n = 0; n < kColumns; ++n) {
        std::int8_t w[8];
        columns[n].read8(k, w);
        for (const std::int8_t code : w) t.column_sums[n] += code;
        for (const auto& members : groups)
          if (!Excess::reduce(w, members, 1, k, n, list) || !Excess::reduce(w, members, -1, k, n, list)) return false;
        std::memcpy(panel + k * kColumns + n * 4, w, 4);
        std::memcpy(panel + (k + 4) * kColumns + n * 4, w + 4, 4);
      }
    }
    if (depth != 0) write_u32(ends, blocks(depth) - 1, static_cast<std::uint32_t>(list.count));
    t.excess_count = static_cast<std::uint32_t>(list.count);
    return true;
  }

  static void pack_wide(const detail::CodeMatrix& weight, std::int64_t first, std::byte* panel, PanelTail& t) {
    t = {};
    t.kind = wide;
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const ColumnReader reader = column(weight, first + n);
      for (std::int64_t k = 0; k < weight.depth; k += 8) {
        std::int8_t w[8];
        reader.read8(k, w);
        for (std::int64_t i = 0; i < 8; i += 2) std::memcpy(panel + (k + i) * kColumns + n * 2, w + i, 2);
        for (const std::int8_t code : w) t.column_sums[n] += code;
      }
    }
    std::memset(const_cast<std::byte*>(list_ends(panel, weight.depth)), 0,
                static_cast<std::size_t>(4 * blocks(weight.depth)));
  }

  // ---- An activation ----

  // Returns the sum of the row. kSpread rows share the tile.
  template <std::int64_t kSpread>
  static KVANT_INLINE std::int64_t pack_row(const detail::CodeMatrix& activation, std::int64_t row, std::byte* to) {
    const std::byte* from = activation.data + row * activation.stride;
    const __m128i flip = _mm_set1_epi8(static_cast<char>(activation.flip));
    __m128i sum = _mm_setzero_si128();
    const auto put = [&](std::int64_t k, __m128i eight_codes) KVANT_INLINE_LAMBDA {
      sum = _mm_add_epi64(sum, _mm_sad_epu8(eight_codes, _mm_setzero_si128()));
      const std::int32_t first = _mm_cvtsi128_si32(eight_codes), second = _mm_extract_epi32(eight_codes, 1);
      std::memcpy(to + k * kSpread, &first, sizeof first);
      std::memcpy(to + (k + 4) * kSpread, &second, sizeof second);
    };
    std::int64_t k = 0;
    for (; k + 8 <= activation.depth; k += 8) put(k, _mm_move_epi64(_mm_xor_si128(load_64(from + k), flip)));
    if (k < activation.depth) {
      std::uint8_t rest[8] = {};
      for (std::int64_t i = 0; k + i < activation.depth; ++i)
        rest[i] = static_cast<std::uint8_t>(std::to_integer<std::uint8_t>(from[k + i]) ^ activation.flip);
      put(k, load_64(rest));
    }
    return _mm_cvtsi128_si64(sum);
  }

  static void widen_tile(const std::byte* tile, std::byte* wide, std::int64_t depth) {
    const __m256i evens_first = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (std::int64_t k = 0; k < padded(depth); k += 4) {
      // Rows 0-3 and 4-7, each with four codes; pairs 0 and 1 of every row are told apart.
      const __m256i lo = _mm256_permutevar8x32_epi32(_mm256_cvtepu8_epi16(load_128(tile)), evens_first);
      const __m256i hi = _mm256_permutevar8x32_epi32(_mm256_cvtepu8_epi16(load_128(tile + 16)), evens_first);
      store_256(wide, _mm256_permute2x128_si256(lo, hi, 0x20), false);
      store_256(wide + 32, _mm256_permute2x128_si256(lo, hi, 0x31), false);
      tile += 32;
      wide += 64;
    }
  }
};

}  // namespace kvant::cpu
