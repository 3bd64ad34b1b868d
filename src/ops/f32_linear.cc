// The front desk of f32 linear layers.
#include "kvant/f32_linear.h"

#include <utility>

#include "base/refuse.h"
#include "core/f32_linear_kernel.h"
#include "ops/linear_layer.h"
#include "ops/overlap.h"
#include "ops/packed_f32_weight_impl.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"

namespace kvant {
namespace {

using base::invalid_problem;
using base::unsupported;
using detail::F32LinearKernel;
using detail::F32LinearOperands;

constexpr const char* kF32Linear = "f32_linear";
constexpr const char* kF32LinearOnGpu = "copy the operands to the host";

bool has_bias(const F32LinearOperands& o) { return o.bias->data != nullptr; }

}  // namespace

// What select() found out.
struct AnyF32LinearPlan::Impl {
  std::int64_t max_rows;
  std::int64_t in_features;
  std::int64_t out_features;
  const F32LinearKernel* kernel;

  ElementKind weight() const { return kernel->sku.element; }
  Status check_shapes(const F32LinearOperands& o) const;
  Status check_weight(const F32LinearOperands& o) const;
  template <class Function>
  Status for_each_read(const F32LinearOperands& o, std::int64_t rows, const Function& f) const;
};

// ---- Selecting ----

AnyF32LinearPlan::AnyF32LinearPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyF32LinearPlan> AnyF32LinearPlan::select(const Stream& stream, const F32LinearDescriptor& d,
                                                  const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kF32Linear, stream, kF32LinearOnGpu); !s.ok()) return s;
  const auto target = ops::target_of(kF32Linear, stream, preference);
  if (!target.ok()) return target.status();
  if (!d.weight) return invalid_problem("{}: the descriptor does not set the weight element", kF32Linear);
  if (Status s = ops::check_linear_sizes(kF32Linear, d.max_rows, d.in_features, d.out_features); !s.ok()) return s;
  const auto* kernel =
      ops::select_kernel<F32LinearKernel>(QuantizeKind::f32_linear, *d.weight, ElementKind::f32, *target).kernel;
  if (kernel == nullptr)
    return unsupported("{}: weight element {} must be one of f32, f16, bf16", kF32Linear, name(*d.weight));
  return AnyF32LinearPlan(std::make_shared<const Impl>(Impl{d.max_rows, d.in_features, d.out_features, kernel}));
}

Result<AnyF32LinearPlan> detail::select_f32_linear(const Stream& stream, F32LinearDescriptor d,
                                                   const PlanPreference& preference, ElementKind weight) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = ops::set_kind(kF32Linear, "weight", d.weight, weight); !s.ok()) return s;
  return AnyF32LinearPlan::select(stream, d, preference);
}

std::size_t AnyF32LinearPlan::workspace_size() const {
  return impl_->kernel->workspace_size(*impl_->kernel, impl_->max_rows, impl_->in_features);
}

KernelSku AnyF32LinearPlan::sku() const { return impl_->kernel->sku; }

// ---- Checking ----

Status AnyF32LinearPlan::Impl::check_shapes(const F32LinearOperands& o) const {
  const AnyRef& x = *o.input;
  if (x.kind != ElementKind::f32) return unsupported("{}: input has element {}, must be f32", kF32Linear, name(x.kind));
  if (!x.shape.element_count() || x.shape.rank() == 0 || x.shape.row_length() != in_features)
    return invalid_problem("{}: input has shape {}, must have {} in_features as its last size", kF32Linear,
                           x.shape.to_string(), in_features);
  const std::int64_t rows = ops::row_count(x.shape);
  if (rows > max_rows)
    return invalid_problem("{}: input has shape {} with {} rows, the plan was selected for max_rows {}", kF32Linear,
                           x.shape.to_string(), rows, max_rows);
  if (Status s = ops::check_view(kF32Linear, "input", x, ElementKind::f32, x.shape, in_features == 0 ? 0 : rows);
      !s.ok())
    return s;
  Shape wanted = x.shape;
  wanted[wanted.rank() - 1] = out_features;
  if (Status s =
          ops::check_view(kF32Linear, "output", *o.output, ElementKind::f32, wanted, out_features == 0 ? 0 : rows);
      !s.ok())
    return s;
  if (!has_bias(o)) return {};
  return ops::check_view(kF32Linear, "bias", *o.bias, ElementKind::f32, {out_features}, out_features == 0 ? 0 : 1);
}

