// The int8 matrix product on AVX2 without VNNI, with exact sums. Include only where the compiler targets AVX2.
//
// The instruction for bytes, vpmaddubsw, adds two products of u8 by s8 in 16 bits and saturates: 255 * 127 * 2 does not
// fit. So weights whose products meet in one 16-bit sum are reduced when they are packed, where they must be, until
// those of one sign add up to at most 128: 255 times that fits. What was taken off is the excess, a list for each
// column that is added exactly. A panel is of the first kind whose lists stay short:
//
//   quads  Four weights in a 16-bit sum: two vpmaddubsw are added before they are widened, 64 products for five
//          instructions. For weights with long tails.
//   pairs  Two weights in a 16-bit sum: 64 products for six instructions. Of a channel of 4096 bell-shaped weights,
//          0.5 % have excess (2.5 % in quads).
//   wide   Full-range weights stay as they are and are widened to 16 bits on the way, for vpmaddwd, which cannot
//          overflow: 64 products for eight instructions.
//
// On Zen 3, one core, out of L1: quads 122 GMAC/s, pairs 100, wide 80.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/linear_kernel.h"
#include "cpu/lanes/avx2.h"
#include "cpu/micro/operands.h"
#include "semantics/inline.h"

namespace kvant::cpu {

struct Avx2Micro {
  static constexpr ArchSku kArch = ArchSku::avx2;
  static constexpr std::int64_t kColumns = 16;
  static constexpr std::int64_t kRows = 8;   // of a tile
  static constexpr std::int64_t kStrip = 4;  // rows whose sums fit the registers

  // ---- Layouts ----
  //
  // Tile           for each 4 of k: 8 rows of 4 bytes
  // Wide tile      for each 2 of k: 8 rows of 2 int16
  // Quads, pairs   for each 4 of k: 16 columns of 4 bytes. In pairs a 16-bit sum takes k 0 and 1, the next one 2 and 3;
  //                in quads k 0, 1, 4 and 5, the next one 2, 3, 6 and 7.
  // Wide panel     for each 2 of k: 16 columns of 2 bytes
  // Behind the codes of a panel: PanelTail, the ends of the lists (one for each column, chunk by chunk), the lists.

  enum PanelKind : std::uint32_t { quads, pairs, wide };
  struct PanelTail {
    std::int64_t column_sums[kColumns];
    std::uint32_t kind;
    std::uint32_t excess_count;
  };
  // An entry of a list: k within its chunk in the lower half, what is to be added to that weight in the upper one.
  static constexpr std::int64_t kChunk = 65536;

  static std::int64_t padded(std::int64_t depth) { return (depth + 7) / 8 * 8; }
  static std::int64_t chunks(std::int64_t depth) { return (depth + kChunk - 1) / kChunk; }
  // An entry takes about half a cycle for 4 rows; a weight in a quad takes 0.11, in a pair 0.14, a wide one 0.17.
  // Single rows care more about the bytes of the lists, so quads stop earlier than that says.
  static std::int64_t max_excess(std::int64_t depth, PanelKind kind = pairs) {
    return padded(depth) * kColumns / (kind == quads ? 128 : 32);
  }
  static std::int64_t panel_bytes(std::int64_t depth) {
    const std::int64_t bytes = padded(depth) * kColumns + static_cast<std::int64_t>(sizeof(PanelTail)) +
                               4 * (chunks(depth) * kColumns + max_excess(depth));
    return (bytes + 63) / 64 * 64;
  }
  // One line more than the codes, so that rows of several tiles do not meet in the same set of the cache.
  static std::int64_t tile_bytes(std::int64_t depth) { return padded(depth) * kRows + 64; }
  static std::int64_t wide_tile_bytes(std::int64_t depth) { return padded(depth) * kRows * 2 + 64; }

