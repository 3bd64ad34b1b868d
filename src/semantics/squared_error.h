// The squared error that quantization would make on values of which only a histogram is known, and the ranges among
// which a search looks for the smallest. The public contract is in include/kvant/observer.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "semantics/dynamic_range.h"
#include "semantics/quantize.h"

namespace kvant::semantics {

// The values of a bin count as spread evenly over it; taken at its centre they would all fall on or between the steps
// of a scale that divides the width, and a search would find that scale. Zeros are zeros, and so is the largest value
// what it is where it has a bin to itself.
//
// The caller's unit is one in which the values stay near 1, so that their cubes do not overflow. L: lanes of f64.
template <class L>
class SquaredError {
 public:
  // Forgets what was added before.
  void begin(double max, double zeros) {
    edges_.clear();
    densities_.clear();
    max_ = max;
    at_max_ = 0;
    zeros_ = zeros;
  }
  // Values from `from` to `to`, at most max; bins come in ascending order.
  void add_bin(double from, double to, double values) {
    if (from == to) {  // all of them equal the largest value
      at_max_ = values;
      return;
    }
    if (edges_.empty() || edges_.back() != from) put(from, 0);
    put(to, values / (to - from));
  }

  // Of q = clamp(rne(x / scale) + zero_point, q_min, q_max), where `steps` is [q_min - zero_point, q_max - zero_point].
  //
  // With u = x / scale and m = clamp(rne(u)), the squared error (u - m)^2 has the antiderivative m/12 + (u - m)^3/3: it
  // is continuous where m changes, at u = m + 1/2.
  double operator()(double scale, const Bounds<L>& steps) const {
    const double inverse = 1 / scale;
    const auto rest = [&](double u) { return u - L::round_even(steps.clamp(u)); };
    double integral = 0, before = 0;
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      const double u = edges_[i] * inverse;
      const double d = rest(u);
      const double upto = (u - d) * (1.0 / 12) + d * d * d * (1.0 / 3);
      integral += densities_[i] * (upto - before);
      before = upto;
    }
    const double of_zero = rest(0), of_max = rest(max_ * inverse);
    return scale * scale * (scale * integral + zeros_ * of_zero * of_zero + at_max_ * of_max * of_max);
  }

 private:
  void put(double edge, double density_before) {
    edges_.push_back(edge);
    densities_.push_back(density_before);
  }

  std::vector<double> edges_;      // where the density changes, ascending
  std::vector<double> densities_;  // between an edge and the one before it
  double zeros_ = 0, at_max_ = 0;  // values that are not spread
  double max_ = 0;
};

// ---- Candidates -----------------------------------------------------------------------------------------------

// What a candidate keeps of the distance from a pivot to either end of the whole range.
struct KeptShares {
  double lo;
  double hi;
  bool operator==(const KeptShares&) const = default;
};

// L: lanes of the type that scales are computed in.
template <class L>
Range<L> shrunk_range(double min, double pivot, double max, const KeptShares& kept) {
  using C = typename L::C;
  return {static_cast<C>(min * kept.lo + pivot * (1 - kept.lo)), static_cast<C>(max * kept.hi + pivot * (1 - kept.hi))};
}

// 1, 7/8, 6/8, 5/8, then half of those, down to 1/256. Fractions that are exact keep the math library, and its version,
// out of the result.
inline constexpr int kCoarseShares = 33;
inline double coarse_share(int i) { return std::ldexp(8 - i % 4, -3 - i / 4); }

// Factors 1 + step and 1 - step, one pair after the other.
inline constexpr double kFineSteps[] = {1.0 / 16, 1.0 / 32, 1.0 / 64, 1.0 / 128, 1.0 / 256};
inline double moved_share(double kept, double factor) { return std::min(1.0, kept * factor); }

}  // namespace kvant::semantics
