// The front desk of the element-wise family: refuses with a reason, turns the granularity into Runs, takes the first
// willing kernel and launches it.
#include "kvant/elementwise.h"

#include <string>

#include "base/refuse.h"
#include "core/element_names.h"
#include "core/elementwise_kernel.h"
#include "core/runs.h"
#include "ops/code_range.h"
#include "ops/overlap.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"
#include "semantics/quantize.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::ElementwiseJob;
using detail::ElementwiseOperands;

// Of zero points and fake_quantize's range: exact in f32.
constexpr std::int32_t kMaxMagnitude = semantics::kMaxZeroPoint;

// The row of the operator's table, and what follows from it for a descriptor.
const ElementwiseOperator& facts(const ElementwiseDescriptor& d) { return elementwise_operator(d.op); }
bool is_backward(const ElementwiseDescriptor& d) { return facts(d).backward_of.has_value(); }
bool stays_real(const ElementwiseDescriptor& d) { return facts(d).input == facts(d).output; }

// "quantize_per_group", "fake_quantize_per_token_backward"
std::string label(const ElementwiseDescriptor& d) {
  if (!is_elementwise(d.op)) return std::string(name(d.op));
  const bool backward = is_backward(d);
  const std::string_view forward = backward ? name(*facts(d).backward_of) : name(d.op);
  return base::text("{}_per_{}{}", forward, name(d.granularity.kind()), backward ? "_backward" : "");
}

// The floating-point kind that arithmetic happens in, and what the kernel reads and writes.
ElementKind float_kind(const ElementwiseDescriptor& d) {
  return facts(d).input == ElementClass::real ? d.input : d.output;
}
ElementKind read_kind(const ElementwiseDescriptor& d) { return is_backward(d) ? float_kind(d) : d.input; }
ElementKind write_kind(const ElementwiseDescriptor& d) { return is_backward(d) ? float_kind(d) : d.output; }

Status check_kinds(const ElementwiseDescriptor& d) {
  if (!is_elementwise(d.op)) return unsupported("elementwise: {} is not an element-wise operator", name(d.op));
  const auto check = [&](const char* what, ElementKind kind, ElementClass wanted) -> Status {
    if (info(kind).element_class == wanted) return {};
    return unsupported("{}: {} element {} must be one of {}", label(d), what, name(kind), core::names_of(wanted));
  };
  if (Status s = check("input", d.input, facts(d).input); !s.ok()) return s;
  if (Status s = check("output", d.output, facts(d).output); !s.ok()) return s;
  if (stays_real(d) && d.input != d.output)
    return unsupported("{}: output element {} must equal input element {}", label(d), name(d.output), name(d.input));
  return {};
}

// The code type whose grid an operator works on; none for fake_quantize on integers.
std::optional<ElementKind> code_kind(const ElementwiseDescriptor& d) {
  if (stays_real(d)) return d.grid;
  return facts(d).input == ElementClass::code ? d.input : d.output;
}

Status check_grid(const ElementwiseDescriptor& d) {
  if (d.grid && !stays_real(d))
    return invalid_problem("{}: grid {} is for fake_quantize; the grid here is that of {}", label(d), name(*d.grid),
                           name(*code_kind(d)));
  if (d.grid && !has_float_grid(*d.grid))
    return unsupported("{}: grid {} must be one of {}; give integers as q_min and q_max", label(d), name(*d.grid),
                       core::names_of(GridKind::floating));
  if (d.saturate) return {};
  const std::optional<ElementKind> code = code_kind(d);
  if (!facts(d).rounds || facts(d).backward_of)
    return invalid_problem("{}: saturate = false is for quantize and fake_quantize", label(d));
  if (!code || !has_float_grid(*code) || info(*code).format.top == TopCodes::finite)
    return invalid_problem("{}: saturate = false needs codes with NaN or infinity, {} have none", label(d),
                           code ? name(*code) : "integers");
  return {};
}

