// What an f32 linear kernel of the CPU is given. An input is cut into blocks of rows, and a block into tiles, with
// their rows side by side for every k.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/f32_linear_kernel.h"
#include "cpu/linear_kernel.h"

namespace kvant::cpu {

// One block of rows by a whole weight.
struct F32LinearWork {
  std::int64_t rows;        // at most row_block of the kernel
  std::int64_t columns;     // N
  std::int64_t depth;       // K
  const float* tiles;       // of these rows
  const std::byte* panels;  // null: the weight is raw
  detail::FloatMatrix raw_weight;
  const std::byte* bias;  // null: none
  std::byte* out;
  std::int64_t out_stride;  // bytes
};

struct F32LinearKernel : detail::F32LinearKernel {
  std::int64_t tile_rows;
  std::int64_t row_block;
  // Packs tile number `index` of a block of rows to its place among input.rows * input.depth floats.
  void (*pack_tile)(const detail::FloatMatrix& input, std::int64_t index, float* tiles);
  void (*run)(const F32LinearWork& work, const LinearPart& part);
};

inline const F32LinearKernel& of_cpu(const detail::F32LinearKernel& kernel) {
  return static_cast<const F32LinearKernel&>(kernel);
}

// detail::F32LinearKernel's functions, for all kernels of the CPU.
std::size_t f32_linear_workspace(const detail::F32LinearKernel& kernel, std::int64_t max_rows, std::int64_t depth);
Status launch_f32_linear(const detail::F32LinearKernel& kernel, const Stream& stream, void* workspace,
                         const detail::F32LinearJob& job);

}  // namespace kvant::cpu
