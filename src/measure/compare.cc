#include "measure/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "format/activation_stats.h"
#include "format/module_name.h"
#include "io/checkpoint.h"
#include "kvant/stream.h"
#include "measure/candidate.h"
#include "measure/labels.h"
#include "measure/layer_comparison.h"
#include "measure/sqnr.h"
#include "measure/stored_size.h"
#include "model/model_facts.h"
#include "model/roles.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using io::printable;

// Keeps the details of the worst layers.
class WorstDetails {
 public:
  explicit WorstDetails(std::size_t checkpoints)
      : max_(std::max(kDetails / std::max(checkpoints, std::size_t{1}), kMinDetails)) {}

  bool takes(double sqnr_db) const { return kept_.size() < max_ || is_worse(sqnr_db, kept_.back().sqnr_db); }
  void add(double sqnr_db, LayerDetails details) {
    const auto at = std::upper_bound(kept_.begin(), kept_.end(), sqnr_db,
                                     [](double worse, const Kept& kept) { return is_worse(worse, kept.sqnr_db); });
    kept_.insert(at, {sqnr_db, std::move(details)});
    if (kept_.size() > max_) kept_.pop_back();
  }
  std::vector<LayerDetails> take() {
    std::vector<LayerDetails> all;
    for (Kept& kept : kept_) {
      for (std::optional<LayerDetail>& detail : kept.details.quantized)
        if (detail) round_for_drawing(*detail);
      all.push_back(std::move(kept.details));
    }
    return all;
  }

 private:
  static constexpr std::size_t kMinDetails = 8;
  struct Kept {
    double sqnr_db;
    LayerDetails details;
  };
  std::size_t max_;
  std::vector<Kept> kept_;  // worst first; of equals, the one that came first
};

void add_totals(const io::Checkpoint& original, const Candidate& candidate, ModelLoss& loss) {
  std::ranges::sort(loss.layers, is_before);
  double sum = 0;
  std::uint64_t finite = 0;
  for (const LayerLoss& layer : loss.layers)
    if (std::isfinite(layer.sqnr_db)) {
      sum += layer.sqnr_db;
      ++finite;
    }
  if (finite > 0) loss.mean_sqnr_db = sum / static_cast<double>(finite);
  loss.bytes = tensor_bytes(candidate.checkpoint);
  const std::string model_type = model::facts_of(original).model_type;
  for (const auto& [name, place] : original.tensors()) {
    const model::Role role = model::judge(original.at(place), model_type).role;
    if (!model::is_linear_module(role)) continue;
    if (!candidate.by_name.contains(format::module_of(name))) loss.unquantized.emplace_back(format::module_of(name));
  }
}

}  // namespace

Result<Comparison> compare(const CompareOptions& options, base::Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  const auto original = io::Checkpoint::open(options.original);
  if (!original.ok()) return original.status();
  std::optional<format::ActivationStats> stats;
  if (options.stats) {
    auto opened = format::ActivationStats::open(*options.stats);
    if (!opened.ok()) return opened.status();
    stats = std::move(opened).value();
  }

  Comparison comparison;
  comparison.original = options.original;
  comparison.model_type = model::facts_of(*original).model_type;
  comparison.bytes = tensor_bytes(*original);
  for (const io::SafetensorsFile& shard : original->shards())
    for (const io::TensorInfo& tensor : shard.tensors()) {
      std::uint64_t elements = 1;
      for (const std::uint64_t size : tensor.shape) elements *= size;
      comparison.parameters += elements;
    }

  std::uint64_t bytes = 0;
  std::vector<Candidate> candidates;
  std::set<std::string_view> modules;
  candidates.reserve(options.quantized.size());
  const std::vector<std::string> labels = labels_of(options.quantized);
  for (std::size_t i = 0; i < options.quantized.size(); ++i) {
    auto candidate = open_candidate(*original, options.quantized[i], bytes);
    if (!candidate.ok()) return candidate.status();
    candidates.push_back(std::move(candidate).value());
    for (const auto& [module, layer] : candidates.back().by_name) modules.insert(module);
    ModelLoss& loss = comparison.quantized.emplace_back();
    loss.path = options.quantized[i];
    loss.label = labels[i];
    loss.scheme = candidates.back().config.scheme;
  }

  // Layer by layer, each in all checkpoints: what is kept of the worst can then be chosen on the way.
  progress.begin("comparing", bytes);
  const auto sums = ErrorSums::select(stream);
  if (!sums.ok()) return sums.status();
  CompareResources resources(stream, *sums, options.max_memory, options.details);
  WorstDetails worst(candidates.size());
  const auto with_statistics = static_cast<std::size_t>(
      std::ranges::count_if(modules, [&](std::string_view module) { return stats && stats->has_absmax(module); }));
  for (const std::string_view module : modules) {
    LayerDetails details{std::string(module), std::vector<std::optional<LayerDetail>>(candidates.size())};
    double worst_sqnr = std::numeric_limits<double>::infinity();
    bool has_details = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Candidate& candidate = candidates[i];
      const auto found = candidate.by_name.find(module);
      if (found == candidate.by_name.end()) continue;
      const auto& [layer, weight, s] = found->second;
      DetailCollector* const collector =
          resources.details && resources.fits_columns(layer->columns) ? &*resources.details : nullptr;
      const ComparedLayer compared{.original = *original,
                                   .weight = weight,
                                   .quantized = candidate.checkpoint,
                                   .layer = *layer,
                                   .smoothing = candidate.smoothing ? &*candidate.smoothing : nullptr,
                                   .s = s};
      auto loss = compare_layer(compared, resources, collector, progress);
      if (!loss.ok()) return loss.status();
      if (is_worse(loss->sqnr_db, worst_sqnr)) worst_sqnr = loss->sqnr_db;
      const bool keeps =
          collector != nullptr && (has_details || worst.takes(loss->sqnr_db) || i + 1 < candidates.size());
      if (resources.fits_columns(layer->columns) && (stats || keeps)) {
        auto inputs = inputs_of(candidate, found->second, stats);
        if (!inputs.ok()) return inputs.status();
        if (!inputs->before.empty()) loss->input_ratio = s != nullptr ? inputs->ratio_after : inputs->ratio_before;
        if (keeps) {
          details.quantized[i] = collector->finish();
          details.quantized[i]->inputs = std::move(inputs).value();
          has_details = true;
        }
      }
      comparison.quantized[i].layers.push_back(std::move(loss).value());
    }
    if (has_details && worst.takes(worst_sqnr)) worst.add(worst_sqnr, std::move(details));
  }
  comparison.details = worst.take();
  if (stats && with_statistics < modules.size())
    comparison.warnings.push_back(
        fmt::format("{}: has statistics for {} of {} quantized layers", printable(options.stats->string()),
                    with_statistics == 0 ? "none" : std::to_string(with_statistics), modules.size()));
  for (std::size_t i = 0; i < candidates.size(); ++i) add_totals(*original, candidates[i], comparison.quantized[i]);
  comparison.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comparison;
}

}  // namespace kvant::measure
