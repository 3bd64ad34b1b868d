// The front desk of linear layers.
#include "kvant/linear.h"

#include <string>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/element_names.h"
#include "core/linear_kernel.h"
#include "ops/linear_layer.h"
#include "ops/overlap.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"
#include "semantics/quantize.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::LinearOperands;
using ops::is_given;
using ops::row_count;
using ops::set_kind;

constexpr std::int32_t kMaxZeroPoint = semantics::kMaxZeroPoint;

}  // namespace

// What select() found out.
struct AnyLinearPlan::Impl : detail::LinearProblem {
  QuantizeKind op = QuantizeKind::w8a8_linear;
  const detail::LinearKernel* kernel = nullptr;
  std::unique_ptr<const detail::Prepared> prepared;
  // The descriptor's, where it has them.
  detail::Scales act_scale;
  std::int32_t act_zero_point = 0;

  Status fill(QuantizeKind kind_of_plan, std::int64_t rows, std::int64_t k, std::int64_t n, ElementKind input,
              ElementKind code, const std::optional<ElementKind>& w, const std::optional<ElementKind>& out);
  Status set_static_scale(double scale, std::int32_t zero_point);
  Status find_kernel(const ops::Target& target);

  Status check_shapes(const LinearOperands& o) const;
  Status check_weight(const LinearOperands& o) const;
  Status check_parameters(const LinearOperands& o, std::int64_t rows) const;
  Status check_output_parameters(const LinearOperands& o) const;
  Status check_alignments(const LinearOperands& o) const;
  template <class Function>
  Status for_each_read(const LinearOperands& o, std::int64_t rows, const Function& f) const;
};

namespace {

bool has_bias(const LinearOperands& o) { return o.bias != nullptr && o.bias->data != nullptr; }

Status check_kinds(QuantizeKind op, ElementKind codes, const std::optional<ElementKind>& weight,
                   const std::optional<ElementKind>& output) {
  const char* output_name = op == QuantizeKind::quantized_linear ? "input" : "output";
  const auto is_byte = [](ElementKind kind) { return kind == ElementKind::s8 || kind == ElementKind::u8; };
  if (!weight) return invalid_problem("{}: the descriptor does not set the weight element", name(op));
  if (!output) return invalid_problem("{}: the descriptor does not set the {} element", name(op), output_name);
  if (!is_byte(codes)) return unsupported("{}: activation element {} must be s8 or u8", name(op), name(codes));
  if (!is_byte(*weight)) return unsupported("{}: weight element {} must be s8 or u8", name(op), name(*weight));
  if (op == QuantizeKind::w8a8_linear && is_byte(*output)) return {};
  if (!is_float(*output))
    return unsupported("{}: {} element {} must be one of {}{}", name(op), output_name, name(*output),
                       core::names_of(ElementClass::real), op == QuantizeKind::w8a8_linear ? ", s8, u8" : "");
  return {};
}

// ---- Checks of the arguments ----

// A parameter that is one number or `count` of them, in one of the shapes that `fits` accepts.
template <class Fits>
Status check_parameter(QuantizeKind op, const char* what, const AnyParameter& p, ElementKind kind, std::int64_t count,
                       const Fits& fits) {
  if (p.kind() != kind)
    return unsupported("{}: {} has element {}, must be {}", name(op), what, name(p.kind()), name(kind));
  if (p.is_scalar()) return {};
  if (!fits(p.shape()))
    return invalid_problem("{}: {} has shape {}, must be one number or {} of them", name(op), what,
                           p.shape().to_string(), count);
  if (p.row_stride() != 0 && p.row_stride() != p.shape().row_length())
    return invalid_problem("{}: {} has row stride {}, must be dense", name(op), what, p.row_stride());
  if (p.data() == nullptr && count != 0)
    return invalid_problem("{}: {} is null, must point to {} number{}", name(op), what, count, count == 1 ? "" : "s");
  return {};
}

template <class Fits>
Status check_scale(QuantizeKind op, const char* what, const AnyParameter& p, ElementKind kind, std::int64_t count,
                   const Fits& fits) {
  if (Status s = check_parameter(op, what, p, kind, count, fits); !s.ok()) return s;
  if (!p.is_scalar()) return {};
  const ops::OneScale scale(p.kind(), p.data());
  if (scale.is_finite_and_positive()) return {};
  return invalid_problem("{}: {} {} must be finite and positive", name(op), what, scale.to_string());
}

template <class Fits>
Status check_zero_point(QuantizeKind op, const char* what, const AnyParameter& p, CodeRange range, std::int64_t count,
                        const Fits& fits) {
  if (Status s = check_parameter(op, what, p, ElementKind::s32, count, fits); !s.ok()) return s;
  if (!p.is_scalar()) return {};
  const auto zero_point = ops::read_unaligned<std::int32_t>(p.data());
  if (zero_point >= range.min && zero_point <= range.max) return {};
  return invalid_problem("{}: {} {} must lie in [{}, {}]", name(op), what, zero_point, range.min, range.max);
}

// [M], the leading sizes of the activation, or those with a last size of 1.
bool is_row_shape(const Shape& given, const Shape& activation, std::int64_t rows) {
  if (given.rank() == 1 && given[0] == rows) return true;
  const int leading = activation.rank() - 1;
  if (given.rank() != leading && !(given.rank() == leading + 1 && given[leading] == 1)) return false;
  for (int i = 0; i < leading; ++i)
    if (given[i] != activation[i]) return false;
  return true;
}

ops::Extent parameter_extent(const AnyParameter& p, std::int64_t count) {
  const std::int64_t bytes = p.is_scalar() ? 0 : row_bytes(p.kind(), count);
  return {p.data(), 1, bytes, bytes};
}

}  // namespace

