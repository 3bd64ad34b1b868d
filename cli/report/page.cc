#include "cli/report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "cli/report/assets.h"
#include "cli/report/depth_chart.h"
#include "cli/report/html.h"
#include "cli/report/layer_charts.h"
#include "cli/sizes.h"
#include "format/scheme.h"
#include "kvant/version.h"

namespace kvant::cli {
namespace {

using measure::Comparison;
using measure::LayerLoss;
using measure::ModelLoss;

// A layer of the table, in all checkpoints.
struct Row : measure::SideBySide {
  std::optional<std::size_t> detail;  // its place in comparison.details
};

// A column of the table.
struct Metric {
  std::string_view key;
  std::string_view title;
  std::string_view unit;
  std::string_view meaning;
  std::optional<double> (*value)(const LayerLoss&);
  std::string (*text)(double);
};

std::string cosine_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.6f}", value) : short_number(value);
}

std::string percent(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}\u202f%", 100 * value) : short_number(value);
}

std::string three_digits(double value) { return short_number(value, 3); }
std::string count_text(double value) { return fmt::format("{:.0f}", value); }

// What is not known of every model: without it there is no column.
constexpr std::string_view kInputKey = "input_ratio";
constexpr std::string_view kOutputKey = "output_sqnr_db";

constexpr Metric kMetrics[] = {
    {"sqnr_db", "SQNR", "dB", "Signal to quantization noise of the weights; higher is better",
     [](const LayerLoss& l) -> std::optional<double> { return l.sqnr_db; }, decibels},
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
    {kInputKey, "Input range", "",
     "The largest input channel's range over the median channel's, after smoothing: 1 is best",
     [](const LayerLoss& l) -> std::optional<double> { return l.input_ratio; }, three_digits},
    {kOutputKey, "Output SQNR", "dB", "Signal to quantization noise of the layer's output",
     [](const LayerLoss& l) -> std::optional<double> { return l.output_sqnr_db; }, decibels},
};

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

// What a bar's length stands for: the number; for the cosine, how far it is from 1.
double bar_size(const Metric& metric, double value) {
  return metric.key == "cosine" ? std::abs(1 - value) : std::abs(value);
}

class Page {
 public:
  Page(const Comparison& comparison, const ReportFacts& facts)
      : comparison_(comparison),
        facts_(facts),
        several_(comparison.quantized.size() > 1),
        depth_(comparison.quantized, "sqnr_db", [](const LayerLoss& l) { return std::optional(l.sqnr_db); }),
        outputs_(comparison.quantized, kOutputKey, [](const LayerLoss& l) { return l.output_sqnr_db; }) {
    find_rows();
    has_notes_ = std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return !notes(row).empty(); });
    for (const Metric& metric : kMetrics) {
      const bool known = std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
        return std::any_of(row.losses.begin(), row.losses.end(), [&](auto* l) { return l && metric.value(*l); });
      });
      if ((metric.key != kInputKey && metric.key != kOutputKey) || known) metrics_.push_back(&metric);
    }
  }

  std::string html() {
    head();
    summary();
    depth();
    layers();
    worst();
    html_ += fmt::format(
        "<footer>Made by kvant {}. Everything here is also in <code>kvant compare --json</code>.</footer></main>",
        html_text(version()));
    html_ += "<script>";
    html_ += kReportJs;
    html_ += "</script></html>\n";
    return std::move(html_);
  }

 private:
  void find_rows();
  std::string notes(const Row& row) const;
  std::string finding() const;
  std::string about_smoothing() const;
  std::string layer_link(const LayerLoss& layer) const;
  void fact(std::string_view name, std::string_view title, const std::vector<std::string>& cells);
  void fact_of_all(std::string_view name, std::string_view title, std::string_view attributes, std::string_view text);
  void head();
  void summary();
  void warnings();
  void depth();
  void depth_charts(const DepthChart& chart);
  void table_head();
  void table_row(std::size_t number, const std::vector<double>& largest);
  void layers();
  void worst();

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(html_), format, std::forward<Args>(args)...);
  }

  const Comparison& comparison_;
  const ReportFacts& facts_;
  const bool several_;
  bool has_notes_ = false;  // some layer has: there is a column for them
  const DepthChart depth_;
  const DepthChart outputs_;  // empty where they are not known
  std::vector<const Metric*> metrics_;
  std::vector<Row> rows_;
  std::unordered_map<std::string_view, std::size_t> row_of_;  // by module
  std::string html_;
};

