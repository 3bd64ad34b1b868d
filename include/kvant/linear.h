// W8A8 linear layers: an 8-bit matrix product with exact sums, and one rounding to the output type.
//
//   S[m, n] = Σ_k (a[m, k] - act_zero_point[m]) * (w[n, k] - weight_zero_point[n])
//   y[m, n] = (act_scale[m] * weight_scale[n]) * S[m, n] + bias[n]
//
// or, where the output is s8 or u8 and has a scale and a zero point itself, the code of that:
//
//   q[m, n] = clamp(rne(S[m, n] * (act_scale[m] * weight_scale[n] / output_scale) + bias[n] / output_scale)
//                   + output_zero_point, q_min, q_max)
//
// W8A8LinearPlan<Out, W>
//     The activation is quantized already, with a scale (and zero point) per token or one for all, so that q, k and v
//     can share one quantization of their input. Out may be std::int8_t or std::uint8_t: ONNX's QLinearMatMul.
// SmoothQuantLinearPlan<Out, W>
//     The same with one static activation scale, from calibration, in the descriptor.
// QuantizedLinearPlan<In, W>
//     The activation is floating point and is quantized to s8 inside: per token by its own range, symmetric or
//     asymmetric, or with a static scale. Optionally it is divided by a smoothing vector first.
//
// - The sum is exact for every value of s8 and u8 (-128 * -128 included), for any K, on every instruction set. Zero
//   points are corrected in integers. The sum is converted to floating point once, rounded to nearest even.
// - Then, in this order and without fused multiply-adds: the product of the scales, times the sum, plus the bias, and
//   one rounding to the output type. f64 outputs do this in f64 (scales are f64), all others in f32 (scales are f32).
//   So the bits are the same for any thread count and instruction set, with a packed or a raw weight.
// - Codes: all scales are f32. act_scale * weight_scale, divided by output_scale, is rounded to f32 after each of the
//   two steps. The rest is in f64, without fused multiply-adds: the sum times that factor, plus the bias divided by
//   output_scale. One rounding to the nearest integer, ties to even, then the zero point is added and the code clamped
//   to its type. While |S| < 2^29 the product is exact. NaN gives the code of 0, which is output_zero_point.
// - K = 0 writes the bias, or 0. M = 0 or N = 0 writes nothing.
// - A scale given as a number must be finite and positive. Tensors of scales are not scanned: a bad entry gives what
//   IEEE arithmetic makes of the formula, in its own row or column.
// - An activation zero point given as a number must lie within ±2^23; an entry of a tensor beyond that counts as ±2^23.
//   A weight zero point must lie in the range of the weight's type; an entry of a tensor is clamped into it.
//
// Shapes, with M rows in total:
//   activation [..., K] of rank 1 to 8; output the same with N in place of K. M may differ from run to run, up to the
//     descriptor's max_rows
//   act_scale, act_zero_point: a number, or M of them (flat, or in the leading shape of the activation, with or without
//     a last size of 1)
//   weight [N, K]: either raw or packed (packed_weight.h)
//   weight_scale, weight_zero_point: a number, or N of them
//   bias: none, or [N] in the output's element type or in the type of its scales; beside codes it is f32, a number and
//     no code
//   output_scale, output_zero_point: one number each; the zero point is a code. Only with codes
// Rows of activation, output and raw weight may be strided. No alignment is needed. Output and workspace may not
// overlap anything.
//
// A packed weight is faster, most of all for few rows, because a raw one is rearranged block by block in every run.
//
//   std::vector<float> x(m * k), y(m * n), weight_scale(n);
//   std::vector<std::int8_t> w(n * k);
//   auto packed = kvant::PackedWeight::pack(stream, kvant::TensorRef<std::int8_t>(w.data(), {n, k}));
//   auto plan = kvant::QuantizedLinearPlan<float>::select(
//       stream, {.max_rows = m, .in_features = k, .out_features = n});
//   if (!packed.ok() || !plan.ok()) return …;
//   std::vector<std::byte> scratch(plan->workspace_size());
//   kvant::Status done = plan->run(stream, {scratch.data(), scratch.size()},
//                                  {.input = {x.data(), {m, k}},
//                                   .packed_weight = &*packed,
//                                   .weight_scale = kvant::TensorRef<float>(weight_scale.data(), {n}),
//                                   .output = {y.data(), {m, n}}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "kvant/dynamic_range.h"
#include "kvant/export.h"
#include "kvant/packed_weight.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

