// Scales and zero points, from a tensor or from the launch itself.
#pragma once

#include <cstdint>

#include "core/parameters.h"
#include "cuda/device.h"

namespace kvant::cuda {

template <class C>
KVANT_DEVICE C scale_at(const detail::Scales& scales, std::int64_t index) {
  return scales.data == nullptr ? scales.value<C>()
                                : device::load<C>(scales.data + index * static_cast<std::int64_t>(sizeof(C)));
}

KVANT_DEVICE std::int32_t zero_point_at(const detail::ZeroPoints& zero_points, std::int64_t index) {
  return zero_points.data == nullptr ? zero_points.value : device::load<std::int32_t>(zero_points.data + index * 4);
}

}  // namespace kvant::cuda
