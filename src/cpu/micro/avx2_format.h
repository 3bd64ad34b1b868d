// Where the AVX2 micro-kernel has the codes of a packed weight and of a packed activation, and how many bytes they
// take. The bytes of a packed weight are stored by callers: whoever changes this layout changes the version in
// ops/packed_weight.cc.
//
// Tile           for each 4 of k: 8 rows of 4 bytes. Of an activation with a single row: that row alone, since it
//                would push the weights out of L1 with the others' room between its codes.
// Wide tile      for each 2 of k: 8 rows of 2 int16, or the single row
// Quads, pairs   for each 4 of k: 16 columns of 4 bytes. In pairs a 16-bit sum takes k 0 and 1, the next one 2 and 3;
//                in quads k 0, 1, 4 and 5, the next one 2, 3, 6 and 7.
// Wide panel     for each 2 of k: 16 columns of 2 bytes
// After the codes of a panel: PanelTail, the end of each block's list of excess, the lists (avx2_excess.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/inline.h"

namespace kvant::cpu {

struct Avx2Format {
  static constexpr std::int64_t kColumns = 16;
  static constexpr std::int64_t kRows = 8;  // of a tile

  enum PanelKind : std::uint32_t { quads, pairs, wide };
  struct PanelTail {
    std::int64_t column_sums[kColumns];
    std::uint32_t kind;
    std::uint32_t excess_count;
  };

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
};

}  // namespace kvant::cpu
