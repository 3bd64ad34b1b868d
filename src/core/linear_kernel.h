// What the front desk of linear layers hands to a kernel, and the list of kernels it chooses from.
//
// Inside, activations are u8 and weights are s8. The other kind of either differs by 128, which is a flip of the top
// bit and moves into the zero point.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/element.h"
#include "kvant/sku.h"

namespace kvant::detail {

// A matrix of codes in the caller's memory. `flip` is what turns a byte into the kind used inside: 0 or 0x80.
struct CodeMatrix {
  const std::byte* data;
  std::int64_t stride;  // bytes from row to row
  std::int64_t rows;
  std::int64_t depth;  // codes in a row
  std::uint8_t flip;
};

// How one instruction set's micro-kernels want their operands in memory. A weight is cut into panels of columns (rows
// of the [N, K] matrix), an activation into tiles of rows; all panels take the same number of bytes, and so do all
// tiles.
struct LinearFormat {
  ArchSku arch;
  std::int64_t panel_columns;
  std::int64_t tile_rows;
  std::int64_t (*panel_bytes)(std::int64_t depth);
  std::int64_t (*tile_bytes)(std::int64_t depth);
  std::int64_t (*wide_tile_bytes)(std::int64_t depth);  // 0: this instruction set has no use for wide tiles
  // Packs panel number `index`; columns beyond the last are zero. Every byte of the panel is written.
  void (*pack_panel)(const CodeMatrix& weight, std::int64_t index, std::byte* panel);
  // True if a packed panel needs the wide tiles.
  bool (*panel_is_wide)(const std::byte* panel, std::int64_t depth);
  // False if a panel that came from outside would make a kernel read beyond its operands.
  bool (*panel_is_sound)(const std::byte* panel, std::int64_t depth);
  // Packs tile number `index`; rows beyond the last are zero. Null `wide`: not wanted. Row sums of the u8 codes. A
  // format may lay an activation of one row out differently: activation.rows and LinearJob::rows are the same number.
  void (*pack_tile)(const CodeMatrix& activation, std::int64_t index, std::byte* tile, std::byte* wide,
                    std::int64_t* row_sums);
};

// One launch. Zero points belong to the kinds used inside.
struct LinearJob {
  std::int64_t rows;     // M
  std::int64_t columns;  // N
  std::int64_t depth;    // K
  const std::byte* tiles;
  const std::byte* wide_tiles;  // null: no panel needs them
  const std::int64_t* row_sums;
  const std::byte* panels;  // null: the weight is raw
  CodeMatrix raw_weight;
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
  std::int64_t out_stride;  // bytes
};

// Panels [first_panel, end_panel) by rows [first_row, end_row); first_row is a multiple of tile_rows.
struct LinearPart {
  std::int64_t first_panel;
  std::int64_t end_panel;
  std::int64_t first_row;
  std::int64_t end_row;
};

struct LinearKernel {
  KernelSku sku;
  const LinearFormat* format;
  void (*run)(const LinearJob& job, const LinearPart& part);
  // out[i] = x[i] / divisor[i] for n elements of the output's kind, in the compute type.
  void (*divide_row)(const std::byte* x, const std::byte* divisor, std::byte* out, std::int64_t n);
};

}  // namespace kvant::detail

namespace kvant::cpu {

// Each instruction set's kernels, defined in cpu/linear_<isa>.cc; see ElementwiseKernelList.
struct LinearKernelList {
  const detail::LinearKernel* first;
  std::size_t count;
};
LinearKernelList linear_kernels_scalar();
LinearKernelList linear_kernels_avx2();

}  // namespace kvant::cpu
