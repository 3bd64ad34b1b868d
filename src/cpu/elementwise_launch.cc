// Running an element-wise job on a stream's threads.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_environment.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/partition.h"
#include "kvant/element.h"
#include "kvant/stream.h"

namespace kvant::cpu {
namespace {

Status launch_lines(const Stream& stream, const ElementwiseKernel& kernel, const ElementwiseWork& work) {
  struct Launch {
    const ElementwiseKernel* kernel;
    const ElementwiseWork* work;
    Partition partition;

    static void run_part(const void* context, std::int64_t index) {
      const Launch& l = *static_cast<const Launch*>(context);
      const base::DefaultFloatEnvironment environment;
      l.kernel->run(*l.work, l.partition.part(l.work->runs, index));
      if (l.work->stream) l.kernel->finish_streaming();
    }
  };
  const std::int64_t elements = work.runs.lines * work.runs.length;
  const Launch l{&kernel, &work, partition(work.runs, elements, stream.threads())};
  return stream.parallel_for(l.partition.parts, Task(&Launch::run_part, &l));
}

// Lines shorter than a block, each element with a parameter of its own, the same in all lines: the three channels of an
// image, say. Many of them are one long line with repeated parameters.
class JoinedLines {
 public:
  static constexpr std::int64_t kShort = 32;
  static constexpr std::int64_t kJoined = 1024;  // elements

  // `row_bytes_in` and `row_bytes_out` are those of a line; other strides have gaps.
  static bool serve(const ElementwiseWork& work, std::int64_t row_bytes_in, std::int64_t row_bytes_out) {
    const detail::Runs& r = work.runs;
    return r.run == 1 && r.length < kShort && r.lines >= 2 * kJoined / r.length &&
           core::lines_sharing_parameters(r, 0) == r.lines && work.x_stride == row_bytes_in &&
           (work.dy == nullptr || work.dy_stride == row_bytes_in) && work.out_stride == row_bytes_out;
  }

  JoinedLines(const ElementwiseWork& work, std::size_t scale_bytes)
      : joined_(work), rest_(work), lines_in_one_(kJoined / work.runs.length) {
    const detail::Runs& r = work.runs;
    const auto period = static_cast<std::size_t>(r.length);
    const std::byte* zero_points = work.zero_point.data;
    for (std::size_t i = 0; i < static_cast<std::size_t>(lines_in_one_); ++i) {
      std::memcpy(scale_ + i * period * scale_bytes, work.scale.data, period * scale_bytes);
      if (zero_points != nullptr) std::memcpy(zero_point_ + i * period * 4, zero_points, period * 4);
    }
    const std::int64_t long_lines = r.lines / lines_in_one_;
    joined_.runs = {.lines = long_lines, .length = r.length * lines_in_one_, .run = 1};
    joined_.scale.data = scale_;
    if (zero_points != nullptr) joined_.zero_point.data = zero_point_;
    joined_.x_stride *= lines_in_one_;
    joined_.dy_stride *= lines_in_one_;
    joined_.out_stride *= lines_in_one_;
    rest_.runs.lines = r.lines % lines_in_one_;
    rest_.x += long_lines * joined_.x_stride;
    if (rest_.dy != nullptr) rest_.dy += long_lines * joined_.dy_stride;
    rest_.out += long_lines * joined_.out_stride;
  }
  JoinedLines(const JoinedLines&) = delete;
  JoinedLines& operator=(const JoinedLines&) = delete;

  const ElementwiseWork& joined() const { return joined_; }
  const ElementwiseWork& rest() const { return rest_; }

 private:
  ElementwiseWork joined_;
  ElementwiseWork rest_;
  std::int64_t lines_in_one_;
  alignas(64) std::byte scale_[kJoined * sizeof(double)];
  alignas(64) std::byte zero_point_[kJoined * sizeof(std::int32_t)];
};

// The kind of the scales that a kernel reads.
ElementKind scales_of(const KernelSku& sku) {
  return scale_kind(is_float(sku.element) ? sku.element : sku.aux_element);
}

}  // namespace

Status launch_work(const ElementwiseKernel& kernel, const Stream& stream, const ElementwiseWork& work) {
  const KernelSku& sku = kernel.sku;
  const std::int64_t length = work.runs.length;
  const bool whole_bytes = fills_bytes(sku.element, length) && fills_bytes(sku.aux_element, length);
  if (!whole_bytes || !JoinedLines::serve(work, row_bytes(sku.element, length), row_bytes(sku.aux_element, length)))
    return launch_lines(stream, kernel, work);
  const JoinedLines lines(
      work, static_cast<std::size_t>(row_bytes(work.scale.plain() ? scales_of(sku) : work.scale.kind, 1)));
  if (Status status = launch_lines(stream, kernel, lines.joined()); !status.ok()) return status;
  return lines.rest().runs.lines == 0 ? Status() : launch_lines(stream, kernel, lines.rest());
}

Status launch_elementwise(const detail::ElementwiseKernel& kernel, const Stream& stream,
                          const detail::ElementwiseJob& job, const base::Who& /*who*/) {
  ElementwiseWork work;
  static_cast<detail::ElementwiseJob&>(work) = job;
  if (job.scale.data == nullptr)
    work.scale.data = scales_of(kernel.sku) == ElementKind::f64 ? reinterpret_cast<const std::byte*>(&job.scale.f64)
                                                                : reinterpret_cast<const std::byte*>(&job.scale.f32);
  const bool in_place = job.x == job.out || job.dy == job.out;
  const std::int64_t bytes = row_bytes(kernel.sku.aux_element, job.runs.lines * job.runs.length);
  work.stream = !in_place && bytes >= kStreamBytes;
  work.fetch_ahead = work.stream ? kFetchAhead : 0;
  return launch_work(of_cpu(kernel), stream, work);
}

}  // namespace kvant::cpu
