// The demonstration checkpoint: a small Llama-like model in bf16 whose norms feed outlier channels to the linears, as
// large models do, and the statistics of its activations. Generated with integer arithmetic and correctly rounded
// operations only: the same bits every time and everywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kvant/element.h"
#include "kvant/status.h"

namespace kvant::model {

struct DemoModel {
  std::int64_t hidden = 512;
  std::int64_t intermediate = 1376;
  std::int64_t vocabulary = 1024;
  int layers = 4;
  int shards = 2;
};
// Refuses sizes that no such model has.
Status check(const DemoModel& model);

// Writes `folder` (config.json, index, shards, tokenizer_config.json) and `stats` (activation statistics for every
// linear). Replaces what an earlier demo wrote (unless it is the same already), and refuses a folder that holds
// anything else.
Status write_demo_model(const DemoModel& model, const std::filesystem::path& folder,
                        const std::filesystem::path& stats);

struct DemoLinear {
  std::string module;
  std::string norm;  // that feeds it; empty: none
  std::int64_t out, in;
};
// In the order of the model.
std::vector<DemoLinear> demo_linears(const DemoModel& model);

// Activations that are not those of the statistics: [kDemoTestTokens, in] as they arrive at the linear. `norm` is the
// weight of the norm that feeds it, of whichever checkpoint.
inline constexpr std::int64_t kDemoTestTokens = 64;
std::vector<float> demo_test_rows(const DemoLinear& linear, std::span<const BFloat16> norm);

}  // namespace kvant::model
