// CUDA lanes: one number in each thread. The vocabulary of semantics/lanes.h, with every rounding spelled out.
// (Flushing denormals would still change bits: --ftz=false in CMakeLists.txt.) nvcc may turn min and max with a
// constant into an instruction that orders -0.0 below +0.0: where the sign of a zero would show, use positive_zero().
#pragma once

#include "cuda/device.h"

namespace kvant::cuda {

template <class Compute>
struct DeviceLanes {
  using C = Compute;
  using F = Compute;
  using I = int;
  using M = bool;
  static constexpr int kWidth = 1;
  static constexpr bool kHasFma = true;

  static KVANT_DEVICE I set_int(int i) { return i; }
  static KVANT_DEVICE I add_int(I a, I b) { return a + b; }
  static KVANT_DEVICE I sub_int(I a, I b) { return a - b; }
  static KVANT_DEVICE I min_int(I a, I b) { return a < b ? a : b; }
  static KVANT_DEVICE I max_int(I a, I b) { return a > b ? a : b; }
  static KVANT_DEVICE M both(M a, M b) { return a && b; }
  static KVANT_DEVICE bool all(M m) { return m; }
  static KVANT_DEVICE I select_int(M m, I a, I b) { return m ? a : b; }

  static KVANT_DEVICE F set(C c) { return c; }
  static KVANT_DEVICE F add(F a, F b) { return device::add_rn(a, b); }
  static KVANT_DEVICE F sub(F a, F b) { return device::sub_rn(a, b); }
  static KVANT_DEVICE F mul(F a, F b) { return device::mul_rn(a, b); }
  static KVANT_DEVICE F div(F a, F b) { return device::div_rn(a, b); }
  static KVANT_DEVICE F fma(F a, F b, F c) { return device::fma_rn(a, b, c); }
  static KVANT_DEVICE F fnma(F a, F b, F c) { return device::fma_rn(-a, b, c); }
  static KVANT_DEVICE F min(F a, F b) { return a < b ? a : b; }
  static KVANT_DEVICE F max(F a, F b) { return a > b ? a : b; }
  static KVANT_DEVICE F round_even(F a) { return device::round_even(a); }
  static KVANT_DEVICE I to_int(F a) { return device::to_int_rn(a); }
  static KVANT_DEVICE F to_float(I i) { return device::to_real<C>(i); }
  static KVANT_DEVICE M le(F a, F b) { return a <= b; }
  static KVANT_DEVICE F masked(M m, F a) { return m ? a : F(0); }
  static KVANT_DEVICE F select(M m, F a, F b) { return m ? a : b; }
  static KVANT_DEVICE F abs(F a) { return device::magnitude(a); }
  static KVANT_DEVICE F zero_if_nan(F a) { return a == a ? a : F(0); }
  static KVANT_DEVICE F nan_if_nan(F a) { return a == a ? a : device::default_nan<C>(); }
};

}  // namespace kvant::cuda
