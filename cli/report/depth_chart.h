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

// Where layers stand, and the axes; the same for all checkpoints, so that their charts can be compared.
class DepthChart {
 public:
  // What is drawn of a layer; nothing: it has no point.
  using Value = std::optional<double> (*)(const measure::LayerLoss&);
  // `key` is what the value is called in the table.
  DepthChart(const std::vector<measure::ModelLoss>& models, std::string_view key, Value value);

  bool empty() const { return kinds_.empty(); }
  // Those that are drawn, in the order of a block.
  const std::vector<model::LayerKind>& kinds() const { return kinds_; }

  // The shapes that svg() refers to; once in a page.
  std::string shapes() const;
  // rows[i]: the row of the page's table that model.layers[i] stands in.
  std::string svg(const measure::ModelLoss& model, std::size_t number, const std::vector<std::size_t>& rows) const;

 private:
  double x(const measure::LayerLoss& layer) const;
  double y(double sqnr_db) const;

  std::string_view key_;
  Value value_;
  Panel plot_;
  std::vector<model::LayerKind> kinds_;
  using Place = std::pair<std::string, std::uint64_t>;  // the stack of blocks (model::stack_of), and the number
  std::vector<Place> blocks_;                           // in order; a place each, whatever numbers are left out
  bool outside_ = false;                                // some layers are in no block: they have a place after the last
  bool exact_ = false;                                  // some SQNR is infinite
  bool broken_ = false;                                 // some is NaN
  double first_ = 0;                                    // of the axis of SQNR
  double last_ = 1;
  std::vector<std::pair<double, std::string>> ticks_;
};

// A marker of a kind for the legend.
std::string kind_marker(model::LayerKind kind);

}  // namespace kvant::cli
