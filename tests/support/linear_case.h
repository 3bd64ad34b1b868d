// A W8A8 linear layer with its buffers, what the reference makes of it, and the ways tests run it: raw or packed, dense
// or strided, at any address, on any instruction set.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/linear_layout.h"
#include "tests/support/linear_reference.h"

namespace kvant::tests {

inline constexpr ElementKind kByteKinds[] = {ElementKind::s8, ElementKind::u8};

// What a W8A8 layer can write.
inline constexpr auto kLinearOutputs = [] {
  std::array<ElementKind, kFloatKinds.size() + std::size(kByteKinds)> kinds = {};
  std::copy(std::begin(kByteKinds), std::end(kByteKinds),
            std::copy(kFloatKinds.begin(), kFloatKinds.end(), kinds.begin()));
  return kinds;
}();

struct LinearKinds {
  ElementKind activation = ElementKind::s8;
  ElementKind weight = ElementKind::s8;
  ElementKind output = ElementKind::f32;
};

// What a kernel that adds products in 16 bits, or sums in 32, must not be fooled by.
enum class CodeData {
  uniform,   // every byte
  extreme,   // -128 or 255 everywhere: the products of greatest magnitude
  least,     // -128 or 0
  most,      // 127 or 255
  period_1,  // greatest and least in turn
  period_2,
  period_4,
  period_8,
  bell,        // σ 33, as trained weights are
  outliers,    // small, with one in a hundred at an end
  mixed_rows,  // one row in eight is uniform, the others are tiny
};
inline constexpr CodeData kAllCodeData[] = {CodeData::uniform,  CodeData::extreme,   CodeData::least,
                                            CodeData::most,     CodeData::period_1,  CodeData::period_2,
                                            CodeData::period_4, CodeData::period_8,  CodeData::bell,
                                            CodeData::outliers, CodeData::mixed_rows};

inline std::int32_t drawn_code(CodeData data, ElementKind kind, std::int64_t row, std::int64_t column,
                               std::mt19937& random) {
  const CodeRange range = code_range(kind);
  const std::int32_t middle = kind == ElementKind::s8 ? 0 : 128;
  const auto any = [&] { return range.min + static_cast<std::int32_t>(random() % 256); };
  const auto within = [&](std::uint32_t reach) {
    return middle + static_cast<std::int32_t>(random() % (2 * reach + 1)) - static_cast<std::int32_t>(reach);
  };
  // Neighbouring rows are out of step, so that both ends meet each other and themselves.
  const auto in_turn = [&](std::int64_t period) { return (column / period + row) % 2 == 0 ? range.max : range.min; };
  switch (data) {
    case CodeData::uniform: return any();
    case CodeData::extreme: return kind == ElementKind::s8 ? range.min : range.max;
    case CodeData::least: return range.min;
    case CodeData::most: return range.max;
    case CodeData::period_1: return in_turn(1);
    case CodeData::period_2: return in_turn(2);
    case CodeData::period_4: return in_turn(4);
    case CodeData::period_8: return in_turn(8);
    case CodeData::bell: {
      const double x = std::normal_distribution<double>(0.0, 33.0)(random);
      return std::clamp(middle + static_cast<std::int32_t>(std::lround(x)), range.min, range.max);
    }
    case CodeData::outliers: return random() % 100 != 0 ? within(3) : random() % 2 == 0 ? range.max : range.min;
    case CodeData::mixed_rows: return row % 8 == 3 ? any() : within(2);
  }
  return 0;
}

inline std::vector<std::byte> draw_codes(CodeData data, ElementKind kind, std::int64_t rows, std::int64_t columns,
                                         std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> codes;
  codes.reserve(static_cast<std::size_t>(rows * columns));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      codes.push_back(static_cast<std::byte>(drawn_code(data, kind, row, column, random) & 0xFF));
  return codes;
}

// What is left of a number in a type, widened again.
inline double held(double value, ElementKind kind) {
  std::byte bytes[8];
  put_float(bytes, kind, value);
  return get_float(bytes, kind);
}

inline std::vector<std::byte> stored(std::span<const double> values, ElementKind kind) {
  std::vector<std::byte> bytes(values.size() * width_of(kind));
  for (std::size_t i = 0; i < values.size(); ++i) put_float(&bytes[i * width_of(kind)], kind, values[i]);
  return bytes;
}

inline std::vector<std::byte> stored(std::span<const std::int32_t> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

class PreparedLinear;

struct LinearCase {
  using Prepared = PreparedLinear;

  std::int64_t m, k, n;
  LinearKinds kinds;
  std::vector<std::byte> a, w;                            // dense
  Numbers<double> act_scale{{1.0}}, weight_scale{{1.0}};  // as scale_kind(output) holds them
  Numbers<std::int32_t> act_zero_point{{0}}, weight_zero_point{{0}};
  std::optional<ElementKind> bias_kind = std::nullopt;
  std::vector<double> bias = {};  // as bias_kind holds them
  float output_scale = 1;         // of codes
  std::int32_t output_zero_point = 0;

  // Scales of 1, no zero points and no bias: what comes out is the sum itself.
  LinearCase(std::int64_t rows, std::int64_t in_features, std::int64_t out_features, const LinearKinds& element_kinds,
             CodeData activations, CodeData weights, std::uint32_t seed)
      : m(rows),
        k(in_features),
        n(out_features),
        kinds(element_kinds),
        a(draw_codes(activations, kinds.activation, m, k, seed)),
        w(draw_codes(weights, kinds.weight, n, k, seed + 1)) {}

  ElementKind scale_type() const { return scale_kind(kinds.output); }
  // What a bias may be besides a scale's type: the output's, unless that is codes.
  ElementKind other_bias_type() const { return is_float(kinds.output) ? kinds.output : scale_type(); }

  // Ordinary scales, zero points and biases, each as one number, one for each row, or left out.
  LinearCase& draw_parameters(std::uint32_t seed) {
    std::mt19937 random(seed);
    act_scale = draw_scales(m, random);
    weight_scale = draw_scales(n, random);
    act_zero_point = draw_zero_points(m, code_range(kinds.activation), random);
    weight_zero_point = draw_zero_points(n, code_range(kinds.weight), random);
    if (is_code(kinds.output)) {
      output_scale = std::uniform_real_distribution<float>(0.005f, 0.2f)(random);
      output_zero_point = draw_zero_points(1, code_range(kinds.output), random)[0];
    }
    switch (random() % 3) {
      case 0: return *this;
      case 1: return draw_bias(other_bias_type(), random);
      default: return draw_bias(scale_type(), random);
    }
  }
  LinearCase& draw_bias(ElementKind kind, std::mt19937& random) {
    bias_kind = kind;
    bias.clear();
    std::normal_distribution<double> normal(0.0, 3.0);
    for (std::int64_t i = 0; i < n; ++i) bias.push_back(held(normal(random), kind));
    return *this;
  }

  std::vector<std::byte> wanted() const {
    return linear_reference({.m = m,
                             .k = k,
                             .n = n,
                             .weight = kinds.weight,
                             .output = kinds.output,
                             .a = widened(a, kinds.activation),
                             .w = widened(w, kinds.weight),
                             .act_scale = act_scale,
                             .weight_scale = weight_scale,
                             .act_zero_point = act_zero_point,
                             .weight_zero_point = weight_zero_point,
                             .bias = bias_kind ? std::optional(bias) : std::nullopt,
                             .output_scale = output_scale,
                             .output_zero_point = output_zero_point});
  }

  W8A8LinearDescriptor descriptor(std::int64_t spare_rows = 0) const {
    return {.max_rows = m + spare_rows,
            .in_features = k,
            .out_features = n,
            .activation = kinds.activation,
            .weight = kinds.weight,
            .output = kinds.output};
  }

  std::string text() const {
    const auto form = [](const auto& numbers) { return numbers.tensor ? "tensor" : "number"; };
    return std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + " (M, K, N) " +
           std::string(name(kinds.activation)) + "*" + std::string(name(kinds.weight)) + ">" +
           std::string(name(kinds.output)) + ", scales " + form(act_scale) + " and " + form(weight_scale) +
           ", zero points " + form(act_zero_point) + " and " + form(weight_zero_point) + ", bias " +
           (bias_kind ? std::string(name(*bias_kind)) : "none");
  }

  testing::AssertionResult equal(std::span<const std::byte> got, std::span<const std::byte> want) const {
    return equal_outputs(*this, kinds.output, got, want);
  }

 private:
  Numbers<double> draw_scales(std::int64_t rows, std::mt19937& random) const {
    Numbers<double> scales;
    scales.tensor = random() % 3 != 0;
    std::uniform_real_distribution<double> around(0.001, 0.02);
    const std::int64_t count = scales.tensor ? rows : 1;
    for (std::int64_t i = 0; i < count; ++i) scales.values.push_back(held(around(random), scale_type()));
    return scales;
  }
  static Numbers<std::int32_t> draw_zero_points(std::int64_t rows, const CodeRange& range, std::mt19937& random) {
    if (random() % 3 == 0) return {{0}};
    Numbers<std::int32_t> zero_points;
    zero_points.tensor = random() % 2 == 0;
    const std::int64_t count = zero_points.tensor ? rows : 1;
    for (std::int64_t i = 0; i < count; ++i)
      zero_points.values.push_back(range.min + static_cast<std::int32_t>(random() % 256));
    return zero_points;
  }
};

class PreparedLinear : public PreparedLayer<AnyLinearPlan, AnyLinearArgs, PackedWeight> {
 public:
  PreparedLinear(const LinearCase& c, const PlanPreference& preference, const LinearLayout& layout,
                 const Stream& stream = Stream::cpu(1))
      : PreparedLayer(AnyLinearPlan::select(stream, c.descriptor(layout.spare_rows), preference), c.m, c.n,
                      c.kinds.output, layout),
        case_(c),
        activation_(c.a, c.m, c.k, c.k + layout.activation_gap, layout),
        weight_(c.w, c.n, c.k, c.k + layout.weight_gap, layout),
        act_scale_(stored(c.act_scale.values, c.scale_type()), layout),
        act_zero_point_(stored(c.act_zero_point.values), layout),
        weight_scale_(stored(c.weight_scale.values, c.scale_type()), layout),
        weight_zero_point_(stored(c.weight_zero_point.values), layout),
        bias_(stored(c.bias, c.bias_kind.value_or(ElementKind::f32)), layout) {
    if (!status().ok()) return;
    const std::vector<std::int64_t> leading = layout.leading.value_or(std::vector<std::int64_t>{c.m});
    const Shape tokens = layout.token_form == TokenForm::flat      ? Shape{c.m}
                         : layout.token_form == TokenForm::leading ? Shape(std::span<const std::int64_t>(leading))
                                                                   : layout.shape(c.m, 1);
    args_.activation = {activation_.data(), c.kinds.activation, layout.shape(c.m, c.k),
                        LinearLayout::stride(c.k, layout.activation_gap)};
    args_.act_scale = scale_parameter(c.act_scale, act_scale_, tokens);
    args_.act_zero_point = zero_point_parameter(c.act_zero_point, act_zero_point_, tokens);
    args_.weight_scale = scale_parameter(c.weight_scale, weight_scale_, {c.n});
    args_.weight_zero_point = zero_point_parameter(c.weight_zero_point, weight_zero_point_, {c.n});
    if (c.bias_kind) args_.bias = {bias_.data(), *c.bias_kind, {c.n}, 0};
    if (is_code(c.kinds.output)) {
      args_.output_scale = c.output_scale;
      args_.output_zero_point = c.output_zero_point;
    }
    put_weight({weight_.data(), c.kinds.weight, {c.n, c.k}, LinearLayout::stride(c.k, layout.weight_gap)}, weight_,
               layout, stream, preference);
  }

  const LinearCase& problem() const { return case_; }

 private:
  AnyParameter scale_parameter(const Numbers<double>& numbers, const Place& place, const Shape& shape) const {
    const ElementKind kind = case_.scale_type();
    if (numbers.tensor) return AnyParameter(AnyRef{place.data(), kind, shape, 0});
    return kind == ElementKind::f64 ? AnyParameter(numbers.values[0])
                                    : AnyParameter(static_cast<float>(numbers.values[0]));
  }
  static AnyParameter zero_point_parameter(const Numbers<std::int32_t>& numbers, const Place& place,
                                           const Shape& shape) {
    if (numbers.tensor) return AnyParameter(AnyRef{place.data(), ElementKind::s32, shape, 0});
    return AnyParameter(numbers.values[0]);
  }

  const LinearCase& case_;
  Place activation_, weight_, act_scale_, act_zero_point_, weight_scale_, weight_zero_point_, bias_;
};

enum class BiasForm { none, of_input, of_scales };

// A layer with a floating-point input.
template <class In, class W = std::int8_t>
struct FloatLayer {
  using Scale = scale_t<In>;

  std::int64_t m, k, n;
  std::vector<In> x;  // dense
  std::vector<W> w;
  std::vector<Scale> weight_scale, smooth;
  std::vector<std::int32_t> weight_zero_point;
  std::vector<std::byte> input_bias, scale_bias;  // the same numbers in either type

  FloatLayer(std::int64_t rows, std::int64_t in_features, std::int64_t out_features, Data data, std::uint32_t seed)
      : m(rows), k(in_features), n(out_features) {
    std::mt19937 random(seed);
    // So that a tensor without elements has an address too: a null weight is none.
    x.reserve(1);
    w.reserve(1);
    weight_scale.reserve(1);
    smooth.reserve(1);
    weight_zero_point.reserve(1);
    input_bias.reserve(1);
    scale_bias.reserve(1);
    x.resize(static_cast<std::size_t>(m * k));
    const std::vector<std::byte> drawn = draw(data, kind_of<In>, m * k, seed);
    if (!x.empty()) std::memcpy(static_cast<void*>(x.data()), drawn.data(), drawn.size());
    for (std::int64_t i = 0; i < n * k; ++i) w.push_back(static_cast<W>(random()));
    std::uniform_real_distribution<double> around(0.001, 0.02), factor(0.05, 20.0);
    for (std::int64_t i = 0; i < n; ++i) {
      weight_scale.push_back(static_cast<Scale>(around(random)));
      weight_zero_point.push_back(code_range(kind_of<W>).min + static_cast<std::int32_t>(random() % 256));
      const double bias = around(random) * 100.0;
      for (const std::byte b : stored(std::vector<double>{bias}, kind_of<In>)) input_bias.push_back(b);
      for (const std::byte b : stored(std::vector<double>{bias}, kind_of<Scale>)) scale_bias.push_back(b);
    }
    for (std::int64_t i = 0; i < k; ++i) smooth.push_back(static_cast<Scale>(factor(random)));
  }

  AnyRef bias(BiasForm form) const {
    switch (form) {
      case BiasForm::none: return {};
      case BiasForm::of_input: return {input_bias.data(), kind_of<In>, {n}, 0};
      case BiasForm::of_scales: return {scale_bias.data(), kind_of<Scale>, {n}, 0};
    }
    return {};
  }

  // All of a row is one value.
  void fill_row(std::int64_t row, double value) {
    if (row >= m) return;
    std::byte bytes[8];
    put_float(bytes, kind_of<In>, value);
    for (std::int64_t i = 0; i < k; ++i)
      std::memcpy(static_cast<void*>(&x[static_cast<std::size_t>(row * k + i)]), bytes, sizeof(In));
  }

  // Rows of nothing but NaN, infinity, zero and a constant, where there are so many.
  void fill_odd_rows() {
    fill_row(1, std::numeric_limits<double>::quiet_NaN());
    fill_row(2, std::numeric_limits<double>::infinity());
    fill_row(3, 0.0);
    fill_row(4, -2.5);
  }

  // x / smooth in the type of the scales, not rounded to that of the input.
  std::vector<Scale> smoothed() const {
    std::vector<Scale> quotients;
    quotients.reserve(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto* at = reinterpret_cast<const std::byte*>(&x[i]);
      const auto value = static_cast<Scale>(get_float(at, kind_of<In>));
      quotients.push_back(rounded_quotient(value, smooth[i % static_cast<std::size_t>(k)]));
    }
    return quotients;
  }
};

// Far offsets with a small range: zero points of millions.
inline FloatLayer<float> layer_far_from_zero() {
  FloatLayer<float> layer(8, 150, 21, Data::normal, 5);
  for (std::size_t i = 0; i < layer.x.size(); ++i) {
    constexpr float kOffsets[] = {0.0f, 1e3f, -1e5f, 1e6f, 3e7f, -3e7f, 1e30f, 5.0f};
    layer.x[i] = layer.x[i] * 0.01f + kOffsets[i / 150];
  }
  return layer;
}

// Without its sizes. Static scales and their zero points take turns with `which`.
inline QuantizedLinearDescriptor quantized_problem(const ModeChoice& choice, bool smooth, bool is_static,
                                                   std::uint32_t which) {
  QuantizedLinearDescriptor d{.mode = choice.mode, .include_zero = choice.include_zero, .smooth = smooth};
  if (!is_static) return d;
  d.act_scale = which % 3 == 0 ? 0.1 : 0.037;
  if (choice.mode != DynamicRangeMode::symmetric) d.act_zero_point = static_cast<std::int32_t>(which % 300) - 150;
  return d;
}

// Activation zero points around the limit of ±2^23, beyond it, and around those of narrower integers.
inline std::vector<std::int32_t> huge_zero_points() {
  constexpr std::int32_t kMax = 1 << 23;
  return {0,        kMax,     -kMax, kMax + 1, -kMax - 1, std::numeric_limits<std::int32_t>::max(),
          5,        -128,     255,   1000000,  -77777,    std::numeric_limits<std::int32_t>::min(),
          kMax - 1, 1 - kMax, 32768, -32769,   65536};
}

// The instruction sets that linear plans can be had for.
inline std::vector<ArchSku> linear_isas() {
  std::vector<ArchSku> isas;
  for (const ArchSku isa : {ArchSku::scalar, ArchSku::avx2}) {
    const auto plan = AnyLinearPlan::select(
        Stream::cpu(1),
        W8A8LinearDescriptor{
            .max_rows = 1, .in_features = 1, .out_features = 1, .weight = ElementKind::s8, .output = ElementKind::f32},
        {.isa = isa});
    if (plan.status().code() == StatusCode::Unsupported) continue;
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    isas.push_back(isa);
  }
  return isas;
}

}  // namespace kvant::tests
