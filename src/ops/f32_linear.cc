// The front desk of f32 linear layers. A run takes a block of rows at a time: it is rearranged into tiles, then every
// panel of the weight meets all of them.
#include "kvant/f32_linear.h"

#include <algorithm>
#include <utility>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "base/refuse.h"
#include "core/f32_linear_kernel.h"
#include "ops/linear_layer.h"
#include "ops/packed_f32_weight_impl.h"
#include "ops/packed_weight_impl.h"
#include "ops/preference.h"
#include "ops/registry.h"
#include "ops/views.h"

namespace kvant {
namespace {

using base::divide_up;
using base::invalid_problem;
using base::unsupported;
using detail::F32LinearKernel;
using detail::F32LinearOperands;

constexpr const char* kWho = "f32_linear";
constexpr auto who = [] { return kWho; };
constexpr const char* kOnGpu = "copy the operands to the host";
constexpr std::int64_t kAlignment = 64;  // of the tiles in the workspace

// 2^18 products take 5 µs on one core with AVX2; waking another one costs 3.
constexpr std::int64_t kMinProducts = 1 << 18;
// Rearranging 64 Ki numbers takes 20 µs.
constexpr std::int64_t kMinTileElements = 1 << 16;

bool has_bias(const F32LinearOperands& o) { return o.bias->data != nullptr; }

// The first step.
struct Preparation {
  const F32LinearKernel* kernel;
  detail::FloatMatrix input;  // some rows
  float* tiles;

  Status run(const Stream& stream) const {
    const std::int64_t count = divide_up(input.rows, kernel->tile_rows);
    if (input.rows * input.depth >= kMinTileElements) return stream.parallel_for(count, Task(&run_part, this));
    for (std::int64_t i = 0; i < count; ++i) run_part(this, i);
    return {};
  }
  static void run_part(const void* context, std::int64_t index) {
    const Preparation& p = *static_cast<const Preparation*>(context);
    p.kernel->pack_tile(p.input, index, p.tiles);
  }
};

struct Multiplication {
  const F32LinearKernel* kernel;
  const detail::F32LinearJob* job;
  ops::LinearPartition partition;

  static void run_part(const void* context, std::int64_t index) {
    const Multiplication& m = *static_cast<const Multiplication*>(context);
    const base::DefaultFloatEnvironment environment;
    m.kernel->run(*m.job, m.partition.part(index));
  }
};

}  // namespace

// What select() found out.
struct AnyF32LinearPlan::Impl {
  std::int64_t max_rows;
  std::int64_t in_features;
  std::int64_t out_features;
  const F32LinearKernel* kernel;

  ElementKind weight() const { return kernel->sku.element; }
  std::int64_t tile_bytes() const {
    return std::min(max_rows, kernel->row_block) * in_features * static_cast<std::int64_t>(sizeof(float));
  }