void Page::find_rows() {
  for (measure::SideBySide& layer : side_by_side(comparison_)) {
    row_of_.emplace(layer.worst->module, rows_.size());
    rows_.push_back({std::move(layer), std::nullopt});
  }
  for (std::size_t i = 0; i < comparison_.details.size(); ++i) {
    const auto row = row_of_.find(comparison_.details[i].module);
    if (row != row_of_.end()) rows_[row->second].detail = i;
  }
}

// Of all checkpoints: what they have in common once, else by their names.
std::string Page::notes(const Row& row) const {
  std::string all;
  bool same = true;
  for (std::size_t q = 0; q < row.losses.size(); ++q) {
    const std::string one = row.losses[q] != nullptr ? notes_of(*row.losses[q], !several_) : std::string();
    same = same && row.losses[q] != nullptr && one == notes_of(*row.worst, !several_);
    if (!one.empty())
      all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", html_text(comparison_.quantized[q].label), one);
  }
  return same ? notes_of(*row.worst, !several_) : all;
}

// The layer's name, as a link to what there is of it.
std::string Page::layer_link(const LayerLoss& layer) const {
  const auto row = row_of_.find(layer.module);
  const std::string text = html_text(layer.module);
  if (row == row_of_.end()) return text;
  if (rows_[row->second].detail) return fmt::format("<a href=#d{}>{}</a>", *rows_[row->second].detail, text);
  return fmt::format("<a href=#r{}>{}</a>", row->second, text);
}

std::string Page::finding() const {
  const std::vector<ModelLoss>& models = comparison_.quantized;
  const auto has_layers = [](const ModelLoss& m) { return !m.layers.empty(); };
  if (std::none_of(models.begin(), models.end(), has_layers)) return "No layer is quantized, so nothing was lost.";
  const auto label = [&](std::size_t q) { return fmt::format("<b>{}</b>", html_text(models[q].label)); };
  const auto mean = [&](std::size_t q, bool of_outputs) {
    const std::optional<double> of = of_outputs ? mean_output_sqnr_db(models[q]) : models[q].mean_sqnr_db;
    return of ? decibels_with_unit(*of) : std::string("no number");
  };
  if (!several_) {
    const std::vector<LayerLoss>& layers = models[0].layers;
    const LayerLoss& worst = layers.front();
    if (std::isinf(worst.sqnr_db) && worst.sqnr_db > 0)
      return fmt::format("{} lost nothing: {} exact.", label(0),
                         layers.size() == 1 ? "its layer is" : fmt::format("all {} layers are", layers.size()));
    return fmt::format("{}: mean {}, worst {} in <b>{}</b>.", label(0), mean(0, false),
                       decibels_with_unit(worst.sqnr_db), html_text(worst.module));
  }
  // Outputs are what counts, where they are known. A smoothed checkpoint's weights say nothing beside a plain one's.
  const bool of_outputs = !outputs_.empty();
  const auto is_smoothed = [](const ModelLoss& m) {
    return std::any_of(m.layers.begin(), m.layers.end(), [](const LayerLoss& l) { return l.smoothed; });
  };
  const bool differ_in_smoothing = std::any_of(
      models.begin(), models.end(), [&](const ModelLoss& m) { return is_smoothed(m) != is_smoothed(models[0]); });
  std::size_t best = 0;
  bool is_tie = false;
  const std::vector<double> merits =
      of_outputs ? measure::merits(comparison_, [](const LayerLoss& l) { return l.output_sqnr_db; })
                 : measure::merits(comparison_, [](const LayerLoss& l) { return std::optional(l.sqnr_db); });
  for (std::size_t q = 0; q < models.size(); ++q)
    if (merits[q] > merits[best]) best = q;
  for (std::size_t q = 0; q < models.size(); ++q) is_tie = is_tie || (q != best && merits[best] - merits[q] < 0.005);
  std::string others;
  for (std::size_t q = 0; q < models.size(); ++q)
    if (q != best)
      others += fmt::format("{}{} for {}", others.empty() ? "" : ", ", mean(q, of_outputs), html_text(models[q].label));
  const std::string_view what = of_outputs ? "outputs" : "weights";
  if (!is_tie && !of_outputs && has_layers(models[best]) && std::isinf(models[best].layers.front().sqnr_db) &&
      models[best].layers.front().sqnr_db > 0)
    return fmt::format("{} lost nothing; the weights have {}.", label(best), others);
  if (is_tie || (!of_outputs && differ_in_smoothing))
    return fmt::format("The {} have {} on average for {}, {}.", what, mean(best, of_outputs), label(best), others);
  return fmt::format("{} lost least: its {} have {} on average, against {}.", label(best), what, mean(best, of_outputs),
                     others);
}