Result<CodeRange> checked_range(const ElementwiseDescriptor& d) {
  if (!facts(d).rounds) {
    if (d.q_min || d.q_max) return invalid_problem("{}: q_min and q_max are not used here; leave them unset", label(d));
    return CodeRange{0, 0};
  }
  const auto who = [&] { return label(d); };
  if (const auto code = code_kind(d)) {
    const auto range = ops::checked_grid_range(who, d.q_min, d.q_max, *code);
    if (d.saturate || !range.ok()) return range;
    const auto limit = static_cast<std::int32_t>(semantics::float_grid(*code, false).f32.limit);
    return CodeRange{-limit, limit};
  }
  return ops::checked_code_range(who, d.q_min, d.q_max, {-128, 127}, {-kMaxMagnitude, kMaxMagnitude},
                                 "in floating point");
}

Status check_parameter(const ElementwiseDescriptor& d, const char* what, const AnyParameter& p, ElementKind kind,
                       const ops::ParameterShape& wanted, std::int64_t elements) {
  if (p.is_scalar()) {
    if (p.kind() == kind) return {};
    return unsupported("{}: {} has element {}, must be {}", label(d), what, name(p.kind()), name(kind));
  }
  if (p.kind() == kind && p.row_stride() == 0 && p.data() != nullptr && p.shape() == wanted.shape) return {};
  const auto who = [&] { return label(d); };
  return ops::check_parameters(who, what, AnyRef{p.data(), p.kind(), p.shape(), p.row_stride()}, kind, wanted,
                               elements != 0);
}

Status check_one_scale(const ElementwiseDescriptor& d, const ops::OneScale& scale, Numerics numerics) {
  if (!scale.is_finite_and_positive())
    return invalid_problem("{}: scale {} must be finite and positive", label(d), scale.to_string());
  if (numerics == Numerics::reciprocal && facts(d).rounds && !scale.has_finite_reciprocal())
    return invalid_problem("{}: scale {} has no finite reciprocal; use Numerics::exact", label(d), scale.to_string());
  return {};
}

}  // namespace

Result<ElementwisePlan> ElementwisePlan::select(const Stream& stream, const ElementwiseDescriptor& d,
                                                const PlanPreference& preference) {
  const auto who = [&] { return label(d); };
  const auto target = ops::target_of(who, stream, preference);
  if (!target.ok()) return target.status();
  if (Status status = check_kinds(d); !status.ok()) return status;
  const auto parameters = ops::checked_parameter_shape(who, d.shape, d.granularity);
  if (!parameters.ok()) return parameters.status();
  if (Status status = check_grid(d); !status.ok()) return status;
  const auto range = checked_range(d);
  if (!range.ok()) return range.status();

  ElementwisePlan plan;
  plan.descriptor_ = d;
  plan.numerics_ = preference.numerics;
  plan.elements_ = *d.shape.element_count();
  plan.rows_ = plan.elements_ == 0 ? 0 : plan.elements_ / d.shape.row_length();
  plan.parameter_shape_ = *parameters;
  plan.parameters_ = *parameters->element_count();
  plan.q_min_ = range->min;
  plan.q_max_ = range->max;
  plan.grid_ = code_kind(d);
  if (plan.grid_ && !has_float_grid(*plan.grid_)) plan.grid_.reset();
  // Packed rows that end inside a byte have a gap.
  const std::int64_t row = d.shape.row_length();
  const bool whole_bytes = fills_bytes(read_kind(d), row) && fills_bytes(write_kind(d), row);
  plan.row_runs_ = core::row_runs(d.shape, d.granularity);
  plan.dense_runs_ = whole_bytes ? core::dense_runs(d.shape, d.granularity) : plan.row_runs_;

  plan.kernel_ = ops::select_kernel<detail::ElementwiseKernel>(d.op, read_kind(d), write_kind(d), *target).kernel;
  if (plan.kernel_ != nullptr) return plan;
  return unsupported("{}: no kernel for {} to {}", label(d), name(d.input), name(d.output));
}

KernelSku ElementwisePlan::sku() const { return kernel_->sku; }

