// What a linear kernel of the CPU is given: tiles of the activation, panels of the weight, and a part of the product.
//
// Inside, activations are u8 and weights are s8. The other kind of either differs by 128, which is a flip of the top
// bit and moves into the zero point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/linear_kernel.h"

namespace kvant::cpu {

// One launch. Zero points belong to the kinds used inside.
struct LinearWork {
  std::int64_t rows;     // M
  std::int64_t columns;  // N
  std::int64_t depth;    // K
  const std::byte* tiles;
  const std::byte* wide_tiles;  // null: no panel needs them
  const std::int64_t* row_sums;
  const std::byte* panels;  // null: the weight is raw
  detail::CodeMatrix raw_weight;
  const std::byte* act_scale;  // unaligned scales of the compute type
  const std::byte* weight_scale;
  std::int64_t act_scale_step;            // 1: one for each row; 0: one for all
  std::int64_t weight_scale_step;         // the same for columns
  const std::byte* act_zero_point;        // unaligned int32
  const std::byte* weight_zero_point;     // unaligned int32
  std::int64_t act_zero_point_step;       // 1 or 0
  std::int64_t weight_zero_point_step;    // 1 or 0
  std::int32_t act_zero_point_offset;     // added after limiting: 128 for s8 activations
  std::int32_t weight_zero_point_offset;  // -128 for u8 weights
  CodeRange weight_range;                 // of the caller's weight kind
  const std::byte* bias;                  // null: none
  bool bias_is_output_kind;               // otherwise the compute type
  std::byte* out;
  std::int64_t out_stride;         // bytes
  float output_scale;              // of outputs that are codes
  std::int32_t output_zero_point;  // the same
  CodeRange output_range;          // the same
};

// Panels [first_panel, end_panel) by rows [first_row, end_row); first_row is a multiple of tile_rows.
struct LinearPart {
  std::int64_t first_panel;
  std::int64_t end_panel;
  std::int64_t first_row;
  std::int64_t end_row;
};

struct LinearKernel : detail::LinearKernel {
  void (*run)(const LinearWork& work, const LinearPart& part);
  // out[i] = x[i] / divisor[i] for n elements of the output's kind, in the compute type. Null: outputs are codes.
  void (*divide_row)(const std::byte* x, const std::byte* divisor, std::byte* out, std::int64_t n);
};

inline const LinearKernel& of_cpu(const detail::LinearKernel& kernel) {
  return static_cast<const LinearKernel&>(kernel);
}

// detail::LinearKernel's functions, for all kernels of the CPU.
std::unique_ptr<const detail::Prepared> prepare_linear(const detail::LinearKernel& kernel, const detail::KernelSet& set,
                                                       const detail::LinearProblem& problem);
Status launch_linear(const detail::LinearKernel& kernel, const Stream& stream, const detail::Prepared& prepared,
                     void* workspace, const detail::LinearJob& job, const base::Who& who);

}  // namespace kvant::cpu
