#include "quantize/static_activations.h"

#include <algorithm>
#include <vector>

namespace kvant::quantize {
namespace {

float smoothed(float value, std::span<const float> s, std::size_t j) { return s.empty() ? value : value / s[j]; }

// The largest magnitude of any channel.
Result<double> largest_input(const format::ActivationStats& stats, std::string_view module, std::uint64_t in_features,
                             std::span<const float> s) {
  const auto absmax = stats.absmax(module, in_features);
  if (!absmax.ok()) return absmax.status();
  float largest = 0;
  for (std::size_t j = 0; j < absmax->size(); ++j) largest = std::max(largest, smoothed((*absmax)[j], s, j));
  return static_cast<double>(largest);
}

}  // namespace

Result<format::SavedScale> static_activation(const format::ActivationStats& stats, std::string_view module,
                                             std::uint64_t in_features, std::span<const float> s,
                                             const format::ActivationScheme& activations, ElementKind scale) {
  if (!activations.asymmetric) {
    const auto largest = largest_input(stats, module, in_features, s);
    if (!largest.ok()) return largest.status();
    return format::symmetric_scale(*largest, activations.code, scale);
  }
  const CodeRange range = code_range(activations.code);
  const auto ranges = stats.min_max(module, in_features);
  if (!ranges.ok()) return ranges.status();
  float lo = 0, hi = 0;
  for (std::size_t j = 0; j < ranges->min.size(); ++j) {
    lo = std::min(lo, smoothed(ranges->min[j], s, j));
    hi = std::max(hi, smoothed(ranges->max[j], s, j));
  }
  return format::asymmetric_scale(static_cast<double>(lo), static_cast<double>(hi), range.min, range.max, scale, false);
}

Result<float> cache_scale(const format::ActivationStats& stats, const format::OfCache& of, ElementKind scale) {
  const std::string module = format::cache_statistics_module(of.attention, of.half);
  const auto largest = largest_input(stats, module, stats.in_features(module).value_or(0), {});
  if (!largest.ok()) return largest.status();
  return format::symmetric_scale(*largest, format::kCacheCode, scale).scale;
}

Result<float> activation_global_scale(const format::ActivationStats& stats, std::string_view module,
                                      std::uint64_t in_features, std::span<const float> s,
                                      const format::ActivationScheme& activations) {
  const auto largest = largest_input(stats, module, in_features, s);
  if (!largest.ok()) return largest.status();
  return format::nvfp4_global_scale(*largest, format::largest_number(activations.code));
}

}  // namespace kvant::quantize
