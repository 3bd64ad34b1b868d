// The range kernels in plain C++: the reference.
#include "cpu/lanes/scalar.h"
#include "cpu/range-inl.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_range_kernels<ScalarIsa>(ArchSku::scalar);
constexpr RangeKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
RangeKernelList range_kernels_scalar() { return kList; }
}  // namespace kvant::cpu