// ---- Selecting ----

Status AnyLinearPlan::Impl::fill(QuantizeKind kind_of_plan, std::int64_t rows, std::int64_t k, std::int64_t n,
                                 ElementKind input, ElementKind code, const std::optional<ElementKind>& w,
                                 const std::optional<ElementKind>& out) {
  op = kind_of_plan;
  if (Status s = check_kinds(op, code, w, out); !s.ok()) return s;
  if (Status s = ops::check_linear_sizes(name(op).data(), rows, k, n); !s.ok()) return s;
  max_rows = rows;
  in_features = k;
  out_features = n;
  activation = input;
  codes = code;
  weight = *w;
  output = *out;
  return {};
}

Status AnyLinearPlan::Impl::find_kernel(const ops::Target& target) {
  const auto selected =
      ops::select_kernel<detail::LinearKernel>(QuantizeKind::w8a8_linear, ElementKind::s8, output, target);
  kernel = selected.kernel;
  if (kernel != nullptr) prepared = kernel->prepare(*kernel, *selected.set, *this);
  if (prepared == nullptr) return unsupported("{}: no kernel for {}", name(op), name(output));
  return {};
}

Status AnyLinearPlan::Impl::set_static_scale(double scale, std::int32_t zero_point) {
  const base::DefaultFloatEnvironment environment;
  is_static = true;
  act_scale = {.f32 = static_cast<float>(scale), .f64 = scale};
  act_zero_point = zero_point;
  const bool wide = compute() == ElementKind::f64;
  const ops::OneScale number(compute(), wide ? static_cast<const void*>(&act_scale.f64) : &act_scale.f32);
  if (!number.is_finite_and_positive())
    return invalid_problem("{}: act_scale {} must be finite and positive{}", name(op), scale,
                           compute() == ElementKind::f32 ? " in f32" : "");
  if (quantizes && numerics == Numerics::reciprocal && !number.has_finite_reciprocal())
    return invalid_problem("{}: act_scale {} has no finite reciprocal; use Numerics::exact", name(op), scale);
  if (zero_point < -kMaxZeroPoint || zero_point > kMaxZeroPoint)
    return invalid_problem("{}: act_zero_point {} must lie in [{}, {}]", name(op), zero_point, -kMaxZeroPoint,
                           kMaxZeroPoint);
  return {};
}

AnyLinearPlan::AnyLinearPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyLinearPlan> AnyLinearPlan::select(const Stream& stream, const W8A8LinearDescriptor& d,
                                            const PlanPreference& preference) {
  const auto target = ops::target_of("w8a8_linear", stream, preference);
  if (!target.ok()) return target.status();
  auto plan = std::make_shared<Impl>();
  if (Status s = plan->fill(QuantizeKind::w8a8_linear, d.max_rows, d.in_features, d.out_features, d.activation,
                            d.activation, d.weight, d.output);
      !s.ok())
    return s;
  if (Status s = plan->find_kernel(*target); !s.ok()) return s;
  return AnyLinearPlan(std::move(plan));
}

