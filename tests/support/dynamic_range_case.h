// A problem of the dynamic-range family with its buffers, what the reference makes of it, and the ways tests run it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/dynamic_range_reference.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/granularity_text.h"
#include "tests/support/kernel_log.h"
#include "tests/support/tables.h"

namespace kvant::tests {

inline std::size_t width_of(ElementKind kind) { return static_cast<std::size_t>(bits_per_element(kind)) / 8; }

inline double get_float(const std::byte* at, ElementKind kind) {
  switch (kind) {
    case ElementKind::f64: {
      double value;
      std::memcpy(&value, at, 8);
      return value;
    }
    case ElementKind::f32: {
      float value;
      std::memcpy(&value, at, 4);
      return static_cast<double>(value);
    }
    default: {
      std::uint16_t bits;
      std::memcpy(&bits, at, 2);
      return static_cast<double>(kind == ElementKind::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits}));
    }
  }
}

// What kernels must tell apart: tensors without anything special take the short way, and one special value anywhere
// must not get lost on it.
enum class Data {
  normal,
  positive,  // far from zero
  negative,
  specials,  // every seventh
  one_odd,   // one in five hundred
  any_bits,  // whatever the type can hold, NaNs with a sign and signalling ones among it
};

inline double drawn_value(Data data, ElementKind kind, std::mt19937& random) {
  const bool odd = data == Data::specials ? random() % 7 == 0 : data == Data::one_odd && random() % 500 == 0;
  if (odd) {
    const auto which = static_cast<std::uint32_t>(random());
    if (kind == ElementKind::f64 && which % 5 == 0) return which % 2 == 0 ? 1.7e308 : -1.7e308;
    return special_value(which / 5);
  }
  const double x = std::normal_distribution<double>(0.0, 5.0)(random);
  return data == Data::positive ? 3.0 + std::fabs(x) : data == Data::negative ? -3.0 - std::fabs(x) : x;
}

// `count` elements of `kind`, dense. Beyond a prime number of them they repeat, because large cases are about addresses
// and threads.
inline std::vector<std::byte> draw(Data data, ElementKind kind, std::int64_t count, std::uint32_t seed) {
  constexpr std::size_t kDistinct = 40009;
  std::mt19937 random(seed);
  const std::size_t width = width_of(kind);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * width);
  const std::size_t fresh = std::min(bytes.size(), kDistinct * width);
  for (std::size_t i = 0; i < fresh; i += width) {
    if (data == Data::any_bits)
      for (std::size_t b = 0; b < width; ++b) bytes[i + b] = static_cast<std::byte>(random());
    else
      put_float(&bytes[i], kind, drawn_value(data, kind, random));
  }
  for (std::size_t done = fresh; done < bytes.size(); done += fresh)
    std::memcpy(&bytes[done], bytes.data(), std::min(fresh, bytes.size() - done));
  return bytes;
}

// Rows of `row` ordinary numbers, with every bit pattern of 16 bits in one of them, at changing places.
inline std::vector<std::byte> every_pattern(ElementKind kind, std::int64_t row) {
  std::vector<std::byte> bytes = draw(Data::normal, kind, 65536 * row, 1);
  for (std::size_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto length = static_cast<std::size_t>(row);
    std::memcpy(&bytes[2 * (pattern * length + pattern % length)], &bits, 2);
  }
  return bytes;
}

inline std::vector<double> values_of(std::span<const std::byte> bytes, ElementKind kind) {
  std::vector<double> values;
  values.reserve(bytes.size() / width_of(kind));
  for (std::size_t i = 0; i < bytes.size(); i += width_of(kind)) values.push_back(get_float(&bytes[i], kind));
  return values;
}

// What fills gaps: large finite numbers in every kind, which would show in a range.
inline constexpr std::byte kGap{0x7A};

