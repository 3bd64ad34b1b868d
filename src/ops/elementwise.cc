// The front desk of the element-wise family: refuses with a reason, turns the granularity into Runs, takes the first
// willing kernel, and cuts a launch into parts for the stream's threads.
#include "kvant/elementwise.h"

#include <string>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/device_kernel.h"
#include "core/elementwise_kernel.h"
#include "core/runs.h"
#include "ops/code_range.h"
#include "ops/device_operands.h"
#include "ops/elementwise_launch.h"
#include "ops/overlap.h"
#include "ops/partition.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::ElementwiseJob;
using detail::ElementwiseOperands;

constexpr std::int32_t kMaxMagnitude = 1 << 23;  // of zero points and fake_quantize's range: exact in f32

bool is_backward(QuantizeKind op) {
  return op == QuantizeKind::quantize_backward || op == QuantizeKind::dequantize_backward ||
         op == QuantizeKind::fake_quantize_backward;
}
bool reads_input(QuantizeKind op) { return op != QuantizeKind::dequantize_backward; }
bool rounds(QuantizeKind op) { return op != QuantizeKind::dequantize && op != QuantizeKind::dequantize_backward; }
bool is_fake(QuantizeKind op) {
  return op == QuantizeKind::fake_quantize || op == QuantizeKind::fake_quantize_backward;
}
bool is_dequantize(QuantizeKind op) {
  return op == QuantizeKind::dequantize || op == QuantizeKind::dequantize_backward;
}

// "quantize_per_group", "fake_quantize_per_token_backward"
std::string label(QuantizeKind op, GranularityKind granularity) {
  std::string base(name(op));
  const std::string suffix = "_backward";
  const bool backward = base.ends_with(suffix);
  if (backward) base.resize(base.size() - suffix.size());
  return fmt::format("{}_per_{}{}", base, name(granularity), backward ? suffix : "");
}
std::string label(const ElementwiseDescriptor& d) { return label(d.op, d.granularity.kind()); }

// The floating-point kind that arithmetic happens in, and what the kernel reads and writes.
ElementKind float_kind(const ElementwiseDescriptor& d) { return is_dequantize(d.op) ? d.output : d.input; }
ElementKind read_kind(const ElementwiseDescriptor& d) { return is_backward(d.op) ? float_kind(d) : d.input; }
ElementKind write_kind(const ElementwiseDescriptor& d) { return is_backward(d.op) ? float_kind(d) : d.output; }

Status check_kinds(const ElementwiseDescriptor& d) {
  const bool from_float = !is_dequantize(d.op);
  const bool to_float = is_dequantize(d.op) || is_fake(d.op);
  if (from_float ? !is_float(d.input) : !is_code(d.input))
    return unsupported("{}: input element {} must be one of {}", label(d), name(d.input),
                       from_float ? "f32, f64, f16, bf16" : "s8, u8, s4, u4");
  if (to_float ? !is_float(d.output) : !is_code(d.output))
    return unsupported("{}: output element {} must be one of {}", label(d), name(d.output),
                       to_float ? "f32, f64, f16, bf16" : "s8, u8, s4, u4");
  if (is_fake(d.op) && d.input != d.output)
    return unsupported("{}: output element {} must equal input element {}", label(d), name(d.output), name(d.input));
  return {};
}

Result<CodeRange> checked_range(const ElementwiseDescriptor& d) {
  if (!rounds(d.op)) {
    if (d.q_min || d.q_max) return invalid_problem("{}: q_min and q_max are not used here; leave them unset", label(d));
    return CodeRange{0, 0};
  }
  const auto who = [&] { return label(d); };
  if (is_fake(d.op))
    return ops::checked_code_range(who, d.q_min, d.q_max, {-128, 127}, {-kMaxMagnitude, kMaxMagnitude},
                                   "that f32 steps hold exactly");
  const CodeRange limits = code_range(d.output);
  return ops::checked_code_range(who, d.q_min, d.q_max, limits, limits, fmt::format("of {}", name(d.output)));
}

Status check_parameter(const ElementwiseDescriptor& d, const char* what, const AnyParameter& p, ElementKind kind,
                       const ops::ParameterShape& wanted, std::int64_t elements) {
  if (p.is_scalar()) {
    if (p.kind() == kind) return {};
    return unsupported("{}: {} has element {}, must be {}", label(d), what, name(p.kind()), name(kind));
  }
  return ops::check_parameters([&] { return label(d); }, what, p.kind(), p.shape(), p.row_stride(), p.data(), kind,
                               wanted, elements != 0);
}

Status check_one_scale(const ElementwiseDescriptor& d, ElementKind kind, const void* data, Numerics numerics) {
  const ops::OneScale scale(kind, data);
  if (!scale.is_finite_and_positive())
    return invalid_problem("{}: scale {} must be finite and positive", label(d), scale.to_string());
  if (numerics == Numerics::reciprocal && rounds(d.op) && !scale.has_finite_reciprocal())
    return invalid_problem("{}: scale {} has no finite reciprocal; use Numerics::exact", label(d), scale.to_string());
  return {};
}

}  // namespace

