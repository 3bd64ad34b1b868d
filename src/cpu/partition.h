// How a launch is cut into parts for the stream's threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/runs.h"
#include "cpu/elementwise_kernel.h"

namespace kvant::cpu {

// Waking a second thread costs about 3 µs. f32 to s8 on two cores of Zen 3: 32 Ki elements took 6.0 µs on one thread
// and 5.8 on two, 64 Ki took 12.1 and 9.3.
inline constexpr std::int64_t kParallelElements = 1 << 16;
inline constexpr std::int64_t kMinPartElements = 1 << 14;
inline constexpr std::int64_t kMaxPartElements = 1 << 19;

// Outputs from this size on are written around the caches. fake_quantize of f32 on Zen 3 with 32 MiB of shared L3,
// plain against non-temporal stores: 6.0 to 5.3 Gelem/s at 4 MiB, 2.6 to 4.9 at 8 MiB, 2.1 to 3.6 at 16 MiB.
inline constexpr std::int64_t kStreamBytes = 1 << 23;

// Arithmetic between the loads keeps the hardware from running far enough ahead of a stream out of memory: on Zen 3
// f32 to s8 moved 20 GB/s without this and 26 with it. 2 KiB was the best of 512 B to 4 KiB.
inline constexpr std::int64_t kFetchAhead = 2048;

// Elements that a part should have, a multiple of a page's worth.
inline std::int64_t wanted_part(std::int64_t elements, int threads) {
  constexpr std::int64_t kPartsPerThread = 8;
  constexpr std::int64_t kPage = 4096;
  return std::clamp(elements / (threads * kPartsPerThread), kMinPartElements, kMaxPartElements) / kPage * kPage;
}

// Long lines are cut into pieces, short ones gathered.
struct Partition {
  std::int64_t parts;
  std::int64_t pieces_per_line;  // 1: a part is whole lines
  std::int64_t piece;            // elements, a multiple of the quantum
  std::int64_t lines_per_part;

  ElementwisePart part(const detail::Runs& runs, std::int64_t index) const {
    if (pieces_per_line == 1) {
      const std::int64_t first = index * lines_per_part;
      return {first, std::min(first + lines_per_part, runs.lines), 0, runs.length};
    }
    const std::int64_t line = index / pieces_per_line;
    const std::int64_t offset = index % pieces_per_line * piece;
    return {line, line + 1, offset, std::min(piece, runs.length - offset)};
  }
};

// Lines are cut at multiples of `quantum` only.
inline Partition partition(const detail::Runs& runs, std::int64_t elements, int threads, std::int64_t quantum = 4096) {
  if (threads == 1 || elements < kParallelElements) return {1, 1, 0, runs.lines};
  const std::int64_t wanted = (wanted_part(elements, threads) + quantum - 1) / quantum * quantum;
  if (runs.length >= 2 * wanted) {
    const std::int64_t pieces = (runs.length + wanted - 1) / wanted;
    return {runs.lines * pieces, pieces, wanted, 1};
  }
  const std::int64_t lines = std::max<std::int64_t>(1, wanted / runs.length);
  return {(runs.lines + lines - 1) / lines, 1, 0, lines};
}

}  // namespace kvant::cpu
