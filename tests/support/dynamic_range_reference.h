// The formulas of include/kvant/range.h and dynamic_range.h once more: one element at a time, straight from the
// headers, sharing no code with the library. Slow, and meant to be read beside them.
//
// Nothing here adds to a rounded product, so a compiler that contracts a * b + c into one rounding changes no bit.
#pragma once

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kvant/dynamic_range.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/tensor.h"
#include "tests/support/float_grid_reference.h"

namespace kvant::tests {

static_assert(FLT_EVAL_METHOD == 0, "float arithmetic must be rounded to float at every step");

// ---- granularity.h: which elements form a segment ----

inline int axis_from_start(const Shape& shape, const Granularity& scope) {
  return scope.axis() < 0 ? scope.axis() + shape.rank() : scope.axis();
}

inline std::int64_t groups_along(std::int64_t size, std::int64_t group) { return size / group + (size % group != 0); }

// How many indices of a dimension a block spans.
inline std::int64_t block_side(const Shape& shape, const Granularity& scope, int dimension) {
  return dimension == shape.rank() - 1 ? scope.block_columns() : dimension == shape.rank() - 2 ? scope.block_rows() : 1;
}

inline std::int64_t element_total(const Shape& shape) {
  std::int64_t total = 1;
  for (int i = 0; i < shape.rank(); ++i) total *= shape[i];
  return total;
}

inline std::int64_t segment_total(const Shape& shape, const Granularity& scope) {
  std::int64_t total = 1;
  switch (scope.kind()) {
    case GranularityKind::tensor: break;
    case GranularityKind::channel: total = shape[axis_from_start(shape, scope)]; break;
    case GranularityKind::token:
      for (int i = 0; i + 1 < shape.rank(); ++i) total *= shape[i];
      break;
    case GranularityKind::group:
      for (int i = 0; i < shape.rank(); ++i)
        total *= i == axis_from_start(shape, scope) ? groups_along(shape[i], scope.group_size()) : shape[i];
      break;
    case GranularityKind::block:
      for (int i = 0; i < shape.rank(); ++i) total *= groups_along(shape[i], block_side(shape, scope, i));
      break;
  }
  return total;
}

using MultiIndex = std::array<std::int64_t, kMaxRank>;

inline std::int64_t segment_at(const Shape& shape, const Granularity& scope, const MultiIndex& at) {
  const int axis = axis_from_start(shape, scope);
  std::int64_t segment = 0;
  switch (scope.kind()) {
    case GranularityKind::tensor: break;
    case GranularityKind::channel: segment = at[static_cast<std::size_t>(axis)]; break;
    case GranularityKind::token:
      for (int i = 0; i + 1 < shape.rank(); ++i) segment = segment * shape[i] + at[static_cast<std::size_t>(i)];
      break;
    case GranularityKind::group:
      for (int i = 0; i < shape.rank(); ++i) {
        const std::int64_t index = at[static_cast<std::size_t>(i)];
        segment = i == axis ? segment * groups_along(shape[i], scope.group_size()) + index / scope.group_size()
                            : segment * shape[i] + index;
      }
      break;
    case GranularityKind::block:
      for (int i = 0; i < shape.rank(); ++i) {
        const std::int64_t side = block_side(shape, scope, i);
        segment = segment * groups_along(shape[i], side) + at[static_cast<std::size_t>(i)] / side;
      }
      break;
  }
  return segment;
}

// The segment of every element, in row-major order.
inline std::vector<std::int64_t> segments_of(const Shape& shape, const Granularity& scope) {
  std::vector<std::int64_t> segments(static_cast<std::size_t>(element_total(shape)));
  MultiIndex at = {};
  for (std::int64_t& segment : segments) {
    segment = segment_at(shape, scope, at);
    for (int i = shape.rank(); i-- > 0;) {
      if (++at[static_cast<std::size_t>(i)] < shape[i]) break;
      at[static_cast<std::size_t>(i)] = 0;
    }
  }
  return segments;
}

// ---- range.h ----

// Of the finite values. doubles hold every value of every kind, so nothing is rounded here.
struct SegmentRange {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  bool empty() const { return min > max; }
  double max_abs() const { return empty() ? 0.0 : std::max(std::fabs(min), std::fabs(max)); }
  void add(double x) {
    if (!std::isfinite(x)) return;
    const double positive_zero = x == 0.0 ? 0.0 : x;
    min = std::min(min, positive_zero);
    max = std::max(max, positive_zero);
  }
};

// `segments` as segments_of() has them.
inline std::vector<SegmentRange> ranges_in(std::span<const std::int64_t> segments, std::int64_t count,
                                           std::span<const double> values) {
  std::vector<SegmentRange> ranges(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) ranges[static_cast<std::size_t>(segments[i])].add(values[i]);
  return ranges;
}

inline std::vector<SegmentRange> reference_ranges(const Shape& shape, const Granularity& scope,
                                                  std::span<const double> values) {
  return ranges_in(segments_of(shape, scope), segment_total(shape, scope), values);
}

// ---- dynamic_range.h ----

struct QuantizationRules {
  DynamicRangeMode mode = DynamicRangeMode::symmetric;
  bool include_zero = false;
  std::int32_t q_min = -128;
  std::int32_t q_max = 127;
  std::optional<ElementKind> grid = std::nullopt;   // a floating-point one, in place of q_min and q_max
  std::optional<ElementKind> scale = std::nullopt;  // what scales are written as; nothing: the type computed in
  MxRule mx_rule = MxRule::floor;
  float global_scale = 1;  // over scales of e4m3

