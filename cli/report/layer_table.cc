#include "cli/report/layer_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/report/html.h"
#include "cli/report/series.h"
#include "cli/sizes.h"

namespace kvant::cli {
namespace {

using measure::Judged;
using measure::LayerLoss;

// A column of the table.
struct Metric {
  std::string_view key;
  std::string_view title;
  std::string_view unit;
  std::string_view meaning;
  std::optional<double> (*value)(const LayerLoss&);
  std::string (*text)(double);
  bool optional = false;  // without a column where no layer has it
};

std::string cosine_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.6f}", value) : short_number(value);
}

std::string percent(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}\u202f%", 100 * value) : short_number(value);
}

std::string three_digits(double value) { return short_number(value, 3); }
std::string count_text(double value) { return fmt::format("{:.0f}", value); }

constexpr Metric kMetrics[] = {
    {sqnr_key(Judged::outputs), "SQNR of outputs", "dB",
     "Signal to quantization noise of the layer's output for a text; higher is better",
     [](const LayerLoss& l) { return sqnr_db_of(l, Judged::outputs); }, decibels, true},
    {sqnr_key(Judged::estimated_outputs), "SQNR of outputs, estimated", "dB",
     "Signal to quantization noise of the layer's output, from the statistics of its input; higher is better",
     [](const LayerLoss& l) { return sqnr_db_of(l, Judged::estimated_outputs); }, decibels, true},
    {sqnr_key(Judged::weights), "SQNR of weights", "dB",
     "Signal to quantization noise of the weights; higher is better",
     [](const LayerLoss& l) { return sqnr_db_of(l, Judged::weights); }, decibels},
    {"mse", "MSE", "", "Mean squared error of the weights",
     [](const LayerLoss& l) -> std::optional<double> { return l.mse; }, three_digits},
    {"cosine", "Cosine", "", "Cosine of the angle between the weights before and after",
     [](const LayerLoss& l) -> std::optional<double> { return l.cosine; }, cosine_text},
    {"largest_error", "Largest error", "", "The largest error of a single weight",
     [](const LayerLoss& l) -> std::optional<double> { return l.largest_error; }, three_digits},
    {"at_ends", "At ends", "", "Share of codes at the ends of their range",
     [](const LayerLoss& l) -> std::optional<double> { return l.at_ends; }, percent},
    {"outlier_channels", "Outliers", "", "Input channels with a weight more than 6 times the median channel's largest",
     [](const LayerLoss& l) -> std::optional<double> {
       if (!l.outlier_channels) return std::nullopt;
       return static_cast<double>(*l.outlier_channels);
     },
     count_text},
    {"input_ratio", "Input range", "",
     "The largest input channel's range over the median channel's, after smoothing: 1 is best",
     [](const LayerLoss& l) -> std::optional<double> { return l.input_ratio; }, three_digits, true},
};

using Metrics = std::vector<const Metric*>;

Metrics metrics_of(const ReportContent& content) {
  Metrics metrics;
  for (const Metric& metric : kMetrics)
    if (!metric.optional || content.any_loss([&](const LayerLoss& loss) { return metric.value(loss).has_value(); }))
      metrics.push_back(&metric);
  // What layers are judged by comes first.
  std::stable_partition(metrics.begin(), metrics.end(),
                        [&](const Metric* m) { return m->key == sqnr_key(content.judged); });
  return metrics;
}

// What a bar's length stands for: the number; for the cosine, how far it is from 1.
double bar_size(const Metric& metric, double value) {
  return metric.key == "cosine" ? std::abs(1 - value) : std::abs(value);
}

void append_head(std::string& html, const ReportContent& content, const Metrics& metrics) {
  const auto column = [&](std::string_view key, std::string_view title, std::string_view meaning,
                          std::string_view rest) {
    append(html, "<th scope=col data-key={}{}><button type=button{}>{}</button>", key, rest,
           meaning.empty() ? "" : fmt::format(" title=\"{}\"", meaning), title);
  };
  html += "<thead><tr>";
  column("module", "Layer", "", "");
  column("kind", "Kind", "", "");
  column("shape", "Shape", "Output channels × input channels", "");
  if (content.has_notes) column("notes", "Notes", "What is not finite, dead, saturated or smoothed", "");
  for (const Metric* metric : metrics) {
    for (std::size_t q = 0; q < content.comparison.quantized.size(); ++q) {
      std::string title(metric->title);
      if (!metric->unit.empty()) title += fmt::format(" <small>{}</small>", metric->unit);
      if (content.several) title += fmt::format("<em>{}</em>", content.label(q));
      const bool first = !content.several && metric == metrics.front();
      column(metric->key, title, metric->meaning, fmt::format(" data-q={}{}", q, first ? " aria-sort=ascending" : ""));
    }
  }
}