Status AnyF32LinearPlan::Impl::check_weight(const F32LinearOperands& o) const {
  const bool raw = ops::is_given(o.weight);
  if (raw && o.packed_weight != nullptr)
    return invalid_problem("{}: both weight and packed_weight are set; give one", kF32Linear);
  if (!raw && o.packed_weight == nullptr)
    return invalid_problem("{}: neither weight nor packed_weight is set; give one", kF32Linear);
  if (raw)
    return ops::check_view(kF32Linear, "weight", *o.weight, weight(), {out_features, in_features},
                           in_features == 0 ? 0 : out_features);
  const PackedF32Weight& packed = *o.packed_weight;
  if (packed.out_features() != out_features || packed.in_features() != in_features)
    return invalid_problem("{}: packed_weight has shape [{}, {}], must have [{}, {}]", kF32Linear,
                           packed.out_features(), packed.in_features(), out_features, in_features);
  if (packed.element() != weight())
    return unsupported("{}: packed_weight has element {}, the plan was selected for {}", kF32Linear,
                       name(packed.element()), name(weight()));
  if (packed.isa() != kernel->sku.arch)
    return unsupported("{}: packed_weight was packed for {}, the plan runs on {}", kF32Linear, name(packed.isa()),
                       name(kernel->sku.arch));
  return {};
}

// f(name, extent) for everything that is read, until one refuses.
template <class Function>
Status AnyF32LinearPlan::Impl::for_each_read(const F32LinearOperands& o, std::int64_t rows, const Function& f) const {
  if (Status s = f("input", ops::extent(*o.input, rows)); !s.ok()) return s;
  if (o.packed_weight != nullptr) {
    const auto size = static_cast<std::int64_t>(o.packed_weight->bytes().size());
    if (Status s = f("packed_weight", ops::Extent(o.packed_weight->bytes().data(), 1, size, size)); !s.ok()) return s;
  } else {
    if (Status s = f("weight", ops::extent(*o.weight, out_features)); !s.ok()) return s;
  }
  return has_bias(o) ? f("bias", ops::extent(*o.bias, 1)) : Status();
}

Status AnyF32LinearPlan::can_implement(const F32LinearOperands& o) const {
  if (Status s = impl_->check_shapes(o); !s.ok()) return s;
  if (Status s = impl_->check_weight(o); !s.ok()) return s;
  const std::int64_t rows = ops::row_count(o.input->shape);
  const ops::Extent written = ops::extent(*o.output, rows);
  return impl_->for_each_read(o, rows, [&](const char* what, const ops::Extent& read) -> Status {
    if (!ops::overlap(written, read)) return {};
    return invalid_problem("{}: output overlaps {}", kF32Linear, what);
  });
}

namespace {
F32LinearOperands operands(const AnyF32LinearArgs& a) {
  return {&a.input, &a.weight, a.packed_weight, &a.bias, &a.output};
}
}  // namespace

Status AnyF32LinearPlan::can_implement(const AnyF32LinearArgs& args) const { return can_implement(operands(args)); }

Status AnyF32LinearPlan::run(const Stream& stream, Workspace workspace, const AnyF32LinearArgs& args) const {
  return run(stream, workspace, operands(args));
}

// ---- Running ----

Status AnyF32LinearPlan::run(const Stream& stream, Workspace given, const F32LinearOperands& o) const {
  const Impl& plan = *impl_;
  if (Status s = ops::check_stream(kF32Linear, stream, BackendKind::cpu); !s.ok()) return s;
  if (Status s = can_implement(o); !s.ok()) return s;
  if (Status s = ops::check_workspace(kF32Linear, given, workspace_size()); !s.ok()) return s;
  const std::int64_t rows = ops::row_count(o.input->shape);
  const auto size = static_cast<std::int64_t>(workspace_size());
  const ops::Extent scratch(given.data, 1, size, size);
  if (ops::overlap(scratch, ops::extent(*o.output, rows)))
    return invalid_problem("{}: the workspace overlaps output", kF32Linear);
  if (Status s = plan.for_each_read(o, rows,
                                    [&](const char* what, const ops::Extent& read) -> Status {
                                      if (!ops::overlap(scratch, read)) return {};
                                      return invalid_problem("{}: the workspace overlaps {}", kF32Linear, what);
                                    });
      !s.ok())
    return s;
  if (rows == 0 || plan.out_features == 0) return {};

  const auto matrix = [](const AnyRef& view, std::int64_t matrix_rows, std::int64_t depth) -> detail::FloatMatrix {
    return {static_cast<const std::byte*>(view.data), ops::stride_bytes(view), matrix_rows, depth};
  };
  detail::F32LinearJob job;
  job.input = matrix(*o.input, rows, plan.in_features);
  job.columns = plan.out_features;
  if (o.packed_weight != nullptr)
    job.panels = o.packed_weight->impl().panels();
  else
    job.raw_weight = matrix(*o.weight, plan.out_features, plan.in_features);
  if (has_bias(o)) job.bias = static_cast<const std::byte*>(o.bias->data);
  job.out = ops::rows_of(*o.output);
  return plan.kernel->launch(*plan.kernel, stream, given.data, job);
}

}  // namespace kvant
