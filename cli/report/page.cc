#include "cli/report/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/report/assets.h"
#include "cli/report/content.h"
#include "cli/report/depth_chart.h"
#include "cli/report/frame.h"
#include "cli/report/html.h"
#include "cli/report/layer_charts.h"
#include "cli/report/layer_table.h"
#include "cli/report/series.h"
#include "cli/report/summary.h"
#include "cli/sizes.h"
#include "measure/usual_sqnr.h"

namespace kvant::cli {
namespace {

using measure::Judged;
using measure::LayerLoss;
using measure::ModelLoss;

// "… in which … lowest"
std::string_view what_is(Judged by) {
  switch (by) {
    case Judged::outputs: return "the SQNR of outputs is";
    case Judged::estimated_outputs: return "the estimated SQNR of outputs is";
    case Judged::weights: return "the SQNR of weights is";
  }
  return {};
}

std::string head(const ReportContent& content) {
  const std::string model = html_text(content.comparison.original.filename().empty()
                                          ? content.comparison.original.parent_path().filename().native()
                                          : content.comparison.original.filename().native());
  std::string html =
      open_page({.title = fmt::format("{}: what quantization lost", model),
                 .styles = fmt::format(".ramp{{background:{}}}{}", heat_gradient(), layer_table_styles(content)),
                 .has_script = true,
                 .skip_to = "layers",
                 .skip_text = "Skip to the layers"});
  append(html, "{}{}<main><header><p class=eyebrow>What quantization lost <span>{}</span></p><h1>{}</h1></header>",
         heat_filter(), content.depth.shapes(), model, finding(content));
  return html;
}

void append_charts(std::string& html, const ReportContent& content, Judged by) {
  append(html, "<h3>{}</h3>{}",
         by == Judged::weights             ? "Weights"
         : by == Judged::estimated_outputs ? "Outputs, estimated: what the next layer sees"
                                           : "Outputs: what the next layer sees",
         content.several ? "<div class=twin>" : "<div>");
  for (std::size_t q = 0; q < content.comparison.quantized.size(); ++q) {
    const ModelLoss& model = content.comparison.quantized[q];
    std::vector<std::size_t> rows;
    for (const LayerLoss& layer : model.layers) rows.push_back(content.row_of.at(layer.module));
    html += "<figure class=wide>";
    if (content.several) append(html, "<figcaption>{}</figcaption>", content.label(q));
    append(html, "<div class=\"scroll hint\">{}</div><p class=readout aria-live=polite></p></figure>",
           content.depth.svg(model, by, q, rows));
  }
  html += "</div>";
}

std::string depth_section(const ReportContent& content) {
  std::string html = "<section id=depth><h2>Across the depth of the model</h2>";
  if (content.depth.empty()) {
    html += "<p class=lead>There are no quantized layers to show.</p></section>";
    return html;
  }
  const bool has_usual = std::ranges::any_of(
      content.comparison.quantized, [](const ModelLoss& model) { return measure::usual_sqnr_db(model).has_value(); });
  append(html,
         "<p class=lead>SQNR is the ratio of the numbers to the error that quantization added, in decibels: "
         "20 dB more is a tenth of the error. <b>Higher is better.</b> A point is a layer, a line the mean of its "
         "kind.{}{}</p>"
         "<div id=kinds role=group aria-label=\"Kinds of layers\">",
         content.several || content.has_outputs ? " All charts have the same axes." : "",
         has_usual ? " The band is what bell-shaped weights usually have in the scheme; smoothed ones may lie lower."
                   : "");
  for (const model::LayerKind kind : content.depth.kinds())
    append(html, "<button type=button data-kind={0} aria-pressed=true>{1}{0}</button>", name(kind), kind_marker(kind));
  html += "</div>";
  // What decides comes first.
  std::vector<Judged> charts = {Judged::weights};
  if (content.has_outputs)
    charts.insert(content.judged == Judged::weights ? charts.end() : charts.begin(), content.outputs);
  for (const Judged by : charts) append_charts(html, content, by);
  html += "</section>";
  return html;
}

std::string worst_section(const ReportContent& content) {
  std::string html = "<section id=worst><h2>The worst layers</h2>";
  if (content.comparison.details.empty()) {
    html += "<p class=lead>There are no details to show.</p></section>";
    return html;
  }
  append(html,
         "<p class=lead>{} in which {} lowest, with what may explain it: few large weights that stretch the "
         "scale, single channels, inputs with outliers.{}</p>",
         content.comparison.details.size() == 1 ? "The layer"
                                                : fmt::format("The {} layers", content.comparison.details.size()),
         what_is(content.judged),
         content.several ? " Charts of a layer have the same axes in all checkpoints, but for codes, of which every "
                           "scheme has its own. A checkpoint has one colour in all of them."
                         : "");
  for (std::size_t i = 0; i < content.comparison.details.size(); ++i) {
    const measure::LayerDetails& layer = content.comparison.details[i];
    const auto at = content.row_of.find(layer.module);
    const LayerRow* row = at == content.row_of.end() ? nullptr : &content.rows[at->second];
    append(html, "<details id=d{} data-module=\"{}\"{}><summary><span class=name>{}</span>", i,
           html_attribute(layer.module), i == 0 ? " open" : "", html_text(layer.module));
    for (std::size_t q = 0; row != nullptr && q < row->losses.size(); ++q) {
      if (row->losses[q] == nullptr) continue;
      const std::optional<double> sqnr_db = sqnr_db_of(*row->losses[q], content.judged);
      append(html, "<span class=db>{}{}</span>", content.several ? series_patch(q) : std::string(),
             sqnr_db ? decibels_with_unit(*sqnr_db) : std::string("–"));
    }
    append(html, "</summary><div class=\"sides{}\">", content.several ? " several" : "");
    const LayerAxes common(layer);
    for (std::size_t q = 0; q < layer.quantized.size(); ++q) {
      if (!layer.quantized[q]) continue;
      append(html, "<div class=\"layer {}\" data-q={}>", series_class(q), q);
      if (content.several && q < content.comparison.quantized.size()) append(html, "<h3>{}</h3>", content.label(q));
      const LayerLoss* loss = row != nullptr && q < row->losses.size() ? row->losses[q] : nullptr;
      html += layer_charts(*layer.quantized[q], common, loss != nullptr ? loss->rows : 0,
                           loss != nullptr ? loss->columns : 0);
      html += "</div>";
    }
    html += "</div></details>";
  }
  html += "</section>";
  return html;
}

}  // namespace

std::string report_page(const measure::Comparison& comparison, const ReportFacts& facts) {
  const ReportContent content(comparison, facts);
  std::string html = head(content);
  html += summary_section(content);
  html += depth_section(content);
  html += layer_table(content);
  html += worst_section(content);
  html += close_page("kvant compare --json", "docs/report.md", kReportJs);
  return html;
}

}  // namespace kvant::cli