Status ElementwisePlan::can_implement(const ElementwiseOperands& o) const {
  const ElementwiseDescriptor& d = descriptor_;
  const AnyMut& output = *o.output;
  const auto who = [&] { return label(d); };
  const char* output_name = is_backward(d) ? "grad_input" : "output";
  if (facts(d).reads_input)
    if (Status s = ops::check_view(who, "input", *o.input, read_kind(d), d.shape, rows_); !s.ok()) return s;
  if (is_backward(d))
    if (Status s = ops::check_view(who, "grad_output", *o.grad_output, float_kind(d), d.shape, rows_); !s.ok())
      return s;
  if (Status s = ops::check_view(who, output_name, output, write_kind(d), d.shape, rows_); !s.ok()) return s;

  const ElementKind scale_type =
      !o.scale->is_scalar() && ops::is_stored_scale(o.scale->kind()) ? o.scale->kind() : scale_kind(float_kind(d));
  const ops::ParameterShape wanted{parameter_shape_, parameters_, d.granularity.kind()};
  if (!o.scale->is_scalar())
    if (Status s = ops::check_scale_kind(who, "scale", o.scale->kind(), scale_type); !s.ok()) return s;
  if (Status s = check_parameter(d, "scale", *o.scale, scale_type, wanted, elements_); !s.ok()) return s;
  const bool per_tensor = d.granularity.kind() == GranularityKind::tensor;
  if (o.scale->is_scalar() && !per_tensor)
    return invalid_problem("{}: scale is one number, must be a tensor of shape {}", label(d),
                           parameter_shape_.to_string());
  // Numbers in a GPU's memory cannot be looked at here; they count as entries of a tensor.
  const auto can_look = [&](const AnyParameter& p) {
    return p.is_scalar() || (per_tensor && kernel_->sku.backend == BackendKind::cpu);
  };
  if (Status s = ops::check_global_scale(who, scale_type, *o.global_scale,
                                         elements_ != 0 && kernel_->sku.backend == BackendKind::cpu);
      !s.ok())
    return s;
  if (elements_ != 0 && can_look(*o.scale)) {
    const ElementKind compute = scale_kind(float_kind(d));
    const ops::OneScale scale = scale_type == compute
                                    ? ops::OneScale(compute, o.scale->data())
                                    : ops::stored_scale(scale_type, o.scale->data(), *o.global_scale, compute);
    if (Status s = check_one_scale(d, scale, numerics_); !s.ok()) return s;
  }
  const bool has_zero_point = o.zero_point != nullptr && facts(d).reads_input;
  if (has_zero_point && grid_) {
    const AnyParameter& zp = *o.zero_point;
    if (!zp.is_scalar())
      return invalid_problem("{}: zero_point is a tensor of shape {}; {} has no zero point, leave it 0", label(d),
                             zp.shape().to_string(), name(*grid_));
    if (zp.kind() == ElementKind::s32 && ops::read_unaligned<std::int32_t>(zp.data()) != 0)
      return invalid_problem("{}: zero_point {} with {}, which has no zero point, must be 0", label(d),
                             ops::read_unaligned<std::int32_t>(zp.data()), name(*grid_));
  }
  if (has_zero_point) {
    if (Status s = check_parameter(d, "zero_point", *o.zero_point, ElementKind::s32, wanted, elements_); !s.ok())
      return s;
    if (elements_ != 0 && can_look(*o.zero_point)) {
      const auto zp = ops::read_unaligned<std::int32_t>(o.zero_point->data());
      if (zp < -kMaxMagnitude || zp > kMaxMagnitude)
        return invalid_problem("{}: zero_point {} is beyond ±{} (2^23)", label(d), zp, kMaxMagnitude);
    }
  }
  if (elements_ == 0) return {};
  if (kernel_->sku.backend == BackendKind::cuda)
    if (Status s = check_alignments(o); !s.ok()) return s;

  // In place where reading and writing walk in step: same address, same strides, same width.
  const ops::Extent written = ops::extent(output, rows_);
  const bool in_place_is_legal = read_kind(d) == write_kind(d);
  const auto check_overlap = [&](const char* what, const AnyRef& view) -> Status {
    const ops::Extent read = ops::extent(view, rows_);
    if (!ops::overlap(written, read)) return {};
    const bool same = read.begin == written.begin && (read.stride == written.stride || read.rows == 1);
    if (same && in_place_is_legal) return {};
    return invalid_problem("{}: {} overlaps {}{}", label(d), output_name, what,
                           in_place_is_legal ? " without being the same buffer" : "");
  };
  if (facts(d).reads_input)
    if (Status s = check_overlap("input", *o.input); !s.ok()) return s;
  if (is_backward(d))
    if (Status s = check_overlap("grad_output", *o.grad_output); !s.ok()) return s;
  const auto check_parameter_overlap = [&](const char* what, const AnyParameter& p) -> Status {
    const std::int64_t bytes = row_bytes(p.kind(), p.is_scalar() ? 1 : parameters_);
    if (ops::overlap(written, ops::Extent(p.data(), 1, bytes, bytes)))
      return invalid_problem("{}: {} overlaps {}", label(d), output_name, what);
    return {};
  };
  if (Status s = check_parameter_overlap("scale", *o.scale); !s.ok()) return s;
  if (ops::is_given(*o.global_scale) && ops::overlap(written, ops::Extent(o.global_scale->data(), 1, 4, 4)))
    return invalid_problem("{}: {} overlaps global_scale", label(d), output_name);
  if (has_zero_point)
    if (Status s = check_parameter_overlap("zero_point", *o.zero_point); !s.ok()) return s;
  return {};
}

