// What the front desks of range and dynamic-range plans hand to a kernel, and the list of kernels they choose from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/elementwise_kernel.h"
#include "core/runs.h"
#include "kvant/sku.h"
#include "semantics/dynamic_range.h"

namespace kvant::detail {

// A tensor to look through. The stride is in bytes from line to line.
struct RangeJob {
  const std::byte* x;
  std::int64_t x_stride;
  std::int64_t fetch_ahead;  // bytes in front of x to fetch, 0 for none
  const Runs* runs;
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

struct RangeKernel {
  KernelSku sku;
  // The finite range of every parameter in `part`. Slots that the part does not touch become empty. True if every
  // element is known to be finite.
  bool (*find)(const RangeJob& job, const ElementwisePart& part, const RangeSlots& slots);
  // Extends `slots` by as many ranges in lo and hi.
  void (*merge)(const RangeSlots& slots, const void* lo, const void* hi);
  // Scales and zero points of `slots`, to unaligned arrays that begin with parameter 0. No zero points for null.
  void (*parameters)(const semantics::RangeRules& rules, const RangeSlots& slots, std::byte* scale,
                     std::byte* zero_point);
  // The ranges themselves.
  void (*report)(const RangeReport& report, const RangeSlots& slots);
};

}  // namespace kvant::detail

namespace kvant::cpu {

// Each instruction set's kernels, defined in cpu/range_<isa>.cc; see ElementwiseKernelList.
struct RangeKernelList {
  const detail::RangeKernel* first;
  std::size_t count;
};
RangeKernelList range_kernels_scalar();
RangeKernelList range_kernels_avx2();

}  // namespace kvant::cpu
