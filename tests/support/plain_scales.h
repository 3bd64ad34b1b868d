// Scales that are codes, by their rules in plain arithmetic: what a range becomes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kvant/element.h"
#include "tests/support/float_grid_reference.h"

namespace kvant::tests {

struct PlainScale {
  double value = 1;
  std::uint8_t bits = 0;
};

// The largest magnitude that codes stand for.
inline double largest_of(ElementKind code) {
  return has_float_grid(code) ? grid_reference(code).max() : code_range(code).max;
}

// e8m0: the power of two of the largest magnitude over that of the grid's, the next one from 1.75 times a power on, as
// compressed-tensors has it. Of zeros: 1.
inline PlainScale plain_power(double largest, ElementKind code) {
  int exponent = 0, top = 0;
  if (std::frexp(largest, &exponent) < 0.875) --exponent;  // frexp gives 0.5 to 1
  std::frexp(largest_of(code), &top);
  const int power = largest == 0 ? 0 : std::clamp(exponent - (top - 1), -127, 127);
  return {std::ldexp(1.0, power), static_cast<std::uint8_t>(power + 127)};
}

// e4m3 under a global scale, in f32. 0 becomes 0.125.
inline PlainScale plain_scale_under(float global, double largest, ElementKind code) {
  const GridReference& grid = grid_reference(ElementKind::e4m3);
  const float wanted = static_cast<float>(largest) / static_cast<float>(largest_of(code)) * global;
  std::uint8_t bits = grid.code_of(static_cast<double>(wanted), true);
  if (bits == 0) bits = grid.code_of(0.125, true);
  return {static_cast<double>(static_cast<float>(grid.number_of(bits)) / global), bits};
}

}  // namespace kvant::tests
