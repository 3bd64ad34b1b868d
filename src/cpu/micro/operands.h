// What the driver of the matrix product (linear-inl.h) hands to a micro-kernel. Each instruction set has one header in
// this folder with a struct Micro:
//
//   kArch, kColumns, kRows      who it is, and the size of its panels and tiles
//   kMaxRows                    rows that accumulate() takes at once, a multiple of kRows
//   kChunk                      codes of k whose products 32 bits hold: u8 by s8
//   panel_bytes, tile_bytes, wide_tile_bytes, pack_panel, panel_is_wide, panel_is_sound, pack_tile
//                               as in detail::LinearFormat
//   column_sums(panel, sums)    of the s8 codes, for all kColumns columns
//   accumulate(panel, rows, chunk, sums)
//                               adds Σ a[m, k] * w[n, k] for k of one chunk to the int32 sums [row][column], modulo
//                               2^32
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/linear_kernel.h"

namespace kvant::cpu {

// One panel of a weight: packed, or columns of a raw one.
struct LinearPanel {
  const std::byte* packed;  // null: raw
  const detail::CodeMatrix* raw;
  std::int64_t index;
  std::int64_t depth;
  const std::byte* next;  // what will be read after a packed panel, to be fetched; need not exist
};

// Some rows of a packed activation, from the first of a tile on.
struct LinearRows {
  const std::byte* tiles;
  const std::byte* wide_tiles;
  std::int64_t tile_stride;
  std::int64_t wide_stride;
  std::int64_t count;
  bool alone;  // there is no other row in the activation
};

}  // namespace kvant::cpu