  Status check_shapes(const F32LinearOperands& o) const;
  Status check_weight(const F32LinearOperands& o) const;
  template <class Function>
  Status for_each_read(const F32LinearOperands& o, std::int64_t rows, const Function& f) const;
};

// ---- Selecting ----

AnyF32LinearPlan::AnyF32LinearPlan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<AnyF32LinearPlan> AnyF32LinearPlan::select(const Stream& stream, const F32LinearDescriptor& d,
                                                  const PlanPreference& preference) {
  if (Status s = ops::check_cpu_stream(kWho, stream, kOnGpu); !s.ok()) return s;
  const auto target = ops::target_of(who, stream, preference);
  if (!target.ok()) return target.status();
  if (!d.weight) return invalid_problem("{}: the descriptor does not name the weight element", kWho);
  if (Status s = ops::check_linear_sizes(kWho, d.max_rows, d.in_features, d.out_features); !s.ok()) return s;
  const F32LinearKernel* kernel = ops::find_f32_linear_kernel(*d.weight, *target);
  if (kernel == nullptr)
    return unsupported("{}: weight element {} must be one of f32, f16, bf16", kWho, name(*d.weight));
  return AnyF32LinearPlan(std::make_shared<const Impl>(Impl{d.max_rows, d.in_features, d.out_features, kernel}));
}

Result<AnyF32LinearPlan> detail::select_f32_linear(const Stream& stream, F32LinearDescriptor d,
                                                   const PlanPreference& preference, ElementKind weight) {
  if (!stream.status().ok()) return stream.status();
  if (Status s = ops::set_kind(kWho, "weight", d.weight, weight); !s.ok()) return s;
  return AnyF32LinearPlan::select(stream, d, preference);
}

std::size_t AnyF32LinearPlan::workspace_size() const {
  const std::int64_t bytes = impl_->tile_bytes();
  return static_cast<std::size_t>(bytes == 0 ? 0 : bytes + kAlignment);  // the caller's address may be any
}

KernelSku AnyF32LinearPlan::sku() const { return impl_->kernel->sku; }

// ---- Checking ----

Status AnyF32LinearPlan::Impl::check_shapes(const F32LinearOperands& o) const {
  const AnyRef& x = *o.input;
  if (x.kind != ElementKind::f32) return unsupported("{}: input has element {}, must be f32", kWho, name(x.kind));
  if (!x.shape.element_count() || x.shape.rank() == 0 || x.shape.row_length() != in_features)
    return invalid_problem("{}: input has shape {}, must have {} in_features as its last size", kWho,
                           x.shape.to_string(), in_features);
  const std::int64_t rows = ops::row_count(x.shape);
  if (rows > max_rows)
    return invalid_problem("{}: input has shape {} with {} rows, the plan was selected for max_rows {}", kWho,
                           x.shape.to_string(), rows, max_rows);
  if (Status s = ops::check_view(who, "input", x, ElementKind::f32, x.shape, in_features == 0 ? 0 : rows); !s.ok())
    return s;
  Shape wanted = x.shape;
  wanted[wanted.rank() - 1] = out_features;
  if (Status s = ops::check_view(who, "output", *o.output, ElementKind::f32, wanted, out_features == 0 ? 0 : rows);
      !s.ok())
    return s;
  if (!has_bias(o)) return {};
  return ops::check_view(who, "bias", *o.bias, ElementKind::f32, {out_features}, out_features == 0 ? 0 : 1);
}

Status AnyF32LinearPlan::Impl::check_weight(const F32LinearOperands& o) const {
  const bool raw = ops::is_given(o.weight);
  if (raw && o.packed_weight != nullptr)
    return invalid_problem("{}: both weight and packed_weight are set; give one", kWho);
  if (!raw && o.packed_weight == nullptr)
    return invalid_problem("{}: neither weight nor packed_weight is set; give one", kWho);
  if (raw)
    return ops::check_view(who, "weight", *o.weight, weight(), {out_features, in_features},
                           in_features == 0 ? 0 : out_features);
  const PackedF32Weight& packed = *o.packed_weight;
  if (packed.out_features() != out_features || packed.in_features() != in_features)
    return invalid_problem("{}: packed_weight has shape [{}, {}], must have [{}, {}]", kWho, packed.out_features(),
                           packed.in_features(), out_features, in_features);
  if (packed.element() != weight())
    return unsupported("{}: packed_weight has element {}, the plan was selected for {}", kWho, name(packed.element()),
                       name(weight()));
  if (packed.isa() != kernel->sku.arch)
    return unsupported("{}: packed_weight was packed for {}, the plan runs on {}", kWho, name(packed.isa()),
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
    return invalid_problem("{}: output overlaps {}", kWho, what);
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
  if (Status s = ops::check_stream(who, stream, BackendKind::cpu); !s.ok()) return s;
  if (Status s = can_implement(o); !s.ok()) return s;
  if (Status s = ops::check_workspace(who, given, workspace_size()); !s.ok()) return s;
  const std::int64_t rows = ops::row_count(o.input->shape);
  const auto size = static_cast<std::int64_t>(workspace_size());
  const ops::Extent scratch(given.data, 1, size, size);
  if (ops::overlap(scratch, ops::extent(*o.output, rows)))
    return invalid_problem("{}: the workspace overlaps output", kWho);
  if (Status s = plan.for_each_read(o, rows,
                                    [&](const char* what, const ops::Extent& read) -> Status {
                                      if (!ops::overlap(scratch, read)) return {};
                                      return invalid_problem("{}: the workspace overlaps {}", kWho, what);
                                    });
      !s.ok())
    return s;
  if (rows == 0 || plan.out_features == 0) return {};

  auto* workspace = static_cast<std::byte*>(given.data);
  if (workspace != nullptr) workspace += kAlignment - reinterpret_cast<std::uintptr_t>(workspace) % kAlignment;
  auto* tiles = reinterpret_cast<float*>(workspace);
  const F32LinearKernel& kernel = *plan.kernel;
  const std::int64_t input_stride = ops::stride_bytes(*o.input);
  detail::F32LinearJob job = {};
  job.columns = plan.out_features;
  job.depth = plan.in_features;
  job.tiles = tiles;
  job.panels = o.packed_weight == nullptr ? nullptr : o.packed_weight->impl().panels();
  if (o.packed_weight == nullptr)
    job.raw_weight = {static_cast<const std::byte*>(o.weight->data), ops::stride_bytes(*o.weight), plan.out_features,
                      plan.in_features};
  job.bias = has_bias(o) ? static_cast<const std::byte*>(o.bias->data) : nullptr;
  job.out_stride = ops::stride_bytes(*o.output);
  const ops::LinearGrain grain{kernel.panel_columns, kernel.tile_rows, kMinProducts};
  for (std::int64_t first = 0; first < rows; first += kernel.row_block) {
    job.rows = std::min(kernel.row_block, rows - first);
    job.out = static_cast<std::byte*>(o.output->data) + first * job.out_stride;
    if (job.depth != 0) {
      const Preparation preparation{
          &kernel,
          {static_cast<const std::byte*>(o.input->data) + first * input_stride, input_stride, job.rows, job.depth},
          tiles};
      if (Status s = preparation.run(stream); !s.ok()) return s;
    }
    const Multiplication multiplication{&kernel, &job,
                                        ops::partition(grain, job.rows, job.columns, job.depth, stream.threads())};
    if (Status s =
            stream.parallel_for(multiplication.partition.parts(), Task(&Multiplication::run_part, &multiplication));
        !s.ok())
      return s;
  }
  return {};
}

}  // namespace kvant
