#include "measure/statistics_summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/refuse.h"
#include "format/kv_cache.h"
#include "io/file.h"
#include "model/layer_kind.h"

namespace kvant::measure {

using format::Statistic;

namespace {

Result<InputSummary> summary_of(const format::ActivationStats& stats, std::string module) {
  InputSummary summary;
  summary.channels = stats.in_features(module);
  if (stats.has(module, Statistic::count)) {
    const auto count = stats.count(module);
    if (!count.ok()) return count.status();
    summary.rows = *count;
  }
  if (stats.has(module, Statistic::absmax)) {
    const auto absmax = stats.absmax(module, *summary.channels);
    if (!absmax.ok()) return absmax.status();
    if (!absmax->empty()) summary.absmax = static_cast<double>(std::ranges::max(*absmax));
  }
  if (stats.has(module, Statistic::mean_square)) {
    const auto squares = stats.channels(module, Statistic::mean_square, *summary.channels);
    if (!squares.ok()) return squares.status();
    if (!squares->empty())
      summary.mean_square =
          std::accumulate(squares->begin(), squares->end(), 0.0) / static_cast<double>(squares->size());
  }
  summary.histogram = stats.has(module, Statistic::histogram);
  summary.hessian = stats.has(module, Statistic::hessian);
  if (const std::string* const first = stats.same_input_as(module)) summary.same_input_as = *first;
  summary.module = std::move(module);
  return summary;
}

}  // namespace

Result<StatisticsSummary> summarize(const format::ActivationStats& stats) {
  std::vector<std::string> modules = stats.modules();
  if (modules.empty())
    return base::invalid_problem("{}: has no statistics of any module", io::printable_path(stats.path()));
  std::ranges::sort(modules, [](const std::string& a, const std::string& b) { return model::stands_before(a, b); });
  StatisticsSummary all;
  std::map<std::string, std::size_t> caches;  // places, by attention layer
  for (std::string& module : modules) {
    auto summary = summary_of(stats, std::move(module));
    if (!summary.ok()) return summary.status();
    if (const auto cache = format::cache_statistics_of(summary->module)) {
      const auto [place, is_new] = caches.emplace(cache->attention, all.caches.size());
      if (is_new) all.caches.push_back({.attention = place->first, .keys_absmax = {}, .values_absmax = {}});
      CacheSummary& of_layer = all.caches[place->second];
      (cache->half == format::CacheHalf::keys ? of_layer.keys_absmax : of_layer.values_absmax) = summary->absmax;
      continue;
    }
    all.inputs.push_back(std::move(summary).value());
  }
  return all;
}

}  // namespace kvant::measure
