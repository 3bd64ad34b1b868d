// The f32 linear kernels for AVX2 with FMA and F16C; see elementwise_avx2.cc.
#include "cpu/f32_linear-inl.h"
#include "cpu/lanes/avx2.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_f32_linear_kernels<Avx2F32>(ArchSku::avx2);
constexpr F32LinearKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
F32LinearKernelList f32_linear_kernels_avx2() { return kList; }
}  // namespace kvant::cpu