// A dense tensor with its rows apart. The last row ends the buffer.
inline std::vector<std::byte> with_gaps(const std::vector<std::byte>& dense, ElementKind kind, std::int64_t rows,
                                        std::int64_t row, std::int64_t stride) {
  if (rows == 0) return {};
  const auto step = static_cast<std::size_t>(row_bytes(kind, stride == 0 ? row : stride));
  const auto length = static_cast<std::size_t>(row_bytes(kind, row));
  std::vector<std::byte> spread((static_cast<std::size_t>(rows) - 1) * step + length, kGap);
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
    std::copy_n(dense.begin() + static_cast<std::ptrdiff_t>(r * length), length,
                spread.begin() + static_cast<std::ptrdiff_t>(r * step));
  return spread;
}

// Every way to cut a shape into segments, with groups and blocks of one, ragged ones, and ones larger than the axis.
inline std::vector<Granularity> scopes_of(const Shape& shape) {
  std::vector<Granularity> scopes = {PerTensor{}};
  if (shape.rank() > 0) scopes.push_back(PerToken{});
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int from_end = axis - shape.rank();
    scopes.push_back(PerChannel{axis % 2 == 0 ? axis : from_end});
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{3}, std::int64_t{32}, std::int64_t{128}})
      scopes.push_back(PerGroup{axis % 2 == 0 ? from_end : axis, size});
    scopes.push_back(PerGroup{axis, shape[axis] + 5});
  }
  if (shape.rank() >= 2) {
    const std::int64_t beyond_rows = shape[shape.rank() - 2] + 5, beyond_columns = shape.row_length() + 5;
    for (const PerBlock& block :
         {PerBlock{1, 8}, PerBlock{2, 1}, PerBlock{2, 3}, PerBlock{3, 32}, PerBlock{2, beyond_columns},
          PerBlock{beyond_rows, 16}, PerBlock{beyond_rows, beyond_columns}})
      scopes.push_back(block);
  }
  return scopes;
}

struct ModeChoice {
  DynamicRangeMode mode;
  bool include_zero;
};
inline constexpr ModeChoice kModes[] = {
    {DynamicRangeMode::symmetric, false}, {DynamicRangeMode::asymmetric, false}, {DynamicRangeMode::asymmetric, true}};

// Ranges of codes that are not the whole type; with q_min above and q_max below 0 where the mode allows.
inline CodeRange narrow_range(ElementKind output, DynamicRangeMode mode, std::uint32_t which) {
  const bool symmetric = mode == DynamicRangeMode::symmetric;
  switch (output) {
    case ElementKind::s8: {
      constexpr CodeRange kRanges[] = {{-127, 127}, {-100, 50}, {0, 127}, {5, 17}, {-128, 1}, {-90, -20}};
      return kRanges[which % (symmetric ? 5 : 6)];
    }
    case ElementKind::u8: {
      constexpr CodeRange kRanges[] = {{0, 127}, {10, 200}, {1, 255}, {0, 1}};
      return kRanges[which % 4];
    }
    case ElementKind::s4: {
      constexpr CodeRange kRanges[] = {{-7, 7}, {-8, 1}, {1, 4}, {-6, -2}};
      return kRanges[which % (symmetric ? 3 : 4)];
    }
    case ElementKind::u4: {
      constexpr CodeRange kRanges[] = {{0, 7}, {3, 12}, {14, 15}};
      return kRanges[which % 3];
    }
    case ElementKind::s16: {
      constexpr CodeRange kRanges[] = {{-32767, 32767}, {-30000, 5}, {100, 30000}, {-128, 127}, {-32768, -9}};
      return kRanges[which % (symmetric ? 4 : 5)];
    }
    case ElementKind::u16: {
      constexpr CodeRange kRanges[] = {{0, 65534}, {0, 255}, {40000, 65535}, {0, 1}};
      return kRanges[which % 4];
    }
    case ElementKind::s2: {
      constexpr CodeRange kRanges[] = {{-1, 1}, {0, 1}, {-2, -1}};
      return kRanges[which % (symmetric ? 2 : 3)];
    }
    default: {
      constexpr CodeRange kRanges[] = {{0, 1}, {1, 3}, {2, 3}};
      return kRanges[which % 3];
    }
  }
}

