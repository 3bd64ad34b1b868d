// What each byte stands for as a code of a floating-point grid, as a table: for those who look codes up one by one.
// Kernels compute it (from_grid_code in float_grid.h); a test compares the two.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "kvant/element.h"

namespace kvant::semantics {

using CodeNumbers = std::array<float, 256>;

// Of the lowest bits of a byte, as many as a code has; those above do not count.
consteval CodeNumbers code_numbers(ElementKind kind) {
  const FloatFormat& f = info(kind).format;
  const int sign = 1 << (f.exponent_bits + f.mantissa_bits);
  CodeNumbers numbers = {};
  for (int byte = 0; byte < 256; ++byte) {
    const int magnitude = byte & (sign - 1), exponent = magnitude >> f.mantissa_bits;
    const int fraction = magnitude & ((1 << f.mantissa_bits) - 1);
    // Subnormal numbers have the exponent of the smallest normal ones, and no leading 1.
    float number = static_cast<float>(exponent == 0 ? fraction : fraction + (1 << f.mantissa_bits));
    const int power = (exponent == 0 ? 1 : exponent) - f.bias - f.mantissa_bits;
    for (int i = 0; i < power; ++i) number *= 2;
    for (int i = power; i < 0; ++i) number /= 2;
    if (number > f.max())
      number = f.top == TopCodes::infinity_and_nan && fraction == 0 ? std::numeric_limits<float>::infinity()
                                                                    : std::numeric_limits<float>::quiet_NaN();
    numbers[static_cast<std::size_t>(byte)] = (byte & sign) != 0 ? -number : number;
  }
  return numbers;
}

// Null for integers, which stand for themselves.
inline const float* numbers_of(ElementKind kind) {
  static constexpr CodeNumbers kE4m3 = code_numbers(ElementKind::e4m3), kE5m2 = code_numbers(ElementKind::e5m2),
                               kE2m1 = code_numbers(ElementKind::e2m1);
  switch (kind) {
    case ElementKind::e4m3: return kE4m3.data();
    case ElementKind::e5m2: return kE5m2.data();
    case ElementKind::e2m1: return kE2m1.data();
    default: return nullptr;
  }
}

}  // namespace kvant::semantics
