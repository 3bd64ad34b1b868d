#include "model/activation_codes.h"

#include <span>

#include "kvant/dynamic_range.h"
#include "kvant/elementwise.h"

namespace kvant::model {
namespace {

// What shares a scale: the scales of one tensor are those of one row here, so that sequences do not depend on each
// other.
Granularity granularity_of(const format::ActivationScheme& scheme) {
  if (scheme.group_size > 0) return PerGroup{-1, scheme.group_size};
  return PerToken{};
}

Result<AnyDynamicRangeQuantizePlan> dynamic_plan(const Stream& stream, const format::ActivationScheme& scheme,
                                                 std::int64_t rows, std::int64_t in) {
  return AnyDynamicRangeQuantizePlan::select(
      stream, {.shape = {rows, in},
               .scope = granularity_of(scheme),
               .mode = scheme.asymmetric ? DynamicRangeMode::asymmetric : DynamicRangeMode::symmetric,
               .include_zero = scheme.asymmetric,
               .scale = scheme.scale_code.value_or(ElementKind::f32),
               .mx_rule = scheme.scale_code == ElementKind::e8m0 ? MxRule::round_up : MxRule::floor,
               .input = ElementKind::f32,
               .output = scheme.code});
}

std::int64_t scale_count(const format::ActivationScheme& scheme, std::int64_t rows, std::int64_t in) {
  return rows * (scheme.group_size > 0 ? (in + scheme.group_size - 1) / scheme.group_size : 1);
}

// Parts of a workspace, one after the other.
class Parts {
 public:
  explicit Parts(Workspace workspace) : at_(static_cast<std::byte*>(workspace.data)) {}
  std::byte* take(std::size_t bytes) {
    std::byte* const part = at_;
    at_ += rounded(bytes);
    return part;
  }
  static std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

 private:
  std::byte* at_;
};

}  // namespace

Status ActivationCodes::check(const Stream& stream) const {
  return is_static() ? Status() : dynamic_plan(stream, scheme_, 1, in_).status();
}

Result<std::size_t> ActivationCodes::workspace_size(const Stream& stream, std::int64_t rows) const {
  if (is_static()) return std::size_t{0};
  const auto plan = dynamic_plan(stream, scheme_, rows, in_);
  if (!plan.ok()) return plan.status();
  const auto scales = static_cast<std::size_t>(scale_count(scheme_, rows, in_));
  return Parts::rounded(static_cast<std::size_t>(rows * row_bytes(scheme_.code, in_))) +
         2 * Parts::rounded(4 * scales) + Parts::rounded(plan->workspace_size());
}

Status ActivationCodes::run(const Stream& stream, Workspace workspace, const float* x, std::int64_t stride,
                            std::int64_t rows, float* to) const {
  const Shape shape = {rows, in_};
  if (is_static()) {
    ElementwiseDescriptor descriptor{
        .op = QuantizeKind::fake_quantize, .shape = shape, .input = ElementKind::f32, .output = ElementKind::f32};
    if (has_float_grid(scheme_.code)) {
      descriptor.grid = scheme_.code;
    } else {
      descriptor.q_min = code_range(scheme_.code).min;
      descriptor.q_max = code_range(scheme_.code).max;
    }
    const auto plan = ElementwisePlan::select(stream, descriptor);
    if (!plan.ok()) return plan.status();
    ElementwiseArgs args;
    args.input = {x, ElementKind::f32, shape, stride};
    args.output = {to, ElementKind::f32, shape, 0};
    args.scale = AnyParameter(AnyRef{&scale_, ElementKind::f32, {}, 0});
    args.zero_point = AnyParameter(zero_point_);
    return plan->run(stream, {}, args);
  }
  const auto plan = dynamic_plan(stream, scheme_, rows, in_);
  if (!plan.ok()) return plan.status();
  const Granularity granularity = granularity_of(scheme_);
  const auto parameters = parameter_shape(shape, granularity);
  if (!parameters.ok()) return parameters.status();
  const auto scales = static_cast<std::size_t>(scale_count(scheme_, rows, in_));
  Parts parts(workspace);
  std::byte* const codes = parts.take(static_cast<std::size_t>(rows * row_bytes(scheme_.code, in_)));
  std::byte* const scale = parts.take(4 * scales);
  std::byte* const zero_points = parts.take(4 * scales);
  const ElementKind scale_kind = scheme_.scale_code.value_or(ElementKind::f32);
  const bool has_global = scheme_.dynamic == format::Dynamic::local;
  AnyDynamicRangeQuantizeArgs make;
  make.input = {x, ElementKind::f32, shape, stride};
  make.output = {codes, scheme_.code, shape, 0};
  make.scale_out = {scale, scale_kind, *parameters, 0};
  if (scheme_.asymmetric) make.zero_point_out = {zero_points, ElementKind::s32, *parameters, 0};
  const AnyParameter global(AnyRef{&scale_, ElementKind::f32, {}, 0});
  if (has_global) make.global_scale = global;
  if (Status s = plan->run(stream, {parts.take(plan->workspace_size()), plan->workspace_size()}, make); !s.ok())
    return s;
  const auto back = ElementwisePlan::select(stream, {.op = QuantizeKind::dequantize,
                                                     .shape = shape,
                                                     .granularity = granularity,
                                                     .input = scheme_.code,
                                                     .output = ElementKind::f32});
  if (!back.ok()) return back.status();
  ElementwiseArgs args;
  args.input = {codes, scheme_.code, shape, 0};
  args.output = {to, ElementKind::f32, shape, 0};
  args.scale = AnyParameter(AnyRef{scale, scale_kind, *parameters, 0});
  if (scheme_.asymmetric) args.zero_point = AnyParameter(AnyRef{zero_points, ElementKind::s32, *parameters, 0});
  if (has_global) args.global_scale = global;
  return back->run(stream, {}, args);
}

}  // namespace kvant::model
