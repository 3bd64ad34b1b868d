// F32LinearPlan: a linear layer in f32 whose bits depend on nothing but its operands.
//
//   acc = 0
//   for k = 0 … K-1, in this order:  acc = fma(x[m, k], w[n, k], acc)     in f32, each rounded once, to nearest even
//   y[m, n] = acc + bias[n], or acc where there is no bias
//
// Every output is one chain of fused multiply-adds in order of k. So the same bits come out for any thread count,
// instruction set, number of rows in the batch, packed weight or raw: row m alone is row m of a batch. Matrix libraries
// that sum in another order for another size or machine promise no such thing; this plan is as fast as they are.
//
// - Weights are f32, f16 or bf16, widened exactly. Input, bias and output are f32.
// - K = 0 leaves acc at 0: y is the bias (a bias of -0 becomes +0), or 0. M = 0 or N = 0 writes nothing.
// - NaN, infinities and denormals give what IEEE arithmetic makes of the chain. Payloads of NaN are not specified.
//
// Shapes, with M rows in all: input [..., K] of rank 1 to 8, output the same with N in place of K; M may be anything up
// to the descriptor's max_rows, from run to run. weight [N, K], row n for output n, raw or packed
// (packed_f32_weight.h): exactly one of the two. bias: none, or [N]. Rows of input, output and raw weight may be
// strided. No alignment is needed. The output may overlap nothing else, nor may the workspace.
//
// A packed weight is faster, far more so for few rows: a raw one is rearranged block by block in every run. Streams of
// the CPU only.
//
//   std::vector<float> x(m * k), w(n * k), y(m * n);
//   auto packed = kvant::PackedF32Weight::pack(stream, kvant::TensorRef<float>(w.data(), {n, k}));
//   auto plan = kvant::F32LinearPlan<>::select(stream, {.max_rows = m, .in_features = k, .out_features = n});
//   if (!packed.ok() || !plan.ok()) return …;
//   std::vector<std::byte> scratch(plan->workspace_size());
//   kvant::Status done = plan->run(
//       stream, {scratch.data(), scratch.size()},
//       {.input = {x.data(), {m, k}}, .packed_weight = &*packed, .output = {y.data(), {m, n}}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "kvant/element.h"
#include "kvant/export.h"
#include "kvant/packed_f32_weight.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

struct F32LinearDescriptor {
  std::int64_t max_rows = 0;      // M of a run may be anything up to this
  std::int64_t in_features = 0;   // K
  std::int64_t out_features = 0;  // N
  std::optional<ElementKind> weight =
      std::nullopt;  // AnyF32LinearPlan needs it; for the typed plan it must be W if set
};

// With the weight's element kind chosen at run time.
struct AnyF32LinearArgs {
  AnyRef input = {};
  AnyRef weight = {};  // raw; null if packed_weight is set
  const PackedF32Weight* packed_weight = nullptr;
  AnyRef bias = {};  // null: none
  AnyMut output = {};
};

namespace detail {

struct F32LinearOperands {
  const AnyRef* input;
  const AnyRef* weight;
  const PackedF32Weight* packed_weight;
  const AnyRef* bias;
  const AnyMut* output;
};

}  // namespace detail

// The weight's element kind chosen at run time.
class KVANT_API AnyF32LinearPlan {
 public:
  static Result<AnyF32LinearPlan> select(const Stream& stream, const F32LinearDescriptor& descriptor,
                                         const PlanPreference& preference = {});

  Status can_implement(const AnyF32LinearArgs& args) const;
  // Bytes for some hundred rows of the input, rearranged; more rows take turns in them.
  std::size_t workspace_size() const;
  KernelSku sku() const;
  PrecisionGuarantee precision_guarantee() const { return sku().precision_guarantee; }
  Status run(const Stream& stream, Workspace workspace, const AnyF32LinearArgs& args) const;

  Status can_implement(const detail::F32LinearOperands& operands) const;
  Status run(const Stream& stream, Workspace workspace, const detail::F32LinearOperands& operands) const;

 private:
  struct Impl;
  explicit AnyF32LinearPlan(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

template <class W>
struct F32LinearArgs {
  TensorRef<float> input = {};
  TensorRef<W> weight = {};
  const PackedF32Weight* packed_weight = nullptr;
  TensorRef<float> bias = {};
  TensorMut<float> output = {};

  detail::F32LinearOperands operands() const { return {&input, &weight, packed_weight, &bias, &output}; }
};

namespace detail {
KVANT_API Result<AnyF32LinearPlan> select_f32_linear(const Stream& stream, F32LinearDescriptor descriptor,
                                                     const PlanPreference& preference, ElementKind weight);
}

// W is float, Half or BFloat16.
template <class W = float>
class F32LinearPlan : public detail::TypedPlan<AnyF32LinearPlan, F32LinearDescriptor, F32LinearArgs<W>> {
 public:
  static Result<F32LinearPlan> select(const Stream& stream, const F32LinearDescriptor& descriptor,
                                      const PlanPreference& preference = {}) {
    auto plan = detail::select_f32_linear(stream, descriptor, preference, kind_of<W>);
    if (!plan.ok()) return plan.status();
    return F32LinearPlan(*plan);
  }

 private:
  explicit F32LinearPlan(const AnyF32LinearPlan& plan)
      : detail::TypedPlan<AnyF32LinearPlan, F32LinearDescriptor, F32LinearArgs<W>>(plan) {}
};

}  // namespace kvant
