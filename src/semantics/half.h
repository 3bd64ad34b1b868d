// Floating-point elements and the numbers that they are computed in: exact widening, and one rounding to nearest even
// on the way back.
#pragma once

#include <fp16.h>

#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "kvant/element.h"
#include "semantics/bfloat16.h"

namespace kvant::semantics {

KVANT_INLINE float widen(float x) { return x; }
KVANT_INLINE double widen(double x) { return x; }
KVANT_INLINE float widen(Half h) { return fp16_ieee_to_fp32_value(h.bits); }
KVANT_INLINE float widen(BFloat16 b) {
  const std::uint32_t bits = static_cast<std::uint32_t>(b.bits) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// To the element type T.
template <class T>
KVANT_INLINE T narrow(compute_t<T> x) {
  return x;
}
template <>
KVANT_INLINE Half narrow<Half>(float x) {
  return {fp16_ieee_from_fp32_value(x)};
}
template <>
KVANT_INLINE BFloat16 narrow<BFloat16>(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {rounded_bfloat16(bits, x != x)};
}

}  // namespace kvant::semantics
