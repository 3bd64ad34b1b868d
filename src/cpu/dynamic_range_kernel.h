// What a dynamic-range kernel of the CPU is given: runs that have a range of their own, each read once.
#pragma once

#include <cstddef>
#include <memory>

#include "core/dynamic_range_kernel.h"
#include "cpu/elementwise_kernel.h"
#include "cpu/range_kernel.h"
#include "semantics/dynamic_range.h"

namespace kvant::cpu {

// `quantize` makes codes where the kernel has no loop of its own: parameters or ranges of codes that are unusual, or
// elements that are not finite. Both pieces of work read the scales and zero points that the kernel writes to `scale`
// and `zero_point`.
struct DynamicRangeWork {
  const ElementwiseWork* any;     // for any elements
  const ElementwiseWork* finite;  // for runs whose elements are known to be finite; differs in `bounded`
  const semantics::RangeRules* rules;
  ScaleSink scale;
  std::byte* zero_point;              // null: not wanted
  const ElementwiseKernel* quantize;  // of the same types
};

struct DynamicRangeKernel : detail::DynamicRangeKernel {
  // For runs that have a parameter of their own each: tokens, groups along a row, channels on the outermost axis. A
  // part consists of whole runs. (Runs of one element are served, but slowly.)
  void (*run)(const DynamicRangeWork& work, const ElementwisePart& part);
};

inline const DynamicRangeKernel& of_cpu(const detail::DynamicRangeKernel& kernel) {
  return static_cast<const DynamicRangeKernel&>(kernel);
}

// detail::DynamicRangeKernel's functions, for all kernels of the CPU.
std::unique_ptr<const detail::Prepared> prepare_dynamic_range(const detail::DynamicRangeKernel& kernel,
                                                              const detail::KernelSet& set,
                                                              const detail::DynamicRangeProblem& problem);
Status launch_dynamic_range(const detail::DynamicRangeKernel& kernel, const Stream& stream,
                            const detail::Prepared& prepared, void* workspace, const detail::DynamicRangeJob& job,
                            const base::Who& who);

}  // namespace kvant::cpu
