// The dynamic-range kernels in plain C++: the reference.
#include "cpu/dynamic_range-inl.h"
#include "cpu/lanes/scalar.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_dynamic_range_kernels<ScalarIsa>(ArchSku::scalar);
constexpr DynamicRangeKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
DynamicRangeKernelList dynamic_range_kernels_scalar() { return kList; }
}  // namespace kvant::cpu
