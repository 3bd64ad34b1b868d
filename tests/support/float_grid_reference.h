// Floating-point grids written plainly, with nothing of kvant's but the facts of the element table: the numbers of all
// codes by their definition, and the code of a number by looking for the nearest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kvant/element.h"

namespace kvant::tests {

class GridReference {
 public:
  explicit GridReference(ElementKind kind) : kind_(kind), format_(info(kind).format) {
    const unsigned magnitudes = 1u << (info(kind).bits - 1);
    for (unsigned code = 0; code < magnitudes; ++code) {
      const double value = magnitude_of(code);
      if (std::isfinite(value)) finite_.push_back(value);  // they come in order
    }
  }

  double max() const { return finite_.back(); }

  // Without kvant's sentences about payloads: any NaN.
  double number_of(std::uint8_t code) const {
    const unsigned sign = 1u << (info(kind_).bits - 1);
    const double magnitude = magnitude_of(code & (sign - 1));
    return (code & sign) != 0 ? -magnitude : magnitude;
  }

  // `y` is a quotient; it is rounded once.
  std::uint8_t code_of(double y, bool saturate) const {
    const auto sign = static_cast<std::uint8_t>(std::signbit(y) ? 1 << (info(kind_).bits - 1) : 0);
    if (std::isnan(y)) return nan_code();
    return static_cast<std::uint8_t>(sign | magnitude_code(std::fabs(y), saturate));
  }

 private:
  double magnitude_of(unsigned code) const {
    const unsigned exponent = code >> format_.mantissa_bits, mantissa = code & ((1u << format_.mantissa_bits) - 1);
    const bool last = exponent == (1u << format_.exponent_bits) - 1;
    const bool ones = mantissa == (1u << format_.mantissa_bits) - 1;
    if (format_.top == TopCodes::nan && last && ones) return std::numeric_limits<double>::quiet_NaN();
    if (format_.top == TopCodes::infinity_and_nan && last)
      return mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    const double steps = exponent == 0 ? mantissa : mantissa + (1u << format_.mantissa_bits);
    return std::ldexp(steps, static_cast<int>(std::max(exponent, 1u)) - format_.bias - format_.mantissa_bits);
  }

  std::uint8_t nan_code() const {
    return static_cast<std::uint8_t>(format_.top == TopCodes::finite ? 0 : (1u << (info(kind_).bits - 1)) - 1);
  }

  unsigned magnitude_code(double y, bool saturate) const {
    const auto above = static_cast<unsigned>(std::ranges::upper_bound(finite_, y) - finite_.begin());
    if (above < finite_.size()) return nearest(y, above - 1, finite_[above]);
    // Beyond the last number, as if the grid went on.
    const double step = finite_.back() - finite_[finite_.size() - 2];
    const unsigned last = above - 1;
    const unsigned code = std::isinf(y) ? last + 1 : nearest(y, last, finite_.back() + step);
    if (saturate || code == last) return last;
    return format_.top == TopCodes::infinity_and_nan ? last + 1 : nan_code();
  }

  // `below` or the code after it, whose number is `next`.
  unsigned nearest(double y, unsigned below, double next) const {
    const double middle = (finite_[below] + next) / 2;
    if (y != middle) return y < middle ? below : below + 1;
    return below % 2 == 0 ? below : below + 1;
  }

  ElementKind kind_;
  FloatFormat format_;
  std::vector<double> finite_;  // by code
};

// The grid of a kind, made once.
template <ElementKind kKind>
const GridReference& one_grid_reference() {
  static const GridReference reference(kKind);
  return reference;
}
inline const GridReference& grid_reference(ElementKind kind) {
  switch (kind) {
    case ElementKind::e4m3: return one_grid_reference<ElementKind::e4m3>();
    case ElementKind::e5m2: return one_grid_reference<ElementKind::e5m2>();
    default: return one_grid_reference<ElementKind::e2m1>();
  }
}

}  // namespace kvant::tests
