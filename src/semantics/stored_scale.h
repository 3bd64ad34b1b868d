// From a range to a scale as a checkpoint stores it. Codes are made with the scale in its stored form, so rounding
// comes first:
//
//   stored(v)    v rounded to f32, then to the type of the scale, at least its smallest normal number, at most its
//                largest finite one
//   symmetric    scale = stored(max(-lo, hi) / max)   zero point 0; max: q_max, or that of a floating-point grid
//   asymmetric   scale = stored((hi - lo) / (q_max - q_min))   zero point = q_min - rne(lo / scale), within the codes
//
// 0 belongs to every range. A range of zeros has scale 1 and zero point 0. Scales that are codes follow
// scale_formats.h: powers of two by the rule of compressed-tensors, and e4m3 under a global scale.
//
// Not written in lanes, as the other formulas are: there is one scale for a hundred weights or more, and ranges are
// taken as f64, whatever the weights are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kvant/element.h"
#include "semantics/one_number.h"
#include "semantics/scale_formats.h"

namespace kvant::semantics {

// `value` is finite and not negative; `scale` is f32, f16 or bf16.
inline float stored(double value, ElementKind scale) {
  constexpr float kSmallestF32 = std::numeric_limits<float>::min(), kLargestF32 = std::numeric_limits<float>::max();
  const auto single = static_cast<float>(std::min(value, static_cast<double>(kLargestF32)));
  switch (scale) {
    case ElementKind::f16: return std::clamp(to_float(to_half(single)), 0x1p-14f, 65504.0f);
    case ElementKind::bf16: return std::clamp(to_float(to_bfloat16(single)), kSmallestF32, 0x1.FEp127f);
    default: return std::clamp(single, kSmallestF32, kLargestF32);
  }
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

// `max_abs` is max(-lo, hi).
inline SavedScale symmetric_scale(double max_abs, ElementKind code, ElementKind scale) {
  if (max_abs == 0) return {};
  return {stored(max_abs / largest_number(code), scale), 0};
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

// lo / scale is divided in f32 (f64 if `in_f64`).
inline SavedScale asymmetric_scale(double lo, double hi, std::int32_t q_min, std::int32_t q_max, ElementKind scale,
                                   bool in_f64) {
  lo = std::min(lo, 0.0);
  hi = std::max(hi, 0.0);
  if (lo == hi) return {};
  // Halved first: the difference of two f64 can overflow.
  const float step = stored(2 * ((hi / 2 - lo / 2) / (q_max - q_min)), scale);
  const double quotient = in_f64 ? lo / static_cast<double>(step) : static_cast<double>(static_cast<float>(lo) / step);
  const double zero = q_min - std::nearbyint(std::max(quotient, static_cast<double>(q_min - q_max)));
  return {step, static_cast<std::int32_t>(std::clamp(zero, static_cast<double>(q_min), static_cast<double>(q_max)))};
}

}  // namespace kvant::semantics
