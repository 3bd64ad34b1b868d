// Dynamic-range quantization: computes scale and zero point from the range of the data, and the codes. For every
// segment of the scope (granularity.h says which elements form one), with xmin, xmax and max|x| over its finite values:
//
//   symmetric    scale = max|x| / q_max                      zero_point = 0
//   asymmetric   scale = (xmax - xmin) / (q_max - q_min)     zero_point = q_min - rne(xmin / scale)
//
//   q = clamp(rne(x / scale) + zero_point, q_min, q_max)     with the stored scale; see elementwise.h
//
// These rules apply in order:
//
// - The range is that of the finite values. A segment without finite values counts as all zero. Infinities still go to
//   q_max and q_min, NaN to the zero point (clamped into the range).
// - `include_zero` (asymmetric) first extends the range to contain 0, and at the end clamps the zero point into
//   [q_min, q_max]. With u8 the results are those of ONNX's DynamicQuantizeLinear. Without it the zero point is an
//   int32 that may lie outside the code type.
// - All zero, or no elements: scale 1, zero point 0 (asymmetric: 0 clamped into [q_min, q_max]).
// - Asymmetric, a constant c ≠ 0: scale = |c|, so that c comes back exactly (if |c| is a normal number).
// - Asymmetric, xmax - xmin overflows: scale = 2 * ((xmax/2 - xmin/2) / (q_max - q_min)), at most the max finite
//   number.
// - Asymmetric: the scale is at least max|x| / 2^22. A range that is tiny compared with its offset would need a zero
//   point that f32 cannot represent.
// - Floating-point grids (e4m3, e5m2, e2m1) are symmetric, with their max in place of q_max: scale = max|x| / 448.
// - The scale is at least the smallest normal number of its type. So it is always finite and positive.
//
// For finite x, dequantizing gives x back within
//   scale / 2 + 2^-24 * max|x| + scale * (q_max - q_min) * 2^-22        (f64: 2^-53 and 2^-51)
// plus the rounding of the result itself, except where codes clip: symmetric with q_min > -q_max (negative x in u8 and
// u4), and a scale that was limited to the max finite number.
//
// Scales may be written as codes, and elements are divided by exactly what was written:
//
//   f16, bf16  the scale rounded to nearest even, between the smallest normal and the largest finite number. f16 ends
//              at 65504: beyond 65504 * q_max codes clip, and a zero point stops at ±2^23
//   e8m0       a power of two (MxRule), at least 2^-127; symmetric floating-point grids only, 1 for a segment of zeros.
//              Not for f64, whose largest numbers it cannot hold
//   e4m3       e4m3(max|x| / max(grid) · global_scale), 0 becoming 0.125; the scale is that number / global_scale. The
//              global scale is given, or, with finds_global_scale, 448 · max(grid) / max|x| of the whole tensor (1
//              where that overflows, at least 2^-126), which reads the tensor once more. Symmetric floating-point grids
//              only
//
// Scales and zero points are always computed by division; Numerics applies to the elements. Asymmetric needs
// q_min < q_max, symmetric q_max > 0 and q_min <= q_max.
//
// scale_out and zero_point_out have parameter_shape(shape, scope), which is what the dequantize plan of the same
// granularity takes. They are dense; granularity.h lists other accepted shapes. Segments without elements are written
// too. zero_point_out may be null in symmetric mode; if it is given there, it is filled with 0. Outputs and workspace
// may not overlap anything. run() may be given another stream than select(). Same bits for any thread count and
// instruction set.
//
// How often a tensor is read: once per token, group, block or channel on the outermost axis (segments of up to
// 256 KiB, rows of blocks of up to 4 MiB), where the codes of a segment are computed while it is in the cache; twice
// per tensor and for channels of an inner axis.
//
//   std::vector<float> x(64 * 128), scale(64);
//   std::vector<std::int8_t> q(x.size());
//   auto plan = kvant::DynamicRangeQuantizePlan<float, std::int8_t>::select(
//       stream, {.shape = {64, 128}, .scope = kvant::PerToken{}, .mode = kvant::DynamicRangeMode::symmetric});
//   if (!plan.ok()) return fail(plan.status());
//   std::vector<std::byte> scratch(plan->workspace_size());
//   kvant::Status done = plan->run(stream, {scratch.data(), scratch.size()},
//                                  {.input = {x.data(), {64, 128}},
//                                   .output = {q.data(), {64, 128}},
//                                   .scale_out = {scale.data(), {64}}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "kvant/export.h"
#include "kvant/granularity.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant {

enum class DynamicRangeMode : std::uint8_t { symmetric, asymmetric };
KVANT_API std::string_view name(DynamicRangeMode mode);

// Which power of two a scale of e8m0 is, for the largest magnitude of a segment and 2^emax, that of the grid's max
// (emax is 8 for e4m3, 15 for e5m2, 2 for e2m1):
//   floor     2^(floor(log2(max|x|)) - emax): the OCP Microscaling specification
//   round_up  the same, and twice that where max|x| is 1.75 times a power of two or more: compressed-tensors
enum class MxRule : std::uint8_t { floor, round_up };
KVANT_API std::string_view name(MxRule rule);

// The segments that have a range of their own: PerTensor, PerChannel{axis}, PerToken, PerGroup{axis, group_size},
// PerBlock{rows, columns}.
using DynamicRangeScope = Granularity;

