#include "cli/report/content.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/report/html.h"
#include "cli/report/series.h"

namespace kvant::cli {
namespace {

using measure::Judged;
using measure::LayerLoss;

// What else is to be said of a layer; empty: nothing. That it is smoothed is said where there is one checkpoint alone:
// beside others that are not, it would stand in every line.
std::string notes_of(const LayerLoss& layer, bool alone) {
  std::string notes;
  const auto note = [&](bool there, const std::string& text) {
    if (there) notes += (notes.empty() ? "" : ", ") + text;
  };
  note(layer.non_finite > 0, fmt::format("{} not finite", layer.non_finite));
  note(layer.dead_channels > 0, fmt::format("{} dead", layer.dead_channels));
  note(layer.saturated, "saturated");
  note(layer.smoothed && alone, "smoothed");
  return notes;
}

bool knows(const measure::Comparison& comparison, Judged by) {
  return std::ranges::any_of(comparison.quantized, [&](const measure::ModelLoss& model) {
    return std::ranges::any_of(model.layers, [&](const LayerLoss& layer) { return sqnr_db_of(layer, by).has_value(); });
  });
}

}  // namespace

ReportContent::ReportContent(const measure::Comparison& compared, const ReportFacts& more)
    : comparison(compared),
      facts(more),
      several(compared.quantized.size() > 1),
      judged(judged_by(compared)),
      outputs(knows(compared, Judged::outputs) ? Judged::outputs : Judged::estimated_outputs),
      has_outputs(knows(compared, outputs)),
      depth(compared.quantized, {outputs, Judged::weights}) {
  for (measure::SideBySide& layer : side_by_side(comparison, judged)) {
    row_of.emplace(layer.worst->module, rows.size());
    rows.push_back({std::move(layer), std::nullopt});
  }
  for (std::size_t i = 0; i < comparison.details.size(); ++i) {
    const auto row = row_of.find(comparison.details[i].module);
    if (row != row_of.end()) rows[row->second].detail = i;
  }
  has_notes = std::ranges::any_of(rows, [this](const LayerRow& row) { return !notes(row).empty(); });
}

// Of all checkpoints: what they have in common once, else by their names.
std::string ReportContent::notes(const LayerRow& row) const {
  std::string all;
  bool same = true;
  for (std::size_t q = 0; q < row.losses.size(); ++q) {
    const std::string one = row.losses[q] != nullptr ? notes_of(*row.losses[q], !several) : std::string();
    same = same && row.losses[q] != nullptr && one == notes_of(*row.worst, !several);
    if (!one.empty())
      all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", html_text(comparison.quantized[q].label), one);
  }
  return same ? notes_of(*row.worst, !several) : all;
}

std::string ReportContent::link(std::string_view module, std::string_view text) const {
  const auto row = row_of.find(module);
  if (row == row_of.end()) return std::string(text);
  if (rows[row->second].detail) return fmt::format("<a href=#d{}>{}</a>", *rows[row->second].detail, text);
  return fmt::format("<a href=#r{}>{}</a>", row->second, text);
}

std::string ReportContent::label(std::size_t checkpoint) const {
  return (several ? series_patch(checkpoint) : std::string()) + html_text(comparison.quantized[checkpoint].label);
}

}  // namespace kvant::cli
