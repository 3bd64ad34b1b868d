// The formulas of the steps between the linear layers of a network. The public contract is in
// include/kvant/network_steps.h. Sums are the caller's: their order is in cpu/sixteen-inl.h.
#pragma once

#include "base/inline.h"
#include "semantics/exponential.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// ---- Norms ----

// 1 / sqrt(sum / n + epsilon)
template <class L>
KVANT_INLINE typename L::F inverse_root_of_mean(typename L::F sum, typename L::F n, typename L::F epsilon) {
  return L::div(L::set(1), L::sqrt(L::add(L::div(sum, n), epsilon)));
}

template <class L>
KVANT_INLINE typename L::F rms_normed(typename L::F x, typename L::F inverse_root, typename L::F weight) {
  return L::mul(weight, L::mul(x, inverse_root));
}

// Before weight and bias.
template <class L>
KVANT_INLINE typename L::F layer_normed(typename L::F x, typename L::F mean, typename L::F inverse_root) {
  return L::mul(L::sub(x, mean), inverse_root);
}

// ---- Rotation ----

template <class L>
struct Rotated {
  typename L::F first, second;
};

// Products are rounded before they are added, as in programs that form them as tensors.
template <class L>
KVANT_INLINE Rotated<L> rotated(typename L::F a, typename L::F b, typename L::F cosine, typename L::F sine) {
  return {L::sub(L::mul(a, cosine), L::mul(b, sine)), L::add(L::mul(b, cosine), L::mul(a, sine))};
}

// ---- Distributions ----

// What is taken off before exponentials: the largest number, unless differences from it would be NaN.
template <class T>
KVANT_INLINE T shift_of(T largest) {
  return largest - largest == 0 ? largest : T(0);
}

// What exponentials are multiplied with, so that their sum becomes 1. All 0 (nothing but -Inf): they stay 0.
KVANT_INLINE float share_of(float sum) { return sum == 0 ? 0.0f : 1 / sum; }

// One term of the divergence, from logarithms of probabilities. Where p is 0 it is 0, whatever q is.
template <class L>
KVANT_INLINE typename L::F divergence(typename L::F log_p, typename L::F log_q) {
  const typename L::F p = exponential<L>(log_p);
  return L::select(L::le(p, L::set(0)), L::set(0), L::mul(p, L::sub(log_p, log_q)));
}

}  // namespace kvant::semantics
