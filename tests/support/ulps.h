// How far a computed number is from the true one, in units of the last place of the true one.
#pragma once

#include <cmath>
#include <limits>

namespace kvant::tests {

// `want` has more digits than T has. Infinite where either is not finite and they differ; NaN equals NaN.
template <class T>
double ulps_off(T got, long double want) {
  const auto nearest = static_cast<T>(want);
  if (!std::isfinite(got) || !std::isfinite(nearest))
    return got == nearest || (std::isnan(got) && std::isnan(nearest)) ? 0 : std::numeric_limits<double>::infinity();
  int exponent = std::numeric_limits<T>::min_exponent;
  if (std::fabs(want) >= static_cast<long double>(std::numeric_limits<T>::min())) std::frexp(want, &exponent);
  const long double ulp = std::ldexp(1.0L, exponent - std::numeric_limits<T>::digits);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / ulp);
}

// The largest error over what was added.
struct WorstError {
  double ulps = 0;
  double at = 0;

  template <class T>
  void add(T x, T got, long double want) {
    const double off = ulps_off(got, want);
    if (!(off <= ulps)) ulps = off, at = static_cast<double>(x);
  }
};

}  // namespace kvant::tests
