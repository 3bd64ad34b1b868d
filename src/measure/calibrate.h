// Statistics of what every linear of a model reads, and of keys and values, from a text: the input of smoothing, of
// static activations and of FP8 caches
// (format/activation_stats.h). No padding: every token that is counted is one of the text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"
#include "model/text_job.h"
#include "model/token_text.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::measure {

struct CalibrateOptions {
  std::filesystem::path model;
  std::filesystem::path output;
  bool overwrite = false;
  bool hessian = false;  // also Σ x xᵀ of every input: as much memory as those of one block have bytes
  // Each block sees what the blocks before it make when they are quantized so, by their statistics in the file. Input,
  // output and statistics of these options have no say.
  std::optional<quantize::QuantizeOptions> through = std::nullopt;
  model::TokenText text;
  // An empty scratch folder is "OUTPUT.scratch", and holds the statistics of finished blocks too.
  model::RunSettings run = {};
};

struct Calibration {
  std::uint64_t linears = 0;
  std::uint64_t tokens = 0;
  std::vector<std::string> unseen;  // experts that no token was sent to: they have no statistics
};

// Writes the statistics of format/activation_stats.h for the linears of all blocks and the head. The same bytes for any
// number of threads, batch and instruction set.
Result<Calibration> calibrate(const CalibrateOptions& options, base::Progress& progress);

// What the metadata of a file of statistics says of CalibrateOptions::through; empty: nothing.
inline constexpr std::string_view kThroughKey = "through";
std::string through_text(const std::optional<quantize::QuantizeOptions>& through);

}  // namespace kvant::measure
