// Range: min, max and max magnitude of the finite values of every segment of a tensor. Observers and calibration use
// it, and it is the first half of dynamic_range.h.
//
//   min     = min of finite x           +Inf if a segment has none
//   max     = max of finite x           -Inf if a segment has none
//   max_abs = max(-min, max)               0 if a segment has none
//
// - NaN and infinities are left out. Zeros are written as +0.0. Nothing is rounded: every result is one of the inputs
//   (or its negative), in the scale type of In (f64 for f64, f32 for the others).
// - A segment is what shares a parameter in granularity.h; each output has parameter_shape(shape, scope), dense (flat
//   is accepted too). Leave outputs that you do not need null; at least one must be given if there are segments.
// - With `accumulate` the outputs are read first and extended: min(old, new), max(old, new). An old NaN counts as
//   nothing: the value of this batch replaces it, even if the segment is empty. Start from +Inf, -Inf and 0 (a run
//   without accumulate on the first batch does that), then any order and any split of the batches gives the same bits.
// - No elements: every segment is empty, and the outputs are still written.
// - Outputs must not overlap the input or each other, and the workspace must not overlap anything.
// - Same bits for any thread count and instruction set.
//
//   std::vector<float> x(64 * 128), absmax(128);
//   auto plan = kvant::RangePlan<float>::select(stream, {.shape = {64, 128}, .scope = kvant::PerChannel{1}});
//   if (!plan.ok()) return fail(plan.status());
//   std::vector<std::byte> scratch(plan->workspace_size());
//   kvant::Status done = plan->run(stream, {scratch.data(), scratch.size()},
//                                  {.input = {x.data(), {64, 128}}, .max_abs_out = {absmax.data(), {128}}});
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "kvant/export.h"
#include "kvant/granularity.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

struct RangeDescriptor {
  Shape shape = {};
  Granularity scope = {};
  bool accumulate = false;
  std::optional<ElementKind> input = std::nullopt;  // AnyRangePlan needs it; for RangePlan<In> it must be In if set
};

struct AnyRangeArgs {
  AnyRef input = {};
  AnyMut min_out = {};
  AnyMut max_out = {};
  AnyMut max_abs_out = {};
};

namespace detail {

struct RangeOperands {
  const AnyRef* input;
  const AnyMut* min_out;
  const AnyMut* max_out;
  const AnyMut* max_abs_out;
};

}  // namespace detail

// The element kind chosen at run time.
class KVANT_API AnyRangePlan {
 public:
  static Result<AnyRangePlan> select(const Stream& stream, const RangeDescriptor& descriptor,
                                     const PlanPreference& preference = {});

  Status can_implement(const AnyRangeArgs& args) const { return can_implement(operands(args)); }
  // Bytes for partial ranges, one for each part that a thread reads.
  std::size_t workspace_size() const;
  KernelSku sku() const;
  PrecisionGuarantee precision_guarantee() const { return sku().precision_guarantee; }
  Status run(const Stream& stream, Workspace workspace, const AnyRangeArgs& args) const {
    return run(stream, workspace, operands(args));
  }

  const RangeDescriptor& descriptor() const;

  Status can_implement(const detail::RangeOperands& operands) const;
  Status run(const Stream& stream, Workspace workspace, const detail::RangeOperands& operands) const;

 private:
  struct Impl;
  explicit AnyRangePlan(std::shared_ptr<const Impl> impl);
  static detail::RangeOperands operands(const AnyRangeArgs& args) {
    return {&args.input, &args.min_out, &args.max_out, &args.max_abs_out};
  }
  std::shared_ptr<const Impl> impl_;
};

namespace detail {
KVANT_API Result<AnyRangePlan> select_range(const Stream& stream, RangeDescriptor descriptor,
                                            const PlanPreference& preference, ElementKind input);
}  // namespace detail

template <class In>
struct RangeArgs {
  TensorRef<In> input = {};
  TensorMut<scale_t<In>> min_out = {};
  TensorMut<scale_t<In>> max_out = {};
  TensorMut<scale_t<In>> max_abs_out = {};

  detail::RangeOperands operands() const { return {&input, &min_out, &max_out, &max_abs_out}; }
};

// In is float, double, Half or BFloat16.
template <class In>
class RangePlan : public detail::TypedPlan<AnyRangePlan, RangeDescriptor, RangeArgs<In>> {
 public:
  static Result<RangePlan> select(const Stream& stream, const RangeDescriptor& descriptor,
                                  const PlanPreference& preference = {}) {
    auto plan = detail::select_range(stream, descriptor, preference, kind_of<In>);
    if (!plan.ok()) return plan.status();
    return RangePlan(*plan);
  }

 private:
  explicit RangePlan(const AnyRangePlan& plan)
      : detail::TypedPlan<AnyRangePlan, RangeDescriptor, RangeArgs<In>>(plan) {}
};

}  // namespace kvant
