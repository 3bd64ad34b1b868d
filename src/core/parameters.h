// Scales and zero points of one launch: a tensor of them in the backend's memory, or, where `data` is null, one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/inline.h"
#include "kvant/element.h"

namespace kvant::detail {

struct Scales {
  const std::byte* data = nullptr;  // of `kind`; on the CPU at any address
  // Of `data`: the compute type, or one of the kinds that become it (semantics/scale_formats.h).
  ElementKind kind = ElementKind::f32;
  // The global scale over scales of e4m3: in the backend's memory, or the number where that is null.
  const std::byte* global_data = nullptr;
  float global = 1;
  // One number, in the member of the compute type. (It is not converted: the caller's floating-point mode, which may
  // read denormals as zero, is in force where it is taken.)
  float f32 = 1;
  double f64 = 1;

  // The global scale, where the CPU can read it.
  KVANT_INLINE float global_on_cpu() const {
    float value = global;
    if (global_data != nullptr) std::memcpy(&value, global_data, sizeof value);
    return value;
  }

  // Whether `data` is of the compute type.
  KVANT_INLINE bool plain() const { return kind == ElementKind::f32 || kind == ElementKind::f64; }

  template <class C>
  KVANT_INLINE C value() const {
    if constexpr (sizeof(C) == sizeof(double))
      return f64;
    else
      return f32;
  }
};

struct ZeroPoints {
  const std::byte* data = nullptr;  // int32; on the CPU at any address
  std::int32_t value = 0;
};

}  // namespace kvant::detail
