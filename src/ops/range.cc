// The front desk of range plans.
#include "kvant/range.h"

#include <string>
#include <utility>

#include "base/refuse.h"
#include "core/element_names.h"
#include "core/range_kernel.h"
#include "ops/overlap.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/segmented_shape.h"
#include "ops/views.h"

namespace kvant {

struct AnyRangePlan::Impl {
  RangeDescriptor descriptor;
  ops::SegmentedShape segmented;
  const detail::RangeKernel* kernel;
  std::unique_ptr<const detail::Prepared> prepared;
};

namespace {

using base::invalid_problem;
using base::unsupported;

std::string label(const RangeDescriptor& d) { return base::text("range_per_{}", name(d.scope.kind())); }

struct Output {
  const char* name;
  const AnyMut* view;
};

}  // namespace

AnyRangePlan::AnyRangePlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyRangePlan> AnyRangePlan::select(const Stream& stream, const RangeDescriptor& d,
                                          const PlanPreference& preference) {
  const auto who = [&] { return label(d); };
  const auto target = ops::target_of(who, stream, preference);
  if (!target.ok()) return target.status();
  if (!d.input) return invalid_problem("{}: the descriptor does not set the input element", who());
  if (!is_float(*d.input))
    return unsupported("{}: input element {} must be one of {}", who(), name(*d.input),
                       core::names_of(ElementClass::real));
  const auto parameters = ops::checked_parameter_shape(who, d.shape, d.scope);
  if (!parameters.ok()) return parameters.status();
  const auto* kernel =
      ops::select_kernel<detail::RangeKernel>(QuantizeKind::range, *d.input, scale_kind(*d.input), *target).kernel;
  if (kernel == nullptr) return unsupported("{}: no kernel for {}", who(), name(*d.input));
  const ops::SegmentedShape segmented(d.shape, d.scope, *parameters, *d.input);
  return AnyRangePlan(
      std::make_shared<const Impl>(Impl{d, segmented, kernel, kernel->prepare(segmented.problem(std::nullopt))}));
}

std::size_t AnyRangePlan::workspace_size() const { return impl_->prepared->workspace_size(); }
KernelSku AnyRangePlan::sku() const { return impl_->kernel->sku; }
const RangeDescriptor& AnyRangePlan::descriptor() const { return impl_->descriptor; }

Status AnyRangePlan::can_implement(const detail::RangeOperands& o) const {
  const RangeDescriptor& d = impl_->descriptor;
  const auto who = [&] { return label(d); };
  if (Status s = ops::check_view(who, "input", *o.input, impl_->segmented.input, d.shape, impl_->segmented.rows);
      !s.ok())
    return s;
  const ElementKind kind = scale_kind(impl_->segmented.input);
  const std::int64_t count = impl_->segmented.parameters;
  const ops::ParameterShape wanted{impl_->segmented.parameter_shape, count, d.scope.kind()};
  const Output outputs[] = {{"min_out", o.min_out}, {"max_out", o.max_out}, {"max_abs_out", o.max_abs_out}};
  const std::int64_t bytes = row_bytes(kind, count);
  const ops::Extent read = ops::extent(*o.input, impl_->segmented.rows);
  bool any = false;
  const base::Who label_of(who);
  const ops::AlignmentCheck check_alignment(label_of, impl_->kernel->sku.backend);
  if (Status s = check_alignment("input", *o.input); !s.ok()) return s;
  for (const Output& output : outputs) {
    if (output.view->data == nullptr) continue;
    any = true;
    const AnyMut& v = *output.view;
    if (Status s = ops::check_parameters(who, output.name, v, kind, wanted, true); !s.ok()) return s;
    if (Status s = check_alignment(output.name, v); !s.ok()) return s;
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
  if (impl_->segmented.parameters == 0) return {};
  const auto data = [](const AnyMut* view) { return static_cast<std::byte*>(view->data); };
  const detail::RangeJob job{.x = ops::rows_of(*o.input),
                             .gaps = ops::has_gaps(*o.input),
                             .min = data(o.min_out),
                             .max = data(o.max_out),
                             .max_abs = data(o.max_abs_out),
                             .accumulate = impl_->descriptor.accumulate};
  return impl_->kernel->launch(*impl_->kernel, stream, *impl_->prepared, workspace.data, job, who);
}

Result<AnyRangePlan> detail::select_range(const Stream& stream, RangeDescriptor d, const PlanPreference& preference,
                                          ElementKind input) {
  if (!stream.status().ok()) return stream.status();
  if (d.input.value_or(input) != input)
    return unsupported("{}: the descriptor says {}, the plan's type is {}", label(d), name(*d.input), name(input));
  d.input = input;
  return AnyRangePlan::select(stream, d, preference);
}

}  // namespace kvant
