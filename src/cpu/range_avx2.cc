// The range kernels for AVX2 with FMA and F16C; see elementwise_avx2.cc.
#include "cpu/lanes/avx2.h"
#include "cpu/range-inl.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_range_kernels<Avx2Isa>(ArchSku::avx2);
constexpr RangeKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
RangeKernelList range_kernels_avx2() { return kList; }
}  // namespace kvant::cpu
