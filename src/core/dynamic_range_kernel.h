// What the front desk of dynamic-range quantization hands to a kernel, on every backend.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "core/elementwise_kernel.h"
#include "core/range_kernel.h"
#include "kvant/plan.h"
#include "semantics/dynamic_range.h"

namespace kvant::detail {

struct KernelSet;

struct DynamicRangeProblem {
  SegmentProblem segments;
  semantics::RangeRules rules;
  semantics::FloatGrid grid;  // of the codes; without bits: one of integers
  Numerics numerics;
  bool finds_global = false;  // the global scale is found from the whole tensor

  SegmentProblem whole_tensor() const {
    return {segments.shape, Granularity::per_tensor(), Shape(), segments.input, std::nullopt};
  }
};

struct DynamicRangeJob {
  Rows x;             // read
  Rows out;           // codes
  bool gaps = false;  // rows of either do not follow each other
  std::byte* scale = nullptr;
  ElementKind scale_kind = ElementKind::f32;
  // The global scale over scales of e4m3: given, as in Scales, or found first and written to `global_out`.
  const std::byte* global_data = nullptr;
  float global = 1;
  std::byte* global_out = nullptr;
  std::byte* zero_point = nullptr;  // null: not wanted
};

// Making the codes of a tensor whose scales and zero points are there, or will be.
inline void fill_codes_job(const DynamicRangeJob& job, const semantics::RangeRules& rules,
                           const semantics::FloatGrid& grid, Numerics numerics, const Runs& runs, std::int64_t x_stride,
                           std::int64_t out_stride, ElementwiseJob& codes) {
  codes.x = job.x.data;
  codes.out = job.out.data;
  codes.x_stride = x_stride;
  codes.out_stride = out_stride;
  codes.scale.data = job.scale;
  codes.scale.kind = job.scale_kind;
  codes.scale.global_data = job.global_out != nullptr ? job.global_out : job.global_data;
  codes.scale.global = job.global;
  codes.zero_point.data = job.zero_point;
  codes.q_min = rules.q_min;
  codes.q_max = rules.q_max;
  codes.grid = grid;
  codes.numerics = numerics;
  codes.runs = runs;
}

struct DynamicRangeKernel {
  static constexpr std::string_view kFamily = "dynamic range";
  KernelSku sku;
  // `set` is the kernel's own: it makes ranges and codes with its siblings.
  std::unique_ptr<const Prepared> (*prepare)(const DynamicRangeKernel& kernel, const KernelSet& set,
                                             const DynamicRangeProblem& problem);
  Status (*launch)(const DynamicRangeKernel& kernel, const Stream& stream, const Prepared& prepared, void* workspace,
                   const DynamicRangeJob& job, const base::Who& who);
};

}  // namespace kvant::detail
