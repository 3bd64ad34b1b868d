// The kernel of NetworkSteps for one instruction set; see cpu/isa/kernels.h.
#include "cpu/network_steps-inl.h"

#include "cpu/isa/kernels.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_network_steps_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::NetworkStepsKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::NetworkStepsKernel> kernels<KVANT_ISA, detail::NetworkStepsKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
