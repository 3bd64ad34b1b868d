#include "recipes/weight_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "core/refuse.h"
#include "cpu/float_environment.h"
#include "kvant/elementwise.h"
#include "kvant/range.h"

namespace kvant::recipes {
namespace {

constexpr double kGreatestCode = 127;

// The scale of a row in its stored form, widened again. Rounding to nearest even; no denormals.
float stored_scale(double magnitude, ElementKind scale) {
  if (magnitude == 0) return 1;
  const auto quotient = static_cast<float>(magnitude / kGreatestCode);
  switch (scale) {
    case ElementKind::f16: return std::clamp(to_float(to_half(quotient)), 0x1p-14f, 65504.0f);
    case ElementKind::bf16:
      return std::clamp(to_float(to_bfloat16(quotient)), std::numeric_limits<float>::min(), 0x1.FEp127f);
    default: return std::clamp(quotient, std::numeric_limits<float>::min(), std::numeric_limits<float>::max());
  }
}

void store(float value, ElementKind kind, std::byte* to) {
  switch (kind) {
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

}  // namespace

std::optional<ElementKind> element_of(io::DType dtype) {
  switch (dtype) {
    case io::DType::f32: return ElementKind::f32;
    case io::DType::f64: return ElementKind::f64;
    case io::DType::f16: return ElementKind::f16;
    case io::DType::bf16: return ElementKind::bf16;
    default: return std::nullopt;
  }
}

WeightRows::WeightRows(const Stream& stream, std::int64_t max_rows, std::int64_t columns, ElementKind weight,
                       ElementKind scale)
    : stream_(stream),
      max_rows_(max_rows),
      columns_(columns),
      weight_(weight),
      scale_(scale),
      magnitudes_(static_cast<std::size_t>(max_rows * row_bytes(scale_kind(weight), 1))) {}

Result<WeightRows> WeightRows::create(const Stream& stream, std::int64_t max_rows, std::int64_t columns,
                                      ElementKind weight, ElementKind scale) {
  if (!is_float(weight) || !is_float(scale) || scale == ElementKind::f64)
    return core::unsupported("rows of {} with scales of {}", name(weight), name(scale));
  try {
    return WeightRows(stream, max_rows, columns, weight, scale);
  } catch (const std::bad_alloc&) {
    return core::refuse(StatusCode::Internal, "no memory for the scales of {} rows", max_rows);
  }
}

std::int64_t WeightRows::rows_in(std::size_t bytes) const {
  const std::int64_t row = row_bytes(weight_, columns_);
  return row == 0 ? 0 : static_cast<std::int64_t>(bytes) / row;
}

Status WeightRows::smooth(std::span<std::byte> weights, std::span<const float> s) {
  const Shape shape = {rows_in(weights.size()), columns_};
  const auto plan = ElementwisePlan::select(stream_, {.op = QuantizeKind::dequantize_backward,
                                                      .shape = shape,
                                                      .granularity = PerChannel{1},
                                                      .input = ElementKind::s8,
                                                      .output = weight_});
  if (!plan.ok()) return plan.status();
  AnyRef factors{s.data(), ElementKind::f32, {columns_}, 0};
  if (weight_ == ElementKind::f64) {
    s_.assign(s.begin(), s.end());
    factors = {s_.data(), ElementKind::f64, {columns_}, 0};
  }
  ElementwiseArgs args;
  args.grad_output = {weights.data(), weight_, shape, 0};
  args.output = {weights.data(), weight_, shape, 0};
  args.scale = AnyParameter(factors);
  return plan->run(stream_, {}, args);
}

void WeightRows::store_scales(std::int64_t rows, std::span<std::byte> scales) {
  const cpu::DefaultFloatEnvironment environment;
  const auto width = static_cast<std::size_t>(row_bytes(scale_, 1));
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    if (weight_ == ElementKind::f64) {
      double value;
      std::memcpy(&value, magnitudes_.data() + 8 * i, sizeof value);
      const float scale = stored_scale(value, scale_);
      value = scale;
      std::memcpy(magnitudes_.data() + 8 * i, &value, sizeof value);
      store(scale, scale_, scales.data() + width * i);
    } else {
      float value;
      std::memcpy(&value, magnitudes_.data() + 4 * i, sizeof value);
      value = stored_scale(static_cast<double>(value), scale_);
      std::memcpy(magnitudes_.data() + 4 * i, &value, sizeof value);
      store(value, scale_, scales.data() + width * i);
    }
  }
}

Status WeightRows::quantize(std::span<const std::byte> weights, std::span<std::int8_t> codes,
                            std::span<std::byte> scales) {
  const std::int64_t rows = rows_in(weights.size());
  if (rows > max_rows_) return core::invalid_problem("{} rows in a tile for up to {}", rows, max_rows_);
  const Shape shape = {rows, columns_};
  const AnyRef input{weights.data(), weight_, shape, 0};
  const ElementKind compute = scale_kind(weight_);
  const auto range = AnyRangePlan::select(stream_, {.shape = shape, .scope = PerToken{}, .input = weight_});
  if (!range.ok()) return range.status();
  workspace_.resize(range->workspace_size());
  if (Status s = range->run(stream_, {workspace_.data(), workspace_.size()},
                            {.input = input, .max_abs_out = {magnitudes_.data(), compute, {rows}, 0}});
      !s.ok())
    return s;
  store_scales(rows, scales);
  const auto quantize = ElementwisePlan::select(stream_, {.op = QuantizeKind::quantize,
                                                          .shape = shape,
                                                          .granularity = PerToken{},
                                                          .input = weight_,
                                                          .output = ElementKind::s8});
  if (!quantize.ok()) return quantize.status();
  ElementwiseArgs args;
  args.input = input;
  args.output = {codes.data(), ElementKind::s8, shape, 0};
  args.scale = AnyParameter(AnyRef{magnitudes_.data(), compute, {rows}, 0});
  return quantize->run(stream_, {}, args);
}

}  // namespace kvant::recipes
