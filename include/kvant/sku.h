// KernelSku and PrecisionGuarantee: which kernel a plan chose, and what it promises. The operators and instruction sets
// that kernels exist for are tables here; names, lists and sentences elsewhere are made from them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvant/element.h"
#include "kvant/export.h"

namespace kvant {

enum class OpCategory : std::uint8_t { quantization };

// The operators of the quantization category.
enum class QuantizeKind : std::uint8_t {
  quantize,
  dequantize,
  fake_quantize,
  quantize_backward,
  dequantize_backward,
  fake_quantize_backward,
  range,
  dynamic_range_quantize,
  w8a8_linear,
  smoothquant_linear,
  quantized_linear,
  error_sums,
  f32_linear,
  network_steps,
  weight_rounding,
};

// ---- Element-wise operators ----

struct ElementwiseOperator {
  QuantizeKind op;
  std::string_view name;
  // What the forward pass reads and writes.
  ElementClass input;
  ElementClass output;
  std::optional<QuantizeKind> backward_of;  // of a backward pass: its forward pass
  bool reads_input;                         // x or q; false for the gradient that needs the scale only
  bool rounds;                              // to a grid: it takes q_min, q_max and a zero point
  std::string_view formula;
};

inline constexpr std::array<ElementwiseOperator, 6> kElementwiseOperators = {{
    {QuantizeKind::quantize, "quantize", ElementClass::real, ElementClass::code, std::nullopt, true, true,
     "q = clamp(rne(x / scale) + zero_point, q_min, q_max)"},
    {QuantizeKind::dequantize, "dequantize", ElementClass::code, ElementClass::real, std::nullopt, true, false,
     "x = scale * (q - zero_point)"},
    {QuantizeKind::fake_quantize, "fake_quantize", ElementClass::real, ElementClass::real, std::nullopt, true, true,
     "y = scale * (clamp(rne(x / scale) + zero_point, q_min, q_max) - zero_point)"},
    {QuantizeKind::quantize_backward, "quantize_backward", ElementClass::real, ElementClass::code,
     QuantizeKind::quantize, true, true, "dx = q_min <= rne(x / scale) + zero_point <= q_max ? dy / scale : 0"},
    {QuantizeKind::dequantize_backward, "dequantize_backward", ElementClass::code, ElementClass::real,
     QuantizeKind::dequantize, false, false, "dq = dy * scale"},
    {QuantizeKind::fake_quantize_backward, "fake_quantize_backward", ElementClass::real, ElementClass::real,
     QuantizeKind::fake_quantize, true, true, "dx = q_min <= rne(x / scale) + zero_point <= q_max ? dy : 0"},
}};

constexpr bool is_elementwise(QuantizeKind op) { return static_cast<std::size_t>(op) < kElementwiseOperators.size(); }
// `op` must be element-wise.
constexpr const ElementwiseOperator& elementwise_operator(QuantizeKind op) {
  return kElementwiseOperators[static_cast<std::size_t>(op)];
}

namespace detail {
consteval bool operators_are_complete() {
  for (std::size_t i = 0; i < kElementwiseOperators.size(); ++i) {
    const ElementwiseOperator& o = kElementwiseOperators[i];
    if (o.op != static_cast<QuantizeKind>(i) || o.name.empty() || o.formula.empty()) return false;
    if (!o.backward_of) continue;
    // A backward pass is named after its forward pass and speaks of the same elements.
    const ElementwiseOperator& forward = elementwise_operator(*o.backward_of);
    if (forward.backward_of || forward.input != o.input || forward.output != o.output) return false;
    if (!o.name.starts_with(forward.name) || !o.name.ends_with("_backward")) return false;
  }
  return true;
}
static_assert(operators_are_complete(), "a row of kElementwiseOperators is incomplete or out of order");
}  // namespace detail

// ---- Backends and instruction sets ----

enum class BackendKind : std::uint8_t { cpu, cuda };

// An instruction set that kernels are compiled for.
enum class ArchSku : std::uint8_t { scalar, avx2, sm_80 };

struct ArchInfo {
  ArchSku arch;
  std::string_view name;
  BackendKind backend;
  std::string_view meaning;
};

inline constexpr std::array<ArchInfo, 3> kArchs = {{
    {ArchSku::scalar, "scalar", BackendKind::cpu, "plain C++, any machine"},
    {ArchSku::avx2, "avx2", BackendKind::cpu, "AVX2 with FMA and F16C"},
    {ArchSku::sm_80, "sm_80", BackendKind::cuda, "NVIDIA GPUs of compute capability 8.0 and later"},
}};

namespace detail {
consteval bool archs_are_complete() {
  for (std::size_t i = 0; i < kArchs.size(); ++i)
    if (kArchs[i].arch != static_cast<ArchSku>(i) || kArchs[i].name.empty() || kArchs[i].meaning.empty()) return false;
  return true;
}
static_assert(archs_are_complete(), "a row of kArchs is incomplete or out of order");
}  // namespace detail

constexpr const ArchInfo& info(ArchSku arch) { return kArchs[static_cast<std::size_t>(arch)]; }
constexpr std::string_view name(ArchSku arch) { return info(arch).name; }

enum class LayoutKind : std::uint8_t { row_major };
// dequantize_bias: integer sums times scales, plus a bias. bias: sums, plus a bias. requantize_bias: integer sums times
// scales, plus a bias, in steps of an output scale, rounded to codes.
enum class EpilogueKind : std::uint8_t { none, dequantize_bias, bias, requantize_bias };

enum class MathPrecision : std::uint8_t { f32, f64 };
// exact_integer: sums of products that never saturate, wrap or round. f32_chain: fused multiply-adds in f32, one after
// the other in order of k.
enum class AccumulatorKind : std::uint8_t { none, exact_integer, f32_chain };

struct PrecisionGuarantee {
  MathPrecision math_precision = MathPrecision::f32;  // what the formula is evaluated in
  AccumulatorKind accumulator = AccumulatorKind::none;
  bool bit_stable_on_same_hardware = false;  // the same bits on every run, for any thread count
  bool bit_stable_across_hardware = false;   // the same bits on every instruction set and backend
  bool deterministic = false;                // no part of the result depends on timing

  friend bool operator==(const PrecisionGuarantee&, const PrecisionGuarantee&) = default;
};

struct KernelSku {
  OpCategory category = OpCategory::quantization;
  QuantizeKind op = QuantizeKind::quantize;
  ElementKind element = ElementKind::f32;      // what the kernel reads; of f32_linear, its weight
  ElementKind aux_element = ElementKind::f32;  // what it writes
  LayoutKind layout = LayoutKind::row_major;
  EpilogueKind epilogue = EpilogueKind::none;
  ArchSku arch = ArchSku::scalar;
  BackendKind backend = BackendKind::cpu;
  PrecisionGuarantee precision_guarantee;

  // "quantize_f32_s8__avx2"
  KVANT_API std::string name() const;
};

KVANT_API std::string_view name(QuantizeKind op);
KVANT_API std::string_view name(BackendKind backend);

}  // namespace kvant
