#include "format/stored_scale.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvant::format {

std::optional<ElementKind> element_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::f32: return ElementKind::f32;
    case io::DType::f64: return ElementKind::f64;
    case io::DType::f16: return ElementKind::f16;
    case io::DType::bf16: return ElementKind::bf16;
    default: return std::nullopt;
  }
}

float stored(double value, ElementKind scale) {
  constexpr float kGreatest = std::numeric_limits<float>::max();
  const auto single = static_cast<float>(std::min(value, static_cast<double>(kGreatest)));
  switch (scale) {
    case ElementKind::f16: return std::clamp(to_float(to_half(single)), 0x1p-14f, 65504.0f);
    case ElementKind::bf16:
      return std::clamp(to_float(to_bfloat16(single)), std::numeric_limits<float>::min(), 0x1.FEp127f);
    default: return std::clamp(single, std::numeric_limits<float>::min(), kGreatest);
  }
}

void store(float value, ElementKind scale, std::byte* to) {
  switch (scale) {
    case ElementKind::f16: {
      const Half half = to_half(value);
      std::memcpy(to, &half, sizeof half);
      break;
    }
    case ElementKind::bf16: {
      const BFloat16 bfloat = to_bfloat16(value);
      std::memcpy(to, &bfloat, sizeof bfloat);
      break;
    }
    default: std::memcpy(to, &value, sizeof value);
  }
}

ScaleAndZero symmetric_scale(double max_abs, std::int32_t q_max, ElementKind scale) {
  if (max_abs == 0) return {};
  return {stored(max_abs / q_max, scale), 0};
}

ScaleAndZero asymmetric_scale(double lo, double hi, std::int32_t q_min, std::int32_t q_max, ElementKind scale,
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

}  // namespace kvant::format
