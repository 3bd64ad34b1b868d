// KernelSku and PrecisionGuarantee: which kernel a plan chose, and what it promises.
#pragma once

#include <cstdint>
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
  f32_linear,
};

enum class BackendKind : std::uint8_t { cpu, cuda };

// An instruction set that kernels are compiled for. avx2 means AVX2 with FMA and F16C, sm_80 NVIDIA GPUs of compute
// capability 8.0 and later.
enum class ArchSku : std::uint8_t { scalar, avx2, sm_80 };

enum class LayoutKind : std::uint8_t { row_major };
// dequantize_bias: integer sums times scales, plus a bias. bias: sums, plus a bias.
enum class EpilogueKind : std::uint8_t { none, dequantize_bias, bias };

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
KVANT_API std::string_view name(ArchSku arch);

}  // namespace kvant
