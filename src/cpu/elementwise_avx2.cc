// The element-wise kernels for AVX2 with FMA and F16C. Compiled with those flags; everything that is not a template
// over Avx2 lanes must inline away (a test looks at the object's symbols).
#include "cpu/elementwise-inl.h"
#include "cpu/lanes/avx2.h"

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_elementwise_kernels<Avx2Isa>(ArchSku::avx2);
constexpr ElementwiseKernelList kList{kKernels.data(), kKernels.size()};
}  // namespace
ElementwiseKernelList elementwise_kernels_avx2() { return kList; }
}  // namespace kvant::cpu
