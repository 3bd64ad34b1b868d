#include "ops/elementwise_registry.h"

#include <vector>

namespace kvant::ops {
namespace {

std::vector<const detail::ElementwiseKernel*> collect() {
  std::vector<const detail::ElementwiseKernel*> all;
  const auto append = [&all](cpu::ElementwiseKernelList list) {
    for (std::size_t i = 0; i < list.count; ++i) all.push_back(list.first + i);
  };
#if defined(KVANT_HAS_AVX2)
  append(cpu::elementwise_kernels_avx2());
#endif
  append(cpu::elementwise_kernels_scalar());
  return all;
}

}  // namespace

std::span<const detail::ElementwiseKernel* const> elementwise_kernels() {
  static const std::vector<const detail::ElementwiseKernel*> all = collect();
  return all;
}

}  // namespace kvant::ops
