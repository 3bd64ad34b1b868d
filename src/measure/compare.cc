#include "measure/compare.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
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
#include "measure/stored_size.h"
#include "model/imatrix.h"
#include "model/model_facts.h"
#include "model/roles.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using io::printable;

// Keeps the details of the worst layers. What is the worst is not decided before all layers are known, so there is a
// list for each answer.
class WorstDetails {
 public:
  explicit WorstDetails(std::size_t checkpoints)
      : max_(std::max(kDetails / std::max(checkpoints, std::size_t{1}), kMinDetails)) {}

  // `losses`: of one layer, in the checkpoints that were seen.
  bool takes(const std::vector<LayerLoss>& losses) const {
    for (std::size_t by = 0; by < kJudged; ++by)
      if (takes(static_cast<Judged>(by), losses)) return true;
    return false;
  }
  void add(const std::vector<LayerLoss>& losses, LayerDetails details) {
    const auto shared = std::make_shared<LayerDetails>(std::move(details));
    for (std::size_t by = 0; by < kJudged; ++by) {
      if (!takes(static_cast<Judged>(by), losses)) continue;
      std::vector<Kept>& kept = kept_[by];
      const LayerLoss& worst = worst_of(losses, static_cast<Judged>(by));
      kept.insert(std::ranges::find_if(
                      kept, [&](const Kept& other) { return is_before(worst, other.worst, static_cast<Judged>(by)); }),
                  {worst, shared});
      if (kept.size() > max_) kept.pop_back();
    }
  }
  std::vector<LayerDetails> take(Judged by) {
    std::vector<LayerDetails> all;
    for (const Kept& kept : kept_[static_cast<std::size_t>(by)]) {
      all.push_back(std::move(*kept.details));
      for (std::optional<LayerDetail>& detail : all.back().quantized)
        if (detail) round_for_drawing(*detail);
    }
    return all;
  }

 private:
  static constexpr std::size_t kMinDetails = 8;
  struct Kept {
    LayerLoss worst;
    std::shared_ptr<LayerDetails> details;
  };

  static const LayerLoss& worst_of(const std::vector<LayerLoss>& losses, Judged by) {
    return *std::ranges::min_element(losses,
                                     [&](const LayerLoss& a, const LayerLoss& b) { return is_before(a, b, by); });
  }
  bool takes(Judged by, const std::vector<LayerLoss>& losses) const {
    const std::vector<Kept>& kept = kept_[static_cast<std::size_t>(by)];
    return kept.size() < max_ || is_before(worst_of(losses, by), kept.back().worst, by);
  }

  std::size_t max_;
  std::array<std::vector<Kept>, kJudged> kept_;  // worst first
};

void add_totals(const io::Checkpoint& original, const Candidate& candidate, ModelLoss& loss) {
  std::ranges::sort(loss.layers,
                    [](const LayerLoss& a, const LayerLoss& b) { return is_before(a, b, Judged::weights); });
  loss.bytes = candidate.checkpoint.tensor_bytes();
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
    auto opened = model::open_statistics(*options.stats, model::facts_of(*original).model_type);
    if (!opened.ok()) return opened.status();
    opened->find_prefix(*original);
    stats = std::move(opened).value();
  }

  Comparison comparison;
  comparison.original = options.original;
  comparison.model_type = model::facts_of(*original).model_type;
  comparison.bytes = original->tensor_bytes();
  for (const io::SafetensorsFile& shard : original->shards())
    for (const io::TensorInfo& tensor : shard.tensors()) {
      std::uint64_t elements = 1;
      for (const std::uint64_t size : tensor.shape) elements *= size;
      comparison.parameters += elements;
    }

  const auto weights = original_weights(*original);
  if (!weights.ok()) return weights.status();
  std::uint64_t bytes = 0;
  std::vector<Candidate> candidates;
  std::set<std::string_view> modules;
  candidates.reserve(options.quantized.size());
  const std::vector<std::string> labels = labels_of(options.quantized);
  for (std::size_t i = 0; i < options.quantized.size(); ++i) {
    auto candidate = open_candidate(*original, *weights, options.quantized[i], bytes);
    if (!candidate.ok()) return candidate.status();
    candidates.push_back(std::move(candidate).value());
    for (const auto& [module, layer] : candidates.back().by_name) modules.insert(module);
    ModelLoss& loss = comparison.quantized.emplace_back();
    loss.path = options.quantized[i];
    loss.label = labels[i];
    loss.scheme = candidates.back().scheme;
  }

  // Layer by layer, each in all checkpoints: what is kept of the worst can then be chosen on the way.
  progress.begin("comparing", bytes);
  const auto sums = ErrorSums::select(stream);
  if (!sums.ok()) return sums.status();
  CompareResources resources(stream, *sums, options.max_memory, options.details);
  WorstDetails worst(candidates.size());
  const auto with_statistics = static_cast<std::size_t>(
      std::ranges::count_if(modules, [&](std::string_view module) { return stats && stats->in_features(module); }));
  for (const std::string_view module : modules) {
    LayerDetails details{std::string(module), std::vector<std::optional<LayerDetail>>(candidates.size())};
    std::vector<LayerLoss> losses;
    bool has_details = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Candidate& candidate = candidates[i];
      const auto found = candidate.by_name.find(module);
      if (found == candidate.by_name.end()) continue;
      const auto& [layer, weight, s] = found->second;
      DetailCollector* const collector =
          resources.details && resources.fits_columns(layer->columns) ? &*resources.details : nullptr;
      std::optional<InputErrors> inputs;
      if (stats && resources.fits_columns(layer->columns)) {
        auto known = input_errors_of(candidate, found->second, *stats);
        if (!known.ok()) return known.status();
        inputs = std::move(known).value();
      }
      const ComparedLayer compared{.original = *original,
                                   .weight = *weight,
                                   .quantized = candidate.checkpoint,
                                   .layer = *layer,
                                   .smoothing = candidate.smoothing ? &*candidate.smoothing : nullptr,
                                   .s = s,
                                   .inputs = inputs ? &*inputs : nullptr};
      auto loss = compare_layer(compared, resources, collector, progress);
      if (!loss.ok()) return loss.status();
      if (i < options.outputs.size())
        if (const auto output = options.outputs[i].find(module); output != options.outputs[i].end())
          loss->output_sqnr_db = output->second;
      losses.push_back(*loss);
      const bool keeps = collector != nullptr && (has_details || i + 1 < candidates.size() || worst.takes(losses));
      if (resources.fits_columns(layer->columns) && (stats || keeps)) {
        auto ranges = inputs_of(candidate, found->second, stats);
        if (!ranges.ok()) return ranges.status();
        if (!ranges->before.empty()) loss->input_ratio = s != nullptr ? ranges->ratio_after : ranges->ratio_before;
        if (keeps) {
          details.quantized[i] = collector->finish();
          details.quantized[i]->inputs = std::move(ranges).value();
          has_details = true;
        }
      }
      comparison.quantized[i].layers.push_back(std::move(loss).value());
    }
    if (has_details) worst.add(losses, std::move(details));
  }
  if (stats && with_statistics < modules.size())
    comparison.warnings.push_back(
        fmt::format("{}: has statistics for {} of {} quantized layers", printable(options.stats->string()),
                    with_statistics == 0 ? "none" : std::to_string(with_statistics), modules.size()));
  for (std::size_t i = 0; i < candidates.size(); ++i) add_totals(*original, candidates[i], comparison.quantized[i]);
  comparison.details = worst.take(judged_by(comparison));
  comparison.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comparison;
}

}  // namespace kvant::measure
