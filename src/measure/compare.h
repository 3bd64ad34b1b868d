// What each layer lost: the original weight beside the quantized one, layer by layer, read in bands of rows.
//
// With w the weights that were quantized (after smoothing: W * s, s from kvant/smoothing.safetensors of the quantized
// folder) and v = scale * (q - zero_point):
//
//   error e = w - v       MSE = mean(e^2)       SQNR = 10 log10(sum(w^2) / sum(e^2)) dB, infinite where all e are 0,
//   NaN (the worst) where no weight is finite
//   cosine = sum(w v) / sqrt(sum(w^2) sum(v^2)), 1 where both are all zero
//   largest error = max|e|, with its row and column
//   codes at the ends = share of q with q <= -q_max or q >= q_max
//
// over the finite weights; the others are counted. Sums are f64, formed row by row and added in the order of rows: the
// same bits for any thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "kvant/status.h"
#include "measure/comparison.h"
#include "measure/output_losses.h"

namespace kvant::measure {

struct CompareOptions {
  std::filesystem::path original;
  std::vector<std::filesystem::path> quantized;
  std::optional<std::filesystem::path> stats = {};  // activation statistics (activation_stats.h)
  OutputLosses outputs = {};                        // of each of `quantized`; empty: nobody measured them
  bool details = false;                             // of the worst layers: kDetails, shared among the checkpoints
  int threads = 0;
  std::uint64_t max_memory = std::uint64_t{1} << 30;
};

// For two checkpoints details of 16 layers each, and so on; never of less than 8 layers.
inline constexpr std::size_t kDetails = 32;

// There are no details, and no outlier channels, of a layer of so many columns that what is kept of each would take an
// eighth of `max_memory`.
//
// Refuses checkpoints that do not belong together: a layer that the original lacks, or has in another shape.
Result<Comparison> compare(const CompareOptions& options, base::Progress& progress);

}  // namespace kvant::measure
