// The activations of a linear layer on their way to codes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device_stream.h"
#include "kvant/element.h"
#include "kvant/plan.h"
#include "semantics/dynamic_range.h"

namespace kvant::cuda {

// Rows of `length`, each with a range of its own or all with one scale, divided by `divisor` first.
struct TokenJob {
  const std::byte* x = nullptr;
  std::byte* out = nullptr;  // s8
  std::int64_t x_stride = 0;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  const std::byte* divisor = nullptr;  // null: none
  bool is_static = false;
  double static_scale = 1;  // what the compute type holds
  std::int32_t static_zero_point = 0;
  std::byte* scale = nullptr;       // written unless static
  std::byte* zero_point = nullptr;  // the same
  semantics::RangeRules rules = {};
  Numerics numerics = Numerics::exact;
};

// 0, or an error for launch_status(). `input` is a floating-point kind.
int quantize_tokens(ElementKind input, const detail::DeviceStream& stream, const TokenJob& job);

}  // namespace kvant::cuda
