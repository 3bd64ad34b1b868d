// From a range to a scale and a zero point. The public contract is in include/kvant/range.h and dynamic_range.h.
//
// Least and greatest are order-free: NaN never enters, and where the order of +0.0 and -0.0 would show, zeros are made
// positive on the way out.
#pragma once

#include <limits>

#include "base/inline.h"
#include "semantics/lanes.h"
#include "semantics/quantize.h"
#include "semantics/scale_formats.h"

namespace kvant::semantics {

// Variables, because device code may not call the functions behind them.
template <class C>
inline constexpr C kInfinity = std::numeric_limits<C>::infinity();
template <class C>
inline constexpr C kLargestFinite = std::numeric_limits<C>::max();
template <class C>
inline constexpr C kSmallestNormal = std::numeric_limits<C>::min();

// A segment's least and greatest value so far. Empty: +Inf and -Inf.
template <class L>
struct Range {
  using F = typename L::F;
  using C = typename L::C;
  F lo;
  F hi;

  static KVANT_INLINE Range empty() { return {L::set(kInfinity<C>), L::set(-kInfinity<C>)}; }
  // NaN leaves the range alone; an infinity gets in and shows.
  KVANT_INLINE Range with(F x) const { return {L::min(x, lo), L::max(x, hi)}; }
  KVANT_INLINE Range with(const Range& r) const { return {L::min(r.lo, lo), L::max(r.hi, hi)}; }
  // Infinities leave it alone too.
  KVANT_INLINE Range with_finite(F x) const {
    const auto finite = L::le(L::abs(x), L::set(kLargestFinite<C>));
    const Range none = empty();
    return {L::min(L::select(finite, x, none.lo), lo), L::max(L::select(finite, x, none.hi), hi)};
  }
  // False where an infinity got in. True for an empty range.
  KVANT_INLINE typename L::M finite() const {
    return L::both(L::le(L::set(-kLargestFinite<C>), lo), L::le(hi, L::set(kLargestFinite<C>)));
  }
};

// max(-lo, hi), and 0 for an empty range.
template <class L>
KVANT_INLINE typename L::F largest_magnitude(const Range<L>& r) {
  return L::max(L::max(r.hi, L::sub(L::set(0), r.lo)), L::set(0));
}

// -0.0 becomes +0.0, everything else stays.
template <class L>
KVANT_INLINE typename L::F positive_zero(typename L::F x) {
  return L::add(x, L::set(0));
}

// What a plan knows about all of its segments.
struct RangeRules {
  bool symmetric;
  bool include_zero;
  int q_min;
  int q_max;
  ScaleRule scale_rule = ScaleRule::plain;
  int max_exponent = 0;  // of the grid, for the MX rules
};

template <class L>
struct ScaleAndZeroPoint {
  typename L::F scale;
  typename L::I zero_point;
  typename L::I scale_bits;  // of a scale that is stored as a code
};

// A plain scale as it is stored.
template <class L>
KVANT_INLINE StoredScale<L> stored_scale(typename L::F plain, ScaleRule rule) {
  if (rule == ScaleRule::f16 || rule == ScaleRule::bf16) return narrow_scale<L>(plain, rule == ScaleRule::f16);
  return {plain, L::set_int(0)};
}

// `global` is for NVFP4.
template <class L>
KVANT_INLINE ScaleAndZeroPoint<L> symmetric_parameters(const Range<L>& r, const RangeRules& rules,
                                                       typename L::F global) {
  using F = typename L::F;
  using C = typename L::C;
  const F magnitude = largest_magnitude<L>(r);
  if (rules.scale_rule == ScaleRule::mx_floor || rules.scale_rule == ScaleRule::mx_round_up) {
    const auto mx = mx_scale<L>(magnitude, rules.max_exponent, rules.scale_rule == ScaleRule::mx_round_up);
    return {mx.value, L::set_int(0), mx.bits};
  }
  const F quotient = L::div(magnitude, L::set(static_cast<C>(rules.q_max)));
  if (rules.scale_rule == ScaleRule::nvfp4) {
    const auto nvfp4 = nvfp4_scale<L>(quotient, global);
    return {nvfp4.value, L::set_int(0), nvfp4.bits};
  }
  const F scale = L::max(quotient, L::set(kSmallestNormal<C>));
  const auto stored = stored_scale<L>(L::select(L::le(magnitude, L::set(0)), L::set(1), scale), rules.scale_rule);
  return {stored.value, L::set_int(0), stored.bits};
}

template <class L>
KVANT_INLINE ScaleAndZeroPoint<L> asymmetric_parameters(const Range<L>& observed, const RangeRules& rules) {
  using F = typename L::F;
  using I = typename L::I;
  using C = typename L::C;
  const F zero = L::set(0);
  // Nothing finite counts as all zero. An empty range is the only one whose ends are in the wrong order.
  const auto any = L::le(observed.lo, observed.hi);
  Range<L> r{L::masked(any, observed.lo), L::masked(any, observed.hi)};
  if (rules.include_zero) r = {L::min(r.lo, zero), L::max(r.hi, zero)};
  const F magnitude = L::max(L::abs(r.lo), L::abs(r.hi));

  const F steps = L::set(static_cast<C>(rules.q_max) - static_cast<C>(rules.q_min));
  const F half = L::set(C(0.5));
  const F extent = L::sub(r.hi, r.lo);
  const F halves = L::div(L::sub(L::mul(r.hi, half), L::mul(r.lo, half)), steps);
  const F of_halves = L::min(L::mul(L::set(2), halves), L::set(kLargestFinite<C>));
  const F quotient = L::select(L::le(extent, L::set(kLargestFinite<C>)), L::div(extent, steps), of_halves);
  const F scale = L::select(L::le(extent, zero), magnitude, quotient);  // a constant
  const F least = L::max(L::mul(magnitude, L::set(C(0x1p-22))), L::set(kSmallestNormal<C>));
  const auto all_zero = L::le(magnitude, zero);
  const auto held = stored_scale<L>(L::select(all_zero, L::set(1), L::max(scale, least)), rules.scale_rule);
  const F stored = held.value;

  const I q_min = L::set_int(rules.q_min), q_max = L::set_int(rules.q_max);
  // A scale of f16 ends at 65504, and r.lo may be any number of those away.
  const Bounds<L> convertible{L::set(C(-kMaxQuotient)), L::set(C(kMaxQuotient))};
  const I steps_to_lo = L::to_int(convertible.clamp(L::div(r.lo, stored)));
  const I zero_point = limit_zero_point<L>(L::sub_int(q_min, steps_to_lo));
  const auto clamp = [&](I zp) KVANT_INLINE_LAMBDA { return L::max_int(q_min, L::min_int(q_max, zp)); };
  const I kept = rules.include_zero ? clamp(zero_point) : zero_point;
  return {stored, L::select_int(all_zero, clamp(L::set_int(0)), kept), held.bits};
}

template <class L>
KVANT_INLINE ScaleAndZeroPoint<L> parameters_of_range(const Range<L>& r, const RangeRules& rules,
                                                      typename L::F global = L::set(1)) {
  return rules.symmetric ? symmetric_parameters<L>(r, rules, global) : asymmetric_parameters<L>(r, rules);
}

}  // namespace kvant::semantics
