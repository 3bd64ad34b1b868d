// Fake quantize, for training: rounds to the quantization grid but stays in floating point. With its straight-through
// backward pass.
//
//   y  = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)
//   dx = q_min <= rne(x / scale) + zero_point <= q_max ? dy : 0
//
// T is float, double, Half or BFloat16. NaN gives NaN, so that training sees it. Infinities give the ends of the range.
// The gradient at all of these is 0. q_min and q_max lie within ±2^23. y may be written over x, and dx over dy or x.
// Shapes and bad parameters: see elementwise.h and quantize.h.
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
  std::int32_t q_min = -128;
  std::int32_t q_max = 127;
  std::optional<ElementKind> element = std::nullopt;  // if set, must be the plan's T

  ElementwiseDescriptor elementwise(QuantizeKind op, ElementKind in, ElementKind out) const {
    return {.op = op,
            .shape = shape,
            .granularity = granularity,
            .input = element.value_or(in),
            .output = element.value_or(out),
            .q_min = q_min,
            .q_max = q_max};
  }
};

template <class T>
struct FakeQuantizeArgs {
  TensorRef<T> input = {};
  TensorMut<T> output = {};
  Parameter<scale_t<T>> scale = {};
  Parameter<std::int32_t> zero_point = 0;

  detail::ElementwiseOperands operands() const { return {&input, nullptr, &output, &scale, &zero_point}; }
};

template <class T>
struct FakeQuantizeBackwardArgs {
  TensorRef<T> grad_output = {};
  TensorRef<T> input = {};
  TensorMut<T> grad_input = {};
  Parameter<scale_t<T>> scale = {};
  Parameter<std::int32_t> zero_point = 0;

  detail::ElementwiseOperands operands() const { return {&input, &grad_output, &grad_input, &scale, &zero_point}; }
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
using FakeQuantizePerTensorPlan = FakeQuantizePlanOf<T, PerTensor>;
template <class T>
using FakeQuantizePerChannelPlan = FakeQuantizePlanOf<T, PerChannel>;
template <class T>
using FakeQuantizePerTokenPlan = FakeQuantizePlanOf<T, PerToken>;
template <class T>
using FakeQuantizePerGroupPlan = FakeQuantizePlanOf<T, PerGroup>;
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
using FakeQuantizeBackwardPlan = FakeQuantizePerTensorBackwardPlan<T>;

}  // namespace kvant