Status ElementwisePlan::check_alignments(const ElementwiseOperands& o) const {
  const ElementwiseDescriptor& d = descriptor_;
  const auto label_of = [&] { return label(d); };
  const base::Who who(label_of);
  const ops::AlignmentCheck check(who, kernel_->sku.backend);
  if (facts(d).reads_input)
    if (Status s = check("input", *o.input); !s.ok()) return s;
  if (is_backward(d))
    if (Status s = check("grad_output", *o.grad_output); !s.ok()) return s;
  if (Status s = check(is_backward(d) ? "grad_input" : "output", *o.output); !s.ok()) return s;
  if (Status s = check("scale", *o.scale); !s.ok()) return s;
  if (Status s = check("global_scale", *o.global_scale); !s.ok()) return s;
  return o.zero_point == nullptr ? Status() : check("zero_point", *o.zero_point);
}

Status ElementwisePlan::run(const Stream& stream, Workspace, const ElementwiseOperands& o) const {
  const auto who = [&] { return label(descriptor_); };
  if (Status s = ops::check_stream(who, stream, kernel_->sku.backend); !s.ok()) return s;
  if (Status status = can_implement(o); !status.ok()) return status;
  if (elements_ == 0) return {};

  const bool reads_input = facts(descriptor_).reads_input;
  const AnyRef& x = reads_input ? *o.input : *o.grad_output;
  const AnyRef* dy = is_backward(descriptor_) && reads_input ? o.grad_output : nullptr;
  const AnyMut& out = *o.output;
  const bool gaps = ops::has_gaps(x) || ops::has_gaps(out) || (dy != nullptr && ops::has_gaps(*dy));
  const detail::Runs& runs = gaps ? row_runs_ : dense_runs_;
  const bool lines_are_rows = runs.length == descriptor_.shape.row_length();
  const auto line_stride = [&](const auto& view) {
    return lines_are_rows ? ops::stride_bytes(view) : row_bytes(view.kind, runs.length);
  };
  const detail::ElementwiseJob job{
      .x = static_cast<const std::byte*>(x.data),
      .dy = dy == nullptr ? nullptr : static_cast<const std::byte*>(dy->data),
      .out = static_cast<std::byte*>(out.data),
      .x_stride = line_stride(x),
      .dy_stride = dy == nullptr ? 0 : line_stride(*dy),
      .out_stride = line_stride(out),
      .scale = ops::scales_of(*o.scale, o.global_scale),
      .zero_point = reads_input ? ops::zero_points_of(*o.zero_point) : detail::ZeroPoints(),
      .q_min = q_min_,
      .q_max = q_max_,
      .grid = grid_ ? semantics::float_grid(*grid_, descriptor_.saturate) : semantics::FloatGrid(),
      .numerics = numerics_,
      .runs = runs,
  };
  return kernel_->launch(*kernel_, stream, job, who);
}

Result<ElementwisePlan> detail::select_typed(const Stream& stream, ElementwiseDescriptor descriptor,
                                             const PlanPreference& preference, ElementKind input, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (descriptor.input != input || descriptor.output != output)
    return unsupported("{}: the descriptor says {} to {}, the plan's types are {} to {}", label(descriptor),
                       name(descriptor.input), name(descriptor.output), name(input), name(output));
  return ElementwisePlan::select(stream, descriptor, preference);
}

}  // namespace kvant
