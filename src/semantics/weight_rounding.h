// What a weight becomes under a scale, and what that costs: the formulas of WeightRounding
// (include/kvant/weight_rounding.h).
#pragma once

#include "base/inline.h"
#include "semantics/float_grid.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// ---- While scales are compared ----

// The reciprocal that weights are multiplied with. Finite, because 0 must stay 0: scales below 2^-128, which only codes
// of e4m3 under a huge global scale stand for, have none in f32.
template <class L>
KVANT_INLINE typename L::F reciprocal_tried(typename L::F scale) {
  return L::min(L::set(0x1.FFFFFEp127f), L::div(L::set(1), scale));
}

// The numbers d that codes stand for under a scale of 1: integers from q_min - zero_point to q_max - zero_point.
template <class L>
struct IntegerNumbers {
  static constexpr bool kIntegers = true;
  typename L::F lo, hi;

  // What a weight is taken as.
  static KVANT_INLINE typename L::F taken(typename L::F w) { return w; }
  KVANT_INLINE typename L::F nearest(typename L::F y) const { return L::round_even(L::min(hi, L::max(lo, y))); }
};

// Those of a floating-point grid that saturates. It is the same on both sides of 0, and so are squares and products of
// a weight with its number: weights are taken as their magnitudes.
template <class L>
class MagnitudeNumbers {
 public:
  static constexpr bool kIntegers = false;
  KVANT_INLINE explicit MagnitudeNumbers(const FloatGridNumbers<typename L::C>& n)
      : grid_(n), limit_(L::set(n.limit)) {}

  static KVANT_INLINE typename L::F taken(typename L::F w) { return L::abs(w); }
  KVANT_INLINE typename L::F nearest(typename L::F y) const { return grid_.number(L::min(limit_, y)); }

 private:
  GridSum<L> grid_;
  typename L::F limit_;
};

// d of a weight that is taken so. By the reciprocal, which differs from the quotient at ties only, where both codes are
// as far away.
template <class L, class Numbers>
KVANT_INLINE typename L::F number_tried(typename L::F w, typename L::F reciprocal, const Numbers& numbers) {
  return numbers.nearest(L::mul(w, reciprocal));
}

// w - scale * d, the product rounded.
template <class L>
KVANT_INLINE typename L::F rounding_error(typename L::F w, typename L::F scale, typename L::F d) {
  return L::sub(w, L::mul(scale, d));
}

// ---- While codes are settled ----

// d of what a weight has become by the errors before it: by the quotient, as quantize has it.
template <class L, class Numbers>
KVANT_INLINE typename L::F number_settled(typename L::F t, typename L::F scale, const Numbers& numbers) {
  return numbers.nearest(L::div(t, scale));
}

// Those of a floating-point grid with their signs.
template <class L>
struct FloatNumbers {
  const FloatGrid& grid;
  KVANT_INLINE typename L::F nearest(typename L::F y) const { return to_grid_number<L>(y, y, grid); }
};

}  // namespace kvant::semantics
