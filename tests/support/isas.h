// The instruction sets of the CPU that this build has kernels for.
#pragma once

#include <vector>

#include "cpu/instruction_sets.h"
#include "kvant/sku.h"

namespace kvant::tests {

inline std::vector<ArchSku> compiled_isas() {
  std::vector<ArchSku> all;
  for (const cpu::InstructionSet& set : cpu::instruction_sets()) all.push_back(set.arch());
  return all;
}

}  // namespace kvant::tests
