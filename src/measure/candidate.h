// A quantized checkpoint beside the original that it was made of, before anything of either is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/activation_stats.h"
#include "format/quantized_layers.h"
#include "format/smoothing_file.h"
#include "format/weight_source.h"
#include "io/checkpoint.h"
#include "kvant/status.h"
#include "measure/layer_detail.h"

namespace kvant::measure {

struct Candidate {
  struct Layer {
    const format::QuantizedLayer* layer;
    const format::WeightSource* weight;  // in the original
    const io::TensorInfo* s;             // null: not smoothed
  };
  io::Checkpoint checkpoint;
  std::string scheme;  // in words
  std::vector<format::QuantizedLayer> layers;
  std::optional<format::SmoothingFile> smoothing;
  std::map<std::string_view, Layer> by_name = {};
};

// The weights of the original, by module.
using OriginalWeights = std::map<std::string, format::WeightSource, std::less<>>;
Result<OriginalWeights> original_weights(const io::Checkpoint& original);

// All that can be refused without reading weights is, here. `bytes` grows by what will be read. The candidate points
// into `weights`.
Result<Candidate> open_candidate(const io::Checkpoint& original, const OriginalWeights& weights,
                                 const std::filesystem::path& path, std::uint64_t& bytes);

// The ranges of a layer's input as far as they are known.
Result<InputChannels> inputs_of(const Candidate& candidate, const Candidate::Layer& layer,
                                const std::optional<format::ActivationStats>& stats);

// Nothing where the statistics do not say it.
Result<std::optional<InputErrors>> input_errors_of(const Candidate& candidate, const Candidate::Layer& layer,
                                                   const format::ActivationStats& stats);

}  // namespace kvant::measure
