// The floating-point end of a linear layer. The public contract is in include/kvant/linear.h.
#pragma once

#include "base/inline.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// (act_scale * weight_scale) * sum. The order is part of the contract: another one rounds differently.
template <class L>
KVANT_INLINE typename L::F scaled_sum(typename L::F act_scale, typename L::F weight_scale, typename L::F sum) {
  return L::mul(L::mul(act_scale, weight_scale), sum);
}

// x / s[k], the smoothing of an activation on its way in.
template <class L>
KVANT_INLINE typename L::F smoothed(typename L::F x, typename L::F divisor) {
  return L::div(x, divisor);
}

}  // namespace kvant::semantics
