// The search for a range in a histogram; see observer_search.h. The formulas are in semantics/histogram.h and
// semantics/squared_error.h.
#include "ops/observer_search.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvant::ops {

using semantics::KeptShares;
using semantics::Range;
using semantics::RangeRules;
using SquaredError = semantics::SquaredError<semantics::OneNumber<double>>;

double largest_magnitude(double min, double max) {
  return semantics::largest_magnitude<semantics::OneNumber<double>>({min, max});
}

// ---- percentile -----------------------------------------------------------------------------------------------

template <class C>
Range<semantics::OneNumber<C>> percentile_range(const Histogram& h, double min, double max, bool symmetric,
                                                double percentile) {
  const std::int64_t values = h.total();
  const std::int32_t half = h.bins.half;
  if (symmetric) {
    const std::int64_t outside = semantics::values_outside(values, percentile, 1);
    std::int32_t s = half;
    for (std::int64_t passed = 0; passed <= outside && s > 0; --s) passed += h.count(s - 1) + h.count(-s);
    const auto magnitude = static_cast<C>(std::min(h.bins.upper_edge(s), largest_magnitude(min, max)));
    return {-magnitude, magnitude};
  }
  const std::int64_t outside = semantics::values_outside(values, percentile, 0.5);
  std::int32_t lo = -half, hi = half;
  for (std::int64_t passed = 0; passed <= outside && lo < half; ++lo) passed += h.count(lo);
  for (std::int64_t passed = 0; passed <= outside && hi > -half; --hi) passed += h.count(hi - 1);
  return {static_cast<C>(std::max(h.bins.lower_edge(lo - 1), min)),
          static_cast<C>(std::min(h.bins.upper_edge(hi), max))};
}

template Range<semantics::OneNumber<float>> percentile_range<float>(const Histogram&, double, double, bool, double);
template Range<semantics::OneNumber<double>> percentile_range<double>(const Histogram&, double, double, bool, double);

// ---- mse ------------------------------------------------------------------------------------------------------

namespace {

// In units of 2^k, which keeps the numbers near 1. The outermost bins end at the observed range.
void spread(const Histogram& h, double min, double max, SquaredError& squared_error) {
  const double first = std::ldexp(min, -h.exponent), last = std::ldexp(max, -h.exponent);
  const double width = 1.0 / h.bins.half;
  squared_error.begin(last, static_cast<double>(h.zeros()));
  for (std::int32_t s = -h.bins.half; s < h.bins.half; ++s)
    if (h.nonzeros(s) != 0)
      squared_error.add_bin(std::max(s * width, first), std::min((s + 1) * width, last),
                            static_cast<double>(h.nonzeros(s)));
}

// The middle of the bin with the median.
double middle(const Histogram& h) {
  const std::int64_t half_of_them = h.total() / 2;
  std::int32_t s = -h.bins.half;
  for (std::int64_t passed = h.count(s); passed <= half_of_them && s < h.bins.half - 1;) passed += h.count(++s);
  return h.bins.centre(s);
}

}  // namespace

// From coarse to fine: both ends together, then each alone while that helps, then smaller steps. A range that is as
// good as another but wider is preferred, so that new data is less likely to clip.
template <class C>
Range<semantics::OneNumber<C>> min_error_range(const Histogram& h, double min, double max, const RangeRules& rules,
                                               SquaredError& squared_error) {
  using L = semantics::OneNumber<C>;
  spread(h, min, max, squared_error);
  // Ends move between the whole range and a pivot.
  double pivot = 0;
  if (rules.symmetric) {
    max = largest_magnitude(min, max);
    min = -max;
  } else if (rules.include_zero) {
    min = std::min(min, 0.0);
    max = std::max(max, 0.0);
  } else {
    pivot = std::clamp(middle(h), min, max);
  }

  const auto range = [&](const KeptShares& kept) { return semantics::shrunk_range<L>(min, pivot, max, kept); };
  KeptShares best{1, 1};
  if (min == max) return range(best);  // a constant

  const auto error = [&](const KeptShares& kept) {
    const auto p = semantics::parameters_of_range<L>(range(kept), rules);
    return squared_error(
        std::ldexp(static_cast<double>(p.scale), -h.exponent),
        {static_cast<double>(rules.q_min - p.zero_point), static_cast<double>(rules.q_max - p.zero_point)});
  };
  double min_error = error(best);
  const auto consider = [&](const KeptShares& kept) {
    const double e = error(kept);
    if (e < min_error || (e == min_error && kept.lo + kept.hi > best.lo + best.hi)) {
      min_error = e;
      best = kept;
    }
  };

  using semantics::coarse_share;
  for (int i = 1; i < semantics::kCoarseShares; ++i) consider({coarse_share(i), coarse_share(i)});
  constexpr int kMaxRounds = 3;
  for (int round = 0; round < kMaxRounds && !rules.symmetric; ++round) {
    const KeptShares before = best;
    for (int i = 0; i < semantics::kCoarseShares && min < pivot; ++i) consider({coarse_share(i), best.hi});
    for (int i = 0; i < semantics::kCoarseShares && pivot < max; ++i) consider({best.lo, coarse_share(i)});
    if (best == before) break;
  }
  for (const double step : semantics::kFineSteps)
    for (const double factor : {1 + step, 1 - step}) {
      const auto moved = [factor](double kept) { return semantics::moved_share(kept, factor); };
      if (rules.symmetric) {
        consider({moved(best.lo), moved(best.hi)});
      } else {
        consider({moved(best.lo), best.hi});
        consider({best.lo, moved(best.hi)});
      }
    }
  return range(best);
}

template Range<semantics::OneNumber<float>> min_error_range<float>(const Histogram&, double, double, const RangeRules&,
                                                                   SquaredError&);
template Range<semantics::OneNumber<double>> min_error_range<double>(const Histogram&, double, double,
                                                                     const RangeRules&, SquaredError&);

}  // namespace kvant::ops
