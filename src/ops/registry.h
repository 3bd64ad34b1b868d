// Which kernel serves a problem: the first instruction set of the target that has one. Tests and benchmarks walk the
// same sets, so a kernel is covered without being named.
#pragma once

#include <vector>

#include "core/kernel_set.h"
#include "kvant/sku.h"
#include "ops/preference.h"

namespace kvant::ops {

// Every set of this build, the CPU's best first, then CUDA's.
const std::vector<const detail::KernelSet*>& kernel_sets();

// What select() found: a kernel and the set that it belongs to. Both null if there is none.
template <class Kernel>
struct Selected {
  const Kernel* kernel = nullptr;
  const detail::KernelSet* set = nullptr;
};

// Whether a set's kernels may be used.
bool serves(const detail::KernelSet& set, const Target& target);

template <class Kernel>
Selected<Kernel> select_kernel(QuantizeKind op, ElementKind element, ElementKind aux_element, const Target& target) {
  for (const detail::KernelSet* set : kernel_sets())
    if (serves(*set, target))
      if (const Kernel* kernel = set->find<Kernel>(op, element, aux_element)) return {kernel, set};
  return {};
}

// All kernels of a family, or of a family on one backend.
template <class Kernel>
std::vector<const Kernel*> all_kernels() {
  std::vector<const Kernel*> all;
  for (const detail::KernelSet* set : kernel_sets())
    for (const Kernel* kernel : set->of<Kernel>()) all.push_back(kernel);
  return all;
}
template <class Kernel>
std::vector<const Kernel*> all_kernels(BackendKind backend) {
  std::vector<const Kernel*> all = all_kernels<Kernel>();
  std::erase_if(all, [&](const Kernel* kernel) { return kernel->sku.backend != backend; });
  return all;
}

}  // namespace kvant::ops
