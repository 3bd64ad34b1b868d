// Statistics of several calibrations of one model as those of all their texts: max and min of what is a max or min,
// means weighted by counts, and sums of counts, histograms and Hessians (docs/numerics.md). Memory does not grow with
// the number of modules or with their width squared.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"

namespace kvant::measure {

struct MergeOptions {
  std::vector<std::filesystem::path> inputs;  // of format/activation_stats.h, or an imatrix (model/imatrix.h)
  std::string model_type = {};                // for the names of an imatrix's experts; empty: not known
  std::filesystem::path output;
  bool overwrite = false;
};

struct MergedStatistics {
  std::uint64_t modules = 0;          // beside keys and values
  std::uint64_t shared = 0;           // of which are in all files
  std::vector<std::string> warnings;  // what is not of all files, or left out
};

// A statistic of a module is merged where all files that have the module have it. Modules that are experts or heads may
// be missing in some files, and are then those of the others; keys and values are left out then. Refuses other modules
// that are missing, other widths, means without counts, and an output that is an input.
Result<MergedStatistics> merge_statistics(const MergeOptions& options, base::Progress& progress);

}  // namespace kvant::measure
