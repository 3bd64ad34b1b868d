// The drawings of one layer in one checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/report/chart.h"
#include "measure/compare.h"

namespace kvant::cli {

// Axes that a layer has in common in all checkpoints, so that what looks larger is larger.
struct LayerAxes {
  explicit LayerAxes(const measure::LayerDetails& layer);

  Axis counts;
  Axis scales;
  Axis sqnr_db;
  Axis inputs;
  Axis smoothing;
  double least_rms = 0;  // of the error's picture: the ends of its colours
  double largest_rms = 0;
};

// Figures, and the table of the largest errors. `rows` and `columns` are the matrix's.
std::string layer_charts(const measure::LayerDetail& detail, const LayerAxes& common, std::uint64_t rows,
                         std::uint64_t columns);

// What turns grey into the colours of the error's picture: an SVG filter, and the same as a gradient for the legend.
// Once in a page.
std::string heat_filter();
std::string heat_gradient();

}  // namespace kvant::cli
