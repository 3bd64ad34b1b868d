// Rows of a weight, rounded column by column with what the errors of the columns before add to each
// (feedback_factors.h). Rows do not know of each other: a row becomes the same with any others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/element.h"
#include "kvant/network_steps.h"
#include "kvant/status.h"
#include "kvant/weight_rounding.h"
#include "quantize/feedback_factors.h"

namespace kvant::quantize {

class FeedbackRounding {
 public:
  static Result<FeedbackRounding> make();
  // Rows that go together; more are not faster.
  static constexpr std::uint64_t kRows = 64;
  static std::uint64_t memory(std::uint64_t rows, std::uint64_t columns, std::uint64_t groups);

  struct Scales {
    std::uint64_t group = 0;                         // columns that share one
    std::span<const float> scales = {};              // [rows, groups]
    std::span<const std::int32_t> zero_points = {};  // the same; empty: all 0
  };
  // weights [rows, columns], in place: each becomes scale · d. What is not finite counts as 0, and stays what it is.
  void round(const FeedbackFactors& factors, ElementKind code, const Scales& scales, std::span<float> weights);

 private:
  FeedbackRounding(const NetworkSteps& steps, const WeightRounding& rounding) : steps_(steps), rounding_(rounding) {}

  NetworkSteps steps_;
  WeightRounding rounding_;
  // Column after column, in the order in which they are rounded.
  std::vector<float> weights_, errors_, numbers_, targets_;
  std::vector<float> scales_, zero_points_;  // group after group
  std::vector<const float*> scale_of_, zero_point_of_;
};

}  // namespace kvant::quantize
