// Elements in memory and numbers in registers: the four floating-point types as what they are computed in.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "kvant/element.h"
#include "semantics/bfloat16.h"

namespace kvant::cuda {

KVANT_DEVICE float widen(float x) { return x; }
KVANT_DEVICE double widen(double x) { return x; }
KVANT_DEVICE float widen(Half x) { return device::half_to_float(x.bits); }
KVANT_DEVICE float widen(BFloat16 x) { return device::bits_to_float(static_cast<std::uint32_t>(x.bits) << 16); }

// To the element type T, rounded to nearest even.
template <class T>
KVANT_DEVICE T narrow(compute_t<T> x) {
  return x;
}
template <>
KVANT_DEVICE Half narrow<Half>(float x) {
  return {device::float_to_half(x)};
}
template <>
KVANT_DEVICE BFloat16 narrow<BFloat16>(float x) {
  return {semantics::rounded_bfloat16(device::float_to_bits(x), x != x)};
}

}  // namespace kvant::cuda