// What a smoothed checkpoint's weights do not tell; empty where nothing is smoothed.
std::string Page::about_smoothing() const {
  const bool smoothed = std::any_of(rows_.begin(), rows_.end(), [](const Row& row) {
    return std::any_of(row.losses.begin(), row.losses.end(), [](auto* l) { return l != nullptr && l->smoothed; });
  });
  if (!smoothed) return {};
  std::string text =
      "<p class=calm>Smoothing moves the outliers of the activations into the weights: these lose some precision so "
      "that "
      "the activations lose less. ";
  if (!outputs_.empty())
    text += "Outputs show whether it paid.";
  else if (std::any_of(metrics_.begin(), metrics_.end(), [](const Metric* m) { return m->key == kInputKey; }))
    text += "The column <i>Input range</i> shows what the activations gained: the nearer to 1, the better.";
  else
    text += "To see what the activations gained, give their statistics with <code>--stats</code>.";
  return text + "</p>";
}

void Page::head() {
  const std::string model =
      html_text(comparison_.original.filename().empty() ? comparison_.original.parent_path().filename().native()
                                                        : comparison_.original.filename().native());
  html_ += kReportStart;
  add("\n<html lang=en><meta charset=utf-8>"
      "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'; img-src data:\">"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\"><meta name=color-scheme content=\"light "
      "dark\">"
      "<title>{}: what quantization lost</title><style>",
      model);
  html_ += kReportCss;
  add(".ramp{{background:{}}}", heat_gradient());
  if (several_) {
    // Of the columns beyond the first ones, those of the chosen metric stay.
    const std::size_t count = comparison_.quantized.size(), first = has_notes_ ? 5 : 4;
    for (std::size_t i = 0; i < metrics_.size(); ++i)
      add("#table[data-metric={}] tr>:nth-child(n+{}):not(:nth-child(n+{}):nth-child(-n+{})){{display:none}}",
          metrics_[i]->key, first, first + i * count, first - 1 + (i + 1) * count);
  }
  add("</style><a class=skip href=#layers>Skip to the layers</a>{}{}<main><header><p class=eyebrow>What quantization "
      "lost "
      "<span>{}</span></p><h1>{}</h1></header>",
      heat_filter(), depth_.shapes(), model, finding());
}

void Page::fact(std::string_view name, std::string_view title, const std::vector<std::string>& cells) {
  add("<tr data-fact={}><th scope=row>{}", name, title);
  for (const std::string& cell : cells) html_ += cell;
}

void Page::fact_of_all(std::string_view name, std::string_view title, std::string_view attributes,
                       std::string_view text) {
  const std::size_t count = comparison_.quantized.size();
  fact(name, title, {fmt::format("<td{}{}>{}", count > 1 ? fmt::format(" colspan={}", count) : "", attributes, text)});
}

