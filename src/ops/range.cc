// The front desk of range plans.
#include "kvant/range.h"

#include <string>
#include <utility>

#include "base/refuse.h"
#include "core/device_kernel.h"
#include "core/range_kernel.h"
#include "ops/device_operands.h"
#include "ops/device_segments.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/segments.h"
#include "ops/views.h"

namespace kvant {

struct AnyRangePlan::Impl {
  RangeDescriptor descriptor;
  ElementKind input;
  const detail::RangeKernel* kernel;               // of the CPU, or
  const detail::DeviceRangeKernel* device_kernel;  // of a GPU
  ops::SegmentedTensor segments;
  ops::DeviceSegmentedTensor device_segments;
};

namespace {

using base::invalid_problem;
using base::unsupported;

std::string label(const RangeDescriptor& d) { return fmt::format("range_per_{}", name(d.scope.kind())); }

struct Output {
  const char* name;
  const AnyMut* view;
};

// Ranges go straight to the caller's buffers, and a cell that is still hot is of no further use.
struct Reporter {
  const detail::RangeKernel* kernel;
  detail::RangeReport report;
  void finished(const detail::RangeSlots& slots) const { kernel->report(report, slots); }
  void hot(const detail::ElementwisePart&, bool) const {}
  void part_done() const {}
};

}  // namespace

AnyRangePlan::AnyRangePlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyRangePlan> AnyRangePlan::select(const Stream& stream, const RangeDescriptor& d,
                                          const PlanPreference& preference) {
  const auto who = [&] { return label(d); };
  const auto target = ops::target_of(who, stream, preference);
  if (!target.ok()) return target.status();
  if (!d.input) return invalid_problem("{}: the descriptor does not name the input element", who());
  if (!is_float(*d.input))
    return unsupported("{}: input element {} must be one of f32, f64, f16, bf16", who(), name(*d.input));
  const auto parameters = ops::checked_parameter_shape(who, d.shape, d.scope);
  if (!parameters.ok()) return parameters.status();
  const detail::RangeKernel* kernel = ops::find_range_kernel(*d.input, *target);
  const detail::DeviceRangeKernel* device_kernel = ops::find_device_range_kernel(*d.input, *target);
  if (kernel == nullptr && device_kernel == nullptr) return unsupported("{}: no kernel for {}", who(), name(*d.input));
  const ops::SegmentedTensor segments = ops::segment_tensor(d.shape, d.scope, *parameters, *d.input, std::nullopt);
  return AnyRangePlan(
      std::make_shared<const Impl>(Impl{d, *d.input, kernel, device_kernel, segments, ops::cut_for_device(segments)}));
}

std::size_t AnyRangePlan::workspace_size() const {
  const auto compute_bytes = static_cast<std::size_t>(row_bytes(scale_kind(impl_->input), 1));
  return impl_->kernel != nullptr ? impl_->segments.workspace_bytes(compute_bytes)
                                  : impl_->device_segments.workspace_bytes(compute_bytes);
}
KernelSku AnyRangePlan::sku() const {
  return impl_->kernel != nullptr ? impl_->kernel->sku : impl_->device_kernel->sku;
}
const RangeDescriptor& AnyRangePlan::descriptor() const { return impl_->descriptor; }

Status AnyRangePlan::can_implement(const detail::RangeOperands& o) const {
  const RangeDescriptor& d = impl_->descriptor;
  const ops::SegmentedTensor& segments = impl_->segments;
  const auto who = [&] { return label(d); };
  if (Status s = ops::check_view(who, "input", *o.input, impl_->input, d.shape, segments.rows); !s.ok()) return s;
  const ElementKind kind = scale_kind(impl_->input);
  const std::int64_t count = segments.dense.parameters;
  const ops::ParameterShape wanted{segments.parameter_shape, count, d.scope.kind()};
  const Output outputs[] = {{"min_out", o.min_out}, {"max_out", o.max_out}, {"max_abs_out", o.max_abs_out}};
  const std::int64_t bytes = row_bytes(kind, count);
  const ops::Extent read = ops::extent(*o.input, segments.rows);
  bool any = false;
  if (impl_->device_kernel != nullptr)
    if (Status s = ops::check_alignment(who, "input", *o.input); !s.ok()) return s;
  for (const Output& output : outputs) {
    if (output.view->data == nullptr) continue;
    any = true;
    const AnyMut& v = *output.view;
    if (Status s = ops::check_parameters(who, output.name, v.kind, v.shape, v.row_stride, v.data, kind, wanted, true);
        !s.ok())
      return s;
    if (impl_->device_kernel != nullptr)
      if (Status s = ops::check_alignment(who, output.name, v); !s.ok()) return s;
    const ops::Extent written(v.data, 1, bytes, bytes);
    if (ops::overlap(written, read)) return invalid_problem("{}: {} overlaps input", who(), output.name);
    for (const Output& other : outputs) {
      if (&other == &output) break;
      if (other.view->data != nullptr && ops::overlap(written, ops::Extent(other.view->data, 1, bytes, bytes)))
        return invalid_problem("{}: {} overlaps {}", who(), output.name, other.name);
    }
  }
  if (!any && count != 0) return invalid_problem("{}: min_out, max_out and max_abs_out are all null", who());
  return {};
}

Status AnyRangePlan::run(const Stream& stream, Workspace workspace, const detail::RangeOperands& o) const {
  const auto who = [&] { return label(impl_->descriptor); };
  if (Status s = ops::check_stream(who, stream, sku().backend); !s.ok()) return s;
  if (Status status = can_implement(o); !status.ok()) return status;
  if (Status status = ops::check_workspace(who, workspace, workspace_size()); !status.ok()) return status;
  const bool gaps = ops::has_gaps(*o.input);
  const ops::Segments& segments = gaps ? impl_->segments.with_gaps : impl_->segments.dense;
  const auto data = [](const AnyMut* view) { return static_cast<std::byte*>(view->data); };
  if (impl_->device_kernel != nullptr) {
    if (segments.parameters == 0) return {};
    return ops::launched(
        who, impl_->device_kernel->enqueue(
                 stream.device(), {.x = static_cast<const std::byte*>(o.input->data),
                                   .x_stride = ops::line_stride(segments.runs, *o.input),
                                   .segments = gaps ? impl_->device_segments.with_gaps : impl_->device_segments.dense,
                                   .partial = ops::partial_ranges(workspace.data),
                                   .min = data(o.min_out),
                                   .max = data(o.max_out),
                                   .max_abs = data(o.max_abs_out),
                                   .accumulate = impl_->descriptor.accumulate}));
  }
  const detail::RangeJob job =
      ops::range_job(segments, *o.input, row_bytes(impl_->input, segments.elements) >= ops::kStreamBytes);
  const Reporter reporter{impl_->kernel,
                          {data(o.min_out), data(o.max_out), data(o.max_abs_out), impl_->descriptor.accumulate}};
  const auto compute_bytes = static_cast<std::size_t>(row_bytes(scale_kind(impl_->input), 1));
  return ops::SegmentVisit(segments, *impl_->kernel, job, compute_bytes, workspace.data, reporter).run(stream);
}

Result<AnyRangePlan> detail::select_range(const Stream& stream, RangeDescriptor d, const PlanPreference& preference,
                                          ElementKind input) {
  if (!stream.status().ok()) return stream.status();
  if (d.input.value_or(input) != input)
    return unsupported("{}: the descriptor names {}, the plan's type is {}", label(d), name(*d.input), name(input));
  d.input = input;
  return AnyRangePlan::select(stream, d, preference);
}

}  // namespace kvant