// Floating-point grids are symmetric, whatever the choice.
inline DynamicRangeQuantizeDescriptor problem(const Shape& shape, const Granularity& scope, const ModeChoice& choice,
                                              ElementKind in, ElementKind out) {
  return {.shape = shape,
          .scope = scope,
          .mode = has_float_grid(out) ? DynamicRangeMode::symmetric : choice.mode,
          .include_zero = choice.include_zero,
          .input = in,
          .output = out};
}

// Nothing to narrow on a floating-point grid.
inline void narrow(DynamicRangeQuantizeDescriptor& d, std::uint32_t which) {
  if (has_float_grid(*d.output)) return;
  const CodeRange range = narrow_range(*d.output, d.mode, which);
  d.q_min = range.min;
  d.q_max = range.max;
}

// The ways to write scales that a problem has: in the type computed in, and as codes.
struct ScaleChoice {
  std::optional<ElementKind> scale = std::nullopt;
  MxRule mx_rule = MxRule::floor;
  bool finds_global_scale = false;
};
inline std::vector<ScaleChoice> scale_choices(ElementKind in, ElementKind out) {
  std::vector<ScaleChoice> all = {{}, {ElementKind::f16}, {ElementKind::bf16}};
  if (!has_float_grid(out)) return all;
  all.push_back({ElementKind::e4m3});
  all.push_back({ElementKind::e4m3, MxRule::floor, true});
  if (in == ElementKind::f64) return all;
  all.push_back({ElementKind::e8m0});
  all.push_back({ElementKind::e8m0, MxRule::round_up});
  return all;
}
inline void write_scales_as(DynamicRangeQuantizeDescriptor& d, const ScaleChoice& choice) {
  d.scale = choice.scale;
  d.mx_rule = choice.mx_rule;
  d.finds_global_scale = choice.finds_global_scale;
}
inline void write_any_scales(DynamicRangeQuantizeDescriptor& d, std::uint32_t which) {
  const auto choices = scale_choices(*d.input, *d.output);
  write_scales_as(d, choices[which % choices.size()]);
}

// What a run writes, as bytes: equality is equality of bits.
struct DynamicRangeResult {
  std::vector<std::byte> codes;
  std::vector<std::byte> scale;
  std::vector<std::int32_t> zero_point;
  float global_scale = 0;  // where it is found
};

struct DynamicRangeCase {
  DynamicRangeQuantizeDescriptor descriptor;
  std::vector<std::byte> input;  // dense
  float global_scale = 112.5f;   // where it is given

  DynamicRangeCase(const DynamicRangeQuantizeDescriptor& d, std::vector<std::byte> values)
      : descriptor(d), input(std::move(values)) {}
  DynamicRangeCase(const DynamicRangeQuantizeDescriptor& d, Data data, std::uint32_t seed)
      : descriptor(d), input(draw(data, d.input.value(), element_total(d.shape), seed)) {}

  ElementKind in() const { return *descriptor.input; }
  ElementKind out() const { return *descriptor.output; }
  std::int64_t rows() const {
    const std::int64_t elements = element_total(descriptor.shape);
    return elements == 0 ? 0 : elements / descriptor.shape.row_length();
  }
  std::size_t output_bytes() const {
    return static_cast<std::size_t>(rows() * row_bytes(out(), descriptor.shape.row_length()));
  }
  std::size_t segments() const { return static_cast<std::size_t>(segment_total(descriptor.shape, descriptor.scope)); }
  Shape parameters() const { return parameter_shape(descriptor.shape, descriptor.scope).value(); }
  ElementKind scale_type() const { return descriptor.scale.value_or(scale_kind(in())); }
  QuantizationRules rules() const {
    const CodeRange limits = code_range(out());
    return {.mode = descriptor.mode,
            .include_zero = descriptor.include_zero,
            .q_min = descriptor.q_min.value_or(limits.min),
            .q_max = descriptor.q_max.value_or(limits.max),
            .grid = has_float_grid(out()) ? std::optional(out()) : std::nullopt,
            .scale = descriptor.scale,
            .mx_rule = descriptor.mx_rule,
            .global_scale = global_scale};
  }
  std::vector<double> values() const { return values_of(input, in()); }

