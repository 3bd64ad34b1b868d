#include "ops/overlap.h"

namespace kvant::ops {

bool rows_overlap(const Extent& a, const Extent& b) {
  if (a.begin == a.end || b.begin == b.end) return false;
  if (a.rows <= 1 || b.rows <= 1 || a.stride != b.stride) return true;
  // Where b's columns begin inside a's row period.
  const auto stride = static_cast<std::uintptr_t>(a.stride);
  const std::uintptr_t shift =
      b.begin >= a.begin ? (b.begin - a.begin) % stride : (stride - (a.begin - b.begin) % stride) % stride;
  return shift < static_cast<std::uintptr_t>(a.row_bytes) || shift + static_cast<std::uintptr_t>(b.row_bytes) > stride;
}

}  // namespace kvant::ops
