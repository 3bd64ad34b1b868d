// Activation functions, in f32. The public contract is in include/kvant/network_steps.h.
#pragma once

#include "base/inline.h"
#include "semantics/exponential.h"
#include "semantics/lanes.h"
#include "semantics/polynomial.h"

namespace kvant::semantics {

// erf(x): up to 1 as x + x p(x²) with p of degree 6, beyond as 1 - e^g(x) with g, the logarithm of erfc, of degree 6;
// from 4 on that is 1. Both are minimax polynomials, off by 2^-29.6 of erf; the largest error of all numbers is 1.21
// ulp.
template <class L>
KVANT_INLINE typename L::F error_function(typename L::F x) {
  using F = typename L::F;
  const F a = L::abs(x);
  const F p = polynomial<L>(L::mul(a, a), 0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2cf8p-4f, -0x1.b7f90ep-6f,
                            0x1.5405b4p-8f, -0x1.a3f71p-11f, 0x1.496a5ep-14f);
  const F g = polynomial<L>(L::min(L::set(4), a), -0x1.662b2ap-12f, -0x1.2088e8p+0f, -0x1.46baf8p-1f, -0x1.a652ecp-4f,
                            0x1.65cacep-6f, -0x1.8259ap-9f, 0x1.86db4ap-13f);
  const F near = L::fma(p, a, a), far = L::sub(L::set(1), exponential<L>(g));
  return L::with_sign_of(L::select(L::le(a, L::set(1)), near, far), x);
}

// x / (1 + e^-t)
template <class L>
KVANT_INLINE typename L::F times_sigmoid(typename L::F x, typename L::F minus_t) {
  return L::div(x, L::add(L::set(1), exponential<L>(minus_t)));
}

template <class L>
KVANT_INLINE typename L::F silu(typename L::F x) {
  return times_sigmoid<L>(x, L::mul(L::set(-1), x));
}

// (x / 2) (1 + erf(x / √2)), in one fused multiply-add.
template <class L>
KVANT_INLINE typename L::F gelu(typename L::F x) {
  const typename L::F half = L::mul(L::set(0.5f), x);
  return L::fma(half, error_function<L>(L::mul(L::set(0x1.6a09e6p-1f), x)), half);
}

// (x / 2) (1 + tanh(u)) for u = √(2/π) (x + 0.044715 x³) is x / (1 + e^-2u), which keeps its digits where tanh(u) is
// near -1, and needs no tanh.
template <class L>
KVANT_INLINE typename L::F gelu_tanh(typename L::F x) {
  constexpr float kMinusTwoRoot = -0x1.988454p+0f, kCubic = -0x1.2444f2p-4f;
  return times_sigmoid<L>(x, L::mul(x, L::fma(L::set(kCubic), L::mul(x, x), L::set(kMinusTwoRoot))));
}

template <class L>
KVANT_INLINE typename L::F quick_gelu(typename L::F x) {
  return times_sigmoid<L>(x, L::mul(L::set(-1.702f), x));
}

// NaN stays.
template <class L>
KVANT_INLINE typename L::F relu(typename L::F x) {
  return L::max(L::set(0), x);
}

}  // namespace kvant::semantics
