// Plain C++, one number at a time: runs everywhere, and is what every other instruction set must equal.
#pragma once

#include "cpu/lanes/scalar.h"
#include "cpu/micro/scalar.h"
#include "kvant/sku.h"

namespace kvant::cpu {

struct ScalarIsa {
  static constexpr ArchSku kArch = ArchSku::scalar;
  template <class Compute>
  using Lanes = ScalarLanes<Compute>;
  using Micro = ScalarMicro;
};

}  // namespace kvant::cpu
