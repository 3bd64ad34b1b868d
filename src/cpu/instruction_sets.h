// The instruction sets of the CPU that kernels were compiled for in this build.
#pragma once

#include <span>

#include "core/kernel_set.h"
#include "kvant/sku.h"

namespace kvant::cpu {

struct InstructionSet {
  detail::KernelSet kernels;
  bool runs_here;  // on this machine, under this operating system

  ArchSku arch() const { return kernels.arch; }
};

// Best first; always ends with scalar.
std::span<const InstructionSet> instruction_sets();

// Null if this build has no kernels for it.
const InstructionSet* instruction_set(ArchSku arch);

bool can_run(ArchSku arch);

}  // namespace kvant::cpu
