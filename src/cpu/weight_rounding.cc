// The kernels of WeightRounding for one instruction set; see cpu/isa/kernels.h.
#include "cpu/isa/kernels.h"
#include "cpu/weight_rounding-inl.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_weight_rounding_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::WeightRoundingKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::WeightRoundingKernel> kernels<KVANT_ISA, detail::WeightRoundingKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
