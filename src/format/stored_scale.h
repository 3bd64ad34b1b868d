// Scales as a checkpoint stores them. Codes are made with the scale in its stored form, so rounding comes first:
//
//   stored(v) = v rounded to f32, then to the dtype of the scale, at least its smallest normal number, at most its
//               largest finite one
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "io/safetensors.h"
#include "kvant/element.h"

namespace kvant::format {

// The element kind of a dtype that weights come in: f32, f64, f16, bf16. Nothing for others.
std::optional<ElementKind> element_of(io::DType dtype);

// `value` is finite and not negative; `scale` is f32, f16 or bf16.
float stored(double value, ElementKind scale);
void store(float value, ElementKind scale, std::byte* to);

// One scale and zero point for codes of [q_min, q_max], with the scale in its stored form. 0 belongs to the range:
//
//   symmetric    scale = stored(max(-lo, hi) / q_max)            zero point 0
//   asymmetric   scale = stored((hi - lo) / (q_max - q_min))     zero point = clamp(q_min - rne(lo / scale), q_min,
//   q_max)
//
// lo / scale is divided in f32 (f64 if `in_f64`). lo = hi = 0: scale 1, zero point 0.
struct ScaleAndZero {
  float scale = 1;
  std::int32_t zero_point = 0;
};
ScaleAndZero symmetric_scale(double max_abs, std::int32_t q_max, ElementKind scale);
ScaleAndZero asymmetric_scale(double lo, double hi, std::int32_t q_min, std::int32_t q_max, ElementKind scale,
                              bool in_f64);

}  // namespace kvant::format
