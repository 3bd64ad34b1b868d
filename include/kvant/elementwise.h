// The element-wise operators with element kinds and granularity chosen at run time. Callers that know their types at
// compile time use quantize.h, dequantize.h and fake_quantize.h, which are built on this.
//
// With F(x) = x / scale (Numerics::exact) or x * (1 / scale) (Numerics::reciprocal) and rne = round to
// nearest, ties to even:
//
//   quantize                q  = clamp(rne(F(x)) + zp, q_min, q_max)
//   dequantize              x  = scale * (q - zp)
//   fake_quantize           y  = scale * (clamp(rne(F(x)) + zp, q_min, q_max) - zp)
//   in_range(x)                = q_min <= rne(F(x)) + zp <= q_max
//   quantize_backward       dx = in_range(x) ? F(dy) : 0
//   fake_quantize_backward  dx = in_range(x) ? dy : 0
//   dequantize_backward     dq = dy * scale
//
// With codes of a floating-point grid (e4m3, e5m2, e2m1), max its largest number and grid(y) its number nearest to y,
// ties to the even code:
//
//   quantize                q  = grid(clamp(F(x), -max, max))
//   dequantize              x  = scale * number(q)
//   fake_quantize           y  = scale * number(quantize(x))          with `grid` in the descriptor
//   in_range(x)                = |F(x)| <= max
//
// Scales are of the compute type, or tensors of f16, bf16, e8m0 (2^(b - 127)) or e4m3 with a global_scale, one f32 for
// the tensor (the scale is the e4m3 number / global_scale).
//
// f64 is computed in f64; f32, f16 and bf16 in f32 with f32 scales. The result is rounded to its type once.
//
// - The zero point is added after rounding: x / scale = 0.5 with zp = 1 gives 1, not 2.
// - NaN quantizes to zp clamped into [q_min, q_max], +Inf to q_max, -Inf to q_min. Fake quantization keeps
//   NaN; the gradient at NaN and at infinities is 0.
// - Floating-point grids have no zero point: it must be the number 0. They saturate: infinities and numbers beyond them
//   give ±max. With saturate = false, what rounds to more than max gives infinity in e5m2 and NaN in e4m3. NaN gives
//   the code 0x7F, or 0 in e2m1. Zeros keep their sign. There is one rounding to the grid, from f64 too.
// - A scale given as one number must be finite and positive, a zero point given as one number within
//   ±2^23. Tensors of them are not scanned. A bad scale gives what IEEE arithmetic makes of the formula (a
//   NaN quotient counts as NaN), only for its own elements. A zero point beyond ±2^23 counts as ±2^23.
// - q_min <= q_max, inside the code type (fake_quantize: inside ±2^23).
// - Zeros from rounding or masking are written as +0.0; products and quotients of gradients keep the sign that
//   IEEE gives them. Denormals are computed with, never flushed.
// - No elements: success, nothing is read or written.
// - fake_quantize may write its output over its input, and a backward pass its grad_input over grad_output or input, if
//   strides are equal. Any other overlap of an output is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kvant/export.h"
#include "kvant/granularity.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

struct ElementwiseDescriptor {
  QuantizeKind op = QuantizeKind::quantize;
  Shape shape = {};
  Granularity granularity = {};
  ElementKind input = ElementKind::f32;              // of the forward pass: what it reads
  ElementKind output = ElementKind::s8;              // and what it writes; equal for fake_quantize
  std::optional<std::int32_t> q_min = std::nullopt;  // default: the code type's limits; -128 and 127 for fake_quantize
  std::optional<std::int32_t> q_max = std::nullopt;
  std::optional<ElementKind> grid = std::nullopt;  // fake_quantize: a code with a floating-point grid, in place of
                                                   // q_min and q_max; other operators have it in input or output
  bool saturate = true;  // false: what is beyond a floating-point grid becomes infinity or NaN, not ±max
};

struct ElementwiseArgs {
  AnyRef input;        // x or q of the forward pass; dequantize_backward does not read it
  AnyRef grad_output;  // backward only
  AnyMut output;       // the result; backward: the gradient of the input
  AnyParameter scale;
  AnyParameter zero_point = AnyParameter(std::int32_t{0});  // not read by dequantize_backward
  AnyParameter global_scale = {};                           // over scales of e4m3, else none
};

