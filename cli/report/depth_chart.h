// SQNR of every layer, of its weights or of its output, along the depth of the model, in the colour and the shape of
// its kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report/chart.h"
#include "measure/compare.h"

namespace kvant::cli {

// Where layers stand, and the axes; the same for all checkpoints, for outputs and for weights, so that charts can be
// compared.
class DepthChart {
 public:
  // `judged`: all that will be drawn.
  DepthChart(const std::vector<measure::ModelLoss>& models, const std::vector<measure::Judged>& judged);

  bool empty() const { return kinds_.empty(); }
  // Those that are drawn, in the order of a block.
  const std::vector<model::LayerKind>& kinds() const { return kinds_; }

  // The shapes that svg() refers to; once in a page.
  std::string shapes() const;
  // rows[i]: the row of the page's table that model.layers[i] stands in. A layer of which nothing is known has no
  // point.
  std::string svg(const measure::ModelLoss& model, measure::Judged by, std::size_t number,
                  const std::vector<std::size_t>& rows) const;

 private:
  double x(const measure::LayerLoss& layer) const;
  double y(double sqnr_db) const;

  Panel plot_;
  std::vector<model::LayerKind> kinds_;
  using Place = std::pair<std::string, std::uint64_t>;  // the stack of blocks (model::stack_of), and the number
  std::vector<Place> blocks_;                           // in order; a place each, whatever numbers are left out
  bool outside_ = false;                                // some layers are in no block: they have a place after the last
  bool exact_ = false;                                  // some SQNR is infinite
  bool broken_ = false;                                 // some is NaN
  Axis decibels_;
};

// A marker of a kind for the legend.
std::string kind_marker(model::LayerKind kind);

}  // namespace kvant::cli
