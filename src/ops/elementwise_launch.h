// Running an element-wise job on a stream's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_environment.h"
#include "core/elementwise_kernel.h"
#include "kvant/element.h"
#include "kvant/stream.h"
#include "ops/partition.h"

namespace kvant::ops {

inline Status launch_lines(const Stream& stream, const detail::ElementwiseKernel& kernel,
                           const detail::ElementwiseJob& job) {
  struct Launch {
    const detail::ElementwiseKernel* kernel;
    const detail::ElementwiseJob* job;
    Partition partition;

    static void run_part(const void* context, std::int64_t index) {
      const Launch& l = *static_cast<const Launch*>(context);
      const base::DefaultFloatEnvironment environment;
      l.kernel->run(*l.job, l.partition.part(*l.job->runs, index));
      if (l.job->stream) l.kernel->finish_streaming();
    }
  };
  const std::int64_t elements = job.runs->lines * job.runs->length;
  const Launch l{&kernel, &job, partition(*job.runs, elements, stream.threads())};
  return stream.parallel_for(l.partition.parts, Task(&Launch::run_part, &l));
}

// Lines shorter than a block, each element with a parameter of its own, the same in all lines: the three channels of an
// image, say. Many of them are one long line with repeated parameters.
class JoinedLines {
 public:
  static constexpr std::int64_t kShort = 32;
  static constexpr std::int64_t kJoined = 1024;  // elements

  // `row_bytes_in` and `row_bytes_out` are those of a line; other strides have gaps.
  static bool serve(const detail::ElementwiseJob& job, std::int64_t row_bytes_in, std::int64_t row_bytes_out) {
    const detail::Runs& r = *job.runs;
    return r.run == 1 && r.length < kShort && r.lines >= 2 * kJoined / r.length &&
           core::lines_sharing_parameters(r, 0) == r.lines && job.x_stride == row_bytes_in &&
           (job.dy == nullptr || job.dy_stride == row_bytes_in) && job.out_stride == row_bytes_out;
  }

  JoinedLines(const detail::ElementwiseJob& job, std::size_t scale_bytes)
      : joined_(job), rest_(job), lines_in_one_(kJoined / job.runs->length) {
    const detail::Runs& r = *job.runs;
    const auto period = static_cast<std::size_t>(r.length);
    for (std::size_t i = 0; i < static_cast<std::size_t>(lines_in_one_); ++i) {
      std::memcpy(scale_ + i * period * scale_bytes, job.scale, period * scale_bytes);
      if (job.zero_point != nullptr) std::memcpy(zero_point_ + i * period * 4, job.zero_point, period * 4);
    }
    const std::int64_t long_lines = r.lines / lines_in_one_;
    joined_runs_ = {.lines = long_lines, .length = r.length * lines_in_one_, .run = 1};
    rest_runs_ = r;
    rest_runs_.lines = r.lines % lines_in_one_;
    joined_.runs = &joined_runs_;
    joined_.scale = scale_;
    if (job.zero_point != nullptr) joined_.zero_point = zero_point_;
    joined_.x_stride *= lines_in_one_;
    joined_.dy_stride *= lines_in_one_;
    joined_.out_stride *= lines_in_one_;
    rest_.runs = &rest_runs_;
    rest_.x += long_lines * joined_.x_stride;
    if (rest_.dy != nullptr) rest_.dy += long_lines * joined_.dy_stride;
    rest_.out += long_lines * joined_.out_stride;
  }
  JoinedLines(const JoinedLines&) = delete;
  JoinedLines& operator=(const JoinedLines&) = delete;

  const detail::ElementwiseJob& joined() const { return joined_; }
  const detail::ElementwiseJob& rest() const { return rest_; }

 private:
  detail::ElementwiseJob joined_;
  detail::ElementwiseJob rest_;
  detail::Runs joined_runs_;
  detail::Runs rest_runs_;
  std::int64_t lines_in_one_;
  alignas(64) std::byte scale_[kJoined * sizeof(double)];
  alignas(64) std::byte zero_point_[kJoined * sizeof(std::int32_t)];
};

// All of a job; `scale` is the kind of its scales.
inline Status launch(const Stream& stream, const detail::ElementwiseKernel& kernel, const detail::ElementwiseJob& job,
                     ElementKind scale) {
  const bool whole_bytes =
      !(is_packed(kernel.sku.element) || is_packed(kernel.sku.aux_element)) || job.runs->length % 2 == 0;
  if (!whole_bytes || !JoinedLines::serve(job, row_bytes(kernel.sku.element, job.runs->length),
                                          row_bytes(kernel.sku.aux_element, job.runs->length)))
    return launch_lines(stream, kernel, job);
  const JoinedLines lines(job, static_cast<std::size_t>(row_bytes(scale, 1)));
  if (Status status = launch_lines(stream, kernel, lines.joined()); !status.ok()) return status;
  return lines.rest().runs->lines == 0 ? Status() : launch_lines(stream, kernel, lines.rest());
}

}  // namespace kvant::ops