Result<AnyLinearPlan> AnyLinearPlan::select(const Stream& stream, const SmoothQuantLinearDescriptor& d,
                                            const PlanPreference& preference) {
  const auto target = ops::target_of("smoothquant_linear", stream, preference);
  if (!target.ok()) return target.status();
  auto plan = std::make_shared<Impl>();
  if (Status s = plan->fill(QuantizeKind::smoothquant_linear, d.max_rows, d.in_features, d.out_features, d.activation,
                            d.activation, d.weight, d.output);
      !s.ok())
    return s;
  if (Status s = plan->set_static_scale(d.act_scale, d.act_zero_point); !s.ok()) return s;
  if (Status s = plan->find_kernel(*target); !s.ok()) return s;
  return AnyLinearPlan(std::move(plan));
}

Result<AnyLinearPlan> AnyLinearPlan::select(const Stream& stream, const QuantizedLinearDescriptor& d,
                                            const PlanPreference& preference) {
  const auto target = ops::target_of("quantized_linear", stream, preference);
  if (!target.ok()) return target.status();
  auto plan = std::make_shared<Impl>();
  if (Status s = plan->fill(QuantizeKind::quantized_linear, d.max_rows, d.in_features, d.out_features,
                            d.input.value_or(ElementKind::f32), ElementKind::s8, d.weight, d.input);
      !s.ok())
    return s;
  plan->quantizes = true;
  plan->smooth = d.smooth;
  plan->numerics = preference.numerics;
  if (!d.act_scale && d.act_zero_point != 0)
    return invalid_problem("quantized_linear: act_zero_point {} belongs to a static act_scale, which is not set",
                           d.act_zero_point);
  if (d.act_scale)
    if (Status s = plan->set_static_scale(*d.act_scale, d.act_zero_point); !s.ok()) return s;
  const CodeRange range = code_range(plan->codes);
  plan->rules = {.symmetric = d.mode == DynamicRangeMode::symmetric,
                 .include_zero = d.include_zero,
                 .q_min = range.min,
                 .q_max = range.max};
  if (Status s = plan->find_kernel(*target); !s.ok()) return s;
  return AnyLinearPlan(std::move(plan));
}

Result<AnyLinearPlan> detail::select_linear(const Stream& stream, W8A8LinearDescriptor d,
                                            const PlanPreference& preference, ElementKind weight, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = set_kind("w8a8_linear", "weight", d.weight, weight); !s.ok()) return s;
  if (Status s = set_kind("w8a8_linear", "output", d.output, output); !s.ok()) return s;
  return AnyLinearPlan::select(stream, d, preference);
}

Result<AnyLinearPlan> detail::select_linear(const Stream& stream, SmoothQuantLinearDescriptor d,
                                            const PlanPreference& preference, ElementKind weight, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = set_kind("smoothquant_linear", "weight", d.weight, weight); !s.ok()) return s;
  if (Status s = set_kind("smoothquant_linear", "output", d.output, output); !s.ok()) return s;
  return AnyLinearPlan::select(stream, d, preference);
}

Result<AnyLinearPlan> detail::select_linear(const Stream& stream, QuantizedLinearDescriptor d,
                                            const PlanPreference& preference, ElementKind weight, ElementKind input) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = set_kind("quantized_linear", "weight", d.weight, weight); !s.ok()) return s;
  if (Status s = set_kind("quantized_linear", "input", d.input, input); !s.ok()) return s;
  return AnyLinearPlan::select(stream, d, preference);
}

std::size_t AnyLinearPlan::workspace_size() const { return impl_->prepared->workspace_size(); }

KernelSku AnyLinearPlan::sku() const {
  KernelSku sku = impl_->kernel->sku;
  sku.op = impl_->op;
  sku.element = impl_->activation;
  return sku;
}

// ---- Checking ----

