// Signal to quantization noise, the number that layers are ranked by.
#pragma once

#include <cmath>
#include <limits>

namespace kvant::measure {

// 10 log10(signal / noise), both sums of squares; infinite without noise.
inline double sqnr_db(double signal, double noise) {
  return noise == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

// NaN, of which nothing is known to be kept, is the worst.
inline bool is_worse(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return a < b;
}

}  // namespace kvant::measure
