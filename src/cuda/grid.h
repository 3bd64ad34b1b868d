// How a two-dimensional piece of work is covered by blocks of 256 threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide_up.h"
#include "core/device_stream.h"
#include "core/runs.h"
#include "cuda/device.h"

namespace kvant::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kWarp = 32;

// Threads along x for `columns` pieces, the rest of the block along y for `rows`; at most max_blocks blocks, which
// stride.
inline device::LaunchShape rectangle(const detail::DeviceStream& stream, std::int64_t columns, std::int64_t rows) {
  unsigned wide = 1;
  while (wide < kThreads && wide < columns) wide *= 2;
  const unsigned high = kThreads / wide;
  constexpr std::int64_t kMaxGridY = 65535;
  const std::int64_t x = std::clamp<std::int64_t>(base::divide_up(columns, wide), 1, stream.max_blocks);
  const std::int64_t y = std::clamp<std::int64_t>(
      base::divide_up(rows, high), 1, std::min(kMaxGridY, std::max<std::int64_t>(1, stream.max_blocks / x)));
  return {{static_cast<unsigned>(x), static_cast<unsigned>(y)}, {wide, high}};
}

// Blocks in a row for `units` that each take `per_block` of.
inline unsigned blocks_for(const detail::DeviceStream& stream, std::int64_t units, std::int64_t per_block) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(base::divide_up(units, per_block), 1, stream.max_blocks));
}

}  // namespace kvant::cuda
