// The arithmetic of a histogram: which bin a value falls into, and how many values a percentile leaves outside. The
// public contract is in include/kvant/observer.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/inline.h"

namespace kvant::semantics {

// The smallest k, and that of a segment of zeros only. It keeps a bin's width and its reciprocal normal numbers in f64
// for every number of bins, so that multiplying by them is exact.
inline constexpr int kMinBinExponent = -1000;

// The smallest k with magnitude < 2^k.
inline int exponent_above(double magnitude) {
  int exponent = kMinBinExponent;
  if (magnitude > 0) std::frexp(magnitude, &exponent);
  return std::max(exponent, kMinBinExponent);
}

// The bins of one segment at its k: bin s, from -half to half - 1, is s * width <= x < (s + 1) * width. `half` is a
// power of two.
//
// Every bin has a counter, and the zeros have one of their own between the negative bins and the others: after a ReLU
// they are most of the values, and what is true of their bin (it has an error) is not true of them.
struct Bins {
  double width;
  double inverse;
  std::int32_t half;

  Bins(int exponent, std::int32_t half_count) : half(half_count) {
    const int half_exponent = std::countr_zero(static_cast<std::uint32_t>(half));
    width = std::ldexp(1.0, exponent - half_exponent);
    inverse = std::ldexp(1.0, half_exponent - exponent);
  }

  double lower_edge(std::int32_t s) const { return s * width; }
  double upper_edge(std::int32_t s) const { return (s + 1) * width; }
  double centre(std::int32_t s) const { return (s + 0.5) * width; }

  static std::int64_t counter_of_bin(std::int32_t s, std::int32_t half_count) { return half_count + s + (s >= 0); }
  std::int64_t counter_of_bin(std::int32_t s) const { return counter_of_bin(s, half); }
  std::int64_t counter_of_zeros() const { return half; }

  // For |x| < 2^k. Floor without a rounding: x * inverse is exact, or so small that it counts as 0, and the product
  // with the width is exact. Comparing x itself keeps a tiny negative x out of the positive bins where x * inverse has
  // underflown to -0.0.
  KVANT_INLINE std::int64_t counter_of(double x) const {
    const auto towards_zero = static_cast<std::int32_t>(x * inverse);
    return half + towards_zero - (x < towards_zero * width) + (x > 0);
  }
};

// How many of `values` lie outside a percentile, `share` of them (1: all, 0.5: half) at one end. 99.9 and its like are
// off by up to half a unit in the last place, 2^-47, as binary numbers. The slack makes 0.1 % of 1000 values one value,
// not none.
inline std::int64_t values_outside(std::int64_t values, double percentile, double share) {
  if (percentile == 100) return 0;
  const double percent = (100 - percentile + 0x1p-46) * share;
  return static_cast<std::int64_t>(std::floor(static_cast<double>(values) * percent / 100));
}

}  // namespace kvant::semantics
