// The f32 linear kernels of one instruction set; see cpu/isa/kernels.h.
#include "cpu/f32_linear-inl.h"
#include "cpu/isa/kernels.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_f32_linear_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::F32LinearKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::F32LinearKernel> kernels<KVANT_ISA, detail::F32LinearKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
