// Every element-wise kernel of this build, in the order of preference: select() takes the first that serves the
// problem and the machine. Tests and benchmarks walk the same list, so a new kernel is covered without being named.
#pragma once

#include <span>

#include "core/elementwise_kernel.h"
#include "kvant/export.h"

namespace kvant::ops {

KVANT_API std::span<const detail::ElementwiseKernel* const> elementwise_kernels();

}  // namespace kvant::ops