void append_row(std::string& html, const ReportContent& content, const Metrics& metrics, std::size_t number,
                const std::vector<double>& largest) {
  const LayerRow& row = content.rows[number];
  const LayerLoss& layer = *row.worst;
  // Long names break where a person would break them.
  const std::string module = html_text(layer.module);
  const std::string whole = html_attribute(layer.module);
  append(html, "<tr id=r{0} data-i={0} data-kind={1}><th scope=row", number, name(layer.kind));
  if (whole != module) append(html, " data-module=\"{}\"", whole);
  html += '>';
  if (row.detail)
    append(html, "<a href=#d{}>{}</a>", *row.detail, module);
  else
    html += module;
  append(html, "<td>{}<td data-v={}>{}×{}", name(layer.kind),
         exact_number(static_cast<double>(layer.rows) * static_cast<double>(layer.columns)), layer.rows, layer.columns);
  if (content.has_notes) html += "<td class=notes>" + content.notes(row);
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    for (const LayerLoss* loss : row.losses) {
      const std::optional<double> value = loss != nullptr ? metrics[i]->value(*loss) : std::nullopt;
      if (!value) {
        html += "<td>–";
        continue;
      }
      const double size = bar_size(*metrics[i], *value);
      const double bar = std::isnan(size) ? 0 : std::isinf(size) ? 100 : largest[i] > 0 ? 100 * size / largest[i] : 0;
      append(html, "<td data-v={}", exact_number(*value));
      if (bar >= 0.5) append(html, " style=--b:{:.0f}", bar);
      html += '>';
      html += metrics[i]->text(*value);
    }
  }
}

}  // namespace

std::string layer_table_styles(const ReportContent& content) {
  std::string styles;
  if (!content.several) return styles;
  const Metrics metrics = metrics_of(content);
  // Of the columns beyond the first ones, those of the chosen metric stay.
  const std::size_t count = content.comparison.quantized.size(), first = content.has_notes ? 5 : 4;
  for (std::size_t i = 0; i < metrics.size(); ++i)
    append(styles, "#table[data-metric={}] tr>:nth-child(n+{}):not(:nth-child(n+{}):nth-child(-n+{})){{display:none}}",
           metrics[i]->key, first, first + i * count, first - 1 + (i + 1) * count);
  // Bars in the colours of the checkpoints.
  for (std::size_t q = 0; q < count; ++q)
    append(styles, "#table td:nth-child({}n+{}){{--bar:var(--{})}}", count, first + q, series_class(q));
  return styles;
}

std::string layer_table(const ReportContent& content) {
  const Metrics metrics = metrics_of(content);
  std::string html = fmt::format(
      "<section id=layers tabindex=-1><h2>Layers</h2>"
      "<p class=lead>Worst first, by the {}. A heading sorts by its column. A bar shows the number relative to the "
      "largest of its column; for the cosine, how far it is from 1.</p><div class=tools><label>Search <input id=search "
      "type=search placeholder=\"name or note\" autocomplete=off spellcheck=false></label>",
      metrics.front()->title);
  if (content.several) {
    html += "<label>Side by side <select id=metric>";
    for (const Metric* metric : metrics) append(html, "<option value={}>{}", metric->key, metric->title);
    html += "</select></label>";
  }
  append(html, "<output id=shown for=search>{0} of {0} layers</output>", content.rows.size());
  // The script shows them: without it they would do nothing.
  html +=
      "<span id=save hidden>Save these as <button type=button data-as=csv>CSV</button> <button type=button "
      "data-as=json>JSON</button></span></div>";
  std::vector<double> largest(metrics.size());
  for (std::size_t i = 0; i < metrics.size(); ++i)
    for (const LayerRow& row : content.rows)
      for (const LayerLoss* loss : row.losses)
        if (const auto value = loss != nullptr ? metrics[i]->value(*loss) : std::nullopt;
            value && std::isfinite(*value))
          largest[i] = std::max(largest[i], bar_size(*metrics[i], *value));
  html += "<div class=\"scroll tall hint\" tabindex=0 role=region aria-label=\"Table of layers\"><table id=table>";
  append_head(html, content, metrics);
  html += "<tbody>";
  for (std::size_t i = 0; i < content.rows.size(); ++i) append_row(html, content, metrics, i, largest);
  html += "</table></div></section>";
  return html;
}

}  // namespace kvant::cli
