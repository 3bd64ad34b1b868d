// Scalar conversions of floating-point types to what they are computed in, and back.
#pragma once

#include <fp16.h>

#include <cstdint>
#include <cstring>

#include "kvant/element.h"

namespace kvant::core {

inline __attribute__((always_inline)) float widen(float x) { return x; }
inline __attribute__((always_inline)) double widen(double x) { return x; }
inline __attribute__((always_inline)) float widen(Half h) { return fp16_ieee_to_fp32_value(h.bits); }

inline __attribute__((always_inline)) Half narrow_to_half(float f) { return {fp16_ieee_from_fp32_value(f)}; }

inline __attribute__((always_inline)) float widen(BFloat16 b) {
  const std::uint32_t bits = static_cast<std::uint32_t>(b.bits) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// Round to nearest even on the bits: adding 0x7FFF plus the last kept bit carries into the kept half exactly when
// the dropped half is above a tie, or at one with an odd neighbour. NaN would carry into infinity, so it is quieted.
inline __attribute__((always_inline)) BFloat16 narrow_to_bfloat16(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const std::uint32_t chosen = f != f ? (bits | 0x00400000u) : rounded;
  return {static_cast<std::uint16_t>(chosen >> 16)};
}

}  // namespace kvant::core
