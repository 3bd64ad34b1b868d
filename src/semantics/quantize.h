// The arithmetic of quantization, written once. The public contract is in include/kvant/elementwise.h.
//
// The bounds identity behind the clamped forms: q_min - zp and q_max - zp are integers that floating point holds
// exactly
// (|zp| <= 2^23), so clamping before rounding equals clamping after:
//
//   clamp(rne(y) + zp, q_min, q_max)  =  rne(clamp(y, q_min - zp, q_max - zp)) + zp
#pragma once

#include "base/inline.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// ---- Quotients: the ways to evaluate x / scale ----------------------------------------------------------------

// The definition of the exact mode.
template <class L>
struct Divide {
  typename L::F scale;
  KVANT_INLINE typename L::F operator()(typename L::F x) const { return L::div(x, scale); }
};

// The definition of the reciprocal mode.
// Not interchangeable with Divide: x*inv gives 127.5 where x/s gives 127.499992 (x=.273939937f, s=.00214854861f).
template <class L>
struct Multiply {
  typename L::F inverse;
  KVANT_INLINE typename L::F operator()(typename L::F x) const { return L::mul(x, inverse); }
};

// Divide's bits for two thirds of its time: the product with the rounded reciprocal, corrected by its exactly
// computed remainder. Holds while nothing overflows or underflows on the way (Prepared::corrected); a quotient that
// overflows comes out as NaN instead of infinity.
template <class L>
struct CorrectedMultiply {
  typename L::F scale;
  typename L::F inverse;
  KVANT_INLINE typename L::F operator()(typename L::F x) const {
    const typename L::F q = L::mul(x, inverse);
    const typename L::F remainder = L::fnma(q, scale, x);
    return L::fma(remainder, inverse, q);
  }
};

// ---- Parameters -----------------------------------------------------------------------------------------------

// Largest |q - zp| for which x is clamped to (q - zp) * scale instead of the quotient to q - zp: the quotient of the
// rounded bound is off by at most 3 ulp, which must not reach half an integer; and quotient and zero point fit 16 bits.
inline constexpr int kMaxInputBound = 32000;

// A zero point from a tensor counts as ±2^23 at most, so that every step stays exact in f32.
inline constexpr int kMaxZeroPoint = 1 << 23;

// Beyond ±2^25 a quotient clips whatever the zero point is, and to_int needs a bound.
inline constexpr int kMaxQuotient = 1 << 25;

template <class L>
KVANT_INLINE typename L::I limit_zero_point(typename L::I zp) {
  return L::max_int(L::set_int(-kMaxZeroPoint), L::min_int(L::set_int(kMaxZeroPoint), zp));
}

// An interval of the quotient, or of x.
template <class L>
struct Bounds {
  typename L::F lo;
  typename L::F hi;
  // NaN passes through.
  KVANT_INLINE typename L::F clamp(typename L::F y) const { return L::min(hi, L::max(lo, y)); }
};

// The interval of the quotient that does not clip: q_min - zp to q_max - zp, both exact.
template <class L>
KVANT_INLINE Bounds<L> quotient_bounds(typename L::I q_min, typename L::I q_max, typename L::I zp) {
  return {L::to_float(L::sub_int(q_min, zp)), L::to_float(L::sub_int(q_max, zp))};
}

// A quotient as the formulas of floating-point grids take it: with a number that has its sign.
template <class L>
struct SignedQuotient {
  typename L::F y;
  typename L::F signed_like;
};
template <class L, class Quotient>
KVANT_INLINE SignedQuotient<L> signed_quotient(typename L::F x, const Quotient& quotient, const Bounds<L>&) {
  const typename L::F y = quotient(x);
  return {y, y};
}
// x is clamped first, so that this one stays finite. It loses the sign of -0.0, and x has it.
template <class L>
KVANT_INLINE SignedQuotient<L> signed_quotient(typename L::F x, const CorrectedMultiply<L>& quotient,
                                               const Bounds<L>& input_bounds) {
  return {quotient(input_bounds.clamp(x)), x};
}

// What a scale and a zero point come to, worked out once for all elements that share them.
template <class L>
struct Prepared {
  typename L::F scale;
  typename L::F inverse;
  Bounds<L> bounds;        // of the quotient
  Bounds<L> input_bounds;  // of x
  typename L::I zero_point;
  typename L::M corrected;      // CorrectedMultiply gives the bits of Divide wherever the rounded quotient matters
  typename L::M clamps_input;   // and clamping x to input_bounds equals clamping the quotient to bounds
  typename L::M contains_zero;  // the zero point lies in [q_min, q_max]
};

