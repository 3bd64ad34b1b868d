// The linear kernels for AVX2 with FMA and F16C; see elementwise_avx2.cc.
#include "cpu/lanes/avx2.h"
#include "cpu/linear-inl.h"
#include "cpu/micro/avx2.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_linear_kernels<Avx2Micro, Avx2Isa>();
constexpr LinearKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
LinearKernelList linear_kernels_avx2() { return kList; }
}  // namespace kvant::cpu
