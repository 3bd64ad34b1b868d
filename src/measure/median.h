// The median, and what counts as an outlier beside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvant::measure {

// An outlier channel's largest magnitude is more than so many times the median of all channels'.
inline constexpr double kOutlierFactor = 6;

// The mean of the middle two where their number is even; 0 for none. Reorders the values.
template <class T>
double median(std::vector<T>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const auto upper = static_cast<double>(*middle);
  if (values.size() % 2 == 1) return upper;
  return upper / 2 + static_cast<double>(*std::max_element(values.begin(), middle)) / 2;
}

}  // namespace kvant::measure