Status AnyLinearPlan::Impl::check_shapes(const LinearOperands& o) const {
  const auto who = [&] { return name(op); };
  const AnyRef& x = *o.activation;
  const AnyMut& y = *o.output;
  const char* x_name = quantizes ? "input" : "activation";
  if (x.kind != activation)
    return unsupported("{}: {} has element {}, the plan was selected for {}", who(), x_name, name(x.kind),
                       name(activation));
  if (!x.shape.element_count() || x.shape.rank() == 0 || x.shape.row_length() != in_features)
    return invalid_problem("{}: {} has shape {}, must have {} in_features as its last size", who(), x_name,
                           x.shape.to_string(), in_features);
  const std::int64_t rows = row_count(x.shape);
  if (rows > max_rows)
    return invalid_problem("{}: {} has shape {} with {} rows, the plan was selected for max_rows {}", who(), x_name,
                           x.shape.to_string(), rows, max_rows);
  if (Status s = ops::check_view(who, x_name, x, activation, x.shape, in_features == 0 ? 0 : rows); !s.ok()) return s;
  Shape wanted = x.shape;
  wanted[wanted.rank() - 1] = out_features;
  return ops::check_view(who, "output", y, output, wanted, out_features == 0 ? 0 : rows);
}

Status AnyLinearPlan::Impl::check_weight(const LinearOperands& o) const {
  const auto who = [&] { return name(op); };
  const bool raw = is_given(o.weight);
  if (raw && o.packed_weight != nullptr)
    return invalid_problem("{}: both weight and packed_weight are set; give one", who());
  if (!raw && o.packed_weight == nullptr)
    return invalid_problem("{}: neither weight nor packed_weight is set; give one", who());
  if (raw)
    return ops::check_view(who, "weight", *o.weight, weight, {out_features, in_features},
                           in_features == 0 ? 0 : out_features);
  const PackedWeight& packed = *o.packed_weight;
  if (kernel->format == nullptr)
    return unsupported("{}: packed_weight was packed for {}, the plan runs on cuda and takes the raw weight", who(),
                       name(packed.isa()));
  if (packed.out_features() != out_features || packed.in_features() != in_features)
    return invalid_problem("{}: packed_weight has shape [{}, {}], must have [{}, {}]", who(), packed.out_features(),
                           packed.in_features(), out_features, in_features);
  if (packed.element() != weight)
    return unsupported("{}: packed_weight has element {}, the plan was selected for {}", who(), name(packed.element()),
                       name(weight));
  if (packed.isa() != kernel->format->arch)
    return unsupported("{}: packed_weight was packed for {}, the plan runs on {}", who(), name(packed.isa()),
                       name(kernel->format->arch));
  return {};
}

Status AnyLinearPlan::Impl::check_parameters(const LinearOperands& o, std::int64_t rows) const {
  const auto who = [&] { return name(op); };
  const auto of_columns = [&](const Shape& shape) { return shape.rank() == 1 && shape[0] == out_features; };
  const auto of_rows = [&](const Shape& shape) { return is_row_shape(shape, o.activation->shape, rows); };
  if (Status s = check_scale(op, "weight_scale", *o.weight_scale, compute(), out_features, of_columns); !s.ok())
    return s;
  if (Status s =
          check_zero_point(op, "weight_zero_point", *o.weight_zero_point, code_range(weight), out_features, of_columns);
      !s.ok())
    return s;
  if (op == QuantizeKind::w8a8_linear) {
    if (Status s = check_scale(op, "act_scale", *o.act_scale, compute(), rows, of_rows); !s.ok()) return s;
    constexpr CodeRange kRange = {-kMaxZeroPoint, kMaxZeroPoint};
    if (Status s = check_zero_point(op, "act_zero_point", *o.act_zero_point, kRange, rows, of_rows); !s.ok()) return s;
  } else {
    const char* source = is_static ? "has it in its descriptor" : "finds it in the data";
    if (o.act_scale != nullptr && o.act_scale->data() != nullptr)
      return invalid_problem("{}: act_scale is given, but this plan {}", who(), source);
    const AnyParameter* zero_point = o.act_zero_point;
    if (zero_point != nullptr && zero_point->data() != nullptr &&
        !(zero_point->is_scalar() && ops::read_unaligned<std::int32_t>(zero_point->data()) == 0))
      return invalid_problem("{}: act_zero_point is given, but this plan {}", who(), source);
  }
  if (is_given(o.smooth) && !smooth)
    return invalid_problem("{}: smooth is given, but the descriptor does not set smooth", who());
  if (smooth && !is_given(o.smooth))
    return invalid_problem("{}: the descriptor sets smooth, and no smooth is given", who());
  if (smooth)
    if (Status s = ops::check_view(who, "smooth", *o.smooth, compute(), {in_features}, in_features == 0 ? 0 : 1);
        !s.ok())
      return s;
  if (Status s = check_output_parameters(o); !s.ok()) return s;
  if (!has_bias(o)) return {};
  const bool of_output_kind = is_float(output) && o.bias->kind == output;
  if (o.bias->kind != compute() && !of_output_kind) {
    const std::string also = is_float(output) && compute() != output ? base::text("{} or ", name(output)) : "";
    return unsupported("{}: bias has element {}, must be {}{}", who(), name(o.bias->kind), also, name(compute()));
  }
  return ops::check_view(who, "bias", *o.bias, o.bias->kind, {out_features}, out_features == 0 ? 0 : 1);
}

