// What the element-wise front desk hands to a kernel, and the list of kernels it chooses from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/runs.h"
#include "kvant/plan.h"
#include "kvant/sku.h"

namespace kvant::detail {

// The promise of every kernel that evaluates one formula in C: the same bits everywhere.
template <class C>
consteval PrecisionGuarantee bit_stable_guarantee() {
  return {.math_precision = sizeof(C) == sizeof(double) ? MathPrecision::f64 : MathPrecision::f32,
          .accumulator = AccumulatorKind::none,
          .bit_stable_on_same_hardware = true,
          .bit_stable_across_hardware = true,
          .deterministic = true};
}

// One launch. Strides are in bytes from line to line. `x` is what the kernel reads (codes for dequantize, dy for
// dequantize_backward), `dy` the second input of the other backward passes.
struct ElementwiseJob {
  const std::byte* x;
  const std::byte* dy;
  std::byte* out;
  std::int64_t x_stride;
  std::int64_t dy_stride;
  std::int64_t out_stride;
  const std::byte* scale;       // unaligned scales of the compute type, in parameter order
  const std::byte* zero_point;  // unaligned int32, or null: `common_zero_point` for all
  std::int32_t common_zero_point;
  std::int32_t q_min;
  std::int32_t q_max;
  Numerics numerics;
  bool bounded;              // quantize: x is finite, and no code leaves the range by more than saturation mends
  bool stream;               // the output is too large for the caches: write around them
  std::int64_t fetch_ahead;  // bytes in front of x and dy to fetch, 0 for none
  const Runs* runs;
};

// A part of a job: elements [offset, offset + count) of lines [first_line, end_line).
struct ElementwisePart {
  std::int64_t first_line;
  std::int64_t end_line;
  std::int64_t offset;
  std::int64_t count;
};

struct ElementwiseKernel {
  KernelSku sku;
  void (*run)(const ElementwiseJob& job, const ElementwisePart& part);
  // Makes streamed output visible to other threads; called once after some parts of a job with `stream`. (A fence after
  // every row would keep the core waiting for its stores.)
  void (*finish_streaming)();
};

}  // namespace kvant::detail

namespace kvant::cpu {

// Each instruction set's kernels, defined in cpu/elementwise_<isa>.cc. Plain pointers: a std::span's members would
// be compiled for that instruction set and could be linked into code for another.
struct ElementwiseKernelList {
  const detail::ElementwiseKernel* first;
  std::size_t count;
};
ElementwiseKernelList elementwise_kernels_scalar();
ElementwiseKernelList elementwise_kernels_avx2();

}  // namespace kvant::cpu
