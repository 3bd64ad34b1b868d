// Launching the range kernels, for range plans and for the first of two dynamic-range launches.
#pragma once

#include "base/divide_up.h"
#include "cuda/grid.h"
#include "cuda/range.cuh"

namespace kvant::cuda {

// The threads that go through one run together: enough to give each a chunk, and a block where even a warp would take
// more than four turns.
inline unsigned team_size(std::int64_t run, int chunk) {
  const std::int64_t chunks = base::divide_up(run, chunk);
  if (chunks > 4 * kWarp) return kThreads;
  unsigned size = 1;
  while (size < kWarp && size < chunks) size *= 2;
  return size;
}

inline bool has_columns(const CutSegments& segments) { return segments.runs.run == 1; }

// Blocks for columns, N of them to a thread, by `shares` of their lines.
template <int N>
device::LaunchShape columns_shape(const detail::DeviceStream& stream, const CutSegments& segments, std::int64_t shares,
                                  unsigned shared_bytes) {
  const std::int64_t length = segments.runs.length;
  unsigned wide = 1;
  while (wide < kWarp && wide * N < length) wide *= 2;
  const std::int64_t units = segments.parameters / length * shares * base::divide_up(length, wide * std::int64_t{N});
  return {{blocks_for(stream, units, 1), 1}, {wide, kThreads / wide}, shared_bytes};
}

// Ranges of all chunks of all segments into `sink`.
template <class T>
int find_ranges(const detail::DeviceStream& stream, const std::byte* x, std::int64_t x_stride,
                const CutSegments& segments, const Sink& sink) {
  if (has_columns(segments)) {
    constexpr int N = kRangeColumns<T>;
    return device::launch(
        stream, columns_shape<N>(stream, segments, segments.line_chunks, ColumnsBlock<compute_t<T>, N>::shared_bytes()),
        &range_columns_kernel<T>, ColumnsProblem{x, x_stride, segments}, sink);
  }
  const std::int64_t piece = base::divide_up(segments.runs.run, segments.piece_chunks);
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
  return device::launch(
      stream,
      {{blocks_for(stream, sink.parameters, kThreads / kWarp), 1}, {kThreads, 1}, Team::shared_bytes(sizeof(C))},
      &finish_ranges_kernel<C>, sink);
}

}  // namespace kvant::cuda
