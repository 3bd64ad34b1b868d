// A GGUF in, a folder with a Hugging Face checkpoint out: safetensors (in shards above 5 GB), config.json and the
// tokenizer. Values are those that ggml computes with, in f32; in f16 and bf16 they are rounded to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "io/safetensors.h"
#include "kvant/status.h"

namespace kvant::quantize {

struct ConvertOptions {
  std::filesystem::path input;
  std::filesystem::path output;
  io::DType dtype = io::DType::f32;  // or f16, bf16
  int threads = 0;                   // 0: as many as the machine has
  bool resume = false;
  bool force = false;
  std::uint64_t max_shard_bytes = 5'000'000'000;
};

struct ConvertOutcome {
  std::string model_type;
  std::size_t tensors = 0;
  std::size_t shards_written = 0;
  std::size_t shards_kept = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t rounded = 0;  // values that the dtype does not hold
  double seconds = 0;
  std::vector<std::string> warnings;
};

// Every file appears whole, config.json last. Refuses an output that is there already, as kvant quantize does, and a
// finite value that becomes infinite in f16.
Result<ConvertOutcome> convert_gguf(const ConvertOptions& options, base::Progress& progress);

}  // namespace kvant::quantize
