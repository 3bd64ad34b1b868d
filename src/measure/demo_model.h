// The demonstration checkpoint: a small Llama-like model in bf16 whose norms feed outlier channels to the linears, as
// large models do, and the statistics of its activations. Generated with integer arithmetic and correctly rounded
// operations only: the same bits every time and everywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::measure {

struct DemoModel {
  std::int64_t hidden = 512;
  std::int64_t intermediate = 1376;
  std::int64_t vocabulary = 1024;
  int layers = 4;
  int shards = 2;
};

// Writes `folder` (config.json, index, shards, tokenizer_config.json) and `stats` (activation statistics for every
// linear). Replaces what an earlier demo wrote (unless it is the same already), and refuses a folder that holds
// anything else.
Status write_demo_model(const DemoModel& model, const std::filesystem::path& folder,
                        const std::filesystem::path& stats);

// How well a linear of a quantized checkpoint does on activations: y = x W^T of the original in f64 beside the W8A8
// linear (dynamic per token) on the same input, which passes the checkpoint's own norm where one feeds the linear.
struct OutputLoss {
  std::string module;
  double sqnr_db = 0;
};
Result<std::vector<OutputLoss>> output_losses(const DemoModel& model, const std::filesystem::path& original,
                                              const std::filesystem::path& quantized, const Stream& stream);

}  // namespace kvant::measure
