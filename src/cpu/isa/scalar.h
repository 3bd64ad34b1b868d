// Plain C++, one number at a time: runs everywhere, and is what every other instruction set must equal.
#pragma once

#include <cstddef>

#include "cpu/lanes/scalar.h"
#include "cpu/micro/scalar.h"
#include "kvant/sku.h"

namespace kvant::cpu {

struct ScalarIsa {
  static constexpr ArchSku kArch = ArchSku::scalar;
  template <class Compute>
  using Lanes = ScalarLanes<Compute>;
  using Micro = ScalarMicro;
  static constexpr std::size_t kF64Lanes = 2;  // of vectors that every compiler has
};

}  // namespace kvant::cpu