template <class L>
KVANT_INLINE Prepared<L> prepare(typename L::F raw_scale, typename L::I raw_zero_point, int q_min, int q_max) {
  using F = typename L::F;
  using C = typename L::C;
  const F scale = L::nan_if_nan(raw_scale);
  const typename L::I zp = limit_zero_point<L>(raw_zero_point);
  const Bounds<L> bounds = quotient_bounds<L>(L::set_int(q_min), L::set_int(q_max), zp);
  // False for NaN, zero and negative scales too, which a tensor of scales may hold. In f64 a division hides behind
  // memory, and no exhaustive test could vouch for the shortcut.
  // Quotients matter down to half of a grid's smallest number, 2^-17 for e5m2: with a scale of 2^-64 or more their
  // remainders have no bit below 2^-127.
  constexpr C kMin = sizeof(C) == 4 ? C(0x1p-64) : C(1);
  constexpr C kMax = sizeof(C) == 4 ? C(0x1p100) : C(0);
  const typename L::M corrected = L::both(L::le(L::set(kMin), scale), L::le(scale, L::set(kMax)));
  const typename L::M small_bounds =
      L::both(L::le(L::set(C(-kMaxInputBound)), bounds.lo), L::le(bounds.hi, L::set(C(kMaxInputBound))));
  return {scale,
          L::div(L::set(C(1)), scale),
          bounds,
          {L::mul(bounds.lo, scale), L::mul(bounds.hi, scale)},
          zp,
          corrected,
          L::both(corrected, small_bounds),
          L::both(L::le(bounds.lo, L::set(C(0))), L::le(L::set(C(0)), bounds.hi))};
}

// ---- Forward --------------------------------------------------------------------------------------------------

// clamp(rne(quotient(x)) + zp, q_min, q_max), to the letter but for NaN, which counts as 0, and for a first clamp that
// keeps the conversion from overflowing. The integer steps run on ports that the quotient leaves idle.
template <class L, class Quotient>
KVANT_INLINE typename L::I quantize(typename L::F x, const Quotient& quotient, typename L::I zero_point,
                                    typename L::I q_min, typename L::I q_max) {
  using C = typename L::C;
  const Bounds<L> convertible{L::set(C(-kMaxQuotient)), L::set(C(kMaxQuotient))};
  const typename L::F y = convertible.clamp(L::zero_if_nan(quotient(x)));
  return L::min_int(q_max, L::max_int(q_min, L::add_int(L::to_int(y), zero_point)));
}

// rne(quotient(x)) for parameters with clamps_input: x is clamped instead of the code, which keeps infinities away from
// a CorrectedMultiply. The zero point is still to be added, and NaN gives an integer whose low 16 bits are zero.
template <class L, class Quotient>
KVANT_INLINE typename L::I rounded_quotient_of_clamped_input(typename L::F x, const Quotient& quotient,
                                                             const Bounds<L>& input_bounds) {
  return L::to_int(quotient(input_bounds.clamp(x)));
}

// scale * (q - zp)
template <class L>
KVANT_INLINE typename L::F dequantize(typename L::I q, typename L::F scale, typename L::I zero_point) {
  return L::mul(scale, L::to_float(L::sub_int(q, zero_point)));
}

// scale * r for a clamped quotient y and r = rne(y). Adding 0 turns the -0.0 that rounding leaves into the +0.0 of
// the integer formula.
template <class L>
KVANT_INLINE typename L::F scale_rounded(typename L::F y, typename L::F scale) {
  return L::mul(scale, L::add(L::round_even(y), L::set(0)));
}

// scale * (clamp(rne(quotient(x)) + zp, q_min, q_max) - zp), where zp survives only in the bounds. NaN stays NaN.
template <class L, class Quotient>
KVANT_INLINE typename L::F fake_quantize(typename L::F x, typename L::F scale, const Quotient& quotient,
                                         const Bounds<L>& bounds) {
  return scale_rounded<L>(bounds.clamp(quotient(x)), scale);
}

// The same with x clamped instead of the quotient, for parameters with clamps_input.
template <class L, class Quotient>
KVANT_INLINE typename L::F fake_quantize_clamped_input(typename L::F x, typename L::F scale, const Quotient& quotient,
                                                       const Bounds<L>& input_bounds) {
  return scale_rounded<L>(quotient(input_bounds.clamp(x)), scale);
}

// ---- Backward -------------------------------------------------------------------------------------------------

// q_min <= rne(quotient(x)) + zp <= q_max, on the value before clamping; false for NaN and infinities. On a
// floating-point grid, which is not kRounds, -max <= quotient(x) <= max. A CorrectedMultiply serves without clamping x
// first: where it gives NaN, the quotient is out of range anyway.
template <class L, bool kRounds, class Quotient>
KVANT_INLINE typename L::M in_range(typename L::F x, const Quotient& quotient, const Bounds<L>& bounds) {
  typename L::F r = quotient(x);
  if constexpr (kRounds) r = L::round_even(r);
  return L::both(L::le(bounds.lo, r), L::le(r, bounds.hi));
}

// in_range ? dy / scale : 0. The quotient of dy is stored, so it is Divide or Multiply, by the numerics mode.
template <class L, class Quotient>
KVANT_INLINE typename L::F quantize_backward(typename L::M inside, typename L::F dy, const Quotient& quotient) {
  return L::masked(inside, quotient(dy));
}

// in_range ? dy : 0
template <class L>
KVANT_INLINE typename L::F fake_quantize_backward(typename L::M inside, typename L::F dy) {
  return L::masked(inside, dy);
}

// dy * scale
template <class L>
KVANT_INLINE typename L::F dequantize_backward(typename L::F dy, typename L::F scale) {
  return L::mul(dy, scale);
}

}  // namespace kvant::semantics
