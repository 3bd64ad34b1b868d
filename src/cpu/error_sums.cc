// The kernels of ErrorSums for one instruction set; see cpu/isa/kernels.h.
#include "cpu/error_sums-inl.h"
#include "cpu/isa/kernels.h"
#include KVANT_ISA_HEADER

namespace kvant::cpu {
namespace {
constexpr auto kKernels = make_error_sums_kernels<KVANT_ISA>();
constexpr auto kPointers = pointers_to<detail::ErrorSumsKernel>(kKernels);
}  // namespace

template <>
detail::KernelList<detail::ErrorSumsKernel> kernels<KVANT_ISA, detail::ErrorSumsKernel>() {
  return {kPointers.data(), kPointers.size()};
}

}  // namespace kvant::cpu