Result<ElementwisePlan> ElementwisePlan::select(const Stream& stream, const ElementwiseDescriptor& d,
                                                const PlanPreference& preference) {
  const auto target = ops::target_of([&] { return label(d); }, stream, preference);
  if (!target.ok()) return target.status();
  if (Status status = check_kinds(d); !status.ok()) return status;
  const auto parameters = ops::checked_parameter_shape([&] { return label(d); }, d.shape, d.granularity);
  if (!parameters.ok()) return parameters.status();
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
  const bool odd_packed_rows = (is_packed(read_kind(d)) || is_packed(write_kind(d))) && d.shape.row_length() % 2 != 0;
  plan.row_runs_ = core::row_runs(d.shape, d.granularity);
  plan.dense_runs_ = odd_packed_rows ? plan.row_runs_ : core::dense_runs(d.shape, d.granularity);

  plan.kernel_ = ops::find_elementwise_kernel(d.op, read_kind(d), write_kind(d), *target);
  plan.device_kernel_ = ops::find_device_elementwise_kernel(d.op, read_kind(d), write_kind(d), *target);
  if (plan.kernel_ != nullptr || plan.device_kernel_ != nullptr) return plan;
  return unsupported("{}: no kernel for {} to {}", label(d), name(d.input), name(d.output));
}

KernelSku ElementwisePlan::sku() const { return kernel_ != nullptr ? kernel_->sku : device_kernel_->sku; }

Status ElementwisePlan::can_implement(const ElementwiseOperands& o) const {
  const ElementwiseDescriptor& d = descriptor_;
  const AnyMut& output = *o.output;
  const auto who = [&] { return label(d); };
  const char* output_name = is_backward(d.op) ? "grad_input" : "output";
  if (reads_input(d.op))
    if (Status s = ops::check_view(who, "input", *o.input, read_kind(d), d.shape, rows_); !s.ok()) return s;
  if (is_backward(d.op))
    if (Status s = ops::check_view(who, "grad_output", *o.grad_output, float_kind(d), d.shape, rows_); !s.ok())
      return s;
  if (Status s = ops::check_view(who, output_name, output, write_kind(d), d.shape, rows_); !s.ok()) return s;

  const ElementKind scale_type = scale_kind(float_kind(d));
  const ops::ParameterShape wanted{parameter_shape_, parameters_, d.granularity.kind()};
  if (Status s = check_parameter(d, "scale", *o.scale, scale_type, wanted, elements_); !s.ok()) return s;
  const bool per_tensor = d.granularity.kind() == GranularityKind::tensor;
  if (o.scale->is_scalar() && !per_tensor)
    return invalid_problem("{}: scale is one number, must be a tensor of shape {}", label(d),
                           parameter_shape_.to_string());
  // Numbers in a GPU's memory cannot be looked at here; they count as entries of a tensor.
  const auto can_look = [&](const AnyParameter& p) { return p.is_scalar() || (per_tensor && kernel_ != nullptr); };
  if (elements_ != 0 && can_look(*o.scale))
    if (Status s = check_one_scale(d, scale_type, o.scale->data(), numerics_); !s.ok()) return s;
  const bool has_zero_point = o.zero_point != nullptr && d.op != QuantizeKind::dequantize_backward;
  if (has_zero_point) {
    if (Status s = check_parameter(d, "zero_point", *o.zero_point, ElementKind::s32, wanted, elements_); !s.ok())
      return s;
    if (elements_ != 0 && can_look(*o.zero_point)) {
      const auto zp = ops::read_unaligned<std::int32_t>(o.zero_point->data());
      if (zp < -kMaxMagnitude || zp > kMaxMagnitude)
        return invalid_problem("{}: zero_point {} is beyond ±{}, where f32 steps stop being exact", label(d), zp,
                               kMaxMagnitude);
    }
  }
  if (elements_ == 0) return {};
  if (device_kernel_ != nullptr)
    if (Status s = check_alignments(o); !s.ok()) return s;

  // In place where reading and writing walk in step: same address, same strides, same width.
  const ops::Extent written = ops::extent(output, rows_);
  const bool in_place_is_legal = is_fake(d.op) || is_backward(d.op);
  const auto check_overlap = [&](const char* what, const AnyRef& view) -> Status {
    const ops::Extent read = ops::extent(view, rows_);
    if (!ops::overlap(written, read)) return {};
    const bool same = read.begin == written.begin && (read.stride == written.stride || read.rows == 1);
    if (same && in_place_is_legal) return {};
    return invalid_problem("{}: {} overlaps {}{}", label(d), output_name, what,
                           in_place_is_legal ? " without being the same buffer" : "");
  };
  if (reads_input(d.op))
    if (Status s = check_overlap("input", *o.input); !s.ok()) return s;
  if (is_backward(d.op))
    if (Status s = check_overlap("grad_output", *o.grad_output); !s.ok()) return s;
  const auto check_parameter_overlap = [&](const char* what, const AnyParameter& p) -> Status {
    const std::int64_t bytes = row_bytes(p.kind(), p.is_scalar() ? 1 : parameters_);
    if (ops::overlap(written, ops::Extent(p.data(), 1, bytes, bytes)))
      return invalid_problem("{}: {} overlaps {}", label(d), output_name, what);
    return {};
  };
  if (Status s = check_parameter_overlap("scale", *o.scale); !s.ok()) return s;
  if (has_zero_point)
    if (Status s = check_parameter_overlap("zero_point", *o.zero_point); !s.ok()) return s;
  return {};
}

