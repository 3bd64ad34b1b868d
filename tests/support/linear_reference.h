// The formula of include/kvant/linear.h once more: one output at a time, straight from the header, sharing no code with
// the kernels. Slow, and meant to be read beside it.
//
//   y[m, n] = (act_scale[m] * weight_scale[n]) * Σ_k (a[m, k] - act_zero_point[m]) * (w[n, k] - weight_zero_point[n])
//             + bias[n]
//
// and the code of that, where the output is s8 or u8.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "kvant/element.h"

namespace kvant::tests {

static_assert(FLT_EVAL_METHOD == 0, "float arithmetic must be rounded to float at every step");

// One number, or one for each row.
template <class T>
struct Numbers {
  std::vector<T> values;
  bool tensor = false;

  T operator[](std::int64_t i) const { return values[tensor ? static_cast<std::size_t>(i) : 0]; }
};

// A problem as plain numbers. Scales and bias are what their types hold, widened to double.
struct LinearNumbers {
  std::int64_t m = 0, k = 0, n = 0;
  ElementKind weight = ElementKind::s8;  // bounds the zero points
  ElementKind output = ElementKind::f32;
  std::vector<std::int32_t> a;  // [M, K]
  std::vector<std::int32_t> w;  // [N, K]
  Numbers<double> act_scale, weight_scale;
  Numbers<std::int32_t> act_zero_point, weight_zero_point;
  std::optional<std::vector<double>> bias;
  float output_scale = 1;  // of codes
  std::int32_t output_zero_point = 0;
};

inline std::vector<std::int32_t> widened(std::span<const std::byte> codes, ElementKind kind) {
  std::vector<std::int32_t> values;
  values.reserve(codes.size());
  for (const std::byte code : codes)
    values.push_back(kind == ElementKind::s8 ? static_cast<std::int8_t>(code) : std::to_integer<std::int32_t>(code));
  return values;
}

// |a - zero point| < 2^24 and |w - zero point| < 2^8, so 2^31 terms fit 63 bits.
inline std::int64_t exact_sum(std::span<const std::int32_t> a, std::int64_t act_zero_point,
                              std::span<const std::int32_t> w, std::int64_t weight_zero_point) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - act_zero_point) * (w[i] - weight_zero_point);
  return sum;
}

inline std::int64_t counted_act_zero_point(std::int32_t given) {
  constexpr std::int32_t kMax = 1 << 23;
  return given > kMax ? kMax : given < -kMax ? -kMax : given;
}

inline std::int64_t counted_weight_zero_point(std::int32_t given, ElementKind weight) {
  const std::int32_t least = weight == ElementKind::s8 ? -128 : 0, greatest = least + 255;
  return given > greatest ? greatest : given < least ? least : given;
}

// Not inlined: a compiler that contracts a * b + c into one rounding cannot see both.
template <class T>
[[gnu::noinline]] T rounded_product(T a, T b) {
  return a * b;
}
template <class T>
[[gnu::noinline]] T rounded_sum(T a, T b) {
  return a + b;
}
template <class T>
[[gnu::noinline]] T rounded_quotient(T a, T b) {
  return a / b;
}

template <class T>
T scaled_sum(double act_scale, double weight_scale, std::int64_t sum, const double* bias) {
  const T scale = rounded_product(static_cast<T>(act_scale), static_cast<T>(weight_scale));
  const T product = rounded_product(scale, static_cast<T>(sum));
  return bias == nullptr ? product : rounded_sum(product, static_cast<T>(*bias));
}

// Of an s8 or u8 from `least` on.
inline std::int32_t output_code(const LinearNumbers& p, double act_scale, double weight_scale, std::int64_t sum,
                                const double* bias, std::int32_t least) {
  const float scales = rounded_product(static_cast<float>(act_scale), static_cast<float>(weight_scale));
  const float factor = rounded_quotient(scales, p.output_scale);
  const double in_steps = bias == nullptr ? 0.0 : rounded_quotient(*bias, static_cast<double>(p.output_scale));
  const double product = rounded_product(static_cast<double>(sum), static_cast<double>(factor));
  const double y = p.k == 0 ? in_steps : bias == nullptr ? product : rounded_sum(product, in_steps);
  if (std::isnan(y)) return p.output_zero_point;
  // rint() ties to even.
  return static_cast<std::int32_t>(
      std::clamp(std::rint(y) + p.output_zero_point, static_cast<double>(least), static_cast<double>(least + 255)));
}

// The output, dense, as its type stores it.
inline std::vector<std::byte> linear_reference(const LinearNumbers& p) {
  const auto width = static_cast<std::size_t>(bits_per_element(p.output)) / 8;
  std::vector<std::byte> bytes(static_cast<std::size_t>(p.m * p.n) * width);
  std::byte* at = bytes.data();
  for (std::int64_t m = 0; m < p.m; ++m)
    for (std::int64_t n = 0; n < p.n; ++n, at += width) {
      const auto row = static_cast<std::size_t>(p.k);
      const std::int64_t sum = exact_sum(std::span(p.a).subspan(static_cast<std::size_t>(m) * row, row),
                                         counted_act_zero_point(p.act_zero_point[m]),
                                         std::span(p.w).subspan(static_cast<std::size_t>(n) * row, row),
                                         counted_weight_zero_point(p.weight_zero_point[n], p.weight));
      const double* bias = p.bias ? &(*p.bias)[static_cast<std::size_t>(n)] : nullptr;
      if (p.output == ElementKind::s8 || p.output == ElementKind::u8) {
        const std::int32_t least = p.output == ElementKind::s8 ? -128 : 0;
        *at = static_cast<std::byte>(output_code(p, p.act_scale[m], p.weight_scale[n], sum, bias, least));
        continue;
      }
      if (p.output == ElementKind::f64) {
        const double y = scaled_sum<double>(p.act_scale[m], p.weight_scale[n], sum, bias);
        std::memcpy(at, &y, 8);
        continue;
      }
      const float y = scaled_sum<float>(p.act_scale[m], p.weight_scale[n], sum, bias);
      if (p.output == ElementKind::f32) {
        std::memcpy(at, &y, 4);
      } else {
        const std::uint16_t bits = p.output == ElementKind::f16 ? to_half(y).bits : to_bfloat16(y).bits;
        std::memcpy(at, &bits, 2);
      }
    }
  return bytes;
}

}  // namespace kvant::tests