void Page::summary() {
  const auto number = [](double value, std::string_view text) {
    return fmt::format("<td data-v={}>{}", exact_number(value), text);
  };
  const auto of_each = [&](auto make) {
    std::vector<std::string> cells;
    for (const ModelLoss& model : comparison_.quantized) cells.push_back(make(model));
    return cells;
  };

  html_ += "<section id=summary aria-label=Summary><div class=scroll><table class=facts>";
  fact_of_all(
      "model", "Original", "",
      fmt::format(
          "{}{}", html_text(comparison_.original.native()),
          comparison_.model_type.empty() ? "" : fmt::format(" <small>{}</small>", html_text(comparison_.model_type))));
  fact_of_all("parameters", "Parameters", fmt::format(" data-v={}", comparison_.parameters),
              fmt::format("{}", fmt::group_digits(comparison_.parameters)));
  fact_of_all("bytes", "Size before", fmt::format(" data-v={}", comparison_.bytes), file_size(comparison_.bytes));
  fact("label", "Quantized",
       of_each([](const ModelLoss& m) { return fmt::format("<td><b>{}</b>", html_text(m.label)); }));
  fact("scheme", "Scheme", of_each([](const ModelLoss& m) { return "<td>" + html_text(describe(m.scheme)); }));
  fact("bytes_quantized", "Size after", of_each([&](const ModelLoss& m) {
         const std::string share =
             comparison_.bytes == 0
                 ? std::string()
                 : fmt::format(" <small>{:.0f}\u202f%</small>",
                               100.0 * static_cast<double>(m.bytes) / static_cast<double>(comparison_.bytes));
         return fmt::format("<td data-v={}>{}{}", m.bytes, file_size(m.bytes), share);
       }));
  fact("layers", "Layers", of_each([](const ModelLoss& m) {
         std::string left;
         if (!m.unquantized.empty())
           left = fmt::format(" <small>{} left as {}</small>", m.unquantized.size(),
                              m.unquantized.size() == 1 ? "it is" : "they are");
         return fmt::format("<td data-v={0}>{0}{1}", m.layers.size(), left);
       }));
  fact("mean_sqnr_db", "Mean SQNR", of_each([&](const ModelLoss& m) {
         return m.mean_sqnr_db ? number(*m.mean_sqnr_db, decibels_with_unit(*m.mean_sqnr_db)) : std::string("<td>–");
       }));
  fact("worst_sqnr_db", "Worst SQNR", of_each([&](const ModelLoss& m) {
         if (m.layers.empty()) return std::string("<td>–");
         const LayerLoss& layer = m.layers.front();
         return number(layer.sqnr_db,
                       fmt::format("{} <small>{}</small>", decibels_with_unit(layer.sqnr_db), layer_link(layer)));
       }));
  if (!outputs_.empty())
    fact("mean_output_sqnr_db", "Mean SQNR of outputs", of_each([&](const ModelLoss& m) {
           const std::optional<double> mean = mean_output_sqnr_db(m);
           return mean ? number(*mean, decibels_with_unit(*mean)) : std::string("<td>–");
         }));
  fact("smoothed", "Smoothed layers", of_each([&](const ModelLoss& m) {
         const auto count =
             std::count_if(m.layers.begin(), m.layers.end(), [](const LayerLoss& l) { return l.smoothed; });
         return fmt::format("<td data-v={0}>{0}", count);
       }));
  if (!facts_.command.empty())
    fact_of_all("command", "Command", "", fmt::format("<code>{}</code>", html_whole_text(facts_.command)));
  fact_of_all("version", "Version", "", fmt::format("kvant {}", html_text(version())));
  fact_of_all("seconds", "Comparison took", fmt::format(" data-v={}", exact_number(comparison_.seconds)),
              duration(comparison_.seconds));
  html_ += "</table></div>";
  html_ += about_smoothing();
  warnings();
  html_ += "</section>";
}

void Page::warnings() {
  std::string items;
  for (const std::string& warning : comparison_.warnings) items += "<li>" + html_whole_text(warning);
  for (const std::string& warning : facts_.warnings) items += "<li>" + html_whole_text(warning);
  for (const ModelLoss& model : comparison_.quantized)
    for (const std::string& warning : warnings_of(model))
      items += "<li>" + (several_ ? fmt::format("<b>{}</b>: ", html_text(model.label)) : std::string()) +
               html_whole_text(warning);
  if (items.empty())
    html_ += "<p class=calm>Warnings: none.</p>";
  else
    add("<div class=warn><h2>Warnings</h2><ul id=warnings>{}</ul></div>", items);
}

