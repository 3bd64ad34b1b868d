// The kernels of linear layers of one instruction set; see cpu/isa/kernels.h.
#include "cpu/isa/kernels.h"
#include "cpu/linear-inl.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_linear_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::LinearKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::LinearKernel> kernels<KVANT_ISA, detail::LinearKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
