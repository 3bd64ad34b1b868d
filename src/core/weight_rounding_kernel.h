// What WeightRounding hands to a kernel.
#pragma once

#include <cstddef>
#include <string_view>

#include "kvant/sku.h"
#include "kvant/weight_rounding.h"
#include "semantics/float_grid.h"

namespace kvant::detail {

// Weights that share a scale, and how much each of them counts.
struct WeighedWeights {
  const float* weights;
  const float* importance;  // null: all the same
  std::size_t count;
};

// The numbers that codes stand for: integers from lo to hi, less a zero point, or those of a grid.
struct CodeNumbers {
  float lo, hi;
  const semantics::FloatGrid* grid;  // null: integers
  double largest;                    // magnitude
  int largest_exponent;              // of a grid
};

struct WeightRoundingKernel {
  static constexpr std::string_view kFamily = "weight rounding";
  KernelSku sku;
  float (*squared_error)(const WeighedWeights& segment, const CodeNumbers& numbers, float scale, float zero_point);
  WeightRounding::Fit (*fit)(const WeighedWeights& segment, const CodeNumbers& numbers, float scale, float zero_point);
  // Of segments like the first one, which follow it.
  void (*best_scales)(const WeighedWeights& first, std::size_t segments, const CodeNumbers& numbers,
                      const WeightRounding::Form& form, WeightRounding::Scale* scales);
  void (*settle)(const WeightRounding::Block& block, const CodeNumbers& numbers);
};

}  // namespace kvant::detail
