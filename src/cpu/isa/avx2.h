// AVX2 with FMA and F16C. Everything in a source that is compiled for it must be a template over Avx2Isa or its lanes,
// or inline away (tests/cpu/isa_isolation.sh looks at the symbols).
#pragma once

#include <cstddef>
#include <type_traits>

#include "cpu/lanes/avx2.h"
#include "cpu/micro/avx2.h"
#include "kvant/sku.h"

namespace kvant::cpu {

struct Avx2Isa {
  static constexpr ArchSku kArch = ArchSku::avx2;
  template <class Compute>
  using Lanes = std::conditional_t<std::is_same_v<Compute, double>, Avx2F64, Avx2F32>;
  using Micro = Avx2Micro;
  static constexpr std::size_t kF64Lanes = 4;
};

}  // namespace kvant::cpu
