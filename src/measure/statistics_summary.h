// What a file of activation statistics says, in a line for each module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/activation_stats.h"
#include "kvant/status.h"

namespace kvant::measure {

struct InputSummary {
  std::string module;
  std::optional<std::uint64_t> channels;
  std::optional<std::int64_t> rows;
  std::optional<double> absmax;       // of all channels
  std::optional<double> mean_square;  // the mean over all channels
  bool histogram = false, hessian = false;
  std::string same_input_as;  // empty: it has what there is of its own
};

// The keys and values of an attention layer.
struct CacheSummary {
  std::string attention;
  std::optional<double> keys_absmax, values_absmax;  // of all channels
};

// Both in the order of the model.
struct StatisticsSummary {
  std::vector<InputSummary> inputs;
  std::vector<CacheSummary> caches;
};

// Reads and checks all but histograms and Hessians.
Result<StatisticsSummary> summarize(const format::ActivationStats& stats);

}  // namespace kvant::measure
