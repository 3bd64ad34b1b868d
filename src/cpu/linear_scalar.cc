// The linear kernels in plain C++.
#include "cpu/lanes/scalar.h"
#include "cpu/linear-inl.h"
#include "cpu/micro/scalar.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_linear_kernels<ScalarMicro, ScalarIsa>();
constexpr LinearKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
LinearKernelList linear_kernels_scalar() { return kList; }
}  // namespace kvant::cpu
