// The range kernels of the CUDA backend.
#include <array>

#include "cuda/range_launch.h"
#include "cuda/table.h"

namespace kvant::cuda {
namespace {

using detail::DeviceRangeJob;
using detail::DeviceRangeKernel;

template <class T>
int enqueue(const detail::DeviceStream& stream, const DeviceRangeJob& job) {
  const bool empty = job.segments.runs.lines == 0;
  const std::int64_t chunks = empty ? 0 : job.segments.chunks();
  const Sink report{.kind = SinkKind::report,
                    .partial = job.partial,
                    .chunks = chunks,
                    .parameters = job.segments.parameters,
                    .min = job.min,
                    .max = job.max,
                    .max_abs = job.max_abs,
                    .accumulate = job.accumulate};
  if (chunks == 1) return find_ranges<T>(stream, job.x, job.x_stride, job.segments, report);
  if (!empty) {
    Sink partials = report;
    partials.kind = SinkKind::partials;
    if (const int error = find_ranges<T>(stream, job.x, job.x_stride, job.segments, partials); error != 0) return error;
  }
  return finish_ranges<compute_t<T>>(stream, report);
}

template <class... T>
constexpr auto make_kernels(Types<T...>) {
  return std::array<DeviceRangeKernel, sizeof...(T)>{
      {{device_sku<compute_t<T>>(QuantizeKind::range, kind_of<T>, kind_of<compute_t<T>>), &enqueue<T>}...}};
}

const auto kKernels = make_kernels(FloatTypes{});

}  // namespace

std::span<const DeviceRangeKernel> range_kernels() { return kKernels; }

}  // namespace kvant::cuda
