// The arithmetic of quantization, written once. The public contract is in include/kvant/elementwise.h.
//
// The bounds identity used throughout: q_min - zp and q_max - zp are integers that floating point holds exactly
// (|zp| <= 2^23), so clamping before rounding equals clamping after:
//
//   clamp(rne(y) + zp, q_min, q_max)  =  rne(clamp(y, q_min - zp, q_max - zp)) + zp
//
// It makes every conversion to an integer safe: nothing can wrap, whatever x is.
#pragma once

#include "semantics/inline.h"
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
// computed remainder. Holds while nothing overflows or underflows on the way, see has_corrected_quotient; a
// quotient that overflows comes out as NaN instead of infinity.
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

// Scales for which CorrectedMultiply gives the bits of Divide wherever the rounded quotient matters. Also false
// for NaN, zero and negative scales, which a tensor of scales may hold.
KVANT_INLINE constexpr bool has_corrected_quotient(float scale) { return scale >= 0x1p-100f && scale <= 0x1p100f; }
// In f64 the division hides behind memory, and no exhaustive test could vouch for the shortcut.
KVANT_INLINE constexpr bool has_corrected_quotient(double) { return false; }

// ---- Bounds ---------------------------------------------------------------------------------------------------

// q_min - zp and q_max - zp, or these times the scale.
template <class L>
struct Bounds {
  typename L::F lo;
  typename L::F hi;
  // NaN passes through.
  KVANT_INLINE typename L::F clamp(typename L::F y) const { return L::min(hi, L::max(lo, y)); }
};

// Largest |q - zp| for which clamping x to (q - zp) * scale equals clamping the quotient to q - zp: the quotient of
// the rounded bound is off by at most 3 ulp, which must not reach half an integer.
inline constexpr int kMaxInputBound = 1 << 15;

// A zero point from a tensor counts as ±2^23 at most, so that every step stays exact in f32.
inline constexpr int kMaxZeroPoint = 1 << 23;

// ---- Forward --------------------------------------------------------------------------------------------------

// clamp(rne(quotient(x)) + zp, q_min, q_max); bounds are those of the quotient. NaN counts as 0.
template <class L, class Quotient>
KVANT_INLINE typename L::I quantize(typename L::F x, const Quotient& quotient, const Bounds<L>& bounds,
                                    typename L::I zero_point) {
  const typename L::F y = L::zero_if_nan(quotient(x));
  return L::add_int(L::to_int(bounds.clamp(y)), zero_point);
}

// The same before the zero point is added, for bounds that contain 0 and lie within kMaxInputBound: x is clamped
// to input_bounds = bounds * scale, which keeps infinities away from a CorrectedMultiply. In the low 16 bits NaN
// comes out as 0, which is what it counts as; the caller adds the zero point there.
template <class L, class Quotient>
KVANT_INLINE typename L::I quantize_before_zero_point(typename L::F x, const Quotient& quotient,
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

// The same with x clamped instead of the quotient, for bounds within kMaxInputBound.
template <class L, class Quotient>
KVANT_INLINE typename L::F fake_quantize_clamped_input(typename L::F x, typename L::F scale, const Quotient& quotient,
                                                       const Bounds<L>& input_bounds) {
  return scale_rounded<L>(quotient(input_bounds.clamp(x)), scale);
}

// ---- Backward -------------------------------------------------------------------------------------------------

// q_min <= rne(quotient(x)) + zp <= q_max, on the value before clamping; false for NaN and infinities. A
// CorrectedMultiply serves without clamping x first: where it gives NaN, the quotient is out of range anyway.
template <class L, class Quotient>
KVANT_INLINE typename L::M in_range(typename L::F x, const Quotient& quotient, const Bounds<L>& bounds) {
  const typename L::F r = L::round_even(quotient(x));
  return L::both(L::le(bounds.lo, r), L::le(r, bounds.hi));
}

// in_range ? dy / scale : 0. The quotient of dy is stored, so it is Divide or Multiply, by the numerics mode.
template <class L, class QuotientOfX, class QuotientOfDy>
KVANT_INLINE typename L::F quantize_backward(typename L::F x, typename L::F dy, const QuotientOfX& quotient_of_x,
                                             const QuotientOfDy& quotient_of_dy, const Bounds<L>& bounds) {
  return L::masked(in_range<L>(x, quotient_of_x, bounds), quotient_of_dy(dy));
}

// in_range ? dy : 0
template <class L, class Quotient>
KVANT_INLINE typename L::F fake_quantize_backward(typename L::F x, typename L::F dy, const Quotient& quotient,
                                                  const Bounds<L>& bounds) {
  return L::masked(in_range<L>(x, quotient, bounds), dy);
}

// dy * scale
template <class L>
KVANT_INLINE typename L::F dequantize_backward(typename L::F dy, typename L::F scale) {
  return L::mul(dy, scale);
}

}  // namespace kvant::semantics
