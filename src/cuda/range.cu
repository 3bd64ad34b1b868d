// The range kernels of the CUDA backend.
#include <array>

#include "core/range_kernel.h"
#include "cuda/cut_segments.h"
#include "cuda/range_launch.h"
#include "cuda/table.h"

namespace kvant::cuda {
namespace {

using PreparedRange = detail::PreparedTensor<CutTensor>;

template <class T>
int enqueue(const detail::DeviceStream& stream, const CutTensor& tensor, void* workspace, const detail::RangeJob& job) {
  const CutSegments& segments = tensor.geometry(job.gaps);
  const std::int64_t x_stride = tensor.line_stride(segments.runs, kind_of<T>, job.x);
  const bool empty = segments.runs.lines == 0;
  const std::int64_t chunks = empty ? 0 : segments.chunks();
  const Sink report{.kind = SinkKind::report,
                    .partial = partial_ranges(workspace),
                    .chunks = chunks,
                    .parameters = segments.parameters,
                    .min = job.min,
                    .max = job.max,
                    .max_abs = job.max_abs,
                    .accumulate = job.accumulate};
  if (chunks == 1) return find_ranges<T>(stream, job.x.data, x_stride, segments, report);
  if (!empty) {
    Sink partials = report;
    partials.kind = SinkKind::partials;
    if (const int error = find_ranges<T>(stream, job.x.data, x_stride, segments, partials); error != 0) return error;
  }
  return finish_ranges<compute_t<T>>(stream, report);
}

template <class T>
Status launch(const detail::RangeKernel&, const Stream& stream, const detail::Prepared& prepared, void* workspace,
              const detail::RangeJob& job, const base::Who& who) {
  const CutTensor& tensor = static_cast<const PreparedRange&>(prepared).tensor;
  return launched(who, enqueue<T>(stream.device(), tensor, workspace, job));
}

template <class... T>
constexpr auto make_kernels(TypeList<T...>) {
  return std::array<detail::RangeKernel, sizeof...(T)>{
      {{device_sku<compute_t<T>>(QuantizeKind::range, kind_of<T>, kind_of<compute_t<T>>),
        &PreparedRange::prepare<detail::SegmentProblem>, &launch<T>}...}};
}

const auto kKernels = make_kernels(core::RealTypes{});
const auto kPointers = pointers_to<detail::RangeKernel>(kKernels);

}  // namespace

template <>
detail::KernelList<detail::RangeKernel> kernels<detail::RangeKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cuda
