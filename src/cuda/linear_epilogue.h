// The end of a linear layer on the device: what zero points, scales and biases a job gives to a row and a column, and
// one output from its sums, by the formulas of semantics/linear.h.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "cuda/lanes.h"
#include "cuda/linear_launch.h"
#include "cuda/numbers.h"
#include "cuda/parameters.h"
#include "kvant/element.h"
#include "semantics/linear.h"
#include "semantics/quantize.h"

namespace kvant::cuda {

// The floating-point end, one output at a time.
template <class Out>
struct LinearEpilogue {
  using C = compute_t<Out>;
  using L = DeviceLanes<C>;

  const LinearProduct& job;

  KVANT_DEVICE C act_scale(std::int64_t row) const { return scale_at<C>(job.act_scale, row); }
  KVANT_DEVICE C weight_scale(std::int64_t column) const { return scale_at<C>(job.weight_scale, column); }
  // Zero points of the codes as s8.
  KVANT_DEVICE std::int32_t act_zero_point(std::int64_t row) const {
    return semantics::limit_zero_point<L>(zero_point_at(job.act_zero_point, row)) +
           (job.activation_is_unsigned ? kFlipOffset : 0);
  }
  KVANT_DEVICE std::int32_t weight_zero_point(std::int64_t column) const {
    const std::int32_t min = job.weight_is_unsigned ? 0 : -128;
    const std::int32_t given = zero_point_at(job.weight_zero_point, column);
    return semantics::limit_weight_zero_point<L>(given, min, min + 255) + (job.weight_is_unsigned ? kFlipOffset : 0);
  }
  KVANT_DEVICE C bias(std::int64_t column) const {
    if (job.bias == nullptr) return C(0);
    if (!job.bias_is_output_kind) return device::load<C>(job.bias + column * static_cast<std::int64_t>(sizeof(C)));
    return widen(device::load<Out>(job.bias + column * static_cast<std::int64_t>(sizeof(Out))));
  }

  // Σ (a - za)(w - zw) from Σ a w, Σ a and Σ w.
  KVANT_DEVICE long long corrected(std::int64_t products, std::int64_t row_sum, std::int64_t column_sum,
                                   std::int32_t act_zero_point, std::int32_t weight_zero_point) const {
    const semantics::RowCorrection<std::int64_t> row{act_zero_point, row_sum, job.depth};
    return row.corrected(products, column_sum, weight_zero_point);
  }
  KVANT_DEVICE Out output(C sum, C act_scale, C weight_scale, C bias) const {
    const semantics::LinearEnd<L> end{job.bias != nullptr, job.depth == 0};
    return narrow<Out>(end(act_scale, weight_scale, sum, bias));
  }
};

}  // namespace kvant::cuda
