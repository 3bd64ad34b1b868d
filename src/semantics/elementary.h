// Sine, cosine, logarithm and powers in f64, one number at a time: for tables of a network's positions. Fixed formulas
// of IEEE operations, because the C library's differ from version to version and from machine to machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "semantics/exponential.h"
#include "semantics/one_number.h"
#include "semantics/polynomial.h"

namespace kvant::semantics {

using Double = OneNumber<double>;

// An unevaluated sum; `low` is what rounding took from `high`.
struct TwoParts {
  double high, low;
};

// ---- Exponential and logarithm ----

KVANT_INLINE double exponential(double x) { return exponential<Double>(x); }

// Of a finite positive number, to about 2^-59 of itself. With x = 2^e m and √½ < m <= √2:
//   s = (m - 1) / (m + 1)    log x = e ln 2 + 2 s + s³ (2/3 + 2/5 s² + … + 2/21 s^18)
KVANT_INLINE TwoParts logarithm_parts(double x) {
  const bool denormal = x < 0x1p-1022;
  if (denormal) x *= 0x1p54;
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint64_t fraction = (bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000;
  double m;
  std::memcpy(&m, &fraction, sizeof m);
  double e = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023 - (denormal ? 54 : 0));
  if (m > 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    e += 1;
  }
  // s = f / (2 + f) in two parts; f and what 2 + f loses are exact.
  const double f = m - 1, d = 2 + f, d_low = f - (d - 2);
  const double s = f / d, s_low = (std::fma(-s, d, f) - s * d_low) / d;
  const double z = s * s;
  const double rest = s * z *
                      polynomial<Double>(z, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17,
                                         2.0 / 19, 2.0 / 21);
  using Numbers = ExponentialNumbers<double>;
  const double whole = e * Numbers::kLn2High;  // exact
  const double high = whole + 2 * s;
  const double low = (2 * s - (high - whole)) + (e * Numbers::kLn2Low + (2 * s_low + rest));
  const double sum = high + low;
  return {sum, low - (sum - high)};
}

// -Inf for 0, NaN below. The largest error found is 0.54 ulp.
KVANT_INLINE double logarithm(double x) {
  if (x == 0) return -__builtin_inf();
  if (!(x > 0)) return __builtin_nan("");
  if (x == __builtin_inf()) return x;
  return logarithm_parts(x).high;
}

// base^exponent for a finite positive base, NaN for others. The largest error found is 1.84 ulp, where the result
// is a normal number; others are 0.
KVANT_INLINE double power(double base, double exponent) {
  if (!(base > 0 && base < __builtin_inf())) return __builtin_nan("");
  const TwoParts log = logarithm_parts(base);
  const double high = log.high * exponent;
  const double low = std::fma(log.high, exponent, -high) + log.low * exponent;
  const double y = exponential(high);
  return y > 0 && y < __builtin_inf() ? std::fma(y, low, y) : y;
}

// ---- Sine and cosine ----

// Beyond it, angles lose more digits than tables can bear: the result is NaN.
inline constexpr double kLargestAngle = 0x1p20;

// An angle without its whole quarter turns, at most π/4.
struct Rest {
  TwoParts angle;
  int quarters;  // modulo 4
};

// π/2 in three parts, of which the first has 33 bits: times fewer than 2^20 quarters it is exact, and so is what it
// leaves of the angle.
KVANT_INLINE Rest without_quarters(double angle) {
  constexpr double kFirst = 0x1.921fb544p+0, kSecond = 0x1.0b4611a626331p-34, kThird = 0x1.1701b839a252p-88;
  constexpr double kQuartersPerRadian = 0x1.45f306dc9c883p-1;
  const double k = Double::round_even(angle * kQuartersPerRadian);
  const double left = std::fma(-k, kFirst, angle);
  const double second = k * kSecond, second_low = std::fma(k, kSecond, -second);
  const double high = left - second;
  // What the subtraction lost, whichever of the two is larger.
  const double taken = left - high, lost = (left - (high + taken)) + (taken - second);
  return {{high, std::fma(-k, kThird, lost - second_low)}, static_cast<int>(k) & 3};
}

// x + x³ p(x²), p of degree 5, off by 2^-57.9.
KVANT_INLINE double sine_of_rest(const TwoParts& x) {
  const double z = x.high * x.high;
  const double p = polynomial<Double>(z, -0x1.5555555555548p-3, 0x1.111111110f7dp-7, -0x1.a01a019bfddbp-13,
                                      0x1.71de3567c090dp-19, -0x1.ae5e5a8204454p-26, 0x1.5d8fccf9d82abp-33);
  return x.high + std::fma(z * x.high, p, x.low * (1 - 0.5 * z));
}

// 1 - x²/2 + x⁴ p(x²), p of degree 5, off by 2^-64.
KVANT_INLINE double cosine_of_rest(const TwoParts& x) {
  const double z = x.high * x.high, half = 0.5 * z;
  const double p = polynomial<Double>(z, 0x1.555555555554bp-5, -0x1.6c16c16c14f91p-10, 0x1.a01a019c843b4p-16,
                                      -0x1.27e4f7eab5a54p-22, 0x1.1ee9d7aa45866p-29, -0x1.8fa4945f43693p-37);
  const double high = 1 - half;
  return high + (((1 - high) - half) + std::fma(z * z, p, -x.high * x.low));
}

// The largest error found is 0.77 ulp, next to zeros too.
KVANT_INLINE double sine(double angle) {
  if (!(std::fabs(angle) <= kLargestAngle)) return __builtin_nan("");
  const Rest rest = without_quarters(angle);
  const double y = rest.quarters % 2 == 0 ? sine_of_rest(rest.angle) : cosine_of_rest(rest.angle);
  return rest.quarters < 2 ? y : -y;
}

KVANT_INLINE double cosine(double angle) {
  if (!(std::fabs(angle) <= kLargestAngle)) return __builtin_nan("");
  const Rest rest = without_quarters(angle);
  const double y = rest.quarters % 2 == 0 ? cosine_of_rest(rest.angle) : sine_of_rest(rest.angle);
  return rest.quarters == 0 || rest.quarters == 3 ? y : -y;
}

}  // namespace kvant::semantics
