// e^x, as a formula whose bits are the same on every machine.
//
//   n = rne(x log2 e)    r = x - n ln 2, |r| <= 0.347    e^x = 2^n (1 + r + r² q(r))
//
// ln 2 is taken off in two parts, the first of which has so few bits that n times it is exact. q is the minimax
// polynomial for the relative error of e^r, computed with Remez' algorithm and rounded to its type.
//
//   f32   q of degree 4   the polynomial is off by 2^-28.3   the largest error of every third number: 0.91 ulp
//   f64   q of degree 9   2^-57.9                            of a million numbers: 0.89 ulp
//
// From 128 ln 2 (f64: 1024 ln 2) on the result is +Inf. Where e^x is below the smallest normal number it is 0: nobody
// waits for denormals. NaN stays NaN.
#pragma once

#include "base/inline.h"
#include "semantics/lanes.h"
#include "semantics/polynomial.h"

namespace kvant::semantics {

template <class Compute>
struct ExponentialNumbers;

template <>
struct ExponentialNumbers<float> {
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kFirstInfinite = 0x1.62e43p+6f;
  static constexpr float kLastZero = -0x1.5d58ap+6f;
  static constexpr float kInfinity = __builtin_inff();

  template <class L>
  static KVANT_INLINE typename L::F near_zero(typename L::F r) {
    return polynomial<L>(r, 1, 1, 0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f, 0x1.1239e2p-7f, 0x1.6a244ap-10f);
  }
};

template <>
struct ExponentialNumbers<double> {
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1;
  static constexpr double kLn2Low = 0x1.ef35793c7673p-45;
  static constexpr double kFirstInfinite = 0x1.62e42fefa39fp+9;
  static constexpr double kLastZero = -0x1.6232bdd7abcd3p+9;
  static constexpr double kInfinity = __builtin_inf();

  template <class L>
  static KVANT_INLINE typename L::F near_zero(typename L::F r) {
    return polynomial<L>(r, 1, 1, 0x1.000000000000ap-1, 0x1.55555555554fap-3, 0x1.555555555087dp-5,
                         0x1.1111111127c1bp-7, 0x1.6c16c1842a073p-10, 0x1.a01a012a45948p-13, 0x1.a0199a0c67cbcp-16,
                         0x1.71df257997528p-19, 0x1.28ad72df49402p-22, 0x1.ad7f330d73d4ap-26);
  }
};

template <class L>
KVANT_INLINE typename L::F exponential(typename L::F x) {
  using F = typename L::F;
  using Numbers = ExponentialNumbers<typename L::C>;
  const F n = L::round_even(L::mul(x, L::set(Numbers::kLog2E)));
  const F r = L::fma(n, L::set(-Numbers::kLn2Low), L::fma(n, L::set(-Numbers::kLn2High), x));
  const F y = L::scale_exponent(Numbers::template near_zero<L>(r), L::to_int(n));
  // Comparisons that are false for NaN, which y is then.
  const F bounded = L::select(L::le(L::set(Numbers::kFirstInfinite), x), L::set(Numbers::kInfinity), y);
  return L::select(L::le(x, L::set(Numbers::kLastZero)), L::set(0), bounded);
}

}  // namespace kvant::semantics
