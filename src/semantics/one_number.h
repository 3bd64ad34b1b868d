// Lanes of one number: the vocabulary of lanes.h in plain C++. What the front desks evaluate formulas with, and what
// the scalar kernels are made of.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/inline.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace kvant::semantics {

template <class Compute>
struct OneNumber {
  using C = Compute;
  using F = Compute;
  using I = std::int32_t;
  using M = bool;
  using B = std::conditional_t<sizeof(Compute) == 4, std::uint32_t, std::uint64_t>;

  static constexpr int kWidth = 1;
  static constexpr bool kHasFma = false;

  static KVANT_INLINE F set(C c) { return c; }
  static KVANT_INLINE I set_int(std::int32_t i) { return i; }
  static KVANT_INLINE F add(F a, F b) { return a + b; }
  static KVANT_INLINE F sub(F a, F b) { return a - b; }
  static KVANT_INLINE F mul(F a, F b) { return a * b; }
  static KVANT_INLINE F div(F a, F b) { return a / b; }
  // The C library's where the compiler's target has no instruction; rounded once either way.
  static KVANT_INLINE F fma(F a, F b, F c) { return std::fma(a, b, c); }
  static KVANT_INLINE F sqrt(F a) { return std::sqrt(a); }
  static KVANT_INLINE F min(F a, F b) { return a < b ? a : b; }
  static KVANT_INLINE F max(F a, F b) { return a > b ? a : b; }
  static KVANT_INLINE I add_int(I a, I b) { return a + b; }
  static KVANT_INLINE I sub_int(I a, I b) { return a - b; }
  static KVANT_INLINE I min_int(I a, I b) { return a < b ? a : b; }
  static KVANT_INLINE I max_int(I a, I b) { return a > b ? a : b; }
  static KVANT_INLINE M le(F a, F b) { return a <= b; }
  static KVANT_INLINE M both(M a, M b) { return a && b; }
  static KVANT_INLINE bool all(M m) { return m; }
  static KVANT_INLINE F masked(M m, F a) { return m ? a : F(0); }
  static KVANT_INLINE F select(M m, F a, F b) { return m ? a : b; }
  static KVANT_INLINE I select_int(M m, I a, I b) { return m ? a : b; }
  static KVANT_INLINE F abs(F a) { return std::fabs(a); }
  static KVANT_INLINE F with_sign_of(F a, F b) { return std::copysign(a, b); }
  static KVANT_INLINE F zero_if_nan(F a) { return a == a ? a : F(0); }
  static KVANT_INLINE F nan_if_nan(F a) { return a == a ? a : static_cast<F>(__builtin_nan("")); }
  static KVANT_INLINE F to_float(I i) { return static_cast<F>(i); }

  static KVANT_INLINE B bits(F a) {
    B b;
    std::memcpy(&b, &a, sizeof b);
    return b;
  }
  static KVANT_INLINE F from_bits(B b) {
    F a;
    std::memcpy(&a, &b, sizeof a);
    return a;
  }
  static KVANT_INLINE B set_bits(B b) { return b; }
  static KVANT_INLINE B and_bits(B a, B b) { return a & b; }
  static KVANT_INLINE B or_bits(B a, B b) { return a | b; }
  static KVANT_INLINE B add_bits(B a, B b) { return a + b; }
  static KVANT_INLINE B sub_bits(B a, B b) { return a - b; }
  static KVANT_INLINE B shift_bits_left(B a, int n) { return a << n; }
  static KVANT_INLINE B shift_bits_right(B a, int n) { return a >> n; }
  static KVANT_INLINE I to_int_bits(B a) { return static_cast<I>(a); }
  static KVANT_INLINE B int_bits(I i) { return static_cast<B>(i); }
  static KVANT_INLINE I and_int(I a, I b) { return a & b; }
  static KVANT_INLINE I or_int(I a, I b) { return a | b; }

  static KVANT_INLINE F scale_exponent(F a, I i) {
    constexpr int kFractionBits = std::is_same_v<F, float> ? 23 : 52;
    return from_bits(bits(a) + (static_cast<B>(static_cast<std::int64_t>(i)) << kFractionBits));
  }

  // In the rounding mode that run() has set: to nearest even.
  static KVANT_INLINE I to_int(F a) {
#if defined(__SSE2__)
    if constexpr (std::is_same_v<F, float>)
      return _mm_cvtss_si32(_mm_set_ss(a));
    else
      return _mm_cvtsd_si32(_mm_set_sd(a));
#else
    return a == a ? static_cast<I>(std::lrint(a)) : 0;
#endif
  }

  // From 2^23 (2^52) on every number is an integer; below, adding and subtracting it drops the fraction. NaN
  // fails the comparison and stays.
  static KVANT_INLINE F round_even(F a) {
    constexpr F kInteger = std::is_same_v<F, float> ? F(0x1p23) : F(0x1p52);
    const F magnitude = std::fabs(a);
    return magnitude < kInteger ? std::copysign((magnitude + kInteger) - kInteger, a) : a;
  }
};

}  // namespace kvant::semantics
