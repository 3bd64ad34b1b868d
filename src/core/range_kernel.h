// What the front desk of range plans hands to a kernel, on every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/who.h"
#include "core/prepared.h"
#include "kvant/granularity.h"
#include "kvant/sku.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"

namespace kvant::detail {

// A tensor that is cut into segments, one for each parameter. Shape, scope and parameter shape fit each other.
struct SegmentProblem {
  Shape shape;
  Granularity scope;
  Shape parameter_shape;
  ElementKind input;
  std::optional<ElementKind> output;  // what is written besides ranges, if anything
};

// Rows that a segmented tensor is read from or written to.
struct Rows {
  std::byte* data = nullptr;
  std::int64_t stride = 0;  // bytes from row to row
};

struct RangeJob {
  Rows x;             // read
  bool gaps = false;  // rows do not follow each other
  // Where the ranges go; null where nobody asked.
  std::byte* min = nullptr;
  std::byte* max = nullptr;
  std::byte* max_abs = nullptr;
  bool accumulate = false;
};

struct RangeKernel {
  static constexpr std::string_view kFamily = "range";
  KernelSku sku;
  std::unique_ptr<const Prepared> (*prepare)(const SegmentProblem& problem);
  // `workspace` has the bytes that `prepared` asks for.
  Status (*launch)(const RangeKernel& kernel, const Stream& stream, const Prepared& prepared, void* workspace,
                   const RangeJob& job, const base::Who& who);
};

}  // namespace kvant::detail
