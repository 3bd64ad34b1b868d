// The int8 matrix product in plain C++: the reference that every other micro-kernel must equal, and what runs on a
// machine without more.
//
// Panel: the columns one after the other, padded with zeros to kColumns of them, then their sums. Tile: the rows one
// after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/linear_kernel.h"
#include "cpu/micro/operands.h"

namespace kvant::cpu {

struct ScalarMicro {
  static constexpr ArchSku kArch = ArchSku::scalar;
  static constexpr std::int64_t kColumns = 8;
  static constexpr std::int64_t kRows = 4;
  static constexpr std::int64_t kMaxRows = 128;
  static constexpr std::int64_t kChunk = 65536;

  static std::int64_t panel_bytes(std::int64_t depth) { return (depth + 7) / 8 * 8 * kColumns + 8 * kColumns; }
  static std::int64_t tile_bytes(std::int64_t depth) { return depth * kRows; }
  static std::int64_t wide_tile_bytes(std::int64_t) { return 0; }
  static bool panel_is_wide(const std::byte*, std::int64_t) { return false; }
  static bool panel_is_sound(const std::byte*, std::int64_t) { return true; }

  static void pack_panel(const detail::CodeMatrix& weight, std::int64_t index, std::byte* panel) {
    std::memset(panel, 0, static_cast<std::size_t>(panel_bytes(weight.depth)));
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const std::int64_t column = index * kColumns + n;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < weight.depth && column < weight.rows; ++k) {
        const std::int8_t code = weight_code(weight, column, k);
        std::memcpy(panel + n * weight.depth + k, &code, 1);
        sum += code;
      }
      std::memcpy(sums_of(panel, weight.depth) + 8 * n, &sum, sizeof sum);
    }
  }

  static void pack_tile(const detail::CodeMatrix& activation, std::int64_t index, std::byte* tile, std::byte* /*wide*/,
                        std::int64_t* row_sums) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t row = index * kRows + r;
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < activation.depth; ++k) {
        const std::uint8_t code = row < activation.rows ? flipped(activation, row, k) : std::uint8_t{0};
        tile[r * activation.depth + k] = std::byte{code};
        sum += code;
      }
      if (row < activation.rows) row_sums[row] = sum;
    }
  }

  static void column_sums(const LinearPanel& panel, std::int64_t* sums) {
    if (panel.packed != nullptr) {
      std::memcpy(sums, panel.packed + sums_offset(panel.depth), 8 * kColumns);
      return;
    }
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const std::int64_t column = panel.index * kColumns + n;
      sums[n] = 0;
      for (std::int64_t k = 0; k < panel.depth && column < panel.raw->rows; ++k)
        sums[n] += weight_code(*panel.raw, column, k);
    }
  }

  static void accumulate(const LinearPanel& panel, const LinearRows& rows, std::int64_t chunk, std::int32_t* sums) {
    const std::int64_t first = chunk * kChunk;
    const std::int64_t end = panel.depth - first < kChunk ? panel.depth : first + kChunk;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::byte* a = rows.tiles + r / kRows * rows.tile_stride + r % kRows * panel.depth;
      for (std::int64_t n = 0; n < kColumns; ++n) {
        const std::int64_t column = panel.index * kColumns + n;
        if (panel.packed == nullptr && column >= panel.raw->rows) break;
        const std::byte* w =
            panel.packed != nullptr ? panel.packed + n * panel.depth : panel.raw->data + column * panel.raw->stride;
        const std::uint8_t flip = panel.packed != nullptr ? std::uint8_t{0} : panel.raw->flip;
        sums[r * kColumns + n] = add_wrapped(sums[r * kColumns + n], dot(a, w, flip, first, end));
      }
    }
  }

 private:
  static std::uint8_t flipped(const detail::CodeMatrix& m, std::int64_t row, std::int64_t k) {
    return static_cast<std::uint8_t>(std::to_integer<std::uint8_t>(m.data[row * m.stride + k]) ^ m.flip);
  }
  static std::int8_t weight_code(const detail::CodeMatrix& m, std::int64_t row, std::int64_t k) {
    return static_cast<std::int8_t>(flipped(m, row, k));
  }
  static std::int64_t sums_offset(std::int64_t depth) { return (depth + 7) / 8 * 8 * kColumns; }
  static std::byte* sums_of(std::byte* panel, std::int64_t depth) { return panel + sums_offset(depth); }

  // Of one chunk, so 32 bits hold it.
  static std::int32_t dot(const std::byte* a, const std::byte* w, std::uint8_t flip, std::int64_t first,
                          std::int64_t end) {
    std::int32_t sum = 0;
    for (std::int64_t k = first; k < end; ++k)
      sum += std::to_integer<std::int32_t>(a[k]) * static_cast<std::int8_t>(std::to_integer<std::uint8_t>(w[k]) ^ flip);
    return sum;
  }
  static std::int32_t add_wrapped(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

}  // namespace kvant::cpu
