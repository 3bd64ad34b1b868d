// What this build of kvant has, and what of it runs on this machine.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "kvant/export.h"
#include "kvant/sku.h"
#include "kvant/status.h"

namespace kvant {

struct BuildInfo {
  struct Family {
    std::string_view name;  // "element-wise"
    std::size_t kernels;
  };
  struct InstructionSet {
    ArchSku arch;
    bool runs_here;
    std::vector<Family> families;
  };
  std::vector<InstructionSet> instruction_sets;  // of the CPU, best first
  bool has_cuda = false;                         // kernels for NVIDIA GPUs are in this build
};

KVANT_API BuildInfo build_info();

// The instruction set that select() uses on CPU streams: the one that KVANT_FORCE_ISA names, or the best that runs
// here. Like select(), it refuses a name that is unknown or that this build or machine does not have.
KVANT_API Result<ArchSku> default_isa();

}  // namespace kvant
