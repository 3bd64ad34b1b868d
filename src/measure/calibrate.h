// Statistics of what every linear of a model reads, from a text: the input of smoothing and of static activations
// (format/activation_stats.h). No padding: every token that is counted is one of the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"
#include "model/token_text.h"

namespace kvant::measure {

struct CalibrateOptions {
  std::filesystem::path model;
  std::filesystem::path output;
  bool overwrite = false;
  model::TokenText text;
  int threads = 0;                     // 0: all
  std::uint64_t max_memory = 0;        // 0: three quarters of what is available
  std::filesystem::path scratch = {};  // as EvaluateOptions
  bool resume = false;
};

struct Calibration {
  std::uint64_t linears = 0;
  std::uint64_t tokens = 0;
  std::vector<std::string> unseen;  // experts that no token was sent to: they have no statistics
};

// Writes "<module>.absmax", ".min", ".max" and ".mean_square", F32 [in], for the linears of all blocks and the head.
// The same bytes for any number of threads.
Result<Calibration> calibrate(const CalibrateOptions& options, base::Progress& progress);

}  // namespace kvant::measure
