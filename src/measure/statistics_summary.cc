#include "measure/statistics_summary.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/refuse.h"
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

Result<std::vector<InputSummary>> summarize(const format::ActivationStats& stats) {
  std::vector<std::string> modules = stats.modules();
  if (modules.empty())
    return base::invalid_problem("{}: has no statistics of any module", io::printable_path(stats.path()));
  std::ranges::sort(modules, [](const std::string& a, const std::string& b) { return model::stands_before(a, b); });
  std::vector<InputSummary> summaries;
  for (std::string& module : modules) {
    auto summary = summary_of(stats, std::move(module));
    if (!summary.ok()) return summary.status();
    summaries.push_back(std::move(summary).value());
  }
  return summaries;
}

}  // namespace kvant::measure
