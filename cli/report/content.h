// What the sections of the report are made from: a comparison, seen layer by layer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cli/report/depth_chart.h"
#include "cli/report/page.h"
#include "measure/compare.h"

namespace kvant::cli {

// A layer in all checkpoints: a row of the table.
struct LayerRow : measure::SideBySide {
  std::optional<std::size_t> detail;  // its place in comparison.details
};

struct ReportContent {
  ReportContent(const measure::Comparison& comparison, const ReportFacts& facts);

  // What else is to be said of a layer, of all checkpoints; empty: nothing.
  std::string notes(const LayerRow& row) const;
  // A link to what there is of a layer; `text` is HTML.
  std::string link(std::string_view module, std::string_view text) const;
  // The name of a checkpoint, beside others with its colour.
  std::string label(std::size_t checkpoint) const;
  // Whether something is true of a layer in some checkpoint.
  template <class Predicate>
  bool any_loss(Predicate is_true) const {
    for (const LayerRow& row : rows)
      for (const measure::LayerLoss* const loss : row.losses)
        if (loss != nullptr && is_true(*loss)) return true;
    return false;
  }

  const measure::Comparison& comparison;
  const ReportFacts& facts;
  const bool several;             // checkpoints, side by side
  const measure::Judged judged;   // what is the worst, and comes first
  const measure::Judged outputs;  // measured ones where there are any, else estimates
  const bool has_outputs;         // some are known
  std::vector<LayerRow> rows;
  std::unordered_map<std::string_view, std::size_t> row_of;  // by module
  const DepthChart depth;
  bool has_notes = false;  // some layer has: there is a column for them
};

}  // namespace kvant::cli
