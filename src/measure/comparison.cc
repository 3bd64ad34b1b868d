#include "measure/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "io/file.h"
#include "measure/sqnr.h"

namespace kvant::measure {

bool is_before(const LayerLoss& a, const LayerLoss& b) {
  if (is_worse(a.sqnr_db, b.sqnr_db)) return true;
  return !is_worse(b.sqnr_db, a.sqnr_db) && a.module < b.module;
}

std::vector<SideBySide> side_by_side(const Comparison& comparison) {
  const std::size_t count = comparison.quantized.size();
  std::vector<SideBySide> layers;
  std::unordered_map<std::string_view, std::size_t> found;
  for (std::size_t q = 0; q < count; ++q)
    for (const LayerLoss& loss : comparison.quantized[q].layers) {
      const auto [at, is_new] = found.emplace(loss.module, layers.size());
      if (is_new) layers.push_back({&loss, std::vector<const LayerLoss*>(count)});
      SideBySide& layer = layers[at->second];
      layer.losses[q] = &loss;
      if (is_worse(loss.sqnr_db, layer.worst->sqnr_db)) layer.worst = &loss;
    }
  std::ranges::sort(layers, is_before, [](const SideBySide& layer) -> const LayerLoss& { return *layer.worst; });
  return layers;
}

std::optional<double> mean_output_sqnr_db(const ModelLoss& loss) {
  double sum = 0;
  std::uint64_t finite = 0;
  for (const LayerLoss& layer : loss.layers)
    if (layer.output_sqnr_db && std::isfinite(*layer.output_sqnr_db)) {
      sum += *layer.output_sqnr_db;
      ++finite;
    }
  if (finite == 0) return std::nullopt;
  return sum / static_cast<double>(finite);
}

std::vector<double> merits(const Comparison& comparison, std::optional<double> (*kept)(const LayerLoss&)) {
  constexpr double kExact = 200, kBroken = -200;
  const std::vector<SideBySide> layers = side_by_side(comparison);
  std::vector<double> merits;
  for (std::size_t q = 0; q < comparison.quantized.size(); ++q) {
    double sum = 0;
    std::size_t count = 0;
    for (const SideBySide& layer : layers) {
      if (std::ranges::find(layer.losses, nullptr) != layer.losses.end()) continue;
      const std::optional<double> of_layer = kept(*layer.losses[q]);
      if (!of_layer) continue;
      sum += std::isnan(*of_layer) ? kBroken : std::clamp(*of_layer, kBroken, kExact);
      ++count;
    }
    merits.push_back(count == 0 ? kBroken : sum / static_cast<double>(count));
  }
  return merits;
}

std::vector<std::string> warnings_of(const ModelLoss& loss) {
  std::vector<std::string> sentences;
  // "3 weights in 2 layers (a, b)": `count` of a layer, which may be 0.
  const auto warn = [&](std::string_view one, std::string_view many, std::string_view what, auto count) {
    constexpr std::size_t kNamed = 3;
    std::uint64_t total = 0, layers = 0;
    std::string names;
    for (const LayerLoss& layer : loss.layers) {
      const std::uint64_t n = count(layer);
      if (n == 0) continue;
      total += n;
      if (layers++ < kNamed) names += (names.empty() ? "" : ", ") + io::printable(layer.module);
    }
    if (total == 0) return;
    if (layers > kNamed) names += fmt::format(" and {} more", layers - kNamed);
    sentences.push_back(fmt::format("{} {} {}: {}", total, total == 1 ? one : many, what, names));
  };
  warn("weight is", "weights are", "NaN or infinite", [](const LayerLoss& l) { return l.non_finite; });
  warn("output channel has", "output channels have", "only zeros as weights",
       [](const LayerLoss& l) { return l.dead_channels; });
  warn("layer is", "layers are", "saturated, with far more codes at the ends of the range than expected",
       [](const LayerLoss& l) { return std::uint64_t{l.saturated ? 1u : 0u}; });
  return sentences;
}

}  // namespace kvant::measure
