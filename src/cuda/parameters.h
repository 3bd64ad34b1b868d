// Scales and zero points, from a tensor or from the launch itself.
#pragma once

#include <cstdint>

#include "core/parameters.h"
#include "cuda/device.h"
#include "cuda/lanes.h"
#include "cuda/numbers.h"
#include "semantics/scale_formats.h"

namespace kvant::cuda {

KVANT_DEVICE float global_scale(const std::byte* data, float value) {
  return data == nullptr ? value : device::load<float>(data);
}

// A scale that is a code.
template <class C>
KVANT_DEVICE C stored_scale_at(const detail::Scales& scales, std::int64_t index) {
  using L = DeviceLanes<C>;
  switch (scales.kind) {
    case ElementKind::f16: return widen(device::load<Half>(scales.data + index * 2));
    case ElementKind::bf16: return widen(device::load<BFloat16>(scales.data + index * 2));
    case ElementKind::e8m0: return semantics::e8m0_value<L>(device::load<std::uint8_t>(scales.data + index));
    default:
      return semantics::nvfp4_value<L>(device::load<std::uint8_t>(scales.data + index),
                                       global_scale(scales.global_data, scales.global));
  }
}

template <class C>
KVANT_DEVICE C scale_at(const detail::Scales& scales, std::int64_t index) {
  if (scales.data == nullptr) return scales.value<C>();
  if (!scales.plain()) return stored_scale_at<C>(scales, index);
  return device::load<C>(scales.data + index * static_cast<std::int64_t>(sizeof(C)));
}

KVANT_DEVICE std::int32_t zero_point_at(const detail::ZeroPoints& zero_points, std::int64_t index) {
  return zero_points.data == nullptr ? zero_points.value : device::load<std::int32_t>(zero_points.data + index * 4);
}

}  // namespace kvant::cuda
