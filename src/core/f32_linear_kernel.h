// What the front desk of f32 linear layers hands to a kernel, and the list of kernels it chooses from.
//
// A weight is cut into panels of columns (rows of the [N, K] matrix), each with its columns side by side for every k.
// An input is cut into blocks of rows, and a block into tiles, with their rows side by side for every k.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/divide_up.h"
#include "base/inline.h"
#include "core/linear_kernel.h"
#include "kvant/sku.h"

namespace kvant::detail {

// A matrix of floats in the caller's memory, at any address.
struct FloatMatrix {
  const std::byte* data;
  std::int64_t stride;  // bytes from row to row
  std::int64_t rows;
  std::int64_t depth;  // elements in a row
};

// One block of rows by a whole weight.
struct F32LinearJob {
  std::int64_t rows;        // at most row_block of the kernel
  std::int64_t columns;     // N
  std::int64_t depth;       // K
  const float* tiles;       // of these rows
  const std::byte* panels;  // null: the weight is raw
  FloatMatrix raw_weight;
  const std::byte* bias;  // null: none
  std::byte* out;
  std::int64_t out_stride;  // bytes
};

// Of a panel with so many bytes for each k: panels begin at a cache line.
KVANT_INLINE std::int64_t f32_panel_bytes(std::int64_t depth, std::int64_t bytes_per_k) {
  return base::divide_up(depth * bytes_per_k, 64) * 64;
}

struct F32LinearKernel {
  KernelSku sku;  // `element` is the weight's
  std::int64_t panel_columns;
  std::int64_t tile_rows;
  std::int64_t row_block;
  std::int64_t panel_bytes_per_k;
  // Packs panel number `index`; columns beyond the last are zero. Every byte of the panel is written.
  void (*pack_panel)(const FloatMatrix& weight, std::int64_t index, std::byte* panel);
  // Packs tile number `index` of a block of rows to its place among input.rows * input.depth floats.
  void (*pack_tile)(const FloatMatrix& input, std::int64_t index, float* tiles);
  void (*run)(const F32LinearJob& job, const LinearPart& part);
};

}  // namespace kvant::detail

namespace kvant::cpu {

// Each instruction set's kernels, defined in cpu/f32_linear_<isa>.cc; see ElementwiseKernelList.
struct F32LinearKernelList {
  const detail::F32LinearKernel* first;
  std::size_t count;
};
F32LinearKernelList f32_linear_kernels_scalar();
F32LinearKernelList f32_linear_kernels_avx2();

}  // namespace kvant::cpu
