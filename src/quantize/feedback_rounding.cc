#include "quantize/feedback_rounding.h"

#include <cmath>

#include "base/divide_up.h"
#include "base/float_environment.h"

namespace kvant::quantize {

Result<FeedbackRounding> FeedbackRounding::make() {
  const Stream stream = Stream::cpu(1);
  const auto steps = NetworkSteps::select(stream);
  if (!steps.ok()) return steps.status();
  const auto rounding = WeightRounding::select(stream);
  if (!rounding.ok()) return rounding.status();
  return FeedbackRounding(*steps, *rounding);
}

std::uint64_t FeedbackRounding::memory(std::uint64_t rows, std::uint64_t columns, std::uint64_t groups) {
  return 4 * rows * (4 * columns + FeedbackFactors::kBlock + 2 * groups);
}

void FeedbackRounding::round(const FeedbackFactors& factors, ElementKind code, const Scales& scales,
                             std::span<float> weights) {
  const base::DefaultFloatEnvironment environment;
  const std::size_t columns = factors.columns(), rows = weights.size() / columns;
  const std::size_t groups = base::parts_of(columns, scales.group);
  const std::span<const std::uint32_t> order = factors.order();
  weights_.resize(rows * columns);
  errors_.resize(rows * columns);
  numbers_.resize(rows * columns);
  targets_.resize(rows * FeedbackFactors::kBlock);
  for (std::size_t k = 0; k < columns; ++k)
    for (std::size_t r = 0; r < rows; ++r) {
      const float weight = weights[r * columns + order[k]];
      weights_[k * rows + r] = std::isfinite(weight) ? weight : 0;
    }
  scales_.resize(rows * groups);
  zero_points_.resize(scales.zero_points.empty() ? 0 : rows * groups);
  for (std::size_t g = 0; g < groups; ++g)
    for (std::size_t r = 0; r < rows; ++r) {
      scales_[g * rows + r] = scales.scales[r * groups + g];
      if (!zero_points_.empty()) zero_points_[g * rows + r] = static_cast<float>(scales.zero_points[r * groups + g]);
    }
  for (std::size_t b = 0; b < factors.blocks(); ++b) {
    const FeedbackFactors::Block block = factors.block(b);
    scale_of_.clear();
    zero_point_of_.clear();
    for (std::size_t k = block.first; k < block.first + block.count; ++k) {
      const std::size_t at = order[k] / scales.group * rows;
      scale_of_.push_back(scales_.data() + at);
      if (!zero_points_.empty()) zero_point_of_.push_back(zero_points_.data() + at);
    }
    const std::size_t first = block.first * rows;
    steps_.chain_products(block.factors, block.stride, errors_.data(), rows, block.count, block.first, rows,
                          targets_.data(), rows);
    for (std::size_t i = 0; i < block.count * rows; ++i) targets_[i] += weights_[first + i];
    rounding_.settle({.targets = targets_.data(),
                      .weights = weights_.data() + first,
                      .errors = errors_.data() + first,
                      .numbers = numbers_.data() + first,
                      .columns = block.count,
                      .rows = rows,
                      .stride = rows,
                      .factors = block.factors + block.first,
                      .factor_stride = block.stride,
                      .scales = scale_of_.data(),
                      .zero_points = zero_points_.empty() ? nullptr : zero_point_of_.data()},
                     code);
  }
  for (std::size_t k = 0; k < columns; ++k) {
    const float* const scale = scales_.data() + order[k] / scales.group * rows;
    for (std::size_t r = 0; r < rows; ++r)
      if (float& weight = weights[r * columns + order[k]]; std::isfinite(weight))
        weight = scale[r] * numbers_[k * rows + r];
  }
}

}  // namespace kvant::quantize