  DynamicRangeReference reference() const {
    return dynamic_range_reference(descriptor.shape, descriptor.scope, rules(), descriptor.finds_global_scale, in(),
                                   values());
  }
  DynamicRangeResult wanted() const { return stored(reference()); }
  DynamicRangeResult stored(const DynamicRangeReference& reference) const {
    DynamicRangeResult result;
    result.codes = stored_codes(reference.code, out(), descriptor.shape);
    const std::size_t width = width_of(scale_type());
    result.scale.resize(reference.parameters.size() * width);
    if (descriptor.finds_global_scale) result.global_scale = reference.global_scale;
    for (std::size_t i = 0; i < reference.parameters.size(); ++i) {
      if (is_float(scale_type()))
        put_float(&result.scale[i * width], scale_type(), reference.parameters[i].scale);
      else
        result.scale[i] = static_cast<std::byte>(reference.parameters[i].code);
      result.zero_point.push_back(reference.parameters[i].zero_point);
    }
    return result;
  }

  // Room for the results, filled with what no result is made of.
  DynamicRangeResult room() const {
    return {std::vector<std::byte>(output_bytes(), std::byte{0xA5}),
            std::vector<std::byte>(segments() * width_of(scale_type()), std::byte{0xA5}),
            std::vector<std::int32_t>(segments(), -77777777), 0};
  }

  AnyDynamicRangeQuantizeArgs args(DynamicRangeResult& into) const {
    AnyDynamicRangeQuantizeArgs args{.input = {input.data(), in(), descriptor.shape, 0},
                                     .output = {into.codes.data(), out(), descriptor.shape, 0},
                                     .scale_out = {into.scale.data(), scale_type(), parameters(), 0},
                                     .zero_point_out = {into.zero_point.data(), ElementKind::s32, parameters(), 0}};
    set_global_scale(args, into);
    return args;
  }
  // Given as one number or a tensor of one, or found.
  void set_global_scale(AnyDynamicRangeQuantizeArgs& args, DynamicRangeResult& into) const {
    if (scale_type() != ElementKind::e4m3) return;
    if (descriptor.finds_global_scale)
      args.global_scale_out = {&into.global_scale, ElementKind::f32, {}, 0};
    else
      args.global_scale = segments() % 2 == 0 ? AnyParameter(global_scale)
                                              : AnyParameter(AnyRef{&global_scale, ElementKind::f32, {}, 0});
  }
  // For a plan of the element-wise family with the same scales.
  AnyParameter global_scale_of(const DynamicRangeResult& result) const {
    if (scale_type() != ElementKind::e4m3) return {};
    return AnyParameter(descriptor.finds_global_scale ? result.global_scale : global_scale);
  }
  AnyParameter zero_point_of(const DynamicRangeResult& result) const {
    if (has_float_grid(out())) return AnyParameter(std::int32_t{0});
    return AnyParameter(AnyRef{result.zero_point.data(), ElementKind::s32, parameters(), 0});
  }

