// What the front desk of linear layers hands to a kernel, on every backend, and how packed weights lie in memory.
//
//   y[m, n] = (act_scale[m] * weight_scale[n]) * Σ (a - act_zero_point[m]) * (w - weight_zero_point[n]) + bias[n]
//
// include/kvant/linear.h has the contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/who.h"
#include "core/parameters.h"
#include "core/prepared.h"
#include "core/range_kernel.h"
#include "kvant/element.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "semantics/dynamic_range.h"

namespace kvant::detail {

struct KernelSet;

// ---- Packed weights ----

// A matrix of codes in the caller's memory. `flip` is what turns a byte into the kind used inside: 0 or 0x80.
struct CodeMatrix {
  const std::byte* data;
  std::int64_t stride;  // bytes from row to row
  std::int64_t rows;
  std::int64_t depth;  // codes in a row
  std::uint8_t flip;
};

// What turns a code of the caller's kind into the kind used inside, where activations are u8 and weights s8.
inline std::uint8_t weight_flip(ElementKind kind) { return kind == ElementKind::u8 ? 0x80 : 0; }
inline std::uint8_t activation_flip(ElementKind kind) { return kind == ElementKind::s8 ? 0x80 : 0; }

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

// ---- Problems, jobs and kernels ----

// What select() knows.
struct LinearProblem {
  std::int64_t max_rows = 0;
  std::int64_t in_features = 0;              // K
  std::int64_t out_features = 0;             // N
  ElementKind activation = ElementKind::s8;  // what the caller hands over
  ElementKind codes = ElementKind::s8;       // what is multiplied: s8 or u8
  ElementKind weight = ElementKind::s8;
  ElementKind output = ElementKind::f32;
  bool quantizes = false;  // the activation is floating point and becomes codes inside
  // Of those that quantize:
  bool is_static = false;  // with the scale and zero point of the job, otherwise with each row's own range
  bool smooth = false;     // the activation is divided first
  Numerics numerics = Numerics::exact;
  semantics::RangeRules rules = {};

  ElementKind compute() const { return scale_kind(output); }
};

struct LinearJob {
  std::int64_t rows = 0;              // M, at least 1; there is a column too
  Rows activation;                    // read
  const std::byte* smooth = nullptr;  // null: none
  Rows weight;                        // read; null: it is packed
  const std::byte* panels = nullptr;  // a packed weight
  bool wide_panels = false;           // some panel needs wide tiles
  Scales act_scale;                   // one for each row, or one for all; not read where rows have their own range
  ZeroPoints act_zero_point;          // the same, of the caller's kind; entries count as ±2^23 at most
  Scales weight_scale;                // one for each column, or one for all
  ZeroPoints weight_zero_point;       // the same; entries beyond the weight's range count as the nearest in it
  const std::byte* bias = nullptr;    // null: none
  bool bias_is_output_kind = true;    // otherwise the compute type
  Rows out;
  float output_scale = 1;              // of outputs that are codes
  std::int32_t output_zero_point = 0;  // the same
};

struct LinearKernel {
  static constexpr std::string_view kFamily = "linear";
  KernelSku sku;
  const LinearFormat* format;  // of packed weights; null: takes raw ones only
  // `set` is the kernel's own. Null where a kernel that makes the codes is missing.
  std::unique_ptr<const Prepared> (*prepare)(const LinearKernel& kernel, const KernelSet& set,
                                             const LinearProblem& problem);
  Status (*launch)(const LinearKernel& kernel, const Stream& stream, const Prepared& prepared, void* workspace,
                   const LinearJob& job, const base::Who& who);
};

}  // namespace kvant::detail
