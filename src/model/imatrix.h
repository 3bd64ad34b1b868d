// llama.cpp's imatrix, a GGUF of its own type, seen as activation statistics: "<tensor>.in_sum2" is the sum of x² over
// the rows that a linear has read, for each channel, and "<tensor>.counts" how many rows those were; of experts both
// have a row for each. They become mean_square and count of the linear that the tensor is in a checkpoint. An imatrix
// knows neither ranges nor codes, and leaves out the head unless it was told to look at it.
#pragma once

#include <filesystem>
#include <string_view>

#include "format/activation_stats.h"
#include "kvant/status.h"

namespace kvant::model {

// A file of statistics of either kind. `model_type` is config.json's, or empty: only the names of experts depend on it,
// and an imatrix that has some is refused without. Tensors that no Llama-like network has are left out.
Result<format::ActivationStats> open_statistics(const std::filesystem::path& path, std::string_view model_type);

}  // namespace kvant::model
