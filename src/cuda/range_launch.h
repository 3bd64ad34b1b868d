// Launching the range kernels, for range plans and for the first of two dynamic-range launches.
#pragma once

#include "cuda/grid.h"
#include "cuda/range.cuh"

namespace kvant::cuda {

// The threads that go through one run together: enough to give each a chunk, and a block where even a warp would take
// more than four turns.
inline unsigned team_size(std::int64_t run, int chunk) {
  const std::int64_t chunks = core::divide_up(run, chunk);
  if (chunks > 4 * kWarp) return kThreads;
  unsigned size = 1;
  while (size < kWarp && size < chunks) size *= 2;
  return size;
}

inline bool has_columns(const detail::DeviceSegments& segments) { return segments.runs.run == 1; }

// Ranges of all chunks of all segments into `sink`.
template <class T>
int find_ranges(const detail::DeviceStream& stream, const std::byte* x, std::int64_t x_stride,
                const detail::DeviceSegments& segments, const Sink& sink) {
  if (has_columns(segments)) {
    const ColumnsProblem problem{x, x_stride, segments};
    const std::int64_t tiles = core::divide_up(segments.runs.length, kRangeColumns<T> * kColumnThreads);
    const std::int64_t units = segments.parameters / segments.runs.length * segments.line_chunks * tiles;
    return device::launch(
        stream, {{blocks_for(stream, units, 1), 1}, {kColumnThreads, kLineThreads}, range_columns_shared_bytes<T>()},
        &range_columns_kernel<T>, problem, sink);
  }
  const std::int64_t piece = core::divide_up(segments.runs.run, segments.piece_chunks);
  const RunsProblem problem{x, x_stride, segments, team_size(piece, 128 / kBits<T>)};
  const std::int64_t units = segments.parameters * segments.chunks();
  return device::launch(stream,
                        {{blocks_for(stream, units, kThreads / problem.team_size), 1},
                         {kThreads, 1},
                         Team::shared_bytes(sizeof(compute_t<T>))},
                        &range_runs_kernel<T>, problem, sink);
}

// Merges partial ranges into what `sink` wants.
template <class C>
int finish_ranges(const detail::DeviceStream& stream, const Sink& sink) {
  return device::launch(stream, {{blocks_for(stream, sink.parameters, kThreads), 1}, {kThreads, 1}},
                        &finish_ranges_kernel<C>, sink);
}

}  // namespace kvant::cuda
