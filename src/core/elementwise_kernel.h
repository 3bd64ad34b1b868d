// What the front desk of the element-wise family hands to a kernel, on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/who.h"
#include "core/parameters.h"
#include "core/runs.h"
#include "kvant/plan.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "semantics/float_grid.h"

namespace kvant::detail {

// One launch. Strides are in bytes from line to line. `x` is what the kernel reads (codes for dequantize, dy for
// dequantize_backward), `dy` the second input of the other backward passes.
struct ElementwiseJob {
  const std::byte* x = nullptr;
  const std::byte* dy = nullptr;
  std::byte* out = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t dy_stride = 0;
  std::int64_t out_stride = 0;
  Scales scale;
  ZeroPoints zero_point;
  // Quotients are clamped to [q_min - zero_point, q_max - zero_point]. Of a floating-point grid: to its ends, which are
  // whole numbers too.
  std::int32_t q_min = 0;
  std::int32_t q_max = 0;
  semantics::FloatGrid grid;  // without bits: the grid is one of integers
  Numerics numerics = Numerics::exact;
  Runs runs;
};

struct ElementwiseKernel {
  static constexpr std::string_view kFamily = "element-wise";
  KernelSku sku;
  // All of a job. The CPU cuts it into parts for the stream's threads and waits, a GPU enqueues it.
  Status (*launch)(const ElementwiseKernel& kernel, const Stream& stream, const ElementwiseJob& job,
                   const base::Who& who);
};

}  // namespace kvant::detail
