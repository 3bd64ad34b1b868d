// CUDA lanes: one number in each thread. The vocabulary of semantics/lanes.h, with every rounding spelled out.
// (Flushing denormals would still change bits: --ftz=false in CMakeLists.txt.) nvcc may turn min and max with a
// constant into an instruction that orders -0.0 below +0.0: where the sign of a zero would show, use positive_zero().
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device.h"

namespace kvant::cuda {

template <class Compute>
struct DeviceLanes {
  using C = Compute;
  using F = Compute;
  using I = int;
  using M = bool;
  using B = std::conditional_t<sizeof(Compute) == 4, std::uint32_t, std::uint64_t>;
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

  static KVANT_DEVICE I and_int(I a, I b) { return a & b; }
  static KVANT_DEVICE I or_int(I a, I b) { return a | b; }

  static KVANT_DEVICE B bits(F a) {
    if constexpr (sizeof(C) == 4)
      return device::float_to_bits(a);
    else
      return device::double_to_bits(a);
  }
  static KVANT_DEVICE F from_bits(B b) {
    if constexpr (sizeof(C) == 4)
      return device::bits_to_float(b);
    else
      return device::bits_to_double(b);
  }
  static KVANT_DEVICE B set_bits(B b) { return b; }
  static KVANT_DEVICE B and_bits(B a, B b) { return a & b; }
  static KVANT_DEVICE B or_bits(B a, B b) { return a | b; }
  static KVANT_DEVICE B add_bits(B a, B b) { return a + b; }
  static KVANT_DEVICE B sub_bits(B a, B b) { return a - b; }
  static KVANT_DEVICE B shift_bits_left(B a, int n) { return a << n; }
  static KVANT_DEVICE B shift_bits_right(B a, int n) { return a >> n; }
  static KVANT_DEVICE I to_int_bits(B a) { return static_cast<I>(a); }
  static KVANT_DEVICE B int_bits(I i) { return static_cast<B>(i); }

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
