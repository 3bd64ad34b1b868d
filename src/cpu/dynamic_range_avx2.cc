// The dynamic-range kernels for AVX2 with FMA and F16C; see elementwise_avx2.cc.
#include "cpu/dynamic_range-inl.h"
#include "cpu/lanes/avx2.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_dynamic_range_kernels<Avx2Isa>(ArchSku::avx2);
constexpr DynamicRangeKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
DynamicRangeKernelList dynamic_range_kernels_avx2() { return kList; }
}  // namespace kvant::cpu