Status AnyLinearPlan::Impl::check_output_parameters(const LinearOperands& o) const {
  const auto who = [&] { return name(op); };
  const auto scale = [&] { return ops::OneScale(ElementKind::f32, &*o.output_scale); };
  if (!is_code(output)) {
    if (o.output_scale)
      return invalid_problem("{}: output_scale {} is given, but the output is {} and has no scale", who(),
                             scale().to_string(), name(output));
    if (o.output_zero_point != 0)
      return invalid_problem("{}: output_zero_point {} is given, but the output is {} and has no zero point", who(),
                             o.output_zero_point, name(output));
    return {};
  }
  if (!o.output_scale)
    return invalid_problem("{}: the output is {}, which needs an output_scale, and none is given", who(), name(output));
  if (!scale().is_finite_and_positive())
    return invalid_problem("{}: output_scale {} must be finite and positive", who(), scale().to_string());
  const CodeRange range = code_range(output);
  if (o.output_zero_point < range.min || o.output_zero_point > range.max)
    return invalid_problem("{}: output_zero_point {} must lie in [{}, {}]", who(), o.output_zero_point, range.min,
                           range.max);
  return {};
}

// f(name, extent) for everything that is read, until one refuses.
template <class Function>
Status AnyLinearPlan::Impl::for_each_read(const LinearOperands& o, std::int64_t rows, const Function& f) const {
  if (Status s = f(quantizes ? "input" : "activation", ops::extent(*o.activation, rows)); !s.ok()) return s;
  if (o.packed_weight != nullptr) {
    const auto size = static_cast<std::int64_t>(o.packed_weight->bytes().size());
    if (Status s = f("packed_weight", ops::Extent(o.packed_weight->bytes().data(), 1, size, size)); !s.ok()) return s;
  } else {
    if (Status s = f("weight", ops::extent(*o.weight, out_features)); !s.ok()) return s;
  }
  if (Status s = f("weight_scale", parameter_extent(*o.weight_scale, out_features)); !s.ok()) return s;
  if (Status s = f("weight_zero_point", parameter_extent(*o.weight_zero_point, out_features)); !s.ok()) return s;
  if (op == QuantizeKind::w8a8_linear) {
    if (Status s = f("act_scale", parameter_extent(*o.act_scale, rows)); !s.ok()) return s;
    if (Status s = f("act_zero_point", parameter_extent(*o.act_zero_point, rows)); !s.ok()) return s;
  }
  if (smooth)
    if (Status s = f("smooth", ops::extent(*o.smooth, 1)); !s.ok()) return s;
  return has_bias(o) ? f("bias", ops::extent(*o.bias, 1)) : Status();
}

Status AnyLinearPlan::Impl::check_alignments(const LinearOperands& o) const {
  const auto label = [&] { return name(op); };
  const base::Who who(label);
  const ops::AlignmentCheck check(who, kernel->sku.backend);
  if (Status s = check(quantizes ? "input" : "activation", *o.activation); !s.ok()) return s;
  if (Status s = check("weight_scale", *o.weight_scale); !s.ok()) return s;
  if (Status s = check("weight_zero_point", *o.weight_zero_point); !s.ok()) return s;
  if (op == QuantizeKind::w8a8_linear) {
    if (Status s = check("act_scale", *o.act_scale); !s.ok()) return s;
    if (Status s = check("act_zero_point", *o.act_zero_point); !s.ok()) return s;
  }
  if (smooth)
    if (Status s = check("smooth", *o.smooth); !s.ok()) return s;
  if (has_bias(o))
    if (Status s = check("bias", *o.bias); !s.ok()) return s;
  return check("output", *o.output);
}

