// Which instruction sets this machine and its operating system can run.
#pragma once

#include <span>

#include "kvant/sku.h"

namespace kvant::cpu {

// The instruction sets that kernels were compiled for in this build, best first; always ends with scalar.
std::span<const ArchSku> compiled_isas();

bool can_run(ArchSku arch);

}  // namespace kvant::cpu
