// The front desk of dynamic-range quantization: ranges by a range kernel, codes by an element-wise kernel that reads
// the scales the first one wrote.
#include "kvant/dynamic_range.h"

#include <string>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/device_kernel.h"
#include "core/dynamic_range_kernel.h"
#include "core/elementwise_kernel.h"
#include "core/range_kernel.h"
#include "ops/code_range.h"
#include "ops/device_operands.h"
#include "ops/device_segments.h"
#include "ops/elementwise_launch.h"
#include "ops/partition.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/segments.h"
#include "ops/views.h"

namespace kvant {

struct AnyDynamicRangeQuantizePlan::Impl {
  DynamicRangeQuantizeDescriptor descriptor;
  ElementKind input;
  ElementKind output;
  Numerics numerics;
  semantics::RangeRules rules;
  const detail::DynamicRangeKernel* kernel;  // of the CPU, or all three null
  const detail::RangeKernel* range_kernel;
  const detail::ElementwiseKernel* quantize_kernel;
  const detail::DeviceDynamicRangeKernel* device_kernel;  // of a GPU, or both null
  const detail::DeviceElementwiseKernel* device_quantize_kernel;
  ops::SegmentedTensor segments;
  ops::DeviceSegmentedTensor device_segments;

  Status check_alignments(const detail::DynamicRangeQuantizeOperands& o) const;
  Status enqueue(const Stream& stream, Workspace workspace, const detail::DynamicRangeQuantizeOperands& o) const;
};

namespace {

using base::invalid_problem;
using base::unsupported;

std::string label(const DynamicRangeQuantizeDescriptor& d) {
  return fmt::format("dynamic_range_quantize_per_{}", name(d.scope.kind()));
}

// Ranges become parameters, and the codes of a cell are made while it is hot.
struct Quantizer {
  const detail::RangeKernel* range_kernel;
  const detail::ElementwiseKernel* quantize_kernel;
  const semantics::RangeRules* rules;
  const detail::ElementwiseJob* job;          // for any elements
  const detail::ElementwiseJob* bounded_job;  // for finite ones
  std::byte* scale;
  std::byte* zero_point;

