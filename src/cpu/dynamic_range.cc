// The dynamic-range kernels of one instruction set; see cpu/isa/kernels.h.
#include "cpu/dynamic_range-inl.h"
#include "cpu/isa/kernels.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_dynamic_range_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::DynamicRangeKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::DynamicRangeKernel> kernels<KVANT_ISA, detail::DynamicRangeKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
