// The limit: how fast the same bytes move when nothing is computed.
#pragma once

#include <cstdint>

#include "kvant/stream.h"

namespace kvant::bench {

// A loop that reads and writes as an operator on `elements` elements would, in units of 64 elements. The counts are
// half bytes for each element: 1 for s4, 2 for s8, 4 for f16, 8 for f32, 16 for f64. Two inputs of the same width
// are read side by side if `second` is given.
struct Traffic {
  const void* first = nullptr;
  const void* second = nullptr;
  void* out = nullptr;
  std::int64_t elements = 0;
  int read_half_bytes = 0;   // of one input
  int write_half_bytes = 0;  // 0: nothing is written
};

enum class Stores { plain, non_temporal };

// Moves the bytes on the stream's threads. `out` is aligned to 32 bytes.
void move(const Stream& stream, const Traffic& traffic, Stores stores);

}  // namespace kvant::bench
