#include "cli/report/summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/report/facts_table.h"
#include "cli/report/html.h"
#include "cli/sizes.h"
#include "format/quantization_config.h"
#include "io/file.h"
#include "kvant/version.h"
#include "measure/usual_sqnr.h"

namespace kvant::cli {
namespace {

using measure::Judged;
using measure::LayerLoss;
using measure::LayerWarning;
using measure::ModelLoss;

// Before a number: whether it is an estimate.
std::string about(Judged by) { return by == Judged::estimated_outputs ? "an estimated " : ""; }

// What decides which layers are the worst.
std::string about_judging(const ReportContent& content) {
  if (content.rows.empty()) return {};
  const auto unknown = std::ranges::count_if(
      content.rows, [&](const LayerRow& row) { return !sqnr_db_of(*row.worst, content.judged).has_value(); });
  std::string text;
  switch (content.judged) {
    case Judged::outputs: text = "Layers are judged by their outputs, which were measured on a text."; break;
    case Judged::estimated_outputs:
      text = "Layers are judged by their outputs, as they are estimated from the statistics of the activations.";
      break;
    case Judged::weights:
      text = "<b>Weights alone are judged</b>: ";
      if (content.has_outputs)
        text += "the outputs of too few layers are known.";
      else if (content.any_loss([](const LayerLoss& loss) { return loss.smoothed; }))
        text += "nothing is known of the outputs.";
      else
        text +=
            "nothing is known of the outputs. With the statistics of <code>kvant calibrate</code>, "
            "<code>--stats</code> gives an estimate of them.";
  }
  if (unknown > 0)
    text += fmt::format(" {} of which they are not known {} last.",
                        counted(static_cast<std::uint64_t>(unknown), "layer"), unknown == 1 ? "comes" : "come");
  return fmt::format("<p class=calm id=judged>{}</p>", text);
}

// What a smoothed checkpoint's weights do not tell; empty where nothing is smoothed.
std::string about_smoothing(const ReportContent& content) {
  if (!content.any_loss([](const LayerLoss& loss) { return loss.smoothed; })) return {};
  std::string text =
      "<p class=calm>Smoothing moves the outliers of the activations into the weights: these lose some precision so "
      "that the activations lose less. ";
  if (content.judged != Judged::weights)
    text += "The outputs show whether it helped.";
  else if (content.any_loss([](const LayerLoss& loss) { return loss.input_ratio.has_value(); }))
    text += "The column <i>Input range</i> shows what the activations gained: the nearer to 1, the better.";
  else
    text += "To see what the activations gained, give their statistics with <code>--stats</code>.";
  return text + "</p>";
}

// The sentence of a warning, with links to the layers that it names; "and 4 more" searches the table for them.
std::string linked(const ReportContent& content, const LayerWarning& warning) {
  std::string html = html_text(warning.what) + ": ";
  for (std::size_t i = 0; i < std::min(warning.modules.size(), LayerWarning::kNamed); ++i)
    append(html, "{}{}", i == 0 ? "" : ", ",
           content.link(warning.modules[i], html_whole_text(io::printable(warning.modules[i]))));
  if (warning.modules.size() > LayerWarning::kNamed)
    append(html, " <a href=#layers data-search=\"{}\">and {} more</a>", warning.note,
           warning.modules.size() - LayerWarning::kNamed);
  return html;
}

std::string warnings(const ReportContent& content) {
  std::string items;
  for (const std::string& warning : content.comparison.warnings) items += "<li>" + html_whole_text(warning);
  for (const std::string& warning : content.facts.warnings) items += "<li>" + html_whole_text(warning);
  for (std::size_t q = 0; q < content.comparison.quantized.size(); ++q)
    for (const LayerWarning& warning : layer_warnings(content.comparison.quantized[q]))
      items += "<li>" + (content.several ? fmt::format("<b>{}</b>: ", content.label(q)) : std::string()) +
               linked(content, warning);
  if (items.empty()) return "<p class=calm>Warnings: none.</p>";
  return fmt::format("<div class=warn><h2>Warnings</h2><ul id=warnings>{}</ul></div>", items);
}

// Of the layers that all checkpoints know, so that the means can be compared; nothing where none is finite.
std::vector<std::optional<double>> comparable_means(const ReportContent& content) {
  std::vector<ModelLoss> same(content.comparison.quantized.size());
  for (const LayerRow& row : content.rows) {
    const auto is_known = [&](const LayerLoss* loss) {
      return loss != nullptr && sqnr_db_of(*loss, content.judged).has_value();
    };
    if (!std::ranges::all_of(row.losses, is_known)) continue;
    for (std::size_t q = 0; q < same.size(); ++q) same[q].layers.push_back(*row.losses[q]);
  }
  std::vector<std::optional<double>> means;
  for (const ModelLoss& model : same) means.push_back(mean_sqnr_db(model, content.judged));
  return means;
}

bool is_exact(double sqnr_db) { return std::isinf(sqnr_db) && sqnr_db > 0; }

// "a", "a and b", "a, b and c"
std::string enumerated(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

// Of a checkpoint alone.
std::string finding_of_one(const ReportContent& content) {
  const ModelLoss& model = content.comparison.quantized.front();
  const LayerLoss& worst = *content.rows.front().worst;
  const double worst_db = sqnr_db_of(worst, content.judged).value_or(worst.sqnr_db);
  const std::string label = fmt::format("<b>{}</b>", html_text(model.label));
  if (is_exact(worst_db))
    return fmt::format(
        "{} lost nothing: {} exact.", label,
        model.layers.size() == 1 ? "its layer is" : fmt::format("all {} layers are", model.layers.size()));
  const std::optional<double> mean = mean_sqnr_db(model, content.judged);
  return fmt::format("{}: its {} have {} on average, the worst {} in <b>{}</b>.", label,
                     content.judged == Judged::weights ? "weights" : "outputs",
                     mean ? about(content.judged) + decibels_with_unit(*mean) : "no number",
                     decibels_with_unit(worst_db), html_text(worst.module));
}

}  // namespace

std::string finding(const ReportContent& content) {
  const std::vector<ModelLoss>& models = content.comparison.quantized;
  if (content.rows.empty()) return "No layer is quantized, so nothing was lost.";
  if (!content.several) return finding_of_one(content);
  const auto label = [&](std::size_t q) { return fmt::format("<b>{}</b>", html_text(models[q].label)); };
  const std::vector<std::optional<double>> means = comparable_means(content);
  const auto mean = [&](std::size_t q) { return means[q] ? decibels_with_unit(*means[q]) : std::string("no number"); };
  // A smoothed checkpoint's weights say nothing beside a plain one's.
  const bool by_weights = content.judged == Judged::weights;
  const auto is_smoothed = [](const ModelLoss& m) {
    return std::any_of(m.layers.begin(), m.layers.end(), [](const LayerLoss& l) { return l.smoothed; });
  };
  const bool differ_in_smoothing = std::any_of(
      models.begin(), models.end(), [&](const ModelLoss& m) { return is_smoothed(m) != is_smoothed(models[0]); });
  const std::vector<double> merits = measure::merits(content.comparison, content.judged);
  const double most = *std::ranges::max_element(merits);
  constexpr double kSame = 0.1;  // dB: a hundredth of the error decides nothing
  std::vector<std::size_t> best, rest;
  for (std::size_t q = 0; q < models.size(); ++q) (most - merits[q] < kSame ? best : rest).push_back(q);
  std::vector<std::string> others, labels, best_means;
  for (const std::size_t q : rest) others.push_back(fmt::format("{} for {}", mean(q), html_text(models[q].label)));
  for (const std::size_t q : best) {
    labels.push_back(label(q));
    best_means.push_back(mean(q));
  }
  const std::string_view what = by_weights ? "weights" : "outputs";
  const std::string estimate = about(content.judged);
  if (rest.empty() || (by_weights && differ_in_smoothing)) {
    std::vector<std::string> all;
    for (std::size_t q = 0; q < models.size(); ++q) all.push_back(fmt::format("{} for {}", mean(q), label(q)));
    return fmt::format("The {} have {}{} on average.", what, estimate, enumerated(all));
  }
  if (best.size() == 1 && by_weights && !models[best[0]].layers.empty() &&
      is_exact(models[best[0]].layers.front().sqnr_db))
    return fmt::format("{} lost nothing; the weights have {}.", labels[0], enumerated(others));
  return fmt::format("{} lost least: {} {} have {}{} on average, against {}.", enumerated(labels),
                     best.size() == 1 ? "its" : "their", what, estimate, enumerated(best_means), enumerated(others));
}

std::string summary_section(const ReportContent& content) {
  FactsTable facts(content.comparison.quantized.size());
  const auto of_each = [&](auto make) {
    std::vector<std::string> cells;
    for (const ModelLoss& model : content.comparison.quantized) cells.push_back(make(model));
    return cells;
  };

  std::vector<std::string> labels, usual;
  bool has_usual = false;
  for (std::size_t q = 0; q < content.comparison.quantized.size(); ++q) {
    labels.push_back(fmt::format("<td><b>{}</b>", content.label(q)));
    const auto range = measure::usual_sqnr_db(content.comparison.quantized[q]);
    has_usual = has_usual || range.has_value();
    usual.push_back(range
                        ? fmt::format("<td data-least={} data-most={}>{:.0f} to {:.0f} dB", exact_number(range->least),
                                      exact_number(range->most), range->least, range->most)
                        : std::string("<td>–"));
  }
  facts.add("label", "Quantized", labels);
  facts.add("scheme", "Scheme", of_each([](const ModelLoss& m) { return "<td>" + html_text(m.scheme); }));
  facts.add("bytes_quantized", "Size after",
            of_each([&](const ModelLoss& m) { return size_cell(m.bytes, content.comparison.bytes); }));
  const auto add_sqnr = [&](Judged by, std::string_view mean_title, std::string_view worst_title) {
    facts.add(fmt::format("mean_{}", sqnr_key(by)), mean_title, of_each([&](const ModelLoss& m) {
                const std::optional<double> mean = mean_sqnr_db(m, by);
                return mean ? number_cell(*mean, decibels_with_unit(*mean)) : std::string("<td>–");
              }));
    facts.add(fmt::format("worst_{}", sqnr_key(by)), worst_title, of_each([&](const ModelLoss& m) {
                const auto worst = std::ranges::min_element(
                    m.layers, [&](const LayerLoss& a, const LayerLoss& b) { return is_before(a, b, by); });
                const std::optional<double> db = worst == m.layers.end() ? std::nullopt : sqnr_db_of(*worst, by);
                if (!db) return std::string("<td>–");
                return number_cell(*db, fmt::format("{} <small>{}</small>", decibels_with_unit(*db),
                                                    content.link(worst->module, html_text(worst->module))));
              }));
  };
  if (content.has_outputs) {
    const bool is_estimate = content.outputs == Judged::estimated_outputs;
    add_sqnr(content.outputs, is_estimate ? "Mean SQNR of outputs, estimated" : "Mean SQNR of outputs",
             is_estimate ? "Worst output, estimated" : "Worst output");
  }
  add_sqnr(Judged::weights, "Mean SQNR of weights", "Worst weights");
  if (has_usual) facts.add("usual_sqnr_db", "Usual for weights", usual);
  facts.add("layers", "Layers", of_each([](const ModelLoss& m) {
              std::string left;
              if (!m.unquantized.empty())
                left = fmt::format(" <small>{} left as {}</small>", m.unquantized.size(),
                                   m.unquantized.size() == 1 ? "it is" : "they are");
              return fmt::format("<td data-v={0}>{0}{1}", m.layers.size(), left);
            }));
  facts.add("smoothed", "Smoothed layers", of_each([&](const ModelLoss& m) {
              const auto count =
                  std::count_if(m.layers.begin(), m.layers.end(), [](const LayerLoss& l) { return l.smoothed; });
              return fmt::format("<td data-v={0}>{0}", count);
            }));
  facts.add_common("model", "Original", "",
                   fmt::format("{}{}", html_text(content.comparison.original.native()),
                               content.comparison.model_type.empty()
                                   ? ""
                                   : fmt::format(" <small>{}</small>", html_text(content.comparison.model_type))));
  facts.add_common("parameters", "Parameters", fmt::format(" data-v={}", content.comparison.parameters),
                   grouped_digits(content.comparison.parameters));
  facts.add_common("bytes", "Size before", fmt::format(" data-v={}", content.comparison.bytes),
                   byte_size(content.comparison.bytes));
  if (!content.facts.command.empty())
    facts.add_common("command", "Command", "", fmt::format("<code>{}</code>", html_whole_text(content.facts.command)));
  facts.add_common("version", "Version", "", fmt::format("kvant {}", html_text(version())));
  facts.add_common("seconds", "Comparison took", fmt::format(" data-v={}", exact_number(content.comparison.seconds)),
                   duration(content.comparison.seconds));
  std::string html = "<section id=summary aria-label=Summary>" + facts.html();
  html += about_judging(content);
  html += about_smoothing(content);
  html += warnings(content);
  html += "</section>";
  return html;
}

}  // namespace kvant::cli
