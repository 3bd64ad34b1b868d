// Strict validation of a checkpoint: what a loader would trip over, said beforehand, and what was not looked at.
//
// A folder that kvant wrote: every byte of every file, by its checksums. Every checkpoint: the rules of safetensors in
// every shard, the index against the shards (names, total_size, no model.safetensors that loaders would take instead),
// no temporary files or unfinished runs left, no codes without a quantization_config. Quantized ones also:
// quantization_config is one that loaders take, with known keys only; every Linear has its codes and scales with shapes
// and dtypes that agree; scales are finite and positive, zero points in range, weight_shape true; every Linear that is
// not quantized is in `ignore`, and no quantized one is; q, k and v (and gate and up, w1 and w3) of one layer under one
// scheme; no zero points where the scheme is symmetric; static activations have input_scale; FP8 keys and values have
// both scales in every layer of attention, and others have none; shards say "format": "pt"; config.json says what the
// model is, and where kvant knows the network, the shapes of its linears and norms follow from it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"

namespace kvant::measure {

struct Verification {
  std::vector<std::string> checks;       // what was looked at: "safetensors format of 2 shards", "scales of 14 layers"
  std::vector<std::string> not_checked;  // and what was not, with the reason
  std::vector<std::string> problems;     // sentences with file, tensor and remedy; empty: all holds
  bool quantized = false;
};

// Reads all scales, and all bytes where there are checksums. A checkpoint that cannot be opened at all is a problem,
// not a refusal: Result fails only where the system does.
Result<Verification> verify(const std::filesystem::path& path, int threads, base::Progress& progress);

}  // namespace kvant::measure