Status ElementwisePlan::check_alignments(const ElementwiseOperands& o) const {
  const ElementwiseDescriptor& d = descriptor_;
  const auto who = [&] { return label(d); };
  if (reads_input(d.op))
    if (Status s = ops::check_alignment(who, "input", *o.input); !s.ok()) return s;
  if (is_backward(d.op))
    if (Status s = ops::check_alignment(who, "grad_output", *o.grad_output); !s.ok()) return s;
  if (Status s = ops::check_alignment(who, is_backward(d.op) ? "grad_input" : "output", *o.output); !s.ok()) return s;
  if (Status s = ops::check_alignment(who, "scale", *o.scale); !s.ok()) return s;
  return o.zero_point == nullptr ? Status() : ops::check_alignment(who, "zero_point", *o.zero_point);
}

Status ElementwisePlan::run(const Stream& stream, Workspace, const ElementwiseOperands& o) const {
  const auto who = [&] { return label(descriptor_); };
  if (Status s = ops::check_stream(who, stream, sku().backend); !s.ok()) return s;
  if (Status status = can_implement(o); !status.ok()) return status;
  if (elements_ == 0) return {};

  const bool backward = is_backward(descriptor_.op);
  const AnyRef& x = reads_input(descriptor_.op) ? *o.input : *o.grad_output;
  const AnyRef* dy = backward && reads_input(descriptor_.op) ? o.grad_output : nullptr;
  const AnyMut& out = *o.output;
  const bool gaps = ops::has_gaps(x) || ops::has_gaps(out) || (dy != nullptr && ops::has_gaps(*dy));
  const detail::Runs& runs = gaps ? row_runs_ : dense_runs_;
  const bool lines_are_rows = runs.length == descriptor_.shape.row_length();
  const auto line_stride = [&](const auto& view) {
    return lines_are_rows ? ops::stride_bytes(view) : row_bytes(view.kind, runs.length);
  };
  const bool has_zero_point = reads_input(descriptor_.op);
  if (device_kernel_ != nullptr) {
    const detail::DeviceElementwiseJob job{
        .x = static_cast<const std::byte*>(x.data),
        .dy = dy == nullptr ? nullptr : static_cast<const std::byte*>(dy->data),
        .out = static_cast<std::byte*>(o.output->data),
        .x_stride = line_stride(x),
        .dy_stride = dy == nullptr ? 0 : line_stride(*dy),
        .out_stride = line_stride(out),
        .scale = ops::device_scales(*o.scale),
        .zero_point = has_zero_point ? ops::device_zero_points(*o.zero_point) : detail::DeviceZeroPoints(),
        .q_min = q_min_,
        .q_max = q_max_,
        .numerics = numerics_,
        .runs = runs,
    };
    return ops::launched(who, device_kernel_->enqueue(stream.device(), job));
  }

  const bool in_place = x.data == out.data || (dy != nullptr && dy->data == out.data);
  const bool large = !in_place && row_bytes(out.kind, elements_) >= ops::kStreamBytes;
  const bool one_zero_point = has_zero_point && o.zero_point->is_scalar();

  const ElementwiseJob job{
      .x = static_cast<const std::byte*>(x.data),
      .dy = dy == nullptr ? nullptr : static_cast<const std::byte*>(dy->data),
      .out = static_cast<std::byte*>(o.output->data),
      .x_stride = line_stride(x),
      .dy_stride = dy == nullptr ? 0 : line_stride(*dy),
      .out_stride = line_stride(out),
      .scale = static_cast<const std::byte*>(o.scale->data()),
      .zero_point = has_zero_point && !one_zero_point ? static_cast<const std::byte*>(o.zero_point->data()) : nullptr,
      .common_zero_point = one_zero_point ? ops::read_unaligned<std::int32_t>(o.zero_point->data()) : 0,
      .q_min = q_min_,
      .q_max = q_max_,
      .numerics = numerics_,
      .bounded = false,
      .stream = large,
      .fetch_ahead = large ? ops::kFetchAhead : 0,
      .runs = &runs,
  };
  return ops::launch(stream, *kernel_, job, scale_kind(float_kind(descriptor_)));
}

Result<ElementwisePlan> detail::select_typed(const Stream& stream, ElementwiseDescriptor descriptor,
                                             const PlanPreference& preference, ElementKind input, ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (descriptor.input != input || descriptor.output != output)
    return unsupported("{}: the descriptor names {} to {}, the plan's types are {} to {}", label(descriptor),
                       name(descriptor.input), name(descriptor.output), name(input), name(output));
  return ElementwisePlan::select(stream, descriptor, preference);
}

}  // namespace kvant
