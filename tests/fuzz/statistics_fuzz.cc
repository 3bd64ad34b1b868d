// The readers of statistics, safetensors or an imatrix, on arbitrary bytes: numbers that are given keep what
// format/activation_stats.h promises, and what can be merged with itself is read again, of twice as many rows.
// merge_statistics_test runs it over the corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer program:
// build/.../tests/statistics_fuzz tests/fuzz/corpus/statistics
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "format/activation_stats.h"
#include "format/kv_cache.h"
#include "measure/merge_statistics.h"
#include "measure/statistics_summary.h"
#include "model/imatrix.h"
#include "tests/fuzz/fuzz_folder.h"

namespace {

using kvant::format::ActivationStats;
using kvant::format::Statistic;

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "statistics_fuzz: %s\n", sentence.c_str());
  std::abort();
}

// A refusal is a sentence.
template <class T>
bool given(const kvant::Result<T>& result) {
  require(result.ok() || !result.status().message().empty(), "refused without a sentence");
  return result.ok();
}

void check_channels(const ActivationStats& stats, const std::string& module) {
  for (const Statistic statistic : {Statistic::absmax, Statistic::min, Statistic::max, Statistic::mean_square,
                                    Statistic::int8_error, Statistic::int8_asymmetric_error}) {
    const auto values = stats.channels(module, statistic, *stats.in_features(module));
    if (!given(values)) continue;
    const bool has_sign = statistic == Statistic::min || statistic == Statistic::max;
    for (const float value : *values)
      require(std::isfinite(value) && (has_sign || value >= 0), module + " has a value that cannot be");
  }
}

void check_module(const ActivationStats& stats, const std::string& module) {
  if (const auto count = stats.count(module); given(count)) require(*count > 0, module + " has no rows");
  if (stats.in_features(module)) check_channels(stats, module);
  if (const auto histogram = stats.histogram(module); given(histogram)) {
    int exponent = 0;
    require(std::frexp(histogram->limit, &exponent) == 0.5, module + " has another limit");
    require(histogram->counts.size() % 2 == 0 && !histogram->counts.empty(), module + " has no halves");
    require(histogram->zeros >= 0 && std::ranges::min(histogram->counts) >= 0, module + " has counts below 0");
  }
}

bool is_input(const std::string& module) { return !kvant::format::cache_statistics_of(module); }

std::optional<std::int64_t> count_of(const ActivationStats& stats, const std::string& module) {
  const auto count = stats.count(module);
  return count.ok() ? std::optional(*count) : std::nullopt;
}

void check_merge(const ActivationStats& stats, const kvant::tests::FuzzFolder& folder) {
  kvant::base::Silence silence;
  const auto path = folder / "merged";
  const auto merged = kvant::measure::merge_statistics(
      {.inputs = {stats.path(), stats.path()}, .model_type = "mixtral", .output = path, .overwrite = true}, silence);
  if (!given(merged)) return;
  const auto again = ActivationStats::open(path);
  require(again.ok(), "what was merged is refused: " + std::string(again.status().message()));
  for (const std::string& module : stats.modules()) {
    if (const auto one = count_of(stats, module))
      require(count_of(*again, module) == 2 * *one, module + " has other rows");
    for (const Statistic statistic : {Statistic::absmax, Statistic::min, Statistic::mean_square, Statistic::hessian})
      require(stats.has(module, statistic) == again->has(module, statistic), module + " has other statistics");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  static const kvant::tests::FuzzFolder folder;
  folder.put("stats", std::string_view(reinterpret_cast<const char*>(input), size));
  const auto stats = kvant::model::open_statistics(folder / "stats", "mixtral");
  if (!given(stats)) return 0;
  std::set<std::string> modules;
  for (const std::string& module : stats->modules()) {
    require(modules.insert(module).second, module + " is listed twice");
    check_module(*stats, module);
  }
  if (const auto summaries = kvant::measure::summarize(*stats); given(summaries))
    require(static_cast<std::ptrdiff_t>(summaries->inputs.size()) == std::ranges::count_if(modules, is_input),
            "another number of modules");
  check_merge(*stats, folder);
  return 0;
}
