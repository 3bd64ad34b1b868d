// The element-wise kernels of one instruction set; see cpu/isa/kernels.h.
#include "cpu/elementwise-inl.h"
#include "cpu/isa/kernels.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_elementwise_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::ElementwiseKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::ElementwiseKernel> kernels<KVANT_ISA, detail::ElementwiseKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
