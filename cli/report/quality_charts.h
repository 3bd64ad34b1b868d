// Drawings of an evaluation: what checkpoints lost over what they take, and along the positions of a sequence.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

// A checkpoint in a chart over sizes.
struct SizePoint {
  std::string label;  // as it is named; may hold anything
  double bytes = 0;
  double value = 0;
  double error = 0;          // drawn as a bar up and down
  std::size_t series = 0;    // its colour and shape; the original has none of them
  bool is_original = false;  // drawn as a ring
};

// A line across, below or above which something holds.
struct SizeBound {
  double value;
  std::string_view name;  // HTML
};

// A point for each checkpoint. An axis begins at 0, or is logarithmic where the largest is more than 20 times the
// least. Bounds are drawn where the axis has them; the first of them always.
std::string size_chart(std::string_view name, const std::vector<SizePoint>& points,
                       const std::vector<SizeBound>& bounds);

// A line of a chart along positions.
struct PositionLine {
  std::string label;
  std::span<const double> values;  // of positions 0, 1 …
};

// Every line with its colour; neighbouring positions share a point, which is their mean, so that there are at most 100.
std::string position_chart(std::string_view name, const std::vector<PositionLine>& lines);
// How many positions a point of that chart stands for.
std::size_t position_span(std::size_t positions);

// A marker of a series for a legend, in its colour and shape.
std::string series_marker(std::size_t series);

}  // namespace kvant::cli
