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
//          0.4 % have excess (2.5 % in quads).
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

#include "base/inline.h"
#include "core/linear_kernel.h"
#include "cpu/lanes/avx2.h"
#include "cpu/micro/operands.h"

namespace kvant::cpu {

struct Avx2Micro {
  static constexpr ArchSku kArch = ArchSku::avx2;
  static constexpr std::int64_t kColumns = 16;
  static constexpr std::int64_t kRows = 8;   // of a tile
  static constexpr std::int64_t kStrip = 4;  // rows whose sums fit the registers

  // ---- Layouts ----
  //
  // Tile           for each 4 of k: 8 rows of 4 bytes. Of an activation with a single row: that row alone, since it
  //                would push the weights out of L1 with the others' room between its codes.
  // Wide tile      for each 2 of k: 8 rows of 2 int16, or the single row
  // Quads, pairs   for each 4 of k: 16 columns of 4 bytes. In pairs a 16-bit sum takes k 0 and 1, the next one 2 and 3;
  //                in quads k 0, 1, 4 and 5, the next one 2, 3, 6 and 7.
  // Wide panel     for each 2 of k: 16 columns of 2 bytes
  // Behind the codes of a panel: PanelTail, the end of each block's list of excess, the lists.

  // Whoever changes this layout changes the version in ops/packed_weight.cc.
  enum PanelKind : std::uint32_t { quads, pairs, wide };
  struct PanelTail {
    std::int64_t column_sums[kColumns];
    std::uint32_t kind;
    std::uint32_t excess_count;
  };
  static constexpr std::int64_t kChunk = 65536;
  static constexpr std::int64_t kMaxRows = 128;  // of one accumulate()

  // Codes of k whose weights stay in L1, 16 KiB of them, while the strips pass by. Each block has a list of its own, so
  // that its entries find the codes of the activation in L1 too.
  static constexpr std::int64_t kBlock = 1024;

  // An entry of a list, in 32 bits: from below, 16 of where in a block of a tile the code is, 8 of the column, 8 of
  // what is to be added to that weight. Neighbours belong to different columns where that is possible, so that their
  // sums do not wait for each other; one list for all columns, because the end of a loop that nobody can foresee costs
  // as much as five entries.
  static std::uint32_t entry(std::int64_t k, std::int64_t column, int amount) {
    const std::int64_t in_block = k % kBlock;
    return static_cast<std::uint32_t>(in_block / 4 * 4 * kRows + in_block % 4) |
           static_cast<std::uint32_t>(column) << 16 | static_cast<std::uint32_t>(amount) << 24;
  }
  static KVANT_INLINE std::uint32_t k_of_entry(std::uint32_t bits) {
    const std::uint32_t place = bits & 0xFFFF;
    return place / static_cast<std::uint32_t>(kRows) + place % 4;  // a place is 4 * kRows times k / 4, and k % 4
  }

