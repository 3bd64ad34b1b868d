// What the kernels of linear layers are given: the product of codes and its end (core/linear_kernel.h).
// Pointers are to device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/parameters.h"

namespace kvant::cuda {

struct LinearProduct {
  std::int64_t rows = 0;     // M, at least 1
  std::int64_t columns = 0;  // N, at least 1
  std::int64_t depth = 0;    // K, may be 0
  const std::byte* activation = nullptr;
  std::int64_t activation_stride = 0;  // bytes
  bool activation_is_unsigned = false;
  const std::byte* weight = nullptr;
  std::int64_t weight_stride = 0;  // bytes
  bool weight_is_unsigned = false;
  detail::Scales act_scale;              // one for each row, or one for all
  detail::Scales weight_scale;           // one for each column, or one for all
  detail::ZeroPoints act_zero_point;     // of the caller's kind; entries count as ±2^23 at most
  detail::ZeroPoints weight_zero_point;  // of the caller's kind; entries beyond its range count as the nearest in it
  const std::byte* bias = nullptr;       // null: none
  bool bias_is_output_kind = true;       // otherwise the compute type
  std::byte* out = nullptr;
  std::int64_t out_stride = 0;  // bytes
  float output_scale = 1;       // of outputs that are codes, as the next three
  std::int32_t output_zero_point = 0;
  std::int32_t q_min = 0;
  std::int32_t q_max = 0;
};

}  // namespace kvant::cuda