  // On ordinary buffers; scratch starts as NaN in every kind.
  DynamicRangeResult run(const Stream& stream, const PlanPreference& preference) const {
    DynamicRangeResult got = room();
    const auto plan = AnyDynamicRangeQuantizePlan::select(stream, descriptor, preference);
    EXPECT_TRUE(plan.ok()) << plan.status().message() << " in " << text();
    if (!plan.ok()) return got;
    std::vector<std::byte> scratch(plan->workspace_size(), std::byte{0xFF});
    const Status status = plan->run(stream, {scratch.data(), scratch.size()}, args(got));
    EXPECT_TRUE(status.ok()) << status.message() << " in " << text();
    note_kernel(plan->sku());
    return got;
  }
  DynamicRangeResult run(const Stream& stream, ArchSku isa) const { return run(stream, PlanPreference{.isa = isa}); }

  std::string text() const {
    const DynamicRangeQuantizeDescriptor& d = descriptor;
    const QuantizationRules r = rules();
    return std::string(name(in())) + ">" + std::string(name(out())) + " " + std::string(name(d.mode)) +
           (d.include_zero ? " with zero" : "") + " q " + std::to_string(r.q_min) + ".." + std::to_string(r.q_max) +
           " " + granularity_text(d.scope) + " shape " + d.shape.to_string() + " scales of " +
           std::string(name(scale_type())) + (d.mx_rule == MxRule::floor ? "" : " rounded up") +
           (d.finds_global_scale ? " found" : "");
  }

  // The first thing that differs, with its numbers; success means equal bits and scales that are finite and normal.
  testing::AssertionResult equal(const DynamicRangeResult& got, const DynamicRangeResult& want) const {
    const ElementKind kind = scale_type();
    const double least = kind == ElementKind::f64   ? std::numeric_limits<double>::min()
                         : kind == ElementKind::f16 ? 0x1p-14
                                                    : static_cast<double>(std::numeric_limits<float>::min());
    if (std::memcmp(&got.global_scale, &want.global_scale, 4) != 0)
      return testing::AssertionFailure() << "global scale is " << got.global_scale << ", wanted " << want.global_scale
                                         << " in " << text();
    const std::size_t width = width_of(kind);
    for (std::size_t i = 0; i < segments() && is_float(kind); ++i) {
      const double scale = get_float(&got.scale[i * width], kind);
      if (!std::isfinite(scale) || scale < least)
        return testing::AssertionFailure() << "scale " << scale << " of segment " << i << " in " << text();
    }
    if (const std::int64_t at = first_difference(got.scale, want.scale, kind); at != -1) {
      const auto offset = static_cast<std::size_t>(at) * width;
      const auto number = [&](const std::vector<std::byte>& scales) {
        return is_float(kind) ? get_float(&scales[offset], kind) : std::to_integer<int>(scales[offset]);
      };
      return testing::AssertionFailure() << "scale of segment " << at << " is " << std::hexfloat << number(got.scale)
                                         << ", wanted " << number(want.scale) << " in " << text();
    }
    for (std::size_t i = 0; i < want.zero_point.size(); ++i)
      if (got.zero_point[i] != want.zero_point[i])
        return testing::AssertionFailure() << "zero point of segment " << i << " is " << got.zero_point[i]
                                           << ", wanted " << want.zero_point[i] << " in " << text();
    if (const std::int64_t at = first_difference(got.codes, want.codes, out()); at != -1) {
      const auto offset = static_cast<std::size_t>(at) * unit_bytes(out());
      return testing::AssertionFailure() << "byte " << offset << " of the codes is "
                                         << std::to_integer<int>(got.codes[offset]) << ", wanted "
                                         << std::to_integer<int>(want.codes[offset]) << " in " << text();
    }
    return testing::AssertionSuccess();
  }
};

// Why no plan of this instruction set can be had here; empty if one can.
inline std::string why_not(ArchSku isa) {
  const auto plan = AnyDynamicRangeQuantizePlan::select(
      Stream::cpu(1), {.shape = {1}, .scope = PerTensor{}, .input = ElementKind::f32, .output = ElementKind::s8},
      {.isa = isa});
  return std::string(plan.status().message());
}

}  // namespace kvant::tests
