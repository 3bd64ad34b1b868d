#include "ops/overlap.h"

namespace kvant::ops {
namespace {

// Does the stretch [begin, end) touch a row of `view`? It meets the view's address range.
bool touches_row(const Extent& view, std::uintptr_t begin, std::uintptr_t end) {
  if (begin <= view.begin) return true;  // reaches the first row
  const auto stride = static_cast<std::uintptr_t>(view.stride);
  const std::uintptr_t column = (begin - view.begin) % stride;
  const std::uintptr_t next_row = begin - column + stride;
  return column < static_cast<std::uintptr_t>(view.row_bytes) || (next_row < view.end && end > next_row);
}

}  // namespace

bool rows_overlap(const Extent& a, const Extent& b) {
  if (a.begin == a.end || b.begin == b.end) return false;
  if (b.rows <= 1 || b.stride == b.row_bytes) return a.rows <= 1 || touches_row(a, b.begin, b.end);
  if (a.rows <= 1 || a.stride == a.row_bytes) return touches_row(b, a.begin, a.end);
  if (a.stride != b.stride) return true;
  // Where b's columns begin inside a's row period.
  const auto stride = static_cast<std::uintptr_t>(a.stride);
  const std::uintptr_t shift =
      b.begin >= a.begin ? (b.begin - a.begin) % stride : (stride - (a.begin - b.begin) % stride) % stride;
  return shift < static_cast<std::uintptr_t>(a.row_bytes) || shift + static_cast<std::uintptr_t>(b.row_bytes) > stride;
}

}  // namespace kvant::ops