  static const std::byte* tail_of(const std::byte* panel, std::int64_t depth) {
    return panel + padded(depth) * kColumns;
  }
  static PanelTail tail(const std::byte* panel, std::int64_t depth) {
    PanelTail t;
    std::memcpy(&t, tail_of(panel, depth), sizeof t);
    return t;
  }
  static const std::byte* list_ends(const std::byte* panel, std::int64_t depth) {
    return tail_of(panel, depth) + sizeof(PanelTail);
  }
  static const std::byte* excess(const std::byte* panel, std::int64_t depth) {
    return list_ends(panel, depth) + 4 * chunks(depth) * kColumns;
  }
  static std::uint32_t read_u32(const std::byte* p, std::int64_t index) {
    std::uint32_t v;
    std::memcpy(&v, p + 4 * index, sizeof v);
    return v;
  }
  static void write_u32(std::byte* p, std::int64_t index, std::uint32_t v) { std::memcpy(p + 4 * index, &v, sizeof v); }

  static bool panel_is_wide(const std::byte* panel, std::int64_t depth) { return tail(panel, depth).kind == wide; }

  static bool panel_is_sound(const std::byte* panel, std::int64_t depth) {
    const PanelTail t = tail(panel, depth);
    if (t.kind > wide || t.excess_count > max_excess(depth) || (t.kind == wide && t.excess_count != 0)) return false;
    const std::int64_t lists = chunks(depth) * kColumns;
    std::uint32_t begin = 0;
    for (std::int64_t i = 0; i < lists; ++i) {
      const std::uint32_t end = read_u32(list_ends(panel, depth), i);
      if (end < begin || end > t.excess_count) return false;
      for (std::uint32_t e = begin; e < end; ++e)
        if (i / kColumns * kChunk + (read_u32(excess(panel, depth), e) & 0xFFFF) >= depth) return false;
      begin = end;
    }
    return begin == t.excess_count;
  }

  // ---- Packing a weight ----

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

  // Where a packed panel's lists grow.
  struct ExcessList {
    std::byte* entries;
    std::int64_t count;
    std::int64_t limit;
    bool add(std::int64_t k, int amount) {
      if (count == limit) return false;
      write_u32(entries, count++, static_cast<std::uint32_t>(k % kChunk) | static_cast<std::uint32_t>(amount) << 16);
      return true;
    }
  };

  // Reduces the weights w[i] of one 16-bit sum that have the sign of `sign` until they add up to 128 at most. False if
  // the list is full.
  template <int kMembers>
  static KVANT_INLINE bool reduce(std::int8_t* w, const int (&members)[kMembers], int sign, std::int64_t k,
                                  ExcessList& list) {
    constexpr int kLimit = 128;  // 255 * 128 = 32640
    int total = 0;
    for (const int i : members) total += sign * w[i] > 0 ? sign * w[i] : 0;
    while (total > kLimit) {
      int largest = members[0];
      for (const int i : members)
        if (sign * w[i] > sign * w[largest]) largest = i;
      const int size = sign * w[largest];
      // The excess of one entry fits 8 bits; -128 is taken off whole.
      const int amount = total - kLimit < size ? total - kLimit : size;
      if (!list.add(k + largest, sign * amount)) return false;
      w[largest] = static_cast<std::int8_t>(w[largest] - sign * amount);
      total -= amount;
    }
    return true;
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
    ExcessList list{const_cast<std::byte*>(excess(panel, depth)), 0, max_excess(depth, kind)};
    for (std::int64_t chunk = 0; chunk < chunks(depth); ++chunk) {
      const std::int64_t end = depth < (chunk + 1) * kChunk ? depth : (chunk + 1) * kChunk;
      for (std::int64_t n = 0; n < kColumns; ++n) {
        const ColumnReader reader = column(weight, first + n);
        std::int64_t sum = 0;
        for (std::int64_t k = chunk * kChunk; k < end; k += 8) {
          std::int8_t w[8];
          reader.read8(k, w);
          for (const std::int8_t code : w) sum += code;
          for (const auto& members : groups)
            if (!reduce(w, members, 1, k, list) || !reduce(w, members, -1, k, list)) return false;
          std::memcpy(panel + k * kColumns + n * 4, w, 4);
          std::memcpy(panel + (k + 4) * kColumns + n * 4, w + 4, 4);
        }
        t.column_sums[n] += sum;
        write_u32(ends, chunk * kColumns + n, static_cast<std::uint32_t>(list.count));
      }
    }
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
                static_cast<std::size_t>(4 * chunks(weight.depth) * kColumns));
  }

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

