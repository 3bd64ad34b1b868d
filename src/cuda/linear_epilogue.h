// The end of a linear layer on the device: what zero points, scales and biases a job gives to a row and a column, and
// one output from its sums, by the formulas of semantics/linear.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device.h"
#include "cuda/lanes.h"
#include "cuda/linear_launch.h"
#include "cuda/numbers.h"
#include "cuda/parameters.h"
#include "kvant/element.h"
#include "semantics/linear.h"
#include "semantics/quantize.h"

namespace kvant::cuda {

// The end, one output at a time. Out is a floating-point type, or CodeByte for s8 and u8.
template <class Out>
struct LinearEpilogue {
  using Scale = compute_t<Out>;
  using C = semantics::sum_t<Out>;
  using L = DeviceLanes<C>;
  static constexpr bool kWritesCodes = std::is_same_v<Out, semantics::CodeByte>;

  const LinearProduct& job;

  KVANT_DEVICE Scale act_scale(std::int64_t row) const { return scale_at<Scale>(job.act_scale, row); }
  KVANT_DEVICE Scale weight_scale(std::int64_t column) const { return scale_at<Scale>(job.weight_scale, column); }
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
    if constexpr (kWritesCodes) {
      const C given = device::load<Scale>(job.bias + column * static_cast<std::int64_t>(sizeof(Scale)));
      return semantics::bias_in_steps<L>(given, job.output_scale);
    } else {
      if (!job.bias_is_output_kind) return device::load<C>(job.bias + column * static_cast<std::int64_t>(sizeof(C)));
      return widen(device::load<Out>(job.bias + column * static_cast<std::int64_t>(sizeof(Out))));
    }
  }

  // Σ (a - za)(w - zw) from Σ a w, Σ a and Σ w.
  KVANT_DEVICE long long corrected(std::int64_t products, std::int64_t row_sum, std::int64_t column_sum,
                                   std::int32_t act_zero_point, std::int32_t weight_zero_point) const {
    const semantics::RowCorrection<std::int64_t> row{act_zero_point, row_sum, job.depth};
    return row.corrected(products, column_sum, weight_zero_point);
  }
  KVANT_DEVICE Out output(C sum, Scale act_scale, Scale weight_scale, C bias) const {
    if constexpr (kWritesCodes) {
      const C factor = semantics::output_factor<DeviceLanes<Scale>>(act_scale, weight_scale, job.output_scale);
      const semantics::RequantizingEnd<L> end{job.bias != nullptr, job.depth == 0, job.output_zero_point, job.q_min,
                                              job.q_max};
      return {static_cast<std::uint8_t>(end(factor, sum, bias))};
    } else {
      const semantics::LinearEnd<L> end{job.bias != nullptr, job.depth == 0};
      return narrow<Out>(end(act_scale, weight_scale, sum, bias));
    }
  }
};

}  // namespace kvant::cuda
