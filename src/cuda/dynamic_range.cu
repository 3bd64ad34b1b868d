// The dynamic-range kernels of the CUDA backend: one launch where a team of threads or a column of lines makes a
// segment, two where segments are split, and two or three where packed codes of odd runs share bytes between segments
// or short runs are split into very many parts.
#include "cuda/dynamic_range.cuh"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/divide_up.h"
#include "cuda/range_launch.h"
#include "cuda/table.h"

namespace kvant::cuda {
namespace {

using detail::DeviceDynamicRangeJob;
using detail::DeviceDynamicRangeKernel;
using detail::DeviceStream;
using detail::DeviceTokenJob;

// Lines that a block takes at least once it has merged the partial ranges of its columns.
constexpr std::int64_t kLinesPerBlock = 128;

template <class T, class Code>
int launch_runs(const DeviceStream& stream, const RunsProblem& problem, const Codes& codes) {
  const std::int64_t units = problem.segments.parameters * problem.segments.chunks();
  return device::launch(stream,
                        {{blocks_for(stream, units, kThreads / problem.team_size), 1},
                         {kThreads, 1},
                         Team::shared_bytes(sizeof(compute_t<T>))},
                        &dynamic_runs_kernel<T, Code>, problem, codes);
}

template <class T, class Code>
int launch_columns(const DeviceStream& stream, const ColumnsProblem& problem, const Codes& codes) {
  constexpr int N = kOwnColumns<T, Code>;
  const detail::DeviceSegments& s = problem.segments;
  const std::int64_t lines = s.runs.lines * s.runs.length / s.parameters;  // of a segment
  const std::int64_t shares = s.chunks() == 1 ? 1 : std::max<std::int64_t>(1, lines / kLinesPerBlock);
  return device::launch(stream, columns_shape<N>(stream, s, shares, ColumnsBlock<compute_t<T>, N>::shared_bytes()),
                        &dynamic_columns_kernel<T, Code>, problem, codes, shares);
}

Sink parameters_sink(const DeviceDynamicRangeJob& job, std::int64_t chunks) {
  return {.kind = SinkKind::parameters,
          .partial = job.partial,
          .chunks = chunks,
          .parameters = job.segments.parameters,
          .rules = job.rules,
          .scale = job.scale,
          .zero_point = job.zero_point};
}

// The codes of a tensor whose scales and zero points are there.
int quantize_with_parameters(const DeviceStream& stream, const DeviceDynamicRangeJob& job) {
  return job.quantize->enqueue(stream, {.x = job.x,
                                        .out = job.out,
                                        .x_stride = job.x_stride,
                                        .out_stride = job.out_stride,
                                        .scale = {job.scale},
                                        .zero_point = {job.zero_point},
                                        .q_min = job.rules.q_min,
                                        .q_max = job.rules.q_max,
                                        .numerics = job.numerics,
                                        .runs = job.segments.runs});
}

template <class T, class Code>
int enqueue(const DeviceStream& stream, const DeviceDynamicRangeJob& job) {
  const detail::DeviceSegments& s = job.segments;
  if (s.runs.lines == 0) return finish_ranges<compute_t<T>>(stream, parameters_sink(job, 0));
  const bool columns = has_columns(s);
  const bool whole_bytes = !kIsPacked<Code> || s.runs.run % 2 == 0 || s.runs.run >= s.runs.length;
  const unsigned team = team_size(base::divide_up(s.runs.run, s.piece_chunks), kChunk<T, Code>);
  // Teams make codes of their own segments, unless those share bytes or a small team would merge many partial ranges.
  constexpr std::int64_t kMostMerged = 8;  // by one thread
  const bool by_teams = whole_bytes && s.chunks() <= kMostMerged * team;
  const Sink sink = parameters_sink(job, s.chunks());
  if (s.chunks() > 1 || !(by_teams || columns)) {
    Sink first = sink;
    if (s.chunks() > 1) first.kind = SinkKind::partials;
    if (const int error = find_ranges<T>(stream, job.x, job.x_stride, s, first); error != 0) return error;
  }
  if (!(by_teams || columns)) {
    if (s.chunks() > 1)
      if (const int error = finish_ranges<compute_t<T>>(stream, sink); error != 0) return error;
    return quantize_with_parameters(stream, job);
  }
  const Codes codes{.out = job.out,
                    .out_stride = job.out_stride,
                    .sink = sink,
                    .settings = {job.rules.q_min, job.rules.q_max, job.numerics == Numerics::reciprocal}};
  if (columns) return launch_columns<T, Code>(stream, {job.x, job.x_stride, s}, codes);
  return launch_runs<T, Code>(stream, {job.x, job.x_stride, s, team}, codes);
}

template <class T>
int enqueue_tokens(const DeviceStream& stream, const DeviceTokenJob& job) {
  using Code = std::int8_t;
  const detail::DeviceSegments segments{
      .runs = {.lines = job.rows, .length = job.length, .run = job.length, .outer_step = 1}, .parameters = job.rows};
  const RunsProblem problem{job.x, job.x_stride, segments, team_size(job.length, kChunk<T, Code>)};
  const Codes codes{.out = job.out,
                    .out_stride = job.out_stride,
                    .sink = {.kind = SinkKind::parameters,
                             .parameters = job.rows,
                             .rules = job.rules,
                             .scale = job.scale,
                             .zero_point = job.zero_point},
                    .settings = {job.rules.q_min, job.rules.q_max, job.numerics == Numerics::reciprocal},
                    .divisor = job.divisor,
                    .is_static = job.is_static,
                    .static_scale = job.static_scale,
                    .static_zero_point = job.static_zero_point};
  return launch_runs<T, Code>(stream, problem, codes);
}

template <class T, class Code>
constexpr DeviceDynamicRangeKernel kernel() {
  DeviceDynamicRangeKernel k{device_sku<compute_t<T>>(QuantizeKind::dynamic_range_quantize, kind_of<T>, kind_of<Code>),
                             &enqueue<T, Code>, nullptr};
  if constexpr (std::is_same_v<Code, std::int8_t>) k.enqueue_tokens = &enqueue_tokens<T>;
  return k;
}

template <class... T, class... Code>
constexpr auto make_kernels(Types<T...>, Types<Code...>) {
  std::array<DeviceDynamicRangeKernel, sizeof...(T) * sizeof...(Code)> all{};
  std::size_t n = 0;
  const auto append_for = [&]<class One>(Types<One>) { ((all[n++] = kernel<One, Code>()), ...); };
  (append_for(Types<T>{}), ...);
  return all;
}

const auto kKernels = make_kernels(FloatTypes{}, CodeTypes{});

}  // namespace

std::span<const DeviceDynamicRangeKernel> dynamic_range_kernels() { return kKernels; }

}  // namespace kvant::cuda
