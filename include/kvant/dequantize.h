// Dequantize: codes to floating point, and its backward pass.
//
//   x  = scale * (q - zero_point)
//   dq = dy * scale
//
// For e4m3, e5m2 and e2m1, x = scale * number(q), without a zero point.
//
// In is any code type of element.h. Out is float, double, Half or BFloat16, and so are the gradients. Scales are
// f64 for double, f32 otherwise. f16 and bf16 results are computed in f32 and rounded once (overflow gives infinity).
// Shapes, bad parameters, aliasing: see elementwise.h and quantize.h.
//
//   auto plan = kvant::DequantizePerChannelPlan<std::int8_t, float>::select(
//       stream, {.shape = {64, 128}, .granularity = {.axis = 0}});
//   kvant::Status done = plan->run(stream, {}, {.input = {q.data(), {64, 128}},
//                                               .output = {x.data(), {64, 128}},
//                                               .scale = kvant::TensorRef<float>(scale.data(), {64})});
#pragma once

#include <cstdint>
#include <optional>

#include "kvant/elementwise.h"

namespace kvant {

template <class G>
struct DequantizeDescriptorOf {
  Shape shape = {};
  G granularity = {};
  std::optional<ElementKind> input = std::nullopt;   // if set, must be the plan's In
  std::optional<ElementKind> output = std::nullopt;  // if set, must be the plan's Out

  ElementwiseDescriptor elementwise(QuantizeKind op, ElementKind in, ElementKind out) const {
    return {.op = op,
            .shape = shape,
            .granularity = granularity,
            .input = input.value_or(in),
            .output = output.value_or(out),
            .q_min = {},
            .q_max = {}};
  }
};

template <class In, class Out>
struct DequantizeArgs {
  TensorRef<In> input = {};
  TensorMut<Out> output = {};
  ScaleParameter<scale_t<Out>> scale = {};
  Parameter<std::int32_t> zero_point = 0;
  AnyParameter global_scale = {};  // over scales of e4m3, else none

  detail::ElementwiseOperands operands() const {
    return {&input, nullptr, &output, &scale, &zero_point, &global_scale};
  }
};

template <class Out>
struct DequantizeBackwardArgs {
  TensorRef<Out> grad_output = {};
  TensorMut<Out> grad_input = {};
  ScaleParameter<scale_t<Out>> scale = {};
  AnyParameter global_scale = {};  // over scales of e4m3, else none

  detail::ElementwiseOperands operands() const {
    return {nullptr, &grad_output, &grad_input, &scale, nullptr, &global_scale};
  }
};

template <class In, class Out, class G>
using DequantizePlanOf =
    detail::TypedElementwisePlan<QuantizeKind::dequantize, In, Out, DequantizeDescriptorOf<G>, DequantizeArgs<In, Out>>;
template <class In, class Out, class G>
using DequantizeBackwardPlanOf = detail::TypedElementwisePlan<QuantizeKind::dequantize_backward, In, Out,
                                                              DequantizeDescriptorOf<G>, DequantizeBackwardArgs<Out>>;

using DequantizePerTensorDescriptor = DequantizeDescriptorOf<PerTensor>;
using DequantizePerChannelDescriptor = DequantizeDescriptorOf<PerChannel>;
using DequantizePerTokenDescriptor = DequantizeDescriptorOf<PerToken>;
using DequantizePerGroupDescriptor = DequantizeDescriptorOf<PerGroup>;
using DequantizePerBlockDescriptor = DequantizeDescriptorOf<PerBlock>;

template <class In, class Out>
using DequantizePerTensorArgs = DequantizeArgs<In, Out>;
template <class In, class Out>
using DequantizePerChannelArgs = DequantizeArgs<In, Out>;
template <class In, class Out>
using DequantizePerTokenArgs = DequantizeArgs<In, Out>;
template <class In, class Out>
using DequantizePerGroupArgs = DequantizeArgs<In, Out>;
template <class In, class Out>
using DequantizePerBlockArgs = DequantizeArgs<In, Out>;

template <class In, class Out>
using DequantizePerTensorPlan = DequantizePlanOf<In, Out, PerTensor>;
template <class In, class Out>
using DequantizePerChannelPlan = DequantizePlanOf<In, Out, PerChannel>;
template <class In, class Out>
using DequantizePerTokenPlan = DequantizePlanOf<In, Out, PerToken>;
template <class In, class Out>
using DequantizePerGroupPlan = DequantizePlanOf<In, Out, PerGroup>;
template <class In, class Out>
using DequantizePerBlockPlan = DequantizePlanOf<In, Out, PerBlock>;

template <class In, class Out>
using DequantizePerTensorBackwardPlan = DequantizeBackwardPlanOf<In, Out, PerTensor>;
template <class In, class Out>
using DequantizePerChannelBackwardPlan = DequantizeBackwardPlanOf<In, Out, PerChannel>;
template <class In, class Out>
using DequantizePerTokenBackwardPlan = DequantizeBackwardPlanOf<In, Out, PerToken>;
template <class In, class Out>
using DequantizePerGroupBackwardPlan = DequantizeBackwardPlanOf<In, Out, PerGroup>;
template <class In, class Out>
using DequantizePerBlockBackwardPlan = DequantizeBackwardPlanOf<In, Out, PerBlock>;

}  // namespace kvant
