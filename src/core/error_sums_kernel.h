// What ErrorSums hands to a kernel. Weights are of the kernel's element, f32 or f64; all are finite where a function
// does not say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvant/error_sums.h"
#include "kvant/sku.h"

namespace kvant::detail {

// A stretch of weights beside their codes.
struct CodedWeights {
  const void* weights;
  const std::int8_t* codes;
  std::size_t count;  // at most ErrorSums::kMaxCount
  double scale;       // an f32
  std::int32_t zero_point;
  const float* numbers;        // of each byte; null: codes are integers
  std::int8_t magnitude_mask;  // of the bits of a code; all of an integer's
  std::int8_t largest;         // code of the largest magnitude
};

// Where count_on_grid() counts.
struct Grid {
  float scale;
  float zero_point;
  float first;  // where the first bin begins, in codes
  float bins_per_code;
  std::size_t bins;
  std::uint64_t* counts;
};

struct ErrorSumsKernel {
  static constexpr std::string_view kFamily = "error sums";
  KernelSku sku;
  // Weights that are not finite make the sum of squares infinite or NaN.
  void (*loss)(const CodedWeights& stretch, ErrorSums::Loss& loss);
  void (*output_loss)(const CodedWeights& stretch, const float* m, const float* n, ErrorSums::OutputLoss& loss);
  void (*error_magnitudes)(const CodedWeights& stretch, double* magnitudes);
  void (*add_cell_errors)(const CodedWeights& stretch, std::size_t offset, std::size_t cell, double* errors);
  void (*count_on_grid)(const void* weights, std::size_t count, const Grid& grid);
  void (*raise_to_magnitudes)(const void* weights, std::size_t count, float* largest);  // NaN changes nothing
  // Squares and zeros; as loss() where x is not finite.
  void (*values)(const void* x, std::size_t count, ErrorSums::Values& values);
};

}  // namespace kvant::detail
