// The element-wise kernels in plain C++: the reference.
#include "cpu/elementwise-inl.h"
#include "cpu/lanes/scalar.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_elementwise_kernels<ScalarIsa>(ArchSku::scalar);
constexpr ElementwiseKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
ElementwiseKernelList elementwise_kernels_scalar() { return kList; }
}  // namespace kvant::cpu
