#include "quantize/static_activations.h"

#include <algorithm>
#include <vector>

namespace kvant::quantize {

Result<format::StoredScale> static_activation(const format::ActivationStats& stats, std::string_view module,
                                              std::uint64_t in_features, std::span<const float> s, bool asymmetric,
                                              ElementKind scale) {
  const auto smoothed = [&](float value, std::size_t j) { return s.empty() ? value : value / s[j]; };
  const CodeRange range = code_range(ElementKind::s8);
  if (!asymmetric) {
    const auto absmax = stats.absmax(module, in_features);
    if (!absmax.ok()) return absmax.status();
    float largest = 0;
    for (std::size_t j = 0; j < absmax->size(); ++j) largest = std::max(largest, smoothed((*absmax)[j], j));
    return format::symmetric_scale(static_cast<double>(largest), range.max, scale);
  }
  const auto ranges = stats.min_max(module, in_features);
  if (!ranges.ok()) return ranges.status();
  float lo = 0, hi = 0;
  for (std::size_t j = 0; j < ranges->min.size(); ++j) {
    lo = std::min(lo, smoothed(ranges->min[j], j));
    hi = std::max(hi, smoothed(ranges->max[j], j));
  }
  return format::asymmetric_scale(static_cast<double>(lo), static_cast<double>(hi), range.min, range.max, scale, false);
}

}  // namespace kvant::quantize
