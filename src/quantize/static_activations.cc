#include "quantize/static_activations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/refuse.h"
#include "io/json.h"
#include "kvant/observer.h"

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

// The part of the range that an Observer chooses, as the scale and zero point of f32.
Result<QuantizationParameters> observed_parameters(const format::ActivationStats& stats, std::string_view module,
                                                   const format::ActivationScheme& activations, double lo, double hi) {
  const auto kept = stats.histogram(module);
  if (!kept.ok()) return kept.status();
  const ObserverHistogram histogram{.exponent = std::ilogb(kept->limit), .counts = kept->counts, .zeros = kept->zeros};
  const auto observer = Observer::resume(
      {.kind = ObserverKind::mse,
       .mode = activations.asymmetric ? DynamicRangeMode::asymmetric : DynamicRangeMode::symmetric,
       .output = activations.code,
       .bins = static_cast<int>(std::min<std::size_t>(histogram.counts.size(), std::numeric_limits<int>::max()))},
      histogram, lo, hi);
  if (!observer.ok())
    return base::invalid_problem("{}: '{}': {}", io::printable_path(stats.path()), io::printable(module),
                                 observer.status().message());
  return observer->parameters();
}

}  // namespace

Result<format::SavedScale> static_activation(const format::ActivationStats& stats, std::string_view module,
                                             std::uint64_t in_features, std::span<const float> s,
                                             const format::ActivationScheme& activations, ActivationRange range,
                                             ElementKind scale) {
  if (range == ActivationRange::mse && s.empty() && !has_float_grid(activations.code) &&
      stats.has(module, format::Statistic::histogram) && stats.has_min_max(module)) {
    const auto ranges = stats.min_max(module, in_features);
    if (!ranges.ok()) return ranges.status();
    const auto lo = static_cast<double>(*std::ranges::min_element(ranges->min));
    const auto hi = static_cast<double>(*std::ranges::max_element(ranges->max));
    const auto found = observed_parameters(stats, module, activations, lo, hi);
    if (!found.ok()) return found.status();
    const CodeRange codes = code_range(activations.code);
    const double step = found->scale.front();
    if (!activations.asymmetric) return format::symmetric_scale(step * codes.max, activations.code, scale);
    const std::int32_t zero_point = found->zero_point.front();
    return format::asymmetric_scale(step * (codes.min - zero_point), step * (codes.max - zero_point), codes.min,
                                    codes.max, scale, false);
  }
  if (!activations.asymmetric) {
    const auto largest = largest_input(stats, module, in_features, s);
    if (!largest.ok()) return largest.status();
    return format::symmetric_scale(*largest, activations.code, scale);
  }
  const CodeRange codes = code_range(activations.code);
  const auto ranges = stats.min_max(module, in_features);
  if (!ranges.ok()) return ranges.status();
  float lo = 0, hi = 0;
  for (std::size_t j = 0; j < ranges->min.size(); ++j) {
    lo = std::min(lo, smoothed(ranges->min[j], s, j));
    hi = std::max(hi, smoothed(ranges->max[j], s, j));
  }
  return format::asymmetric_scale(static_cast<double>(lo), static_cast<double>(hi), codes.min, codes.max, scale, false);
}

Result<UsualInputs> usual_inputs(const format::ActivationStats& stats, std::string_view module, ElementKind code,
                                 const format::SavedScale& saved) {
  const auto kept = stats.histogram(module);
  if (!kept.ok()) return kept.status();
  const std::size_t bins = kept->counts.size(), half = bins / 2;
  const double width = kept->limit / static_cast<double>(half);
  // Bins at the same distance from 0, the nearest first.
  const auto count_at = [&](std::size_t distance) {
    return kept->counts[half + distance] + kept->counts[half - 1 - distance];
  };
  std::int64_t total = kept->zeros;
  for (std::size_t i = 0; i < half; ++i) total += count_at(i);
  const CodeRange codes = code_range(code);
  const auto scale = static_cast<double>(saved.scale);
  const auto error_of = [&](double x) {
    const double q = std::clamp(std::nearbyint(x / scale) + saved.zero_point, static_cast<double>(codes.min),
                                static_cast<double>(codes.max));
    return x - scale * (q - saved.zero_point);
  };
  double signal = 0, noise = 0;
  std::int64_t seen = kept->zeros;
  UsualInputs usual;
  for (std::size_t i = 0; i < half && seen < total - total / 1000; ++i) {
    const double x = (static_cast<double>(i) + 0.5) * width;
    for (const double value : {x, -x}) {
      const auto count = static_cast<double>(kept->counts[value > 0 ? half + i : half - 1 - i]);
      signal += count * x * x;
      noise += count * error_of(value) * error_of(value);
    }
    seen += count_at(i);
    usual.largest = static_cast<double>(i + 1) * width;
  }
  usual.sqnr_db = noise > 0 ? 10 * std::log10(signal / noise) : std::numeric_limits<double>::infinity();
  return usual;
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
