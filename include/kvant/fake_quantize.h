// Fake quantize, for training: rounds to the quantization grid but stays in floating point. With its straight-through
// backward pass.
//
//   y  = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)
//   dx = q_min <= rne(x / scale) + zero_point <= q_max ? dy : 0
//
// T is float, double, Half or BFloat16. NaN gives NaN, so that training sees it. Infinities give the ends of the range.
// The gradient at all of these is 0. q_min and q_max lie within ±2^23. y may be written over x, and dx over dy or x.
// With `grid` (e4m3, e5m2 or e2m1) in place of q_min and q_max, the numbers of a floating-point grid, without a zero
// point. Its formulas, shapes and bad parameters: see elementwise.h and quantize.h.
//
//   auto plan = kvant::FakeQuantizePlan<float>::select(stream, {.shape = {4096}, .q_min = -8, .q_max = 7});
//   kvant::Status done = plan->run(stream, {}, {.input = {x.data(), {4096}},
//                                               .output = {x.data(), {4096}},
//                                               .scale = 0.05f});
#pragma once

#include <cstdint>
#include <optional>

#include "kvant/elementwise.h"

namespace kvant {

template <class G>
struct FakeQuantizeDescriptorOf {
  Shape shape = {};
  G granularity = {};
  std::optional<std::int32_t> q_min = std::nullopt;   // default: -128
  std::optional<std::int32_t> q_max = std::nullopt;   // default: 127
  std::optional<ElementKind> grid = std::nullopt;     // a floating-point grid in place of q_min and q_max
  bool saturate = true;                               // see elementwise.h
  std::optional<ElementKind> element = std::nullopt;  // if set, must be the plan's T

  ElementwiseDescriptor elementwise(QuantizeKind op, ElementKind in, ElementKind out) const {
    return {.op = op,
            .shape = shape,
            .granularity = granularity,
            .input = element.value_or(in),
            .output = element.value_or(out),
            .q_min = q_min,
            .q_max = q_max,
            .grid = grid,
            .saturate = saturate};
  }
};

template <class T>
struct FakeQuantizeArgs {
  TensorRef<T> input = {};
  TensorMut<T> output = {};
  ScaleParameter<scale_t<T>> scale = {};
  Parameter<std::int32_t> zero_point = 0;
  AnyParameter global_scale = {};  // over scales of e4m3, else none

  detail::ElementwiseOperands operands() const {
    return {&input, nullptr, &output, &scale, &zero_point, &global_scale};
  }
};

template <class T>
struct FakeQuantizeBackwardArgs {
  TensorRef<T> grad_output = {};
  TensorRef<T> input = {};
  TensorMut<T> grad_input = {};
  ScaleParameter<scale_t<T>> scale = {};
  Parameter<std::int32_t> zero_point = 0;
  AnyParameter global_scale = {};  // over scales of e4m3, else none

  detail::ElementwiseOperands operands() const {
    return {&input, &grad_output, &grad_input, &scale, &zero_point, &global_scale};
  }
};

template <class T, class G>
using FakeQuantizePlanOf =
    detail::TypedElementwisePlan<QuantizeKind::fake_quantize, T, T, FakeQuantizeDescriptorOf<G>, FakeQuantizeArgs<T>>;
template <class T, class G>
using FakeQuantizeBackwardPlanOf =
    detail::TypedElementwisePlan<QuantizeKind::fake_quantize_backward, T, T, FakeQuantizeDescriptorOf<G>,
                                 FakeQuantizeBackwardArgs<T>>;

using FakeQuantizePerTensorDescriptor = FakeQuantizeDescriptorOf<PerTensor>;
using FakeQuantizePerChannelDescriptor = FakeQuantizeDescriptorOf<PerChannel>;
using FakeQuantizePerTokenDescriptor = FakeQuantizeDescriptorOf<PerToken>;
using FakeQuantizePerGroupDescriptor = FakeQuantizeDescriptorOf<PerGroup>;
using FakeQuantizePerBlockDescriptor = FakeQuantizeDescriptorOf<PerBlock>;
using FakeQuantizeDescriptor = FakeQuantizePerTensorDescriptor;

template <class T>
using FakeQuantizePerTensorArgs = FakeQuantizeArgs<T>;
template <class T>
using FakeQuantizePerChannelArgs = FakeQuantizeArgs<T>;
template <class T>
using FakeQuantizePerTokenArgs = FakeQuantizeArgs<T>;
template <class T>
using FakeQuantizePerGroupArgs = FakeQuantizeArgs<T>;
template <class T>
using FakeQuantizePerBlockArgs = FakeQuantizeArgs<T>;

template <class T>
using FakeQuantizePerTensorPlan = FakeQuantizePlanOf<T, PerTensor>;
template <class T>
using FakeQuantizePerChannelPlan = FakeQuantizePlanOf<T, PerChannel>;
template <class T>
using FakeQuantizePerTokenPlan = FakeQuantizePlanOf<T, PerToken>;
template <class T>
using FakeQuantizePerGroupPlan = FakeQuantizePlanOf<T, PerGroup>;
template <class T>
using FakeQuantizePerBlockPlan = FakeQuantizePlanOf<T, PerBlock>;
template <class T>
using FakeQuantizePlan = FakeQuantizePerTensorPlan<T>;

template <class T>
using FakeQuantizePerTensorBackwardPlan = FakeQuantizeBackwardPlanOf<T, PerTensor>;
template <class T>
using FakeQuantizePerChannelBackwardPlan = FakeQuantizeBackwardPlanOf<T, PerChannel>;
template <class T>
using FakeQuantizePerTokenBackwardPlan = FakeQuantizeBackwardPlanOf<T, PerToken>;
template <class T>
using FakeQuantizePerGroupBackwardPlan = FakeQuantizeBackwardPlanOf<T, PerGroup>;
template <class T>
using FakeQuantizePerBlockBackwardPlan = FakeQuantizeBackwardPlanOf<T, PerBlock>;
template <class T>
using FakeQuantizeBackwardPlan = FakeQuantizePerTensorBackwardPlan<T>;

}  // namespace kvant
