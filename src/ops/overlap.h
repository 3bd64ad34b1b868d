// Do two views share a byte?
#pragma once

#include <cstdint>

namespace kvant::ops {

// The bytes of a view: `rows` stretches of `row_bytes`, `stride` bytes apart. Addresses as integers, since comparing
// pointers into different objects is not defined.
struct Extent {
  std::uintptr_t begin;
  std::uintptr_t end;
  std::int64_t rows;
  std::int64_t row_bytes;
  std::int64_t stride;

  Extent(const void* data, std::int64_t row_count, std::int64_t bytes_of_row, std::int64_t row_stride)
      : begin(reinterpret_cast<std::uintptr_t>(data)),
        end(begin + (row_count == 0 || bytes_of_row == 0
                         ? 0
                         : static_cast<std::uintptr_t>((row_count - 1) * row_stride + bytes_of_row))),
        rows(row_count),
        row_bytes(bytes_of_row),
        stride(row_stride) {}
};

// For address ranges that meet: false where one view lies in the gaps of the other without touching a row.
bool rows_overlap(const Extent& a, const Extent& b);

// True if some byte belongs to both. Exact when one view is contiguous or both are views of one matrix (equal strides);
// otherwise true whenever the address ranges meet.
inline bool overlap(const Extent& a, const Extent& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  return rows_overlap(a, b);
}

}  // namespace kvant::ops
