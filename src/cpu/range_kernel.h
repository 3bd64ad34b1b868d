// What a range kernel of the CPU is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/range_kernel.h"
#include "core/runs.h"
#include "cpu/elementwise_kernel.h"
#include "semantics/dynamic_range.h"

namespace kvant::cpu {

// A tensor to look through. The stride is in bytes from line to line.
struct RangeWork {
  const std::byte* x;
  std::int64_t x_stride;
  std::int64_t fetch_ahead;  // bytes after x to fetch, 0 for none
  detail::Runs runs;
};

// Ranges of `count` parameters from index `first` on: two aligned arrays of the compute type.
struct RangeSlots {
  void* lo;
  void* hi;
  std::int64_t first;
  std::int64_t count;
};

// Where a range plan writes; null where nobody asked. Unaligned values of the compute type.
struct RangeReport {
  std::byte* min;
  std::byte* max;
  std::byte* max_abs;
  bool accumulate;
};

// Where scales are written, at any address.
struct ScaleSink {
  std::byte* data = nullptr;
  std::int64_t bytes = 4;  // of a scale
  float global = 1;        // over scales of e4m3
};

struct RangeKernel : detail::RangeKernel {
  // The finite range of every parameter in `part`. Slots that the part does not touch become empty. True if every
  // element is known to be finite.
  bool (*find)(const RangeWork& work, const ElementwisePart& part, const RangeSlots& slots);
  // Extends `slots` by as many ranges in lo and hi.
  void (*merge)(const RangeSlots& slots, const void* lo, const void* hi);
  // Scales and zero points of `slots`, to unaligned arrays that begin with parameter 0. No zero points for null.
  void (*parameters)(const semantics::RangeRules& rules, const RangeSlots& slots, const ScaleSink& scale,
                     std::byte* zero_point);
  // The ranges themselves.
  void (*report)(const RangeReport& report, const RangeSlots& slots);
};

inline const RangeKernel& of_cpu(const detail::RangeKernel& kernel) { return static_cast<const RangeKernel&>(kernel); }

// detail::RangeKernel's functions, for all kernels of the CPU.
std::unique_ptr<const detail::Prepared> prepare_range(const detail::SegmentProblem& problem);
Status launch_range(const detail::RangeKernel& kernel, const Stream& stream, const detail::Prepared& prepared,
                    void* workspace, const detail::RangeJob& job, const base::Who& who);

}  // namespace kvant::cpu
