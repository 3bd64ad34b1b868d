// The f32 linear kernels in plain C++.
#include "cpu/f32_linear-inl.h"
#include "cpu/lanes/scalar.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_f32_linear_kernels<ScalarLanes<float>>(ArchSku::scalar);
constexpr F32LinearKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
F32LinearKernelList f32_linear_kernels_scalar() { return kList; }
}  // namespace kvant::cpu