  static std::int64_t padded(std::int64_t depth) { return (depth + 7) / 8 * 8; }
  static std::int64_t blocks(std::int64_t depth) { return (depth + kBlock - 1) / kBlock; }
  // An entry takes about 1 cycle for 4 rows; a weight in a quad takes 0.11, in a pair 0.14, a wide one 0.17.
  // Single rows care more about the bytes of the lists, so quads stop earlier than that says.
  static std::int64_t max_excess(std::int64_t depth, PanelKind kind = pairs) {
    return padded(depth) * kColumns / (kind == quads ? 128 : 32);
  }
  static std::int64_t panel_bytes(std::int64_t depth) {
    const std::int64_t bytes = padded(depth) * kColumns + static_cast<std::int64_t>(sizeof(PanelTail)) +
                               4 * (blocks(depth) + max_excess(depth));
    return (bytes + 63) / 64 * 64;
  }
  // One line more than the codes: so rows of several tiles do not meet in the same set of the cache, and an entry of
  // the lists may read up to 3 bytes beyond the last code.
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
    return list_ends(panel, depth) + 4 * blocks(depth);
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
    std::uint32_t begin = 0;
    for (std::int64_t block = 0; block < blocks(depth); ++block) {
      const std::uint32_t end = read_u32(list_ends(panel, depth), block);
      if (end < begin || end > t.excess_count) return false;
      for (std::uint32_t e = begin; e < end; ++e) {
        const std::uint32_t bits = read_u32(excess(panel, depth), e);
        const std::int64_t k = k_of_entry(bits), column = bits >> 16 & 0xFF;
        if (k >= kBlock || block * kBlock + k >= depth || column >= kColumns) return false;
        if ((entry(k, column, 0) & 0xFFFF) != (bits & 0xFFFF)) return false;  // not the place of any k
      }
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
                                  std::int64_t n, ExcessList& list) {
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
          if (!reduce(w, members, 1, k, n, list) || !reduce(w, members, -1, k, n, list)) return false;
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

  // ---- Products ----

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

  // How far in front of its weights a single strip fetches, in bytes.
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

  // ---- Excess ----

  // A single row needs no vectors for it.
  [[gnu::noinline]] static void add_excess_of_row(const std::byte* entries, const std::byte* end, const std::byte* tile,
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
  [[gnu::noinline]] static void find_excess(const std::byte* entries, const std::byte* end, const std::byte* tile,
                                            const std::byte* second_tile, const std::byte* next, Found& found) {
    const __m256i mask = _mm256_set1_epi32(0xFF);
    for (; entries != end; entries += 4) {
      std::uint16_t place;
      std::memcpy(&place, entries, sizeof place);
      auto& sums = found[std::to_integer<std::size_t>(entries[2])];
      const __m256i amount = _mm256_srai_epi32(broadcast_32(entries), 24);
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
    const detail::CodeMatrix& weight = *panel.raw;
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const std::int64_t column = panel.index * kColumns + n;
      sums[n] = column < weight.rows ? sum_of_row(weight, column) : 0;
    }
  }
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
      half = _mm_add_epi64(
          half, _mm_sad_epu8(_mm_xor_si128(raw_codes(weight, row, k), _mm_set1_epi8(static_cast<char>(0x80))),
                             _mm_setzero_si128()));
    return _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1) - 128 * k;
  }

