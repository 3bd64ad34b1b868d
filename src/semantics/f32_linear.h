// The arithmetic of an f32 linear layer. The public contract is in include/kvant/f32_linear.h.
#pragma once

#include "base/inline.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// One step of the chain that makes an output, from k to k + 1. The rounding of each step is part of the contract, and
// so is the order of the steps.
template <class L>
KVANT_INLINE typename L::F chain_step(typename L::F x, typename L::F weight, typename L::F sum) {
  return L::fma(x, weight, sum);
}

// The end of the chain.
template <class L>
KVANT_INLINE typename L::F with_bias(typename L::F sum, typename L::F bias) {
  return L::add(sum, bias);
}

}  // namespace kvant::semantics