struct W8A8LinearDescriptor {
  std::int64_t max_rows = 0;                         // the max M of a run
  std::int64_t in_features = 0;                      // K
  std::int64_t out_features = 0;                     // N
  ElementKind activation = ElementKind::s8;          // s8 or u8
  std::optional<ElementKind> weight = std::nullopt;  // AnyLinearPlan needs both; for the typed plan they must be
  std::optional<ElementKind> output = std::nullopt;  // W and Out if set
};

struct SmoothQuantLinearDescriptor {
  std::int64_t max_rows = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  double act_scale = 0;  // static; rounded to f32 unless the output is f64; finite and positive
  std::int32_t act_zero_point = 0;
  ElementKind activation = ElementKind::s8;
  std::optional<ElementKind> weight = std::nullopt;
  std::optional<ElementKind> output = std::nullopt;
};

// How the input becomes s8 codes: by the range of each token (dynamic_range.h, scope token, q_min -128, q_max 127), or,
// if act_scale is set, by that scale and act_zero_point for all (quantize.h). With `smooth`, x[m, k] / smooth[k]
// replaces x[m, k], divided in the type of the scales and not rounded to the input's type.
// PlanPreference::numerics applies to the codes; the division by smooth is always exact.
struct QuantizedLinearDescriptor {
  std::int64_t max_rows = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  DynamicRangeMode mode = DynamicRangeMode::symmetric;
  bool include_zero = false;                        // of asymmetric ranges
  std::optional<double> act_scale = std::nullopt;   // static, in place of a dynamic range; rounded as above
  std::int32_t act_zero_point = 0;                  // of the static scale
  bool smooth = false;                              // the arguments hold a smoothing vector
  std::optional<ElementKind> input = std::nullopt;  // also the output's; AnyLinearPlan needs it
  std::optional<ElementKind> weight = std::nullopt;
};

// The arguments of all three with element kinds chosen at run time. Leave empty what a plan does not use:
// act_scale, act_zero_point and the two of the output belong to w8a8 plans only, smooth to quantized_linear with
// `smooth`.
struct AnyLinearArgs {
  AnyRef activation = {};
  AnyParameter act_scale = AnyParameter(AnyRef{});
  AnyParameter act_zero_point = AnyParameter(std::int32_t{0});
  AnyRef smooth = {};
  AnyRef weight = {};  // raw; null if packed_weight is set
  const PackedWeight* packed_weight = nullptr;
  AnyParameter weight_scale = AnyParameter(AnyRef{});
  AnyParameter weight_zero_point = AnyParameter(std::int32_t{0});
  AnyRef bias = {};  // null: none
  AnyMut output = {};
  std::optional<float> output_scale = std::nullopt;  // of outputs that are codes
  std::int32_t output_zero_point = 0;
};

namespace detail {

// Null: not given.
struct LinearOperands {
  const AnyRef* activation;
  const AnyParameter* act_scale;
  const AnyParameter* act_zero_point;
  const AnyRef* smooth;
  const AnyRef* weight;
  const PackedWeight* packed_weight;
  const AnyParameter* weight_scale;
  const AnyParameter* weight_zero_point;
  const AnyRef* bias;
  const AnyMut* output;
  std::optional<float> output_scale = std::nullopt;
  std::int32_t output_zero_point = 0;
};

}  // namespace detail

// Element kinds chosen at run time.
class KVANT_API AnyLinearPlan {
 public:
  static Result<AnyLinearPlan> select(const Stream& stream, const W8A8LinearDescriptor& descriptor,
                                      const PlanPreference& preference = {});
  static Result<AnyLinearPlan> select(const Stream& stream, const SmoothQuantLinearDescriptor& descriptor,
                                      const PlanPreference& preference = {});
  static Result<AnyLinearPlan> select(const Stream& stream, const QuantizedLinearDescriptor& descriptor,
                                      const PlanPreference& preference = {});

  Status can_implement(const AnyLinearArgs& args) const;
  // Bytes for the rearranged activation of max_rows rows, and for its codes and scales if they are computed inside.
  std::size_t workspace_size() const;
  KernelSku sku() const;
  PrecisionGuarantee precision_guarantee() const { return sku().precision_guarantee; }
  Status run(const Stream& stream, Workspace workspace, const AnyLinearArgs& args) const;

  Status can_implement(const detail::LinearOperands& operands) const;
  Status run(const Stream& stream, Workspace workspace, const detail::LinearOperands& operands) const;

