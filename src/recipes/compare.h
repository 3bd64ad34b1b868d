// What each layer lost: the original weight beside the quantized one, layer by layer, read in bands of rows.
//
// With w the weights that were quantized (after smoothing: W * s, s from kvant/smoothing.safetensors of the quantized
// folder) and v = scale * (q - zero_point):
//
//   error e = w - v       MSE = mean(e^2)       SQNR = 10 log10(sum(w^2) / sum(e^2)) dB, infinite where all e are 0
//   cosine = sum(w v) / sqrt(sum(w^2) sum(v^2)), 1 where both are all zero
//   largest error = max|e|, with its row and column
//   codes at the ends = share of q with q <= -q_max or q >= q_max
//
// over the finite weights; the others are counted. Sums are f64, formed row by row and added in the order of rows: the
// same bits for any thread count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"
#include "kvant/status.h"
#include "recipes/progress.h"
#include "recipes/scheme.h"

namespace kvant::recipes {

struct LayerLoss {
  std::string module;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  double sqnr_db = 0;
  double mse = 0;
  double cosine = 0;
  double largest_error = 0;
  std::uint64_t largest_row = 0;
  std::uint64_t largest_column = 0;
  double at_ends = 0;  // 0 to 1
  std::uint64_t non_finite = 0;
  bool smoothed = false;
};

struct Comparison {
  Scheme scheme;
  std::vector<LayerLoss> layers;     // worst SQNR first; ties by name
  std::uint64_t bytes_original = 0;  // of all tensors
  std::uint64_t bytes_quantized = 0;
  std::vector<std::string> unquantized;  // Linears of the original that were left as they are
  double mean_sqnr_db = 0;               // of the layers with a finite one
  double seconds = 0;
};

struct CompareOptions {
  std::filesystem::path original;
  std::filesystem::path quantized;
  int threads = 0;
  std::uint64_t max_memory = std::uint64_t{1} << 30;
};

// Refuses checkpoints that do not belong together: a layer that the original lacks, or has in another shape.
Result<Comparison> compare(const CompareOptions& options, Progress& progress);

// Numbers that are infinite are written as strings: "inf".
io::Json to_json(const Comparison& comparison);

}  // namespace kvant::recipes
