// What the front desk of f32 linear layers hands to a kernel, and how packed weights lie in memory.
//
// A weight is cut into panels of columns (rows of the [N, K] matrix), each with its columns side by side for every k.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/divide_up.h"
#include "base/inline.h"
#include "core/range_kernel.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::detail {

// A matrix of floats in the caller's memory, at any address.
struct FloatMatrix {
  const std::byte* data;
  std::int64_t stride;  // bytes from row to row
  std::int64_t rows;
  std::int64_t depth;  // elements in a row
};

struct F32LinearJob {
  FloatMatrix input;                  // [M, K], at least one row
  std::int64_t columns = 0;           // N, at least 1
  const std::byte* panels = nullptr;  // a packed weight; null: it is raw
  FloatMatrix raw_weight = {};
  const std::byte* bias = nullptr;  // null: none
  Rows out;
};

// Of a panel with so many bytes for each k: panels begin at a cache line.
KVANT_INLINE std::int64_t f32_panel_bytes(std::int64_t depth, std::int64_t bytes_per_k) {
  return base::divide_up(depth * bytes_per_k, 64) * 64;
}

struct F32LinearKernel {
  static constexpr std::string_view kFamily = "f32 linear";
  KernelSku sku;  // `element` is the weight's
  std::int64_t panel_columns;
  std::int64_t panel_bytes_per_k;
  // Packs panel number `index`; columns beyond the last are zero. Every byte of the panel is written.
  void (*pack_panel)(const FloatMatrix& weight, std::int64_t index, std::byte* panel);
  std::size_t (*workspace_size)(const F32LinearKernel& kernel, std::int64_t max_rows, std::int64_t depth);
  // `workspace` has the bytes for as many rows as the input has, at any address.
  Status (*launch)(const F32LinearKernel& kernel, const Stream& stream, void* workspace, const F32LinearJob& job);
};

}  // namespace kvant::detail