namespace detail {
struct ElementwiseKernel;

// The buffers of one launch by reference, so that typed and run-time typed arguments share one path without
// copying views. grad_output and input are null if the operator has none.
struct ElementwiseOperands {
  const AnyRef* input;
  const AnyRef* grad_output;
  const AnyMut* output;
  const AnyParameter* scale;
  const AnyParameter* zero_point;
  const AnyParameter* global_scale;
};

// How one granularity walks memory; see src/core/runs.h.
struct Runs {
  std::int64_t lines = 0;         // contiguous stretches of memory
  std::int64_t length = 0;        // elements in each
  std::int64_t run = 1;           // neighbours that share parameters; 1: each element has its own
  std::int64_t middle_count = 1;  // a line's index in mixed radix: (outer, middle, inner)
  std::int64_t inner_count = 1;
  std::int64_t group = 1;  // how many middle indices share parameters
  std::int64_t outer_step = 0;
  std::int64_t middle_step = 0;
  std::int64_t inner_step = 0;
};
}  // namespace detail

class KVANT_API ElementwisePlan {
 public:
  static Result<ElementwisePlan> select(const Stream& stream, const ElementwiseDescriptor& descriptor,
                                        const PlanPreference& preference = {});

  Status can_implement(const ElementwiseArgs& args) const { return can_implement(operands(args)); }
  std::size_t workspace_size() const { return 0; }
  KernelSku sku() const;
  PrecisionGuarantee precision_guarantee() const { return sku().precision_guarantee; }
  Status run(const Stream& stream, Workspace workspace, const ElementwiseArgs& args) const {
    return run(stream, workspace, operands(args));
  }

  const ElementwiseDescriptor& descriptor() const { return descriptor_; }

  Status can_implement(const detail::ElementwiseOperands& operands) const;
  Status run(const Stream& stream, Workspace workspace, const detail::ElementwiseOperands& operands) const;

 private:
  Status check_alignments(const detail::ElementwiseOperands& operands) const;
  ElementwisePlan() = default;
  static detail::ElementwiseOperands operands(const ElementwiseArgs& args) {
    return {&args.input, &args.grad_output, &args.output, &args.scale, &args.zero_point, &args.global_scale};
  }

  ElementwiseDescriptor descriptor_;
  Numerics numerics_ = Numerics::exact;
  const detail::ElementwiseKernel* kernel_ = nullptr;
  std::int64_t elements_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t parameters_ = 0;
  Shape parameter_shape_;
  std::int32_t q_min_ = 0;
  std::int32_t q_max_ = 0;
  std::optional<ElementKind> grid_;  // the floating-point grid, if it is one
  detail::Runs dense_runs_;          // when no operand has gaps between its rows
  detail::Runs row_runs_;            // when some operand has
};

namespace detail {

// select() for a plan whose element kinds are template arguments: a descriptor that names others is refused.
KVANT_API Result<ElementwisePlan> select_typed(const Stream& stream, ElementwiseDescriptor descriptor,
                                               const PlanPreference& preference, ElementKind input, ElementKind output);

// ElementwisePlan with types. Descriptor and Args come from the operator's own header; their members elementwise() and
// operands() convert them.
template <QuantizeKind kOp, class In, class Out, class DescriptorType, class ArgsType>
class TypedElementwisePlan : public TypedPlan<ElementwisePlan, DescriptorType, ArgsType> {
 public:
  static Result<TypedElementwisePlan> select(const Stream& stream, const DescriptorType& descriptor,
                                             const PlanPreference& preference = {}) {
    auto plan = select_typed(stream, descriptor.elementwise(kOp, kind_of<In>, kind_of<Out>), preference, kind_of<In>,
                             kind_of<Out>);
    if (!plan.ok()) return plan.status();
    return TypedElementwisePlan(*plan);
  }

 private:
  explicit TypedElementwisePlan(const ElementwisePlan& plan)
      : TypedPlan<ElementwisePlan, DescriptorType, ArgsType>(plan) {}
};

}  // namespace detail
}  // namespace kvant