  void finished(const detail::RangeSlots& slots) const { range_kernel->parameters(*rules, slots, scale, zero_point); }
  void hot(const detail::ElementwisePart& part, bool finite) const {
    quantize_kernel->run(finite ? *bounded_job : *job, part);
  }
  void part_done() const {
    if (job->stream) quantize_kernel->finish_streaming();
  }
};

// True where every run is a segment that fits the cache. Packed codes of odd runs in one line do not begin at whole
// bytes.
bool runs_are_segments(const ops::Segments& s, ElementKind output) {
  const bool whole_bytes = !is_packed(output) || s.runs.run % 2 == 0 || s.runs.run == s.runs.length;
  return s.cells.count != 0 && s.unit_lines == 1 && s.runs.run > 1 && whole_bytes;
}

Status run_by_runs(const Stream& stream, const detail::DynamicRangeKernel& kernel,
                   const detail::ElementwiseKernel& quantize_kernel, const detail::DynamicRangeJob& job,
                   std::int64_t elements) {
  struct Launch {
    const detail::DynamicRangeKernel* kernel;
    const detail::ElementwiseKernel* quantize_kernel;
    const detail::DynamicRangeJob* job;
    ops::Partition partition;

    static void run_part(const void* context, std::int64_t index) {
      const Launch& l = *static_cast<const Launch*>(context);
      const base::DefaultFloatEnvironment environment;
      l.kernel->run(*l.job, l.partition.part(*l.job->any->runs, index));
      if (l.job->any->stream) l.quantize_kernel->finish_streaming();
    }
  };
  const detail::Runs& runs = *job.any->runs;
  const Launch launch{&kernel, &quantize_kernel, &job, ops::partition(runs, elements, stream.threads(), runs.run)};
  return stream.parallel_for(launch.partition.parts, Task(&Launch::run_part, &launch));
}

// Codes of finite elements lie inside [q_min, q_max] or, by one rounding, a step outside it, where saturation mends
// them if that is the range of the type. Symmetric ones reach from -q_max to q_max and no further.
bool codes_stay_inside(const semantics::RangeRules& rules, ElementKind output) {
  const bool whole_byte =
      !is_packed(output) && rules.q_min == code_range(output).min && rules.q_max == code_range(output).max;
  return whole_byte || (rules.symmetric && rules.q_min <= -rules.q_max);
}

}  // namespace

AnyDynamicRangeQuantizePlan::AnyDynamicRangeQuantizePlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyDynamicRangeQuantizePlan> AnyDynamicRangeQuantizePlan::select(const Stream& stream,
                                                                        const DynamicRangeQuantizeDescriptor& d,
                                                                        const PlanPreference& preference) {
  const auto who = [&] { return label(d); };
  const auto target = ops::target_of(who, stream, preference);
  if (!target.ok()) return target.status();
  if (!d.input) return invalid_problem("{}: the descriptor does not name the input element", who());
  if (!d.output) return invalid_problem("{}: the descriptor does not name the output element", who());
  if (!is_float(*d.input))
    return unsupported("{}: input element {} must be one of f32, f64, f16, bf16", who(), name(*d.input));
  if (!is_code(*d.output))
    return unsupported("{}: output element {} must be one of s8, u8, s4, u4", who(), name(*d.output));
  const auto parameters = ops::checked_parameter_shape(who, d.shape, d.scope);
  if (!parameters.ok()) return parameters.status();
  const CodeRange limits = code_range(*d.output);
  const auto range =
      ops::checked_code_range(who, d.q_min, d.q_max, limits, limits, fmt::format("of {}", name(*d.output)));
  if (!range.ok()) return range.status();
  const bool symmetric = d.mode == DynamicRangeMode::symmetric;
  if (symmetric && range->max <= 0)
    return invalid_problem("{}: symmetric mode divides by q_max, which is {} and must be positive", who(), range->max);
  if (!symmetric && range->min == range->max)
    return invalid_problem("{}: asymmetric mode needs q_min below q_max, both are {}", who(), range->min);

  const detail::DynamicRangeKernel* kernel = ops::find_dynamic_range_kernel(*d.input, *d.output, *target);
  const detail::RangeKernel* range_kernel = ops::find_range_kernel(*d.input, *target);
  const detail::ElementwiseKernel* quantize_kernel =
      ops::find_elementwise_kernel(QuantizeKind::quantize, *d.input, *d.output, *target);
  const detail::DeviceDynamicRangeKernel* device_kernel =
      ops::find_device_dynamic_range_kernel(*d.input, *d.output, *target);
  const detail::DeviceElementwiseKernel* device_quantize_kernel =
      ops::find_device_elementwise_kernel(QuantizeKind::quantize, *d.input, *d.output, *target);
  const bool on_cpu = kernel != nullptr && range_kernel != nullptr && quantize_kernel != nullptr;
  if (!on_cpu && (device_kernel == nullptr || device_quantize_kernel == nullptr))
    return unsupported("{}: no kernel for {} to {}", who(), name(*d.input), name(*d.output));
  const ops::SegmentedTensor segments = ops::segment_tensor(d.shape, d.scope, *parameters, *d.input, *d.output);
  return AnyDynamicRangeQuantizePlan(std::make_shared<const Impl>(
      Impl{d,
           *d.input,
           *d.output,
           preference.numerics,
           {.symmetric = symmetric, .include_zero = d.include_zero, .q_min = range->min, .q_max = range->max},
           kernel,
           range_kernel,
           quantize_kernel,
           device_kernel,
           device_quantize_kernel,
           segments,
           ops::cut_for_device(segments)}));
}

std::size_t AnyDynamicRangeQuantizePlan::workspace_size() const {
  const auto compute_bytes = static_cast<std::size_t>(row_bytes(scale_kind(impl_->input), 1));
  return impl_->kernel != nullptr ? impl_->segments.workspace_bytes(compute_bytes)
                                  : impl_->device_segments.workspace_bytes(compute_bytes);
}

KernelSku AnyDynamicRangeQuantizePlan::sku() const {
  return impl_->kernel != nullptr ? impl_->kernel->sku : impl_->device_kernel->sku;
}

const DynamicRangeQuantizeDescriptor& AnyDynamicRangeQuantizePlan::descriptor() const { return impl_->descriptor; }

Status AnyDynamicRangeQuantizePlan::can_implement(const detail::DynamicRangeQuantizeOperands& o) const {
  const DynamicRangeQuantizeDescriptor& d = impl_->descriptor;
  const ops::SegmentedTensor& segments = impl_->segments;
  const auto who = [&] { return label(d); };
  if (Status s = ops::check_view(who, "input", *o.input, impl_->input, d.shape, segments.rows); !s.ok()) return s;
  if (Status s = ops::check_view(who, "output", *o.output, impl_->output, d.shape, segments.rows); !s.ok()) return s;
  const std::int64_t count = segments.dense.parameters;
  const ops::ParameterShape wanted{segments.parameter_shape, count, d.scope.kind()};
  const ElementKind scale_type = scale_kind(impl_->input);
  const AnyMut& scale = *o.scale_out;
  const AnyMut& zero_point = *o.zero_point_out;
  if (Status s = ops::check_parameters(who, "scale_out", scale.kind, scale.shape, scale.row_stride, scale.data,
                                       scale_type, wanted, true);
      !s.ok())
    return s;
  const bool has_zero_point = zero_point.data != nullptr || d.mode == DynamicRangeMode::asymmetric;
  if (has_zero_point)
    if (Status s = ops::check_parameters(who, "zero_point_out", zero_point.kind, zero_point.shape,
                                         zero_point.row_stride, zero_point.data, ElementKind::s32, wanted, true);
        !s.ok())
      return s;

  if (impl_->device_kernel != nullptr)
    if (Status s = impl_->check_alignments(o); !s.ok()) return s;

  const ops::Extent read = ops::extent(*o.input, segments.rows);
  const ops::Extent codes = ops::extent(*o.output, segments.rows);
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
  return {};
}

Status AnyDynamicRangeQuantizePlan::Impl::check_alignments(const detail::DynamicRangeQuantizeOperands& o) const {
  const auto who = [&] { return label(descriptor); };
  if (Status s = ops::check_alignment(who, "input", *o.input); !s.ok()) return s;
  if (Status s = ops::check_alignment(who, "output", *o.output); !s.ok()) return s;
  if (Status s = ops::check_alignment(who, "scale_out", *o.scale_out); !s.ok()) return s;
  return ops::check_alignment(who, "zero_point_out", *o.zero_point_out);
}

// On a GPU.
Status AnyDynamicRangeQuantizePlan::Impl::enqueue(const Stream& stream, Workspace workspace,
                                                  const detail::DynamicRangeQuantizeOperands& o) const {
  const bool gaps = ops::has_gaps(*o.input) || ops::has_gaps(*o.output);
  const detail::DeviceSegments& cut = gaps ? device_segments.with_gaps : device_segments.dense;
  if (cut.parameters == 0) return {};
  const int error =
      device_kernel->enqueue(stream.device(), {.x = static_cast<const std::byte*>(o.input->data),
                                               .out = static_cast<std::byte*>(o.output->data),
                                               .x_stride = ops::line_stride(cut.runs, *o.input),
                                               .out_stride = ops::line_stride(cut.runs, *o.output),
                                               .segments = cut,
                                               .partial = ops::partial_ranges(workspace.data),
                                               .scale = static_cast<std::byte*>(o.scale_out->data),
                                               .zero_point = static_cast<std::byte*>(o.zero_point_out->data),
                                               .rules = rules,
                                               .numerics = numerics,
                                               .quantize = device_quantize_kernel});
  return ops::launched([&] { return label(descriptor); }, error);
}

Status AnyDynamicRangeQuantizePlan::run(const Stream& stream, Workspace workspace,
                                        const detail::DynamicRangeQuantizeOperands& o) const {
  const Impl& plan = *impl_;
  const auto who = [&] { return label(plan.descriptor); };
  if (Status s = ops::check_stream(who, stream, sku().backend); !s.ok()) return s;
  if (Status status = can_implement(o); !status.ok()) return status;
  if (Status status = ops::check_workspace(who, workspace, workspace_size()); !status.ok()) return status;
  if (plan.device_kernel != nullptr) return plan.enqueue(stream, workspace, o);

  const bool gaps = ops::has_gaps(*o.input) || ops::has_gaps(*o.output);
  const ops::Segments& segments = gaps ? plan.segments.with_gaps : plan.segments.dense;
  const bool large = row_bytes(plan.output, segments.elements) >= ops::kStreamBytes;
  const detail::RangeJob range_job = ops::range_job(segments, *o.input, large);
  const detail::ElementwiseJob job{
      .x = range_job.x,
      .dy = nullptr,
      .out = static_cast<std::byte*>(o.output->data),
      .x_stride = range_job.x_stride,
      .dy_stride = 0,
      .out_stride = ops::line_stride(segments.runs, *o.output),
      .scale = static_cast<const std::byte*>(o.scale_out->data),
      .zero_point = static_cast<const std::byte*>(o.zero_point_out->data),
      .common_zero_point = 0,
      .q_min = plan.rules.q_min,
      .q_max = plan.rules.q_max,
      .numerics = plan.numerics,
      .bounded = false,
      .stream = large,
      .fetch_ahead = large ? ops::kFetchAhead : 0,
      .runs = &segments.runs,
  };
  detail::ElementwiseJob bounded_job = job;
  bounded_job.bounded = codes_stay_inside(plan.rules, plan.output);
  if (runs_are_segments(segments, plan.output))
    return run_by_runs(stream, *plan.kernel, *plan.quantize_kernel,
                       {&job, &bounded_job, &plan.rules, static_cast<std::byte*>(o.scale_out->data),
                        static_cast<std::byte*>(o.zero_point_out->data)},
                       segments.elements);
  const Quantizer quantizer{plan.range_kernel,
                            plan.quantize_kernel,
                            &plan.rules,
                            &job,
                            &bounded_job,
                            static_cast<std::byte*>(o.scale_out->data),
                            static_cast<std::byte*>(o.zero_point_out->data)};
  const auto compute_bytes = static_cast<std::size_t>(row_bytes(scale_kind(plan.input), 1));
  ops::SegmentVisit visit(segments, *plan.range_kernel, range_job, compute_bytes, workspace.data, quantizer);
  if (Status s = visit.run(stream); !s.ok()) return s;
  if (segments.cells.count != 0 || segments.elements == 0) return {};
  return ops::launch(stream, *plan.quantize_kernel, visit.finite() ? bounded_job : job, scale_kind(plan.input));
}

Result<AnyDynamicRangeQuantizePlan> detail::select_dynamic_range(const Stream& stream, DynamicRangeQuantizeDescriptor d,
                                                                 const PlanPreference& preference, ElementKind input,
                                                                 ElementKind output) {
  if (!stream.status().ok()) return stream.status();
  if (d.input.value_or(input) != input || d.output.value_or(output) != output)
    return unsupported("{}: the descriptor names {} to {}, the plan's types are {} to {}", label(d),
                       name(d.input.value_or(input)), name(d.output.value_or(output)), name(input), name(output));
  d.input = input;
  d.output = output;
  return AnyDynamicRangeQuantizePlan::select(stream, d, preference);
}

}  // namespace kvant