void Page::depth() {
  html_ += "<section id=depth><h2>Across the depth of the model</h2>";
  if (depth_.empty()) {
    html_ += "<p class=lead>There are no quantized layers to show.</p></section>";
    return;
  }
  html_ +=
      "<p class=lead>SQNR says how loud the numbers are beside the error that quantization put on them, in decibels: "
      "20 "
      "dB more is a tenth of the error. <b>Higher is better.</b> A point is a layer, a line the mean of its kind.</p>"
      "<div id=kinds role=group aria-label=\"Kinds of layers\">";
  for (const model::LayerKind kind : depth_.kinds())
    add("<button type=button data-kind={0} aria-pressed=true>{1}{0}</button>", name(kind), kind_marker(kind));
  html_ += "</div>";
  if (!outputs_.empty()) {
    html_ += "<h3>Outputs: what the next layer sees</h3>";
    depth_charts(outputs_);
    html_ += "<h3>Weights</h3>";
  }
  depth_charts(depth_);
  html_ += "</section>";
}

void Page::depth_charts(const DepthChart& chart) {
  html_ += several_ ? "<div class=twin>" : "<div>";
  for (std::size_t q = 0; q < comparison_.quantized.size(); ++q) {
    const ModelLoss& model = comparison_.quantized[q];
    std::vector<std::size_t> rows;
    for (const LayerLoss& layer : model.layers) rows.push_back(row_of_.at(layer.module));
    html_ += "<figure class=wide>";
    if (several_) add("<figcaption>{}</figcaption>", html_text(model.label));
    add("<div class=scroll>{}</div><p class=readout aria-live=polite></p></figure>", chart.svg(model, q, rows));
  }
  html_ += "</div>";
}

void Page::table_head() {
  const auto column = [&](std::string_view key, std::string_view title, std::string_view meaning,
                          std::string_view rest) {
    add("<th scope=col data-key={}{}><button type=button{}>{}</button>", key, rest,
        meaning.empty() ? "" : fmt::format(" title=\"{}\"", meaning), title);
  };
  html_ += "<thead><tr>";
  column("module", "Layer", "", "");
  column("kind", "Kind", "", "");
  column("shape", "Shape", "Output channels × input channels", "");
  if (has_notes_) column("notes", "Notes", "What is not finite, dead, saturated or smoothed", "");
  for (const Metric* metric : metrics_) {
    for (std::size_t q = 0; q < comparison_.quantized.size(); ++q) {
      std::string title(metric->title);
      if (!metric->unit.empty()) title += fmt::format(" <small>{}</small>", metric->unit);
      if (several_) title += fmt::format("<em>{}</em>", html_text(comparison_.quantized[q].label));
      const bool first = !several_ && metric == metrics_.front();
      column(metric->key, title, metric->meaning, fmt::format(" data-q={}{}", q, first ? " aria-sort=ascending" : ""));
    }
  }
}

void Page::table_row(std::size_t number, const std::vector<double>& largest) {
  const Row& row = rows_[number];
  const LayerLoss& layer = *row.worst;
  // Long names break where a person would break them.
  const std::string module = html_text(layer.module);
  add("<tr id=r{0} data-i={0} data-kind={1}><th scope=row>", number, name(layer.kind));
  if (row.detail)
    add("<a href=#d{}>{}</a>", *row.detail, module);
  else
    html_ += module;
  add("<td>{}<td data-v={}>{}×{}", name(layer.kind),
      exact_number(static_cast<double>(layer.rows) * static_cast<double>(layer.columns)), layer.rows, layer.columns);
  if (has_notes_) html_ += "<td class=notes>" + notes(row);
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    for (const LayerLoss* loss : row.losses) {
      const std::optional<double> value = loss != nullptr ? metrics_[i]->value(*loss) : std::nullopt;
      if (!value) {
        html_ += "<td>–";
        continue;
      }
      const double size = bar_size(*metrics_[i], *value);
      const double bar = std::isnan(size) ? 0 : std::isinf(size) ? 100 : largest[i] > 0 ? 100 * size / largest[i] : 0;
      add("<td data-v={}", exact_number(*value));
      if (bar >= 0.5) add(" style=--b:{:.0f}", bar);
      html_ += '>';
      html_ += metrics_[i]->text(*value);
    }
  }
}

