// What is in a checkpoint: its tensors, and with `stats` the ranges of their values, read in bands of rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "io/safetensors.h"
#include "kvant/status.h"
#include "model/roles.h"

namespace kvant::measure {

// Of a tensor in floating point.
struct ValueStats {
  double min = 0;  // over the finite values; 0 where there are none
  double max = 0;
  double rms = 0;
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zeros = 0;
  // Of 2-D tensors: columns (input channels) whose largest magnitude is more than 6 times the median of all columns'
  // largest magnitudes.
  std::vector<std::uint64_t> outlier_channels;
};

struct InspectedTensor {
  io::TensorInfo info;
  std::string shard;
  model::Judgement judgement;
  std::optional<ValueStats> stats;
};

struct Inspection {
  std::filesystem::path path;
  std::vector<InspectedTensor> tensors;                                // shard by shard, in the order of the data
  std::map<std::string, std::map<std::string, std::string>> metadata;  // by shard
  std::string model_type;                                              // empty: none
  std::string scheme;                                                  // of a quantized checkpoint; empty: none
  std::uint64_t bytes = 0;
};

struct InspectOptions {
  std::filesystem::path path;
  bool stats = false;
  int threads = 0;
  std::uint64_t max_memory = std::uint64_t{1} << 30;
};

Result<Inspection> inspect(const InspectOptions& options, base::Progress& progress);

// One JSON document, handed out in pieces: a million tensors as one value would take a gigabyte.
void write_json(const Inspection& inspection, const std::function<void(std::string_view)>& write);

}  // namespace kvant::measure
