// What the outputs of linears lose on a text. Every linear, of the original and of each quantized checkpoint, reads the
// same activations: those of the original, divided by s where the checkpoint is smoothed. So the loss is of this layer
// alone, of its weights and of its activations, not of the layers before it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"
#include "model/token_text.h"

namespace kvant::measure {

// In dB, by module, of each checkpoint.
using OutputLosses = std::vector<std::map<std::string, double, std::less<>>>;

// Of every layer that a checkpoint quantized: 10 log10(sum(y^2) / sum((y - y')^2)) over all tokens and output channels,
// y of the original and y' of the checkpoint. `threads` 0: all. The same bits for any number of threads.
Result<OutputLosses> measure_outputs(const std::filesystem::path& original,
                                     const std::vector<std::filesystem::path>& quantized, const model::TokenText& text,
                                     int threads, base::Progress& progress);

}  // namespace kvant::measure
