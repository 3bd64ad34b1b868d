#include "ops/registry.h"

#include "core/cuda_backend.h"
#include "cpu/instruction_sets.h"

namespace kvant::ops {

const std::vector<const detail::KernelSet*>& kernel_sets() {
  static const detail::KernelSet cuda_set = cuda::kernel_set();
  static const std::vector<const detail::KernelSet*> all = [] {
    std::vector<const detail::KernelSet*> sets;
    for (const cpu::InstructionSet& set : cpu::instruction_sets()) sets.push_back(&set.kernels);
    sets.push_back(&cuda_set);
    return sets;
  }();
  return all;
}

bool serves(const detail::KernelSet& set, const Target& target) {
  if (info(set.arch).backend != target.backend) return false;
  return target.isa ? set.arch == *target.isa : cpu::can_run(set.arch);
}

}  // namespace kvant::ops
