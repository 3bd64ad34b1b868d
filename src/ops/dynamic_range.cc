// The front desk of dynamic-range quantization.
#include "kvant/dynamic_range.h"

#include <string>
#include <utility>

#include "base/refuse.h"
#include "core/dynamic_range_kernel.h"
#include "core/element_names.h"
#include "ops/code_range.h"
#include "ops/overlap.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/segmented_shape.h"
#include "ops/views.h"

namespace kvant {

struct AnyDynamicRangeQuantizePlan::Impl {
  DynamicRangeQuantizeDescriptor descriptor;
  ops::SegmentedShape segmented;
  ElementKind output;
  ElementKind scale;
  const detail::DynamicRangeKernel* kernel;
  std::unique_ptr<const detail::Prepared> prepared;
};

namespace {

using base::invalid_problem;
using base::unsupported;

std::string label(const DynamicRangeQuantizeDescriptor& d) {
  return base::text("dynamic_range_quantize_per_{}", name(d.scope.kind()));
}

// How scales are written, checked against what they are for.
Result<semantics::ScaleRule> checked_scale_rule(const base::Who& who, const DynamicRangeQuantizeDescriptor& d,
                                                ElementKind scale) {
  using semantics::ScaleRule;
  const ElementKind compute = scale_kind(*d.input);
  if (Status s = ops::check_scale_kind(who, "scale_out", scale, compute); !s.ok()) return s;
  if (d.mx_rule != MxRule::floor && scale != ElementKind::e8m0)
    return invalid_problem("{}: mx_rule {} is for scales of e8m0, these are {}", who(), name(d.mx_rule), name(scale));
  if (d.finds_global_scale && scale != ElementKind::e4m3)
    return invalid_problem("{}: finds_global_scale is for scales of e4m3, these are {}", who(), name(scale));
  if (scale == compute) return ScaleRule::plain;
  if (scale == ElementKind::f16) return ScaleRule::f16;
  if (scale == ElementKind::bf16) return ScaleRule::bf16;
  if (!has_float_grid(*d.output))
    return invalid_problem("{}: scales of {} are for codes of {}, these are {}", who(), name(scale),
                           core::names_of(GridKind::floating), name(*d.output));
  if (scale == ElementKind::e4m3) return ScaleRule::nvfp4;
  if (compute == ElementKind::f64)
    return unsupported("{}: scales of e8m0 end at 2^127, and f64 reaches 2^1023; use f64, f16, bf16 or e4m3", who());
  return d.mx_rule == MxRule::floor ? ScaleRule::mx_floor : ScaleRule::mx_round_up;
}

}  // namespace

AnyDynamicRangeQuantizePlan::AnyDynamicRangeQuantizePlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyDynamicRangeQuantizePlan> AnyDynamicRangeQuantizePlan::select(const Stream& stream,
                                                                        const DynamicRangeQuantizeDescriptor& d,
                                                                        const PlanPreference& preference) {
  const auto who = [&] { return label(d); };
  const auto target = ops::target_of(who, stream, preference);
  if (!target.ok()) return target.status();
  if (!d.input) return invalid_problem("{}: the descriptor does not set the input element", who());
  if (!d.output) return invalid_problem("{}: the descriptor does not set the output element", who());
  if (!is_float(*d.input))
    return unsupported("{}: input element {} must be one of {}", who(), name(*d.input),
                       core::names_of(ElementClass::real));
  if (!is_code(*d.output))
    return unsupported("{}: output element {} must be one of {}", who(), name(*d.output),
                       core::names_of(ElementClass::code));
  const auto parameters = ops::checked_parameter_shape(who, d.shape, d.scope);
  if (!parameters.ok()) return parameters.status();
  const auto range = ops::checked_grid_range(who, d.q_min, d.q_max, *d.output);
  if (!range.ok()) return range.status();
  const bool symmetric = d.mode == DynamicRangeMode::symmetric;
  if (!symmetric && has_float_grid(*d.output))
    return invalid_problem("{}: asymmetric mode needs a zero point, and {} has none; use symmetric mode", who(),
                           name(*d.output));
  if (symmetric && range->max <= 0)
    return invalid_problem("{}: symmetric mode divides by q_max, which is {} and must be positive", who(), range->max);
  if (!symmetric && range->min == range->max)
    return invalid_problem("{}: asymmetric mode needs q_min below q_max, both are {}", who(), range->min);

  const ElementKind scale = d.scale.value_or(scale_kind(*d.input));
  const auto scale_rule = checked_scale_rule(who, d, scale);
  if (!scale_rule.ok()) return scale_rule.status();

  const auto selected = ops::select_kernel<detail::DynamicRangeKernel>(QuantizeKind::dynamic_range_quantize, *d.input,
                                                                       *d.output, *target);
  const ops::SegmentedShape segmented(d.shape, d.scope, *parameters, *d.input);
  const detail::DynamicRangeProblem problem{
      .segments = segmented.problem(*d.output),
      .rules = {.symmetric = symmetric,
                .include_zero = d.include_zero,
                .q_min = range->min,
                .q_max = range->max,
                .scale_rule = *scale_rule,
                .max_exponent = info(*d.output).format.max_exponent()},
      .grid = has_float_grid(*d.output) ? semantics::float_grid(*d.output, true) : semantics::FloatGrid(),
      .numerics = preference.numerics,
      .finds_global = d.finds_global_scale};
  auto prepared =
      selected.kernel == nullptr ? nullptr : selected.kernel->prepare(*selected.kernel, *selected.set, problem);
  if (prepared == nullptr) return unsupported("{}: no kernel for {} to {}", who(), name(*d.input), name(*d.output));
  return AnyDynamicRangeQuantizePlan(
      std::make_shared<const Impl>(Impl{d, segmented, *d.output, scale, selected.kernel, std::move(prepared)}));
}

std::size_t AnyDynamicRangeQuantizePlan::workspace_size() const { return impl_->prepared->workspace_size(); }

KernelSku AnyDynamicRangeQuantizePlan::sku() const { return impl_->kernel->sku; }

const DynamicRangeQuantizeDescriptor& AnyDynamicRangeQuantizePlan::descriptor() const { return impl_->descriptor; }

Status AnyDynamicRangeQuantizePlan::can_implement(const detail::DynamicRangeQuantizeOperands& o) const {
  const DynamicRangeQuantizeDescriptor& d = impl_->descriptor;
  const auto who = [&] { return label(d); };
  if (Status s = ops::check_view(who, "input", *o.input, impl_->segmented.input, d.shape, impl_->segmented.rows);
      !s.ok())
    return s;
  if (Status s = ops::check_view(who, "output", *o.output, impl_->output, d.shape, impl_->segmented.rows); !s.ok())
    return s;
  const std::int64_t count = impl_->segmented.parameters;
  const ops::ParameterShape wanted{impl_->segmented.parameter_shape, count, d.scope.kind()};
  const ElementKind scale_type = impl_->scale;
  const AnyMut& scale = *o.scale_out;
  const AnyMut& zero_point = *o.zero_point_out;
  if (Status s = ops::check_parameters(who, "scale_out", scale, scale_type, wanted, true); !s.ok()) return s;
  const bool has_zero_point = zero_point.data != nullptr || d.mode == DynamicRangeMode::asymmetric;
  if (has_zero_point)
    if (Status s = ops::check_parameters(who, "zero_point_out", zero_point, ElementKind::s32, wanted, true); !s.ok())
      return s;

  const AnyMut& found = *o.global_scale_out;
  if (d.finds_global_scale) {
    if (ops::is_given(*o.global_scale))
      return invalid_problem("{}: global_scale is found, so it cannot be given", who());
    const ops::ParameterShape one{Shape(), 1, GranularityKind::tensor};
    if (Status s = ops::check_parameters(who, "global_scale_out", found, ElementKind::f32, one, true); !s.ok())
      return s;
  } else {
    if (found.data != nullptr)
      return invalid_problem("{}: global_scale_out is written with finds_global_scale only", who());
    const bool on_cpu = impl_->kernel->sku.backend == BackendKind::cpu;
    if (Status s = ops::check_global_scale(who, scale_type, *o.global_scale, on_cpu); !s.ok()) return s;
  }

  const base::Who label_of(who);
  const ops::AlignmentCheck check_alignment(label_of, impl_->kernel->sku.backend);
  if (Status s = check_alignment("input", *o.input); !s.ok()) return s;
  if (Status s = check_alignment("output", *o.output); !s.ok()) return s;
  if (Status s = check_alignment("scale_out", scale); !s.ok()) return s;
  if (Status s = check_alignment("zero_point_out", zero_point); !s.ok()) return s;
  if (Status s = check_alignment("global_scale_out", found); !s.ok()) return s;
  if (Status s = check_alignment("global_scale", *o.global_scale); !s.ok()) return s;

  const ops::Extent read = ops::extent(*o.input, impl_->segmented.rows);
  const ops::Extent codes = ops::extent(*o.output, impl_->segmented.rows);
  const std::int64_t scale_bytes = row_bytes(scale_type, count);
  const std::int64_t zero_point_bytes = has_zero_point ? row_bytes(ElementKind::s32, count) : 0;
  const ops::Extent scales(scale.data, 1, scale_bytes, scale_bytes);
  const ops::Extent zero_points(zero_point.data, 1, zero_point_bytes, zero_point_bytes);
  const auto refuse = [&](const char* a, const char* b) { return invalid_problem("{}: {} overlaps {}", who(), a, b); };
  if (ops::overlap(codes, read)) return refuse("output", "input");
  if (ops::overlap(scales, read)) return refuse("scale_out", "input");
  if (ops::overlap(scales, codes)) return refuse("scale_out", "output");
  if (ops::overlap(zero_points, read)) return refuse("zero_point_out", "input");
  if (ops::overlap(zero_points, codes)) return refuse("zero_point_out", "output");
  if (ops::overlap(zero_points, scales)) return refuse("zero_point_out", "scale_out");
  const auto check_global = [&](const char* what, const void* data) -> Status {
    const ops::Extent global(data, 1, 4, 4);
    if (ops::overlap(global, read) && data == found.data) return refuse(what, "input");
    if (ops::overlap(global, codes)) return refuse(what, "output");
    if (ops::overlap(global, scales)) return refuse(what, "scale_out");
    if (ops::overlap(global, zero_points)) return refuse(what, "zero_point_out");
    return {};
  };
  if (found.data != nullptr)
    if (Status s = check_global("global_scale_out", found.data); !s.ok()) return s;
  if (ops::is_given(*o.global_scale))
    if (Status s = check_global("global_scale", o.global_scale->data()); !s.ok()) return s;
  return {};
}

Status AnyDynamicRangeQuantizePlan::run(const Stream& stream, Workspace workspace,
                                        const detail::DynamicRangeQuantizeOperands& o) const {
  const auto who = [&] { return label(impl_->descriptor); };
  if (Status s = ops::check_stream(who, stream, impl_->kernel->sku.backend); !s.ok()) return s;
  if (Status status = can_implement(o); !status.ok()) return status;
  if (Status status = ops::check_workspace(who, workspace, workspace_size()); !status.ok()) return status;
  if (impl_->segmented.parameters == 0 && !impl_->descriptor.finds_global_scale) return {};
  const detail::Scales global = ops::scales_of(AnyParameter(AnyRef()), o.global_scale);
  const detail::DynamicRangeJob job{.x = ops::rows_of(*o.input),
                                    .out = ops::rows_of(*o.output),
                                    .gaps = ops::has_gaps(*o.input) || ops::has_gaps(*o.output),
                                    .scale = static_cast<std::byte*>(o.scale_out->data),
                                    .scale_kind = impl_->scale,
                                    .global_data = global.global_data,
                                    .global = global.global,
                                    .global_out = static_cast<std::byte*>(o.global_scale_out->data),
                                    .zero_point = static_cast<std::byte*>(o.zero_point_out->data)};
  return impl_->kernel->launch(*impl_->kernel, stream, *impl_->prepared, workspace.data, job, who);
}

Result<AnyDynamicRangeQuantizePlan> detail::select_dynamic_range(const Stream& stream, DynamicRangeQuantizeDescriptor d,
                                                                 const PlanPreference& preference, ElementKind input,
                                                                 ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (d.input.value_or(input) != input || d.output.value_or(output) != output)
    return unsupported("{}: the descriptor says {} to {}, the plan's types are {} to {}", label(d),
                       name(d.input.value_or(input)), name(d.output.value_or(output)), name(input), name(output));
  d.input = input;
  d.output = output;
  return AnyDynamicRangeQuantizePlan::select(stream, d, preference);
}

}  // namespace kvant
