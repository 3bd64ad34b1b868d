// From a range to a scale as a checkpoint stores it. Codes are made with the scale in its stored form, so rounding
// comes first:
//
//   stored(v)    v rounded to f32, then to the type of the scale, at least its smallest normal number, at most its
//                largest finite one
//   symmetric    scale = stored(max(-lo, hi) / q_max)          zero point 0
//   asymmetric   scale = stored((hi - lo) / (q_max - q_min))   zero point = clamp(q_min - rne(lo / scale), q_min,
//   q_max)
//
// 0 belongs to every range. A range of zeros has scale 1 and zero point 0.
//
// Not written in lanes, as the other formulas are: there is one scale for a hundred weights or more, and ranges are
// taken as f64, whatever the weights are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kvant/element.h"

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
struct StoredScale {
  float scale = 1;
  std::int32_t zero_point = 0;
};

// `max_abs` is max(-lo, hi).
inline StoredScale symmetric_scale(double max_abs, std::int32_t q_max, ElementKind scale) {
  if (max_abs == 0) return {};
  return {stored(max_abs / q_max, scale), 0};
}

// lo / scale is divided in f32 (f64 if `in_f64`).
inline StoredScale asymmetric_scale(double lo, double hi, std::int32_t q_min, std::int32_t q_max, ElementKind scale,
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
