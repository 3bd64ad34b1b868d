// Quantize: floating point to codes, and its straight-through backward pass.
//
//   q  = clamp(rne(x / scale) + zero_point, q_min, q_max)
//   dx = q_min <= rne(x / scale) + zero_point <= q_max ? dy / scale : 0
//
// In is float, double, Half or BFloat16; Out is any code type of element.h; for e4m3, e5m2 and
// e2m1 the formulas are those of a floating-point grid. They, ties, NaN, infinities, bad
// parameters, aliasing: see elementwise.h. Shapes: input, output, grad_output and grad_input have the
// descriptor's shape; scale and zero_point have parameter_shape(shape, granularity) or, per tensor, are
// numbers. zero_point may be one number for every granularity; its default is 0.
//
//   std::vector<float> x(64 * 128), scale(64, 0.1f);
//   std::vector<std::int8_t> q(x.size());
//   kvant::Stream stream = kvant::Stream::cpu();
//   auto plan = kvant::QuantizePerTokenPlan<float, std::int8_t>::select(stream, {.shape = {64, 128}});
//   if (!plan.ok()) return fail(plan.status());
//   kvant::Status done = plan->run(stream, {}, {.input = {x.data(), {64, 128}},
//                                               .output = {q.data(), {64, 128}},
//                                               .scale = kvant::TensorRef<float>(scale.data(), {64})});
#pragma once

#include <cstdint>
#include <optional>

#include "kvant/elementwise.h"

namespace kvant {

template <class G>
struct QuantizeDescriptorOf {
  Shape shape = {};
  G granularity = {};
  std::optional<std::int32_t> q_min = std::nullopt;  // default: min of the output type
  std::optional<std::int32_t> q_max = std::nullopt;  // default: max of the output type
  bool saturate = true;                              // see elementwise.h
  std::optional<ElementKind> input = std::nullopt;   // if set, must be the plan's In
  std::optional<ElementKind> output = std::nullopt;  // if set, must be the plan's Out

  ElementwiseDescriptor elementwise(QuantizeKind op, ElementKind in, ElementKind out) const {
    return {.op = op,
            .shape = shape,
            .granularity = granularity,
            .input = input.value_or(in),
            .output = output.value_or(out),
            .q_min = q_min,
            .q_max = q_max,
            .saturate = saturate};
  }
};

template <class In, class Out>
struct QuantizeArgs {
  TensorRef<In> input = {};
  TensorMut<Out> output = {};
  ScaleParameter<scale_t<In>> scale = {};
  Parameter<std::int32_t> zero_point = 0;
  AnyParameter global_scale = {};  // over scales of e4m3, else none

  detail::ElementwiseOperands operands() const {
    return {&input, nullptr, &output, &scale, &zero_point, &global_scale};
  }
};

template <class In>
struct QuantizeBackwardArgs {
  TensorRef<In> grad_output = {};
  TensorRef<In> input = {};
  TensorMut<In> grad_input = {};
  ScaleParameter<scale_t<In>> scale = {};
  Parameter<std::int32_t> zero_point = 0;
  AnyParameter global_scale = {};  // over scales of e4m3, else none

  detail::ElementwiseOperands operands() const {
    return {&input, &grad_output, &grad_input, &scale, &zero_point, &global_scale};
  }
};

// G is PerTensor, PerChannel, PerToken, PerGroup, PerBlock, or Granularity for a choice at run time.
template <class In, class Out, class G>
using QuantizePlanOf =
    detail::TypedElementwisePlan<QuantizeKind::quantize, In, Out, QuantizeDescriptorOf<G>, QuantizeArgs<In, Out>>;
template <class In, class Out, class G>
using QuantizeBackwardPlanOf = detail::TypedElementwisePlan<QuantizeKind::quantize_backward, In, Out,
                                                            QuantizeDescriptorOf<G>, QuantizeBackwardArgs<In>>;

using QuantizePerTensorDescriptor = QuantizeDescriptorOf<PerTensor>;
using QuantizePerChannelDescriptor = QuantizeDescriptorOf<PerChannel>;
using QuantizePerTokenDescriptor = QuantizeDescriptorOf<PerToken>;
using QuantizePerGroupDescriptor = QuantizeDescriptorOf<PerGroup>;
using QuantizePerBlockDescriptor = QuantizeDescriptorOf<PerBlock>;

template <class In, class Out>
using QuantizePerTensorArgs = QuantizeArgs<In, Out>;
template <class In, class Out>
using QuantizePerChannelArgs = QuantizeArgs<In, Out>;
template <class In, class Out>
using QuantizePerTokenArgs = QuantizeArgs<In, Out>;
template <class In, class Out>
using QuantizePerGroupArgs = QuantizeArgs<In, Out>;
template <class In, class Out>
using QuantizePerBlockArgs = QuantizeArgs<In, Out>;

template <class In, class Out>
using QuantizePerTensorPlan = QuantizePlanOf<In, Out, PerTensor>;
template <class In, class Out>
using QuantizePerChannelPlan = QuantizePlanOf<In, Out, PerChannel>;
template <class In, class Out>
using QuantizePerTokenPlan = QuantizePlanOf<In, Out, PerToken>;
template <class In, class Out>
using QuantizePerGroupPlan = QuantizePlanOf<In, Out, PerGroup>;
template <class In, class Out>
using QuantizePerBlockPlan = QuantizePlanOf<In, Out, PerBlock>;

template <class In, class Out>
using QuantizePerTensorBackwardPlan = QuantizeBackwardPlanOf<In, Out, PerTensor>;
template <class In, class Out>
using QuantizePerChannelBackwardPlan = QuantizeBackwardPlanOf<In, Out, PerChannel>;
template <class In, class Out>
using QuantizePerTokenBackwardPlan = QuantizeBackwardPlanOf<In, Out, PerToken>;
template <class In, class Out>
using QuantizePerGroupBackwardPlan = QuantizeBackwardPlanOf<In, Out, PerGroup>;
template <class In, class Out>
using QuantizePerBlockBackwardPlan = QuantizeBackwardPlanOf<In, Out, PerBlock>;

}  // namespace kvant
