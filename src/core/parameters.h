// Scales and zero points of one launch: a tensor of them in the backend's memory, or, where `data` is null, one number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/inline.h"

namespace kvant::detail {

struct Scales {
  const std::byte* data = nullptr;  // of the compute type; on the CPU at any address
  // One number, in the member of the compute type. (It is not converted: the caller's floating-point mode, which may
  // read denormals as zero, is in force where it is taken.)
  float f32 = 1;
  double f64 = 1;

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