void Page::layers() {
  html_ += "<section id=layers tabindex=-1><h2>Layers</h2>";
  html_ +=
      "<p class=lead>Worst first. A heading sorts by its column. A bar is the number beside the largest of its column; "
      "for "
      "the cosine, how far it is from 1.</p><div class=tools><label>Search <input id=search type=search "
      "placeholder=\"name or note\" autocomplete=off spellcheck=false></label>";
  if (several_) {
    html_ += "<label>Side by side <select id=metric>";
    for (const Metric* metric : metrics_) add("<option value={}>{}", metric->key, metric->title);
    html_ += "</select></label>";
  }
  add("<output id=shown for=search>{0} of {0} layers</output></div>", rows_.size());
  std::vector<double> largest(metrics_.size());
  for (std::size_t i = 0; i < metrics_.size(); ++i)
    for (const Row& row : rows_)
      for (const LayerLoss* loss : row.losses)
        if (const auto value = loss != nullptr ? metrics_[i]->value(*loss) : std::nullopt;
            value && std::isfinite(*value))
          largest[i] = std::max(largest[i], bar_size(*metrics_[i], *value));
  html_ += "<div class=\"scroll tall\" tabindex=0 role=region aria-label=\"Table of layers\"><table id=table>";
  table_head();
  html_ += "<tbody>";
  for (std::size_t i = 0; i < rows_.size(); ++i) table_row(i, largest);
  html_ += "</table></div></section>";
}

void Page::worst() {
  html_ += "<section id=worst><h2>The worst layers</h2>";
  if (comparison_.details.empty()) {
    html_ += "<p class=lead>There are no details to show.</p></section>";
    return;
  }
  add("<p class=lead>{} in which SQNR is lowest, with what may explain it: few large weights that stretch the scale, "
      "single channels, inputs with outliers.{}</p>",
      comparison_.details.size() == 1 ? "The layer" : fmt::format("The {} layers", comparison_.details.size()),
      several_ ? " Charts of a layer have the same axes in all checkpoints." : "");
  for (std::size_t i = 0; i < comparison_.details.size(); ++i) {
    const measure::LayerDetails& layer = comparison_.details[i];
    const auto at = row_of_.find(layer.module);
    const Row* row = at == row_of_.end() ? nullptr : &rows_[at->second];
    add("<details id=d{} data-module=\"{}\"{}><summary><span class=name>{}</span>", i, html_attribute(layer.module),
        i == 0 ? " open" : "", html_text(layer.module));
    for (std::size_t q = 0; row != nullptr && q < row->losses.size(); ++q)
      if (row->losses[q] != nullptr) add("<span class=db>{}</span>", decibels_with_unit(row->losses[q]->sqnr_db));
    add("</summary><div class=\"sides{}\">", several_ ? " several" : "");
    const LayerAxes common(layer);
    for (std::size_t q = 0; q < layer.quantized.size(); ++q) {
      if (!layer.quantized[q]) continue;
      add("<div class=layer data-q={}>", q);
      if (several_ && q < comparison_.quantized.size()) add("<h3>{}</h3>", html_text(comparison_.quantized[q].label));
      const LayerLoss* loss = row != nullptr && q < row->losses.size() ? row->losses[q] : nullptr;
      html_ += layer_charts(*layer.quantized[q], common, loss != nullptr ? loss->rows : 0,
                            loss != nullptr ? loss->columns : 0);
      html_ += "</div>";
    }
    html_ += "</div></details>";
  }
  html_ += "</section>";
}

}  // namespace

std::string report_page(const Comparison& comparison, const ReportFacts& facts) {
  return Page(comparison, facts).html();
}

}  // namespace kvant::cli