  // ---- Packing an activation ----

  static void pack_tile(const detail::CodeMatrix& activation, std::int64_t index, std::byte* tile, std::byte* wide,
                        std::int64_t* row_sums) {
    const std::int64_t depth = activation.depth;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t row = index * kRows + r;
      if (row < activation.rows) {
        row_sums[row] = pack_row(activation, row, tile + r * 4);
      } else {
        for (std::int64_t k = 0; k < padded(depth); k += 4) std::memset(tile + r * 4 + k * kRows, 0, 4);
      }
    }
    if (wide != nullptr) widen_tile(tile, wide, depth);
  }
  // Returns the sum of the row.
  static KVANT_INLINE std::int64_t pack_row(const detail::CodeMatrix& activation, std::int64_t row, std::byte* to) {
    const std::byte* from = activation.data + row * activation.stride;
    const __m128i flip = _mm_set1_epi8(static_cast<char>(activation.flip));
    __m128i sum = _mm_setzero_si128();
    const auto put = [&](std::int64_t k, __m128i eight_codes) KVANT_INLINE_LAMBDA {
      sum = _mm_add_epi64(sum, _mm_sad_epu8(eight_codes, _mm_setzero_si128()));
      const std::int32_t first = _mm_cvtsi128_si32(eight_codes), second = _mm_extract_epi32(eight_codes, 1);
      std::memcpy(to + k * kRows, &first, sizeof first);
      std::memcpy(to + (k + 4) * kRows, &second, sizeof second);
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
    for (std::int64_t k = 0; k < depth; k += 4) {
      // Rows 0-3 and 4-7, each with four codes; pairs 0 and 1 of every row are told apart.
      const __m256i lo = _mm256_permutevar8x32_epi32(_mm256_cvtepu8_epi16(load_128(tile)), evens_first);
      const __m256i hi = _mm256_permutevar8x32_epi32(_mm256_cvtepu8_epi16(load_128(tile + 16)), evens_first);
      store_256(wide, _mm256_permute2x128_si256(lo, hi, 0x20), false);
      store_256(wide + 32, _mm256_permute2x128_si256(lo, hi, 0x31), false);
      tile += 32;
      wide += 64;
    }
  }

  // ---- Products ----

  // Sums of up to four rows by sixteen columns. Named members, because GCC 12 spills arrays of vectors.
  template <int kTileRows>
  struct Sums {
    __m256i a0, a1, b0, b1, c0, c1, d0, d1;

    KVANT_INLINE explicit Sums(const std::int32_t* p) {
      load(p, a0, a1);
      if constexpr (kTileRows > 1) load(p + kColumns, b0, b1);
      if constexpr (kTileRows > 2) load(p + 2 * kColumns, c0, c1);
      if constexpr (kTileRows > 3) load(p + 3 * kColumns, d0, d1);
    }
    KVANT_INLINE void store(std::int32_t* p) const {
      store(p, a0, a1);
      if constexpr (kTileRows > 1) store(p + kColumns, b0, b1);
      if constexpr (kTileRows > 2) store(p + 2 * kColumns, c0, c1);
      if constexpr (kTileRows > 3) store(p + 3 * kColumns, d0, d1);
    }
    // f(row, sums of columns 0-7, sums of columns 8-15) for every row.
    template <class Function>
    KVANT_INLINE void for_each_row(const Function& f) {
      f(0, a0, a1);
      if constexpr (kTileRows > 1) f(1, b0, b1);
      if constexpr (kTileRows > 2) f(2, c0, c1);
      if constexpr (kTileRows > 3) f(3, d0, d1);
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

  // Column group by column group: more weights held at once would not leave registers for the sums.
  template <int kTileRows>
  static void multiply_quads(const std::byte* tile, const std::byte* panel, std::int64_t depth, std::int32_t* out) {
    Sums<kTileRows> sums(out);
    const __m256i ones = _mm256_set1_epi16(1);
    for (const std::byte* end = tile + depth * kRows; tile != end; tile += 8 * kRows, panel += 8 * kColumns) {
      const auto products = [&](int row, __m256i first, __m256i second) KVANT_INLINE_LAMBDA {
        const __m256i sum = _mm256_add_epi16(_mm256_maddubs_epi16(broadcast_32(tile + 4 * row), first),
                                             _mm256_maddubs_epi16(broadcast_32(tile + 4 * kRows + 4 * row), second));
        return _mm256_madd_epi16(sum, ones);
      };
      const __m256i w00 = load_256(panel), w01 = load_256(panel + 64);
      sums.for_each_row([&](int row, __m256i& lo, __m256i&)
                            KVANT_INLINE_LAMBDA { lo = _mm256_add_epi32(lo, products(row, w00, w01)); });
      const __m256i w10 = load_256(panel + 32), w11 = load_256(panel + 96);
      sums.for_each_row([&](int row, __m256i&, __m256i& hi)
                            KVANT_INLINE_LAMBDA { hi = _mm256_add_epi32(hi, products(row, w10, w11)); });
    }
    sums.store(out);
  }

  template <int kTileRows>
  static void multiply_pairs(const std::byte* tile, const std::byte* panel, std::int64_t depth, std::int32_t* out) {
    Sums<kTileRows> sums(out);
    const __m256i ones = _mm256_set1_epi16(1);
    for (const std::byte* end = tile + depth * kRows; tile != end; tile += 4 * kRows, panel += 4 * kColumns) {
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
  template <int kTileRows, class Weights>
  static void multiply_wide(const std::byte* tile, const std::byte* weights, std::int64_t depth, std::int32_t* out) {
    Sums<kTileRows> sums(out);
    for (const std::byte* end = tile + depth * kRows * 2; tile != end; tile += 4 * kRows, weights += Weights::kBytes) {
      const __m256i w0 = Weights::load(weights, 0), w1 = Weights::load(weights, 1);
      sums.for_each_row([&](int row, __m256i& lo, __m256i& hi) KVANT_INLINE_LAMBDA {
        const __m256i x = broadcast_32(tile + 4 * row);
        lo = _mm256_add_epi32(lo, _mm256_madd_epi16(x, w0));
        hi = _mm256_add_epi32(hi, _mm256_madd_epi16(x, w1));
      });
    }
    sums.store(out);
  }

  // ---- Excess ----

  // Adds the excess of one chunk to the sums of kTiles tiles. In a tile, the codes of eight rows at k are 4 bytes
  // apart: a load two bytes in front of the first puts them where a mask leaves each alone in its 32 bits, beside the
  // zero that meets the entry's k.
  template <int kTiles>
  static void add_excess(const std::byte* tile, std::int64_t tile_stride, const std::byte* panel, std::int64_t depth,
                         std::int64_t chunk, std::int32_t* sums) {
    const std::byte* ends = list_ends(panel, depth) + 4 * chunk * kColumns;
    const std::byte* entries = excess(panel, depth);
    const std::byte* codes = tile + chunk * kChunk * kRows - 2;
    const __m256i mask = _mm256_set1_epi32(0xFF0000);
    alignas(32) std::int32_t found[kTiles][kColumns][kRows];
    std::int64_t i = chunk == 0 ? 0 : read_u32(ends, -1);
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const std::int64_t end = read_u32(ends, n);
      __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
      for (; i < end; ++i) {
        const std::byte* entry = entries + 4 * i;
        std::uint16_t k;
        std::memcpy(&k, entry, sizeof k);
        const std::byte* p = codes + (std::int64_t{k} + 7 * (std::int64_t{k} & ~3));
        const __m256i amount = broadcast_32(entry);
        const auto add = [&](__m256i sum, const std::byte* x) KVANT_INLINE_LAMBDA {
          return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_and_si256(load_256(x), mask), amount));
        };
        a = add(a, p);
        if constexpr (kTiles > 1) b = add(b, p + tile_stride);
        if constexpr (kTiles > 2) c = add(c, p + 2 * tile_stride);
        if constexpr (kTiles > 3) d = add(d, p + 3 * tile_stride);
      }
      store_256(found[0][n], a, false);
      if constexpr (kTiles > 1) store_256(found[1][n], b, false);
      if constexpr (kTiles > 2) store_256(found[2][n], c, false);
      if constexpr (kTiles > 3) store_256(found[3][n], d, false);
    }
    for (int t = 0; t < kTiles; ++t)
      for (std::int64_t n = 0; n < kColumns; n += 4)
        for (std::int64_t r = 0; r < kRows; r += 4)
          add_transposed(&found[t][n][r], sums + (t * kRows + r) * kColumns + n);
  }
  // Four columns of four rows, to four rows of the sums.
  static KVANT_INLINE void add_transposed(const std::int32_t* columns, std::int32_t* sums) {
    const __m128i a = load_128(columns), b = load_128(columns + kRows);
    const __m128i c = load_128(columns + 2 * kRows), d = load_128(columns + 3 * kRows);
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

  // ---- Weights in 16 bits, a block at a time ----

  static constexpr std::int64_t kWideBlock = 512;  // of k: 16 KiB, half of L1

  // `panel` at the block's first code.
  static void widen_panel(const std::byte* panel, std::int64_t depth, std::byte* widened) {
    for (std::int64_t i = 0; i < depth * kColumns; i += 16)
      store_256(widened + 2 * i, _mm256_cvtepi8_epi16(load_128(panel + i)), false);
  }

  // Codes [first, first + depth) of the raw columns from `column` on; zero beyond the ends of the matrix.
  static void widen_raw(const detail::CodeMatrix& weight, std::int64_t column, std::int64_t first, std::int64_t depth,
                        std::byte* widened) {
    for (std::int64_t k = 0; k < depth; k += 16)
      for (std::int64_t n = 0; n < kColumns; n += 8)
        widen_square(weight, column + n, first + k, widened + k * kColumns * 2 + n * 4, depth - k);
  }
  // Eight columns by sixteen codes: each column becomes eight pairs of int16, which are transposed.
  static KVANT_INLINE void widen_square(const detail::CodeMatrix& weight, std::int64_t column, std::int64_t k,
                                        std::byte* to, std::int64_t wanted) {
    const auto row = [&](std::int64_t n)
                         KVANT_INLINE_LAMBDA { return _mm256_cvtepi8_epi16(raw_codes(weight, column + n, k)); };
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
  static KVANT_INLINE __m128i raw_codes(const detail::CodeMatrix& weight, std::int64_t column, std::int64_t k) {
    if (column >= weight.rows) return _mm_setzero_si128();
    const std::byte* p = weight.data + column * weight.stride + k;
    const __m128i flip = _mm_set1_epi8(static_cast<char>(weight.flip));
    if (k + 16 <= weight.depth) return _mm_xor_si128(load_128(p), flip);
    std::uint8_t rest[16] = {};
    for (std::int64_t i = 0; k + i < weight.depth; ++i)
      rest[i] = static_cast<std::uint8_t>(std::to_integer<std::uint8_t>(p[i]) ^ weight.flip);
    return load_128(rest);
  }

  // ---- What the driver calls ----

  static void column_sums(const LinearPanel& panel, std::int64_t* sums) {
    if (panel.packed != nullptr) {
      std::memcpy(sums, tail_of(panel.packed, panel.depth), sizeof(PanelTail::column_sums));
      return;
    }
    for (std::int64_t n = 0; n < kColumns; ++n) {
      __m128i sum = _mm_setzero_si128();
      // As u8, which is 128 more; codes beyond the end are 0, so 128 here too.
      const __m128i to_u8 = _mm_set1_epi8(static_cast<char>(0x80));
      for (std::int64_t k = 0; k < panel.depth; k += 16)
        sum =
            _mm_add_epi64(sum, _mm_sad_epu8(_mm_xor_si128(raw_codes(*panel.raw, panel.index * kColumns + n, k), to_u8),
                                            _mm_setzero_si128()));
      sums[n] = _mm_cvtsi128_si64(sum) + _mm_extract_epi64(sum, 1) - 128 * ((panel.depth + 15) / 16 * 16);
    }
  }

  // Adds the products of one chunk of k. `sums` holds kColumns for every row of whole tiles.
  static void accumulate(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk, std::int32_t* sums) {
    const std::int64_t first = chunk * kChunk;
    const std::int64_t rest = panel.depth - first;
    const std::int64_t depth = rest < kChunk ? padded(rest) : kChunk;
    if (panel.packed == nullptr)
      return accumulate_widened(rows, first, depth, sums, [&](std::int64_t k, std::int64_t n, std::byte* to) {
        widen_raw(*panel.raw, panel.index * kColumns, k, n, to);
      });
    const std::byte* codes = panel.packed;
    if (!panel_is_wide(codes, panel.depth)) return accumulate_reduced(panel, rows, chunk, depth, sums);
    if (rows.count <= kStrip)
      return with_count(rows.count, [&](auto count) {
        multiply_wide<count(), WidenedOnTheWay>(rows.wide_tiles + first * kRows * 2, codes + first * kColumns, depth,
                                                sums);
      });
    accumulate_widened(rows, first, depth, sums, [&](std::int64_t k, std::int64_t n, std::byte* to) {
      widen_panel(codes + k * kColumns, n, to);
    });
  }

 private:
  // f with a number from 1 to 4 as a constant; more count as 4.
  template <class Function>
  static KVANT_INLINE void with_count(std::int64_t count, const Function& f) {
    switch (count) {
      case 1: return f(std::integral_constant<int, 1>());
      case 2: return f(std::integral_constant<int, 2>());
      case 3: return f(std::integral_constant<int, 3>());
      default: return f(std::integral_constant<int, 4>());
    }
  }

  // A block of weights stays in L1 while all tiles pass by.
  static constexpr std::int64_t kReducedBlock = 1024;  // of k: 16 KiB

  static void accumulate_reduced(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk,
                                 std::int64_t depth, std::int32_t* sums) {
    const PanelTail t = tail(panel.packed, panel.depth);
    const std::int64_t first = chunk * kChunk;
    for (std::int64_t k = first; k < first + depth; k += kReducedBlock) {
      const std::int64_t n = first + depth - k < kReducedBlock ? first + depth - k : kReducedBlock;
      for (std::int64_t r = 0; r < rows.count; r += kStrip)
        with_count(rows.count - r, [&](auto count) KVANT_INLINE_LAMBDA {
          const std::byte* strip = rows.tiles + strip_offset(r, rows.tile_stride) + k * kRows;
          if (t.kind == quads)
            multiply_quads<count()>(strip, panel.packed + k * kColumns, n, sums + r * kColumns);
          else
            multiply_pairs<count()>(strip, panel.packed + k * kColumns, n, sums + r * kColumns);
        });
    }
    if (t.excess_count == 0) return;
    for (std::int64_t r = 0; r < rows.count; r += 4 * kRows)
      with_count((rows.count - r + kRows - 1) / kRows, [&](auto count) KVANT_INLINE_LAMBDA {
        add_excess<count()>(rows.tiles + r / kRows * rows.tile_stride, rows.tile_stride, panel.packed, panel.depth,
                            chunk, sums + r * kColumns);
      });
  }
  // Of row r, the first of a strip: 4 bytes for a row in either kind of tile.
  static std::int64_t strip_offset(std::int64_t r, std::int64_t tile_stride) {
    return r / kRows * tile_stride + r % kRows * 4;
  }

  template <class Widen>
  static KVANT_INLINE void accumulate_widened(const LinearRows& rows, std::int64_t first, std::int64_t depth,
                                              std::int32_t* sums, const Widen& widen) {
    alignas(64) std::byte widened[kWideBlock * kColumns * 2];
    for (std::int64_t k = first; k < first + depth; k += kWideBlock) {
      const std::int64_t n = first + depth - k < kWideBlock ? first + depth - k : kWideBlock;
      widen(k, n, widened);
      for (std::int64_t r = 0; r < rows.count; r += kStrip)
        with_count(rows.count - r, [&](auto count) KVANT_INLINE_LAMBDA {
          multiply_wide<count(), Widened>(rows.wide_tiles + strip_offset(r, rows.wide_stride) + k * kRows * 2, widened,
                                          n, sums + r * kColumns);
        });
    }
  }
};

}  // namespace kvant::cpu