Status AnyLinearPlan::can_implement(const LinearOperands& o) const {
  if (Status s = impl_->check_shapes(o); !s.ok()) return s;
  if (Status s = impl_->check_weight(o); !s.ok()) return s;
  const std::int64_t rows = row_count(o.activation->shape);
  if (Status s = impl_->check_parameters(o, rows); !s.ok()) return s;
  if (Status s = impl_->check_alignments(o); !s.ok()) return s;
  const ops::Extent written = ops::extent(*o.output, rows);
  return impl_->for_each_read(o, rows, [&](const char* what, const ops::Extent& read) -> Status {
    if (!ops::overlap(written, read)) return {};
    return invalid_problem("{}: output overlaps {}", name(impl_->op), what);
  });
}

namespace {
LinearOperands operands(const AnyLinearArgs& a) {
  return {&a.activation,   &a.act_scale,         &a.act_zero_point, &a.smooth, &a.weight,      a.packed_weight,
          &a.weight_scale, &a.weight_zero_point, &a.bias,           &a.output, a.output_scale, a.output_zero_point};
}
}  // namespace

Status AnyLinearPlan::can_implement(const AnyLinearArgs& args) const { return can_implement(operands(args)); }

Status AnyLinearPlan::run(const Stream& stream, Workspace workspace, const AnyLinearArgs& args) const {
  return run(stream, workspace, operands(args));
}

// ---- Running ----

Status AnyLinearPlan::run(const Stream& stream, Workspace given, const LinearOperands& o) const {
  const Impl& plan = *impl_;
  const auto who = [&] { return name(plan.op); };
  if (Status s = ops::check_stream(who, stream, sku().backend); !s.ok()) return s;
  if (Status s = can_implement(o); !s.ok()) return s;
  if (Status s = ops::check_workspace(who, given, workspace_size()); !s.ok()) return s;
  const std::int64_t rows = row_count(o.activation->shape);
  const auto size = static_cast<std::int64_t>(workspace_size());
  const ops::Extent scratch(given.data, 1, size, size);
  if (ops::overlap(scratch, ops::extent(*o.output, rows)))
    return invalid_problem("{}: the workspace overlaps output", who());
  if (Status s = plan.for_each_read(o, rows,
                                    [&](const char* what, const ops::Extent& read) -> Status {
                                      if (!ops::overlap(scratch, read)) return {};
                                      return invalid_problem("{}: the workspace overlaps {}", who(), what);
                                    });
      !s.ok())
    return s;
  if (rows == 0 || plan.out_features == 0) return {};

  const bool gives_scales = plan.op == QuantizeKind::w8a8_linear;
  detail::LinearJob job;
  job.rows = rows;
  job.activation = ops::rows_of(*o.activation);
  if (plan.smooth) job.smooth = static_cast<const std::byte*>(o.smooth->data);
  job.act_scale = gives_scales ? ops::scales_of(*o.act_scale) : plan.act_scale;
  job.act_zero_point =
      gives_scales ? ops::zero_points_of(*o.act_zero_point) : detail::ZeroPoints{nullptr, plan.act_zero_point};
  job.weight_scale = ops::scales_of(*o.weight_scale);
  job.weight_zero_point = ops::zero_points_of(*o.weight_zero_point);
  job.out = ops::rows_of(*o.output);
  if (o.packed_weight != nullptr) {
    job.panels = o.packed_weight->impl().panels();
    job.wide_panels = o.packed_weight->impl().wide;
  } else {
    job.weight = ops::rows_of(*o.weight);
  }
  if (has_bias(o)) {
    job.bias = static_cast<const std::byte*>(o.bias->data);
    job.bias_is_output_kind = o.bias->kind == plan.output;
  }
  job.output_scale = o.output_scale.value_or(1);
  job.output_zero_point = o.output_zero_point;
  return plan.kernel->launch(*plan.kernel, stream, *plan.prepared, given.data, job, who);
}

}  // namespace kvant