  std::int32_t clamp(std::int32_t q) const { return q < q_min ? q_min : q > q_max ? q_max : q; }
};

struct SegmentParameters {
  double scale = 0;  // of f32, f16 and bf16 a number that f32 holds
  std::int32_t zero_point = 0;
  std::uint8_t code = 0;  // of a scale of e8m0 or e4m3
};

// A positive number rounded to a significand of `precision` bits, ties to even, between the smallest normal and the
// largest finite number of a format.
inline double rounded_to(double x, int precision, double smallest_normal, double largest) {
  const double step = std::ldexp(1.0, std::ilogb(x) + 1 - precision);
  return std::clamp(std::nearbyint(x / step) * step, smallest_normal, largest);
}
inline double as_written(double scale, const QuantizationRules& rules) {
  if (rules.scale == ElementKind::f16) return rounded_to(scale, 11, 0x1p-14, 65504);
  if (rules.scale == ElementKind::bf16) return rounded_to(scale, 8, 0x1p-126, 0x1.FEp127);
  return scale;
}

// A power of two for blocks of a floating-point grid.
inline SegmentParameters mx_parameters(double max_abs, double grid_max, MxRule rule) {
  if (max_abs == 0) return {1, 0, 127};
  int exponent = std::ilogb(max_abs);
  if (rule == MxRule::round_up && max_abs >= std::ldexp(1.75, exponent)) ++exponent;
  exponent = std::max(exponent - std::ilogb(grid_max), -127);
  return {std::ldexp(1.0, exponent), 0, static_cast<std::uint8_t>(exponent + 127)};
}

// The global scale of a tensor whose largest magnitude is `max_abs`.
inline float found_global_scale(double max_abs, double grid_max) {
  const auto global = static_cast<float>(448 * grid_max / max_abs);
  return std::isinf(global) ? 1.0f : std::max(global, std::numeric_limits<float>::min());
}

// C is what the kind computes in.
template <class C>
SegmentParameters parameters_in(const SegmentRange& range, const QuantizationRules& rules) {
  constexpr C kLargest = std::numeric_limits<C>::max(), kSmallestNormal = std::numeric_limits<C>::min();
  // A segment without finite values counts as all zero.
  C min = range.empty() ? C(0) : static_cast<C>(range.min);
  C max = range.empty() ? C(0) : static_cast<C>(range.max);

  if (rules.mode == DynamicRangeMode::symmetric) {
    const C max_abs = std::max(std::fabs(min), std::fabs(max));
    const C largest = rules.grid ? static_cast<C>(grid_reference(*rules.grid).max()) : static_cast<C>(rules.q_max);
    if (rules.scale == ElementKind::e8m0)
      return mx_parameters(static_cast<double>(max_abs), static_cast<double>(largest), rules.mx_rule);
    const C scale = max_abs / largest;
    if (rules.scale == ElementKind::e4m3) {
      const GridReference& e4m3 = grid_reference(ElementKind::e4m3);
      const C global = static_cast<C>(rules.global_scale);
      const std::uint8_t nearest = e4m3.code_of(static_cast<double>(scale * global), true);
      const std::uint8_t code = nearest == 0 ? 0x20 : nearest;
      return {static_cast<double>(static_cast<C>(e4m3.number_of(code)) / global), 0, code};
    }
    if (max_abs == 0) return {1, 0};
    return {as_written(static_cast<double>(std::max(scale, kSmallestNormal)), rules), 0};
  }

  if (rules.include_zero) {
    min = std::min(min, C(0));
    max = std::max(max, C(0));
  }
  const C max_abs = std::max(std::fabs(min), std::fabs(max));
  if (max_abs == 0) return {1, rules.clamp(0)};

  const C steps = static_cast<C>(rules.q_max - rules.q_min);
  const C extent = max - min;
  C scale = extent / steps;
  if (min == max) {
    scale = max_abs;
  } else if (std::isinf(extent)) {
    const C half = (max / 2 - min / 2) / steps;
    scale = half > kLargest / 2 ? kLargest : 2 * half;
  }
  scale = std::max(scale, max_abs / C(4194304));
  scale = std::max(scale, kSmallestNormal);
  scale = static_cast<C>(as_written(static_cast<double>(scale), rules));

  const double unlimited = rules.q_min - static_cast<double>(std::nearbyint(min / scale));
  const auto zero_point = static_cast<std::int32_t>(std::clamp(unlimited, -0x1p23, 0x1p23));
  return {static_cast<double>(scale), rules.include_zero ? rules.clamp(zero_point) : zero_point};
}

inline SegmentParameters reference_parameters(const SegmentRange& range, const QuantizationRules& rules,
                                              ElementKind input) {
  return input == ElementKind::f64 ? parameters_in<double>(range, rules) : parameters_in<float>(range, rules);
}

// rne(x / scale) + zero_point without the clamp; NaN for NaN. Exact wherever the clamp would leave it alone.
inline double unclamped_code(double x, const SegmentParameters& p, ElementKind input) {
  const double steps = input == ElementKind::f64
                           ? std::nearbyint(x / p.scale)
                           : static_cast<double>(std::nearbyint(static_cast<float>(x) / static_cast<float>(p.scale)));
  return steps + p.zero_point;
}

inline std::int32_t reference_code(double x, const SegmentParameters& p, const QuantizationRules& rules,
                                   ElementKind input) {
  if (rules.grid) {
    const GridReference& grid = grid_reference(*rules.grid);
    return grid.code_of(input == ElementKind::f64
                            ? x / p.scale
                            : static_cast<double>(static_cast<float>(x) / static_cast<float>(p.scale)),
                        true);
  }
  const double code = unclamped_code(x, p, input);
  if (std::isnan(code)) return rules.clamp(p.zero_point);
  if (code <= rules.q_min) return rules.q_min;
  if (code >= rules.q_max) return rules.q_max;
  return static_cast<std::int32_t>(code);
}

struct DynamicRangeReference {
  float global_scale = 1;                     // that was given or found
  std::vector<std::int64_t> segment;          // of every element
  std::vector<SegmentRange> range;            // of every segment
  std::vector<SegmentParameters> parameters;  // of every segment
  std::vector<std::int32_t> code;             // of every element
};

// `values` as the input kind holds them.
inline DynamicRangeReference dynamic_range_reference(const Shape& shape, const Granularity& scope,
                                                     QuantizationRules rules, bool finds_global_scale,
                                                     ElementKind input, std::span<const double> values) {
  DynamicRangeReference reference;
  if (finds_global_scale) {
    SegmentRange whole;
    for (const double x : values) whole.add(x);
    rules.global_scale = found_global_scale(whole.max_abs(), grid_reference(*rules.grid).max());
  }
  reference.global_scale = rules.global_scale;
  reference.segment = segments_of(shape, scope);
  reference.range = ranges_in(reference.segment, segment_total(shape, scope), values);
  reference.parameters.reserve(reference.range.size());
  for (const SegmentRange& range : reference.range)
    reference.parameters.push_back(reference_parameters(range, rules, input));
  reference.code.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    reference.code.push_back(
        reference_code(values[i], reference.parameters[static_cast<std::size_t>(reference.segment[i])], rules, input));
  return reference;
}

// ---- element.h: codes as a dense tensor stores them ----

inline std::vector<std::byte> stored_codes(std::span<const std::int32_t> codes, ElementKind output,
                                           const Shape& shape) {
  std::vector<std::byte> bytes;
  bytes.reserve(codes.size());
  if (!is_packed(output)) {
    for (const std::int32_t code : codes)
      for (int shift = 0; shift < bits_per_element(output); shift += 8)
        bytes.push_back(static_cast<std::byte>(code >> shift & 0xFF));
    return bytes;
  }
  const auto row = static_cast<std::size_t>(shape.rank() == 0 ? 1 : shape[shape.rank() - 1]);
  const auto per_byte = static_cast<std::size_t>(elements_per_byte(output));
  const auto bits = static_cast<std::size_t>(bits_per_element(output));
  for (std::size_t first = 0; first < codes.size(); first += row)
    for (std::size_t i = 0; i < row; i += per_byte) {
      std::uint32_t byte = 0;
      for (std::size_t j = 0; j < per_byte && i + j < row; ++j)
        byte |= (static_cast<std::uint32_t>(codes[first + i + j]) & ((1u << bits) - 1)) << (j * bits);
      bytes.push_back(static_cast<std::byte>(byte));
    }
  return bytes;
}

}  // namespace kvant::tests
