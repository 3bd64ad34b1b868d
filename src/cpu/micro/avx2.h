// The int8 matrix product on AVX2 without VNNI, with exact sums. Include only where the compiler targets AVX2.
//
// The instruction for bytes, vpmaddubsw, adds two products of u8 by s8 in 16 bits and saturates: 255 * 127 * 2 does not
// fit. So weights whose products meet in one 16-bit sum are reduced when they are packed, where they must be, until
// those of one sign add up to at most 128: 255 times that fits. What was taken off is the excess, in lists that are
// added exactly. A panel is of the first kind whose lists stay short:
//
//   quads  Four weights in a 16-bit sum: two vpmaddubsw are added before they are widened, 64 products for five
//          instructions. For weights with long tails.
//   pairs  Two weights in a 16-bit sum: 64 products for six instructions. Of a channel of 4096 bell-shaped weights,
//          0.4 % have excess (2.5 % in quads).
//   wide   Full-range weights stay as they are and are widened to 16 bits on the way, for vpmaddwd, which cannot
//          overflow: 64 products for eight instructions.
//
// On Zen 3, one core, out of L1: quads 122 GMAC/s, pairs 100, wide 80.
//
// Here is the order in which a panel meets a block of rows. What it is made of: avx2_format.h (the bytes),
// avx2_packing.h, avx2_products.h, avx2_excess.h, and avx2_raw_weight.h for weights that are not packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/inline.h"
#include "core/linear_kernel.h"
#include "cpu/micro/avx2_excess.h"
#include "cpu/micro/avx2_packing.h"
#include "cpu/micro/avx2_products.h"
#include "cpu/micro/avx2_raw_weight.h"
#include "cpu/micro/operands.h"

namespace kvant::cpu {

struct Avx2Micro : Avx2Packing {
  static constexpr ArchSku kArch = ArchSku::avx2;
  static constexpr std::int64_t kChunk = 65536;  // of k; a whole number of blocks
  static_assert(kChunk % kBlock == 0);
  static constexpr std::int64_t kMaxRows = 128;  // of one accumulate()

  static void column_sums(const LinearPanel& panel, std::int64_t* sums) {
    if (panel.packed != nullptr) {
      std::memcpy(sums, tail_of(panel.packed, panel.depth), sizeof(PanelTail::column_sums));
      return;
    }
    const detail::CodeMatrix& weight = *panel.raw;
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const std::int64_t column = panel.index * kColumns + n;
      sums[n] = column < weight.rows ? RawWeight::sum_of_row(weight, column) : 0;
    }
  }

  // Adds the products of one chunk of k. `sums` holds kColumns for every row of whole tiles.
  static void accumulate(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk, std::int32_t* sums) {
    const std::int64_t first = chunk * kChunk;
    const std::int64_t rest = panel.depth - first;
    const std::int64_t depth = rest < kChunk ? padded(rest) : kChunk;
    if (panel.packed == nullptr && rows.alone)
      return RawWeight::multiply_row(panel, rows, first, rest < kChunk ? rest : kChunk, sums);
    if (panel.packed == nullptr)
      return accumulate_widened(rows, first, depth, sums, [&](std::int64_t k, std::int64_t n, std::byte* to) {
        RawWeight::widen(*panel.raw, panel.index * kColumns, k, n, to);
      });
    const std::byte* codes = panel.packed;
    if (!panel_is_wide(codes, panel.depth)) return accumulate_reduced(panel, rows, chunk, depth, sums);
    if (rows.count <= kStrip) {
      const Products::Fetch fetch{codes + first * kColumns + Products::kAhead, Products::WidenedOnTheWay::kBytes};
      return with_strip(rows, 0, [&](auto count, auto spread) KVANT_INLINE_LAMBDA {
        Products::multiply_wide<count(), spread(), Products::WidenedOnTheWay>(
            rows.wide_tiles + first * spread() * 2, codes + first * kColumns, depth, fetch, sums);
      });
    }
    accumulate_widened(rows, first, depth, sums, [&](std::int64_t k, std::int64_t n, std::byte* to) {
      Products::widen_panel(codes + k * kColumns, n, to);
    });
  }

 private:
  using Products = Avx2Products;
  using Excess = Avx2Excess;
  using RawWeight = Avx2RawWeight;
  static constexpr std::int64_t kStrip = Products::kStrip;
  static constexpr std::int64_t kWideBlock = 512;  // of k whose weights lie in 16 bits: 16 KiB, half of L1

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

  static void accumulate_reduced(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk,
                                 std::int64_t depth, std::int32_t* sums) {
    const PanelTail t = tail(panel.packed, panel.depth);
    const std::int64_t first = chunk * kChunk, end = first + depth;
    const std::int64_t strips = (rows.count + kStrip - 1) / kStrip, tiles = (rows.count + kRows - 1) / kRows;
    const std::int64_t codes_in_step = t.kind == quads ? 8 : 4;
    const std::byte* ends = list_ends(panel.packed, panel.depth);
    const std::byte* lists = excess(panel.packed, panel.depth);
    alignas(64) Excess::Found found[kMaxRows / kRows / 2];
    if (!rows.alone) std::memset(found, 0, static_cast<std::size_t>((tiles + 1) / 2) * sizeof(Excess::Found));
    for (std::int64_t k = first; k < end; k += kBlock) {
      const std::int64_t n = end - k < kBlock ? end - k : kBlock;
      const std::byte* block = panel.packed + k * kColumns;
      const std::byte* next = k + kBlock < panel.depth ? block + kBlock * kColumns : panel.next;
      const std::byte* list = lists + 4 * std::int64_t{k == 0 ? 0 : read_u32(ends, k / kBlock - 1)};
      const std::byte* list_end = lists + 4 * std::int64_t{read_u32(ends, k / kBlock)};
      Products::Fetch fetch{strips == 1 ? block + Products::kAhead : next, codes_in_step * kColumns / strips};
      for (std::int64_t r = 0; r < rows.count; r += kStrip) {
        with_strip(rows, r, [&](auto count, auto spread) KVANT_INLINE_LAMBDA {
          const std::byte* strip = rows.tiles + strip_offset(r, rows.tile_stride) + k * spread();
          if (t.kind == quads)
            Products::multiply_quads<count(), spread()>(strip, block, n, fetch, sums + r * kColumns);
          else
            Products::multiply_pairs<count(), spread()>(strip, block, n, fetch, sums + r * kColumns);
        });
        fetch = fetch.after(n / codes_in_step);
        // After every second tile, while it is hot, and after the last.
        const bool last = r + kStrip >= rows.count;
        if ((r / kStrip % 4 != 3 && !last) || list == list_end) continue;
        const std::int64_t pair = r / (2 * kRows);
        const std::byte* codes = rows.tiles + 2 * pair * rows.tile_stride + k * kRows;
        if (rows.alone)
          Excess::add_to_row(list, list_end, rows.tiles + k, next, sums);
        else if (r % (2 * kRows) >= kRows)
          Excess::find<2>(list, list_end, codes, codes + rows.tile_stride, next, found[pair]);
        else
          Excess::find<1>(list, list_end, codes, nullptr, next, found[pair]);
      }
    }
    if (t.excess_count != 0 && !rows.alone) Excess::add_found(found, tiles, sums);
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
          Products::multiply_wide<count(), kRows, Products::Widened>(
              rows.wide_tiles + strip_offset(r, rows.wide_stride) + k * kRows * 2, widened, n, {widened, 0},
              sums + r * kColumns);
        });
    }
  }
};

}  // namespace kvant::cpu
