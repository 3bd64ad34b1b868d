// What the front desk of dynamic-range quantization hands to a kernel that reads every element once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/elementwise_kernel.h"
#include "kvant/sku.h"
#include "semantics/dynamic_range.h"

namespace kvant::detail {

// Both jobs read the scales and zero points that the kernel writes to `scale` and `zero_point`.
struct DynamicRangeJob {
  const ElementwiseJob* any;     // for any elements
  const ElementwiseJob* finite;  // for runs whose elements are known to be finite; differs in `bounded`
  const semantics::RangeRules* rules;
  std::byte* scale;
  std::byte* zero_point;  // null: not wanted
};

// For runs that have a parameter of their own each: tokens, groups along a row, channels on the outermost axis. A part
// consists of whole runs. (Runs of one element are served, but slowly.)
struct DynamicRangeKernel {
  KernelSku sku;
  void (*run)(const DynamicRangeJob& job, const ElementwisePart& part);
};

}  // namespace kvant::detail

namespace kvant::cpu {

// Each instruction set's kernels, defined in cpu/dynamic_range_<isa>.cc; see ElementwiseKernelList.
struct DynamicRangeKernelList {
  const detail::DynamicRangeKernel* first;
  std::size_t count;
};
DynamicRangeKernelList dynamic_range_kernels_scalar();
DynamicRangeKernelList dynamic_range_kernels_avx2();

}  // namespace kvant::cpu
