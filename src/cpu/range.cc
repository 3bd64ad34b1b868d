// The range kernels of one instruction set; see cpu/isa/kernels.h.
#include "cpu/isa/kernels.h"
#include "cpu/range-inl.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_range_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::RangeKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::RangeKernel> kernels<KVANT_ISA, detail::RangeKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
