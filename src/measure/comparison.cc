#include "measure/comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>

#include "io/file.h"
#include "measure/sqnr.h"

namespace kvant::measure {

namespace {

bool is_worse_layer(const LayerLoss& a, const LayerLoss& b, Judged by) {
  const std::optional<double> of_a = sqnr_db_of(a, by), of_b = sqnr_db_of(b, by);
  if (of_a.has_value() != of_b.has_value()) return of_a.has_value();
  return of_a ? is_worse(*of_a, *of_b) : is_worse(a.sqnr_db, b.sqnr_db);
}

}  // namespace

std::string_view name(Judged by) {
  switch (by) {
    case Judged::outputs: return "outputs";
    case Judged::estimated_outputs: return "estimated_outputs";
    case Judged::weights: return "weights";
  }
  return {};
}

std::optional<double> sqnr_db_of(const LayerLoss& layer, Judged by) {
  switch (by) {
    case Judged::outputs: return layer.output_sqnr_db;
    case Judged::estimated_outputs: return layer.estimated_output_sqnr_db;
    case Judged::weights: return layer.sqnr_db;
  }
  return {};
}

Judged judged_by(const Comparison& comparison) {
  for (const Judged by : {Judged::outputs, Judged::estimated_outputs}) {
    std::size_t checkpoints = 0, judged = 0;
    for (const ModelLoss& loss : comparison.quantized) {
      if (loss.layers.empty()) continue;
      const auto known = static_cast<std::size_t>(std::ranges::count_if(
          loss.layers, [&](const LayerLoss& layer) { return sqnr_db_of(layer, by).has_value(); }));
      ++checkpoints;
      if (2 * known > loss.layers.size()) ++judged;
    }
    if (checkpoints > 0 && judged == checkpoints) return by;
  }
  return Judged::weights;
}

bool is_before(const LayerLoss& a, const LayerLoss& b, Judged by) {
  if (is_worse_layer(a, b, by)) return true;
  return !is_worse_layer(b, a, by) && a.module < b.module;
}

std::vector<SideBySide> side_by_side(const Comparison& comparison, Judged by) {
  const std::size_t count = comparison.quantized.size();
  std::vector<SideBySide> layers;
  std::unordered_map<std::string_view, std::size_t> found;
  for (std::size_t q = 0; q < count; ++q)
    for (const LayerLoss& loss : comparison.quantized[q].layers) {
      const auto [at, is_new] = found.emplace(loss.module, layers.size());
      if (is_new) layers.push_back({&loss, std::vector<const LayerLoss*>(count)});
      SideBySide& layer = layers[at->second];
      layer.losses[q] = &loss;
      if (is_worse_layer(loss, *layer.worst, by)) layer.worst = &loss;
    }
  std::ranges::sort(layers,
                    [&](const SideBySide& a, const SideBySide& b) { return is_before(*a.worst, *b.worst, by); });
  return layers;
}

std::optional<double> mean_sqnr_db(const ModelLoss& loss, Judged by) {
  double sum = 0;
  std::uint64_t finite = 0;
  for (const LayerLoss& layer : loss.layers)
    if (const std::optional<double> db = sqnr_db_of(layer, by); db && std::isfinite(*db)) {
      sum += *db;
      ++finite;
    }
  if (finite == 0) return std::nullopt;
  return sum / static_cast<double>(finite);
}

std::vector<double> merits(const Comparison& comparison, Judged by) {
  constexpr double kExact = 200, kBroken = -200;
  std::vector<double> sums(comparison.quantized.size());
  std::size_t count = 0;
  for (const SideBySide& layer : side_by_side(comparison)) {
    const auto is_known = [&](const LayerLoss* loss) { return loss != nullptr && sqnr_db_of(*loss, by).has_value(); };
    if (!std::ranges::all_of(layer.losses, is_known)) continue;
    for (std::size_t q = 0; q < sums.size(); ++q) {
      const double db = *sqnr_db_of(*layer.losses[q], by);
      sums[q] += std::isnan(db) ? kBroken : std::clamp(db, kBroken, kExact);
    }
    ++count;
  }
  for (double& sum : sums) sum = count == 0 ? kBroken : sum / static_cast<double>(count);
  return sums;
}

std::string LayerWarning::sentence() const {
  std::string names;
  for (const std::string_view module : std::span(modules).first(std::min(modules.size(), kNamed)))
    names += (names.empty() ? "" : ", ") + io::printable(module);
  if (modules.size() > kNamed) names += fmt::format(" and {} more", modules.size() - kNamed);
  return fmt::format("{}: {}", what, names);
}

std::vector<LayerWarning> layer_warnings(const ModelLoss& loss) {
  std::vector<LayerWarning> warnings;
  // `count` of a layer, which may be 0.
  const auto warn = [&](std::string_view one, std::string_view many, std::string_view what, std::string_view note,
                        auto count) {
    std::uint64_t total = 0;
    std::vector<std::string_view> modules;
    for (const LayerLoss& layer : loss.layers)
      if (const std::uint64_t n = count(layer); n > 0) {
        total += n;
        modules.push_back(layer.module);
      }
    if (total > 0)
      warnings.push_back({fmt::format("{} {} {}", total, total == 1 ? one : many, what), note, std::move(modules)});
  };
  warn("weight is", "weights are", "NaN or infinite", "not finite", [](const LayerLoss& l) { return l.non_finite; });
  warn("output channel has", "output channels have", "only zeros as weights", "dead",
       [](const LayerLoss& l) { return l.dead_channels; });
  warn("layer is", "layers are", "saturated, with far more codes at the ends of the range than expected", "saturated",
       [](const LayerLoss& l) { return std::uint64_t{l.saturated ? 1u : 0u}; });
  return warnings;
}

std::vector<std::string> warnings_of(const ModelLoss& loss) {
  std::vector<std::string> sentences;
  for (const LayerWarning& warning : layer_warnings(loss)) sentences.push_back(warning.sentence());
  return sentences;
}

}  // namespace kvant::measure
