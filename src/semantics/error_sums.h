// The formulas of ErrorSums (include/kvant/error_sums.h), for numbers and for vectors of them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/inline.h"

namespace kvant::semantics {

// w - v for v = scale * (q - zero_point). d = q - zero_point is a small integer, so sums of d alone are exact.
template <class V>
KVANT_INLINE V code_error(V w, double scale, V d) {
  return w - scale * d;
}

// Four lanes, always added in this order.
KVANT_INLINE double total_of_lanes(const double (&lanes)[4]) { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); }

// Which bin of the grid a weight lies in, 1 for the first; 0 below them and bins + 1 above.
KVANT_INLINE std::int32_t grid_place(float w, float scale, float zero_point, float first, float bins_per_code,
                                     float bins) {
  float t = (w / scale + zero_point - first) * bins_per_code;
  t = t < bins ? t : bins;
  t = t < 0 ? -1.0f : t;
  return static_cast<std::int32_t>(t) + 1;
}

}  // namespace kvant::semantics
