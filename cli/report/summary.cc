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
#include "format/scheme.h"
#include "kvant/version.h"

namespace kvant::cli {
namespace {

using measure::LayerLoss;
using measure::ModelLoss;

// What a smoothed checkpoint's weights do not tell; empty where nothing is smoothed.
std::string about_smoothing(const ReportContent& content) {
  if (!content.any_loss([](const LayerLoss& loss) { return loss.smoothed; })) return {};
  std::string text =
      "<p class=calm>Smoothing moves the outliers of the activations into the weights: these lose some precision so "
      "that the activations lose less. ";
  if (!content.outputs.empty())
    text += "The outputs show whether it helped.";
  else if (content.any_loss([](const LayerLoss& loss) { return loss.input_ratio.has_value(); }))
    text += "The column <i>Input range</i> shows what the activations gained: the nearer to 1, the better.";
  else
    text += "To see what the activations gained, give their statistics with <code>--stats</code>.";
  return text + "</p>";
}

std::string warnings(const ReportContent& content) {
  std::string items;
  for (const std::string& warning : content.comparison.warnings) items += "<li>" + html_whole_text(warning);
  for (const std::string& warning : content.facts.warnings) items += "<li>" + html_whole_text(warning);
  for (const ModelLoss& model : content.comparison.quantized)
    for (const std::string& warning : warnings_of(model))
      items += "<li>" + (content.several ? fmt::format("<b>{}</b>: ", html_text(model.label)) : std::string()) +
               html_whole_text(warning);
  if (items.empty()) return "<p class=calm>Warnings: none.</p>";
  return fmt::format("<div class=warn><h2>Warnings</h2><ul id=warnings>{}</ul></div>", items);
}

}  // namespace

std::string finding(const ReportContent& content) {
  const std::vector<ModelLoss>& models = content.comparison.quantized;
  const auto has_layers = [](const ModelLoss& m) { return !m.layers.empty(); };
  if (std::none_of(models.begin(), models.end(), has_layers)) return "No layer is quantized, so nothing was lost.";
  const auto label = [&](std::size_t q) { return fmt::format("<b>{}</b>", html_text(models[q].label)); };
  const auto mean = [&](std::size_t q, bool of_outputs) {
    const std::optional<double> of = of_outputs ? mean_output_sqnr_db(models[q]) : models[q].mean_sqnr_db;
    return of ? decibels_with_unit(*of) : std::string("no number");
  };
  if (!content.several) {
    const std::vector<LayerLoss>& layers = models[0].layers;
    const LayerLoss& worst = layers.front();
    if (std::isinf(worst.sqnr_db) && worst.sqnr_db > 0)
      return fmt::format("{} lost nothing: {} exact.", label(0),
                         layers.size() == 1 ? "its layer is" : fmt::format("all {} layers are", layers.size()));
    return fmt::format("{}: mean {}, worst {} in <b>{}</b>.", label(0), mean(0, false),
                       decibels_with_unit(worst.sqnr_db), html_text(worst.module));
  }
  // Outputs are what counts, where they are known. A smoothed checkpoint's weights say nothing beside a plain one's.
  const bool of_outputs = !content.outputs.empty();
  const auto is_smoothed = [](const ModelLoss& m) {
    return std::any_of(m.layers.begin(), m.layers.end(), [](const LayerLoss& l) { return l.smoothed; });
  };
  const bool differ_in_smoothing = std::any_of(
      models.begin(), models.end(), [&](const ModelLoss& m) { return is_smoothed(m) != is_smoothed(models[0]); });
  std::size_t best = 0;
  bool is_tie = false;
  const std::vector<double> merits =
      of_outputs ? measure::merits(content.comparison, [](const LayerLoss& l) { return l.output_sqnr_db; })
                 : measure::merits(content.comparison, [](const LayerLoss& l) { return std::optional(l.sqnr_db); });
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

std::string summary_section(const ReportContent& content) {
  FactsTable facts(content.comparison.quantized.size());
  const auto of_each = [&](auto make) {
    std::vector<std::string> cells;
    for (const ModelLoss& model : content.comparison.quantized) cells.push_back(make(model));
    return cells;
  };

  facts.add_common("model", "Original", "",
                   fmt::format("{}{}", html_text(content.comparison.original.native()),
                               content.comparison.model_type.empty()
                                   ? ""
                                   : fmt::format(" <small>{}</small>", html_text(content.comparison.model_type))));
  facts.add_common("parameters", "Parameters", fmt::format(" data-v={}", content.comparison.parameters),
                   grouped_digits(content.comparison.parameters));
  facts.add_common("bytes", "Size before", fmt::format(" data-v={}", content.comparison.bytes),
                   file_size(content.comparison.bytes));
  facts.add("label", "Quantized",
            of_each([](const ModelLoss& m) { return fmt::format("<td><b>{}</b>", html_text(m.label)); }));
  facts.add("scheme", "Scheme", of_each([](const ModelLoss& m) { return "<td>" + html_text(describe(m.scheme)); }));
  facts.add("bytes_quantized", "Size after",
            of_each([&](const ModelLoss& m) { return size_cell(m.bytes, content.comparison.bytes); }));
  facts.add("layers", "Layers", of_each([](const ModelLoss& m) {
              std::string left;
              if (!m.unquantized.empty())
                left = fmt::format(" <small>{} left as {}</small>", m.unquantized.size(),
                                   m.unquantized.size() == 1 ? "it is" : "they are");
              return fmt::format("<td data-v={0}>{0}{1}", m.layers.size(), left);
            }));
  facts.add("mean_sqnr_db", "Mean SQNR", of_each([&](const ModelLoss& m) {
              return m.mean_sqnr_db ? number_cell(*m.mean_sqnr_db, decibels_with_unit(*m.mean_sqnr_db))
                                    : std::string("<td>–");
            }));
  facts.add("worst_sqnr_db", "Worst SQNR", of_each([&](const ModelLoss& m) {
              if (m.layers.empty()) return std::string("<td>–");
              const LayerLoss& layer = m.layers.front();
              return number_cell(layer.sqnr_db, fmt::format("{} <small>{}</small>", decibels_with_unit(layer.sqnr_db),
                                                            content.link(layer)));
            }));
  if (!content.outputs.empty())
    facts.add("mean_output_sqnr_db", "Mean SQNR of outputs", of_each([&](const ModelLoss& m) {
                const std::optional<double> mean = mean_output_sqnr_db(m);
                return mean ? number_cell(*mean, decibels_with_unit(*mean)) : std::string("<td>–");
              }));
  facts.add("smoothed", "Smoothed layers", of_each([&](const ModelLoss& m) {
              const auto count =
                  std::count_if(m.layers.begin(), m.layers.end(), [](const LayerLoss& l) { return l.smoothed; });
              return fmt::format("<td data-v={0}>{0}", count);
            }));
  if (!content.facts.command.empty())
    facts.add_common("command", "Command", "", fmt::format("<code>{}</code>", html_whole_text(content.facts.command)));
  facts.add_common("version", "Version", "", fmt::format("kvant {}", html_text(version())));
  facts.add_common("seconds", "Comparison took", fmt::format(" data-v={}", exact_number(content.comparison.seconds)),
                   duration(content.comparison.seconds));
  std::string html = "<section id=summary aria-label=Summary>" + facts.html();
  html += about_smoothing(content);
  html += warnings(content);
  html += "</section>";
  return html;
}

}  // namespace kvant::cli
