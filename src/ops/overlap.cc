#include "ops/overlap.h"

namespace kvant::ops {

bool overlap(const Extent& a, const Extent& b) {
  if (a.rows == 0 || b.rows == 0 || a.row_bytes == 0 || b.row_bytes == 0) return false;
  // Addresses as integers: comparing pointers into different objects is not defined.
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.begin);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.begin);
  const auto a_end = a_begin + static_cast<std::uintptr_t>((a.rows - 1) * a.stride + a.row_bytes);
  const auto b_end = b_begin + static_cast<std::uintptr_t>((b.rows - 1) * b.stride + b.row_bytes);
  if (a_end <= b_begin || b_end <= a_begin) return false;
  if (a.rows > 1 && b.rows > 1 && a.stride == b.stride) {
    // Where b's column range begins inside a's row period.
    const auto stride = static_cast<std::uintptr_t>(a.stride);
    const std::uintptr_t shift =
        b_begin >= a_begin ? (b_begin - a_begin) % stride : (stride - (a_begin - b_begin) % stride) % stride;
    return shift < static_cast<std::uintptr_t>(a.row_bytes) ||
           shift + static_cast<std::uintptr_t>(b.row_bytes) > stride;
  }
  return true;
}

}  // namespace kvant::ops
