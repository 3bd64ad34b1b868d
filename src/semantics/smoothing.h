// The arithmetic of smoothing, which moves magnitude from the channels of an activation to the columns of a weight. The
// public contract is in include/kvant/smoothing.h.
#pragma once

#include <cmath>

#include "base/inline.h"
#include "semantics/lanes.h"

namespace kvant::semantics {

// Of w_j, the largest magnitude of a weight's column, and of s_j: what is 0 cannot be divided by.
inline constexpr double kMinSmoothing = 1e-5;

// s_j = x_j^alpha / w_j^(1 - alpha), at least kMinSmoothing, for w_j that is at least that. It lies between x and 1 /
// w, which is at most 1e5: no x of f32 takes it beyond f32.
KVANT_INLINE float smooth_scale(double x, double w, double alpha) {
  const double scale = std::pow(x, alpha) / std::pow(w, 1 - alpha);
  return static_cast<float>(scale < kMinSmoothing ? kMinSmoothing : scale);
}

// x / s_j: of an activation on its way in, or of the norm that makes it.
template <class L>
KVANT_INLINE typename L::F smoothed(typename L::F x, typename L::F divisor) {
  return L::div(x, divisor);
}

// w * s_j: of a weight that meets a smoothed activation.
template <class L>
KVANT_INLINE typename L::F smoothed_weight(typename L::F w, typename L::F factor) {
  return L::mul(w, factor);
}

}  // namespace kvant::semantics
