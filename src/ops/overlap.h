// Do two views share a byte?
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvant::ops {

// The bytes of a view: `rows` stretches of `row_bytes`, `stride` bytes apart.
struct Extent {
  const std::byte* begin = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t stride = 0;
};

// True if some byte belongs to both. Exact for contiguous views and for views of one matrix (equal strides), where
// disjoint columns interleave without touching; otherwise true whenever the address ranges meet.
bool overlap(const Extent& a, const Extent& b);

}  // namespace kvant::ops