  // Adds the products of one chunk of k. `sums` holds kColumns for every row of whole tiles.
  static void accumulate(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk, std::int32_t* sums) {
    const std::int64_t first = chunk * kChunk;
    const std::int64_t rest = panel.depth - first;
    const std::int64_t depth = rest < kChunk ? padded(rest) : kChunk;
    if (panel.packed == nullptr && rows.alone) return accumulate_raw_row(panel, rows, first, rest, sums);
    if (panel.packed == nullptr)
      return accumulate_widened(rows, first, depth, sums, [&](std::int64_t k, std::int64_t n, std::byte* to) {
        widen_raw(*panel.raw, panel.index * kColumns, k, n, to);
      });
    const std::byte* codes = panel.packed;
    if (!panel_is_wide(codes, panel.depth)) return accumulate_reduced(panel, rows, chunk, depth, sums);
    if (rows.count <= kStrip) {
      const Fetch fetch{codes + first * kColumns + kAhead, WidenedOnTheWay::kBytes};
      return with_strip(rows, 0, [&](auto count, auto spread) KVANT_INLINE_LAMBDA {
        multiply_wide<count(), spread(), WidenedOnTheWay>(rows.wide_tiles + first * spread() * 2,
                                                          codes + first * kColumns, depth, fetch, sums);
      });
    }
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

  // f with the rows of the strip at row r and those that share its tile, as constants.
  template <class Function>
  static KVANT_INLINE void with_strip(const LinearRows& rows, std::int64_t r, const Function& f) {
    if (rows.alone) return f(std::integral_constant<int, 1>(), std::integral_constant<std::int64_t, 1>());
    with_count(rows.count - r,
               [&](auto count) KVANT_INLINE_LAMBDA { f(count, std::integral_constant<std::int64_t, kRows>()); });
  }

  // A single row meets the raw weights as they lie.
  static void accumulate_raw_row(const LinearPanel& panel, const LinearRows& rows, std::int64_t first,
                                 std::int64_t rest, std::int32_t* sums) {
    const std::int64_t depth = rest < kChunk ? rest : kChunk;
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
      for (; k < depth; k += 16) a = _mm256_add_epi32(a, products(k, raw_codes(weight, column, first + k)));
      const __m256i sum = _mm256_add_epi32(a, b);
      const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
      const __m128i pair = _mm_add_epi32(half, _mm_unpackhi_epi64(half, half));
      sums[n] = _mm_cvtsi128_si32(
          _mm_add_epi32(_mm_cvtsi32_si128(sums[n]), _mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0x55))));
    }
  }

  static void accumulate_reduced(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk,
                                 std::int64_t depth, std::int32_t* sums) {
    const PanelTail t = tail(panel.packed, panel.depth);
    const std::int64_t first = chunk * kChunk, end = first + depth;
    const std::int64_t strips = (rows.count + kStrip - 1) / kStrip, tiles = (rows.count + kRows - 1) / kRows;
    const std::int64_t codes_in_step = t.kind == quads ? 8 : 4;
    const std::byte* ends = list_ends(panel.packed, panel.depth);
    const std::byte* lists = excess(panel.packed, panel.depth);
    alignas(64) Found found[kMaxRows / kRows / 2];
    if (!rows.alone) std::memset(found, 0, static_cast<std::size_t>((tiles + 1) / 2) * sizeof(Found));
    for (std::int64_t k = first; k < end; k += kBlock) {
      const std::int64_t n = end - k < kBlock ? end - k : kBlock;
      const std::byte* block = panel.packed + k * kColumns;
      const std::byte* next = k + kBlock < panel.depth ? block + kBlock * kColumns : panel.next;
      const std::byte* list = lists + 4 * std::int64_t{k == 0 ? 0 : read_u32(ends, k / kBlock - 1)};
      const std::byte* list_end = lists + 4 * std::int64_t{read_u32(ends, k / kBlock)};
      Fetch fetch{strips == 1 ? block + kAhead : next, codes_in_step * kColumns / strips};
      for (std::int64_t r = 0; r < rows.count; r += kStrip) {
        with_strip(rows, r, [&](auto count, auto spread) KVANT_INLINE_LAMBDA {
          const std::byte* strip = rows.tiles + strip_offset(r, rows.tile_stride) + k * spread();
          if (t.kind == quads)
            multiply_quads<count(), spread()>(strip, block, n, fetch, sums + r * kColumns);
          else
            multiply_pairs<count(), spread()>(strip, block, n, fetch, sums + r * kColumns);
        });
        fetch = fetch.after(n / codes_in_step);
        // After every second tile, while it is hot, and after the last.
        const bool last = r + kStrip >= rows.count;
        if ((r / kStrip % 4 != 3 && !last) || list == list_end) continue;
        const std::int64_t pair = r / (2 * kRows);
        const std::byte* codes = rows.tiles + 2 * pair * rows.tile_stride + k * kRows;
        if (rows.alone)
          add_excess_of_row(list, list_end, rows.tiles + k, next, sums);
        else if (r % (2 * kRows) >= kRows)
          find_excess<2>(list, list_end, codes, codes + rows.tile_stride, next, found[pair]);
        else
          find_excess<1>(list, list_end, codes, nullptr, next, found[pair]);
      }
    }
    if (t.excess_count != 0 && !rows.alone) add_found(found, tiles, sums);
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
          multiply_wide<count(), kRows, Widened>(rows.wide_tiles + strip_offset(r, rows.wide_stride) + k * kRows * 2,
                                                 widened, n, {widened, 0}, sums + r * kColumns);
        });
    }
  }
};

}  // namespace kvant::cpu