 private:
  struct Impl;
  explicit AnyLinearPlan(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

namespace detail {
KVANT_API Result<AnyLinearPlan> select_linear(const Stream& stream, W8A8LinearDescriptor descriptor,
                                              const PlanPreference& preference, ElementKind weight, ElementKind output);
KVANT_API Result<AnyLinearPlan> select_linear(const Stream& stream, SmoothQuantLinearDescriptor descriptor,
                                              const PlanPreference& preference, ElementKind weight, ElementKind output);
KVANT_API Result<AnyLinearPlan> select_linear(const Stream& stream, QuantizedLinearDescriptor descriptor,
                                              const PlanPreference& preference, ElementKind weight, ElementKind input);
}  // namespace detail

template <class Out, class W>
struct W8A8LinearArgs {
  AnyRef activation = {};  // a TensorRef<std::int8_t> or TensorRef<std::uint8_t>, as the descriptor says
  Parameter<scale_t<Out>> act_scale = {};
  Parameter<std::int32_t> act_zero_point = 0;
  TensorRef<W> weight = {};
  const PackedWeight* packed_weight = nullptr;
  Parameter<scale_t<Out>> weight_scale = {};
  Parameter<std::int32_t> weight_zero_point = 0;
  AnyRef bias = {};  // a TensorRef<Out> or TensorRef<scale_t<Out>>; null: none
  TensorMut<Out> output = {};
  std::optional<float> output_scale = std::nullopt;  // of outputs that are codes
  std::int32_t output_zero_point = 0;

  detail::LinearOperands operands() const {
    return {&activation,   &act_scale,         &act_zero_point, nullptr, &weight,      packed_weight,
            &weight_scale, &weight_zero_point, &bias,           &output, output_scale, output_zero_point};
  }
};

template <class Out, class W>
struct SmoothQuantLinearArgs {
  AnyRef activation = {};
  TensorRef<W> weight = {};
  const PackedWeight* packed_weight = nullptr;
  Parameter<scale_t<Out>> weight_scale = {};
  Parameter<std::int32_t> weight_zero_point = 0;
  AnyRef bias = {};
  TensorMut<Out> output = {};

  detail::LinearOperands operands() const {
    return {&activation,        nullptr, nullptr, nullptr, &weight, packed_weight, &weight_scale,
            &weight_zero_point, &bias,   &output};
  }
};

template <class In, class W>
struct QuantizedLinearArgs {
  TensorRef<In> input = {};
  TensorRef<scale_t<In>> smooth = {};  // [K]; null unless the descriptor says smooth
  TensorRef<W> weight = {};
  const PackedWeight* packed_weight = nullptr;
  Parameter<scale_t<In>> weight_scale = {};
  Parameter<std::int32_t> weight_zero_point = 0;
  AnyRef bias = {};
  TensorMut<In> output = {};

  detail::LinearOperands operands() const {
    return {&input, nullptr, nullptr, &smooth, &weight, packed_weight, &weight_scale, &weight_zero_point,
            &bias,  &output};
  }
};

namespace detail {

template <class First, class W, class DescriptorType, class ArgsType>
class LinearPlanOf : public TypedPlan<AnyLinearPlan, DescriptorType, ArgsType> {
 public:
  static Result<LinearPlanOf> select(const Stream& stream, const DescriptorType& descriptor,
                                     const PlanPreference& preference = {}) {
    auto plan = select_linear(stream, descriptor, preference, kind_of<W>, kind_of<First>);
    if (!plan.ok()) return plan.status();
    return LinearPlanOf(*plan);
  }

 private:
  explicit LinearPlanOf(const AnyLinearPlan& plan) : TypedPlan<AnyLinearPlan, DescriptorType, ArgsType>(plan) {}
};

}  // namespace detail

// Out and In are float, double, Half or BFloat16; Out of a W8A8LinearPlan may also be int8_t or uint8_t. W is int8_t or
// uint8_t.
template <class Out, class W = std::int8_t>
using W8A8LinearPlan = detail::LinearPlanOf<Out, W, W8A8LinearDescriptor, W8A8LinearArgs<Out, W>>;
template <class Out, class W = std::int8_t>
using SmoothQuantLinearPlan = detail::LinearPlanOf<Out, W, SmoothQuantLinearDescriptor, SmoothQuantLinearArgs<Out, W>>;
template <class In, class W = std::int8_t>
using QuantizedLinearPlan = detail::LinearPlanOf<In, W, QuantizedLinearDescriptor, QuantizedLinearArgs<In, W>>;

}  // namespace kvant