struct DynamicRangeQuantizeDescriptor {
  Shape shape = {};
  DynamicRangeScope scope = PerToken{};
  DynamicRangeMode mode = DynamicRangeMode::symmetric;
  bool include_zero = false;                         // a symmetric range contains 0 anyway
  std::optional<std::int32_t> q_min = std::nullopt;  // default: min of the output type
  std::optional<std::int32_t> q_max = std::nullopt;  // default: max of the output type
  std::optional<ElementKind> scale = std::nullopt;   // of scale_out; default: f64 for f64, else f32
  MxRule mx_rule = MxRule::floor;                    // with scales of e8m0
  bool finds_global_scale = false;                   // with scales of e4m3: it is written, not given
  std::optional<ElementKind> input = std::nullopt;   // AnyDynamicRangeQuantizePlan needs both; for the typed plan they
  std::optional<ElementKind> output = std::nullopt;  // must be In and Out if set
};

struct AnyDynamicRangeQuantizeArgs {
  AnyRef input = {};
  AnyMut output = {};
  AnyMut scale_out = {};
  AnyMut zero_point_out = {};  // null: not wanted
  // With scales of e4m3: the global scale, an f32, either given or found from the whole tensor and written.
  AnyParameter global_scale = {};
  AnyMut global_scale_out = {};
};

namespace detail {

struct DynamicRangeQuantizeOperands {
  const AnyRef* input;
  const AnyMut* output;
  const AnyMut* scale_out;
  const AnyMut* zero_point_out;
  const AnyParameter* global_scale;
  const AnyMut* global_scale_out;
};

}  // namespace detail

// Element kinds chosen at run time.
class KVANT_API AnyDynamicRangeQuantizePlan {
 public:
  static Result<AnyDynamicRangeQuantizePlan> select(const Stream& stream,
                                                    const DynamicRangeQuantizeDescriptor& descriptor,
                                                    const PlanPreference& preference = {});

  Status can_implement(const AnyDynamicRangeQuantizeArgs& args) const { return can_implement(operands(args)); }
  // 0 if segments fit the cache; otherwise bytes for partial ranges, one for each part that a thread reads.
  std::size_t workspace_size() const;
  KernelSku sku() const;
  PrecisionGuarantee precision_guarantee() const { return sku().precision_guarantee; }
  Status run(const Stream& stream, Workspace workspace, const AnyDynamicRangeQuantizeArgs& args) const {
    return run(stream, workspace, operands(args));
  }

  const DynamicRangeQuantizeDescriptor& descriptor() const;

  Status can_implement(const detail::DynamicRangeQuantizeOperands& operands) const;
  Status run(const Stream& stream, Workspace workspace, const detail::DynamicRangeQuantizeOperands& operands) const;

 private:
  struct Impl;
  explicit AnyDynamicRangeQuantizePlan(std::shared_ptr<const Impl> impl);
  static detail::DynamicRangeQuantizeOperands operands(const AnyDynamicRangeQuantizeArgs& args) {
    return {&args.input,          &args.output,       &args.scale_out,
            &args.zero_point_out, &args.global_scale, &args.global_scale_out};
  }
  std::shared_ptr<const Impl> impl_;
};

namespace detail {
KVANT_API Result<AnyDynamicRangeQuantizePlan> select_dynamic_range(const Stream& stream,
                                                                   DynamicRangeQuantizeDescriptor descriptor,
                                                                   const PlanPreference& preference, ElementKind input,
                                                                   ElementKind output);
}  // namespace detail

template <class In, class Out>
struct DynamicRangeQuantizeArgs {
  TensorRef<In> input = {};
  TensorMut<Out> output = {};
  ScaleMut<scale_t<In>> scale_out = {};
  TensorMut<std::int32_t> zero_point_out = {};  // null: not wanted
  AnyParameter global_scale = {};               // see AnyDynamicRangeQuantizeArgs
  TensorMut<float> global_scale_out = {};

  detail::DynamicRangeQuantizeOperands operands() const {
    return {&input, &output, &scale_out, &zero_point_out, &global_scale, &global_scale_out};
  }
};

// In is float, double, Half or BFloat16; Out is any code type of element.h.
template <class In, class Out>
class DynamicRangeQuantizePlan : public detail::TypedPlan<AnyDynamicRangeQuantizePlan, DynamicRangeQuantizeDescriptor,
                                                          DynamicRangeQuantizeArgs<In, Out>> {
 public:
  static Result<DynamicRangeQuantizePlan> select(const Stream& stream, const DynamicRangeQuantizeDescriptor& descriptor,
                                                 const PlanPreference& preference = {}) {
    auto plan = detail::select_dynamic_range(stream, descriptor, preference, kind_of<In>, kind_of<Out>);
    if (!plan.ok()) return plan.status();
    return DynamicRangeQuantizePlan(*plan);
  }

 private:
  explicit DynamicRangeQuantizePlan(const AnyDynamicRangeQuantizePlan& plan)
      : detail::TypedPlan<AnyDynamicRangeQuantizePlan, DynamicRangeQuantizeDescriptor,
                          DynamicRangeQuantizeArgs<In, Out>>(plan) {}
};

}  // namespace kvant
