// How far a computed number is from the true one, in units of the last place of the true one, and which bits it has.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

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

// All bits of many numbers as one.
class BitsOfMany {
 public:
  template <class T>
  void add(T x) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    all_ = (all_ ^ std::bit_cast<Bits>(x)) * 0x9E3779B97F4A7C15;
    all_ ^= all_ >> 29;
  }
  std::uint64_t all() const { return all_; }

 private:
  std::uint64_t all_ = 0;
};

}  // namespace kvant::tests
