// From a range to a scale as a checkpoint stores it. Codes are made with the scale in its stored form, so rounding
// comes first:
//
//   stored(v)    v rounded to f32, then to the type of the scale, at least its smallest normal number, at most its
//                largest finite one
//   symmetric    scale = stored(max(-lo, hi) / max)   zero point 0; max: q_max, or that of a floating-point grid; with
//                half the range as the divisor (q_max - q_min) / 2, as compressed-tensors has it
//   asymmetric   scale = stored((hi - lo) / (q_max - q_min))   zero point = q_min - rne(lo / scale), within the codes
//
// 0 belongs to every range. A range of zeros has scale 1 and zero point 0. Scales that are codes follow
// scale_formats.h: powers of two by the rule of compressed-tensors, and e4m3 under a global scale.
//
// Ranges are taken as f64, whatever the weights are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/inline.h"
#include "kvant/element.h"
#include "semantics/one_number.h"
#include "semantics/scale_formats.h"

namespace kvant::semantics {

// ---- In lanes ----

// `value` is not negative, and rounded to f32, where it may have overflown; `scale` is f32, f16 or bf16.
template <class L>
KVANT_INLINE typename L::F stored(typename L::F value, ElementKind scale) {
  if (scale == ElementKind::f32) return L::min(L::set(0x1.FFFFFEp127f), L::max(L::set(0x1p-126f), value));
  return narrow_scale<L>(value, scale == ElementKind::f16).value;
}

// The scale of an asymmetric range before it is stored, in f64. Halved first: the difference of two f64 can overflow.
template <class L>
KVANT_INLINE typename L::F asymmetric_step(typename L::F lo, typename L::F hi, typename L::F steps) {
  const typename L::F half = L::set(0.5);
  return L::mul(L::set(2), L::div(L::sub(L::mul(hi, half), L::mul(lo, half)), steps));
}

// For lo <= 0. lo / scale is -Inf where it overflows.
template <class L>
KVANT_INLINE typename L::F zero_point_of(typename L::F lo, typename L::F scale, typename L::F q_min,
                                         typename L::F q_max) {
  return L::sub(q_min, L::round_even(L::max(L::sub(q_min, q_max), L::div(lo, scale))));
}

// ---- One number ----

// `value` is finite and not negative.
inline float stored(double value, ElementKind scale) {
  return stored<OneNumber<float>>(static_cast<float>(value), scale);
}

// With the scale in its stored form.
struct SavedScale {
  float scale = 1;
  std::int32_t zero_point = 0;
  std::uint8_t bits = 0;  // of a scale that is a code
};

// The largest magnitude that codes stand for.
constexpr double largest_number(ElementKind code) {
  return has_float_grid(code) ? static_cast<double>(info(code).format.max()) : code_range(code).max;
}

// `max_abs` is max(-lo, hi). `by_half_range` is for integers.
inline SavedScale symmetric_scale(double max_abs, ElementKind code, ElementKind scale, bool by_half_range = false) {
  if (max_abs == 0) return {};
  const CodeRange range = code_range(code);
  return {stored(max_abs / (by_half_range ? (range.max - range.min) / 2.0 : largest_number(code)), scale), 0};
}

// lo / scale is divided in f32 (f64 if `in_f64`).
inline SavedScale asymmetric_scale(double lo, double hi, std::int32_t q_min, std::int32_t q_max, ElementKind scale,
                                   bool in_f64) {
  using Double = OneNumber<double>;
  using Single = OneNumber<float>;
  lo = std::min(lo, 0.0);
  hi = std::max(hi, 0.0);
  if (lo == hi) return {};
  const float step = stored(asymmetric_step<Double>(lo, hi, q_max - q_min), scale);
  const double zero = in_f64 ? zero_point_of<Double>(lo, static_cast<double>(step), q_min, q_max)
                             : static_cast<double>(zero_point_of<Single>(
                                   static_cast<float>(lo), step, static_cast<float>(q_min), static_cast<float>(q_max)));
  return {step, static_cast<std::int32_t>(zero)};
}

// e8m0.
inline SavedScale power_scale(double max_abs, ElementKind code) {
  const auto made = mx_scale<OneNumber<double>>(max_abs, info(code).format.max_exponent(), true);
  return {static_cast<float>(made.value), 0, static_cast<std::uint8_t>(made.bits)};
}

// e4m3; the scale is that number / global.
inline SavedScale scale_under(float global, double max_abs, ElementKind code) {
  const float plain = static_cast<float>(std::min(max_abs, static_cast<double>(std::numeric_limits<float>::max()))) /
                      static_cast<float>(largest_number(code));
  const auto made = nvfp4_scale<OneNumber<float>>(plain, global);
  return {made.value, 0, static_cast<std::uint8_t>(made.bits)};
}

// ---- Scales that a search tries (kvant/weight_rounding.h) ----
//
// Tables are not inline: code for an instruction set may define nothing that other code could be linked to.

// Those of the range times 1, 0.96, … 0.4; then the best for the codes that the best of them makes, twice. More and
// finer steps gain less than 0.01 dB on normal weights.
constexpr std::size_t kScaleShareCount = 16;
constexpr double kScaleShares[kScaleShareCount] = {25 / 25.0, 24 / 25.0, 23 / 25.0, 22 / 25.0, 21 / 25.0, 20 / 25.0,
                                                   19 / 25.0, 18 / 25.0, 17 / 25.0, 16 / 25.0, 15 / 25.0, 14 / 25.0,
                                                   13 / 25.0, 12 / 25.0, 11 / 25.0, 10 / 25.0};
constexpr int kScaleRefits = 2;

// Where a scale is a code: that of the range, and so many codes away from it.
struct CodesTried {
  std::size_t count;
  std::int32_t least, most;
  std::int32_t steps[16];
};
// The power of two above that of the range is left out: its numbers are among those of the latter, which reaches all
// weights, so it is never better.
constexpr CodesTried kPowersTried = {2, 0, 254, {0, -1}};
// Eight codes of e4m3 are half of a number.
constexpr CodesTried kCodesTried = {10, 1, 126, {0, -1, -2, -3, -4, -5, -6, -7, -8, 1}};

}  // namespace kvant::semantics
