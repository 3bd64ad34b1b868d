#include "cli/report/evaluation_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <vector>

#include "cli/report/facts_table.h"
#include "cli/report/frame.h"
#include "cli/report/html.h"
#include "cli/report/quality_charts.h"
#include "cli/sizes.h"
#include "kvant/version.h"

namespace kvant::cli {
namespace {

using measure::Evaluation;
using measure::ModelQuality;
using measure::TokenDifference;
using measure::Verdict;

std::string percent(double share, int digits = 1) {
  return std::isfinite(share) ? fmt::format("{:.{}f}\u202f%", 100 * share, digits) : short_number(share);
}

// Of a token: one that is all but impossible is not impossible.
std::string probability(double p) { return p > 0 && p < 0.0005 ? "< 0.1\u202f%" : percent(p); }

std::string_view said(Verdict verdict) {
  switch (verdict) {
    case Verdict::good: return "is good";
    case Verdict::noticeable: return "lost noticeably";
    case Verdict::broken: return "is broken";
  }
  return "";
}

// The verdicts as one sentence. HTML.
std::string finding(const Evaluation& evaluation) {
  if (evaluation.quantized.empty())
    return evaluation.is_encoder
               ? std::string("There is no checkpoint to compare with the original.")
               : fmt::format("The perplexity of <b>{}</b> is {} ± {}.", html_text(evaluation.original.label),
                             short_number(evaluation.original.prediction.perplexity),
                             short_number(evaluation.original.prediction.perplexity_error, 2));
  constexpr std::size_t kMaxNames = 4;
  std::string text;
  for (const Verdict verdict : {Verdict::good, Verdict::noticeable, Verdict::broken}) {
    std::size_t count = 0;
    for (const ModelQuality& quality : evaluation.quantized)
      if (quality.verdict == verdict) {
        if (evaluation.quantized.size() <= kMaxNames)
          append(text, "{}<b>{}</b> {}", text.empty() ? "" : ", ", html_text(quality.label), said(verdict));
        ++count;
      }
    if (evaluation.quantized.size() > kMaxNames && count > 0)
      append(text, "{}{} {}", text.empty() ? "" : ", ", count, name(verdict));
  }
  return text + ".";
}

// A column for the original, then one for each checkpoint.
std::string summary_section(const Evaluation& evaluation, const EvaluationFacts& facts) {
  FactsTable table(evaluation.quantized.size() + 1);
  const auto of_all = [&](auto make) {
    std::vector<std::string> cells = {make(evaluation.original)};
    for (const ModelQuality& quality : evaluation.quantized) cells.push_back(make(quality));
    return cells;
  };
  // The original has no loss to show.
  const auto of_each = [&](auto make) {
    std::vector<std::string> cells = {"<td>–"};
    for (const ModelQuality& quality : evaluation.quantized) cells.push_back(make(quality));
    return cells;
  };
  const auto number = [&](double ModelQuality::*member, int digits) {
    return of_each([=](const ModelQuality& m) { return number_cell(m.*member, short_number(m.*member, digits)); });
  };
  table.add("label", "Checkpoint",
            of_all([](const ModelQuality& m) { return fmt::format("<td><b>{}</b>", html_text(m.label)); }));
  table.add("verdict", "Verdict",
            of_each([](const ModelQuality& m) { return fmt::format("<td><b class={0}>{0}</b>", name(m.verdict)); }));
  table.add("scheme", "Scheme", of_all([](const ModelQuality& m) {
              return "<td>" + (m.scheme.empty() ? std::string("–") : html_text(m.scheme));
            }));
  table.add("bytes", "Size",
            of_all([&](const ModelQuality& m) { return size_cell(m.bytes, evaluation.original.bytes); }));
  table.add("bits_per_weight", "Bits per weight", of_all([](const ModelQuality& m) {
              return number_cell(m.bits_per_weight, fmt::format("{:.2f}", m.bits_per_weight));
            }));
  if (evaluation.is_encoder) {
    table.add("mean_cosine", "Mean cosine", number(&ModelQuality::mean_cosine, 6));
    table.add("min_cosine", "Min cosine", number(&ModelQuality::min_cosine, 6));
    table.add("rank_agreement", "Rank agreement", of_each([](const ModelQuality& m) {
                return m.rank_agreement ? number_cell(*m.rank_agreement, short_number(*m.rank_agreement))
                                        : std::string("<td>–");
              }));
  } else {
    table.add("perplexity", "Perplexity", of_all([](const ModelQuality& m) {
                return number_cell(m.prediction.perplexity,
                                   fmt::format("{} <small>± {}</small>", short_number(m.prediction.perplexity),
                                               short_number(m.prediction.perplexity_error, 2)));
              }));
    table.add("mean_kl", "Mean KL", number(&ModelQuality::mean_kl, 3));
    table.add("kl_99", "KL, 99th percentile", number(&ModelQuality::kl_99, 3));
    table.add("same_top", "Same top token",
              of_each([](const ModelQuality& m) { return number_cell(m.same_top, percent(m.same_top)); }));
    table.add("mean_log_probability_change", "Log-probability lost",
              number(&ModelQuality::mean_log_probability_change, 3));
  }
  table.add_common(
      "text", "Text", fmt::format(" data-v={}", evaluation.tokens),
      fmt::format("{} tokens in {}", grouped_digits(evaluation.tokens), counted(evaluation.sequences, "sequence")));
  table.add_common("model_type", "Model", "",
                   fmt::format("{} <small>{}</small>", html_text(evaluation.original.path.native()),
                               html_text(evaluation.model_type)));
  if (!facts.command.empty())
    table.add_common("command", "Command", "", fmt::format("<code>{}</code>", html_whole_text(facts.command)));
  table.add_common("version", "Version", "", fmt::format("kvant {}", html_text(version())));
  std::string html = "<section id=summary aria-label=Summary>" + table.html();
  append(
      html, "<p class=calm id=rule>{} {}</p></section>",
      evaluation.is_encoder
          ? "Cosine is between the embeddings of a sentence, the mean of its last hidden states; rank agreement says "
            "whether both models order the other sentences alike."
          : "KL divergence is how far a checkpoint's predictions are from the original's, in nats, mean over tokens.",
      html_text(measure::verdict_rule(evaluation.is_encoder)));
  return html;
}

std::vector<SizePoint> points_of(const Evaluation& evaluation, auto value) {
  std::vector<SizePoint> points;
  for (std::size_t q = 0; q < evaluation.quantized.size(); ++q) {
    const ModelQuality& quality = evaluation.quantized[q];
    points.push_back(
        {.label = quality.label, .bytes = static_cast<double>(quality.bytes), .value = value(quality), .series = q});
  }
  return points;
}

std::string figure(std::string_view title, std::string_view chart) {
  return fmt::format("<figure class=wide><figcaption>{}</figcaption><div class=\"scroll hint\">{}</div></figure>",
                     title, chart);
}

std::string size_section(const Evaluation& evaluation) {
  std::string html =
      "<section id=sizes><h2>Quality over size</h2><p class=lead>A point is a checkpoint. <b>Lower and further left is "
      "better.</b></p><div class=twin>";
  if (evaluation.is_encoder) {
    html += figure("1 − mean cosine", size_chart("1 − mean cosine over the size of each checkpoint",
                                                 points_of(evaluation, [](const auto& m) { return 1 - m.mean_cosine; }),
                                                 {{1 - measure::kCosineBounds.good, "good below"},
                                                  {1 - measure::kCosineBounds.broken, "broken above"}}));
    return html + "</div></section>";
  }
  html += figure("Mean KL divergence from the original",
                 size_chart("Mean KL divergence over the size of each checkpoint",
                            points_of(evaluation, [](const auto& m) { return m.mean_kl; }),
                            {{measure::kKlBounds.good, "good below"}, {measure::kKlBounds.broken, "broken above"}}));
  std::vector<SizePoint> perplexities = points_of(evaluation, [](const auto& m) { return m.prediction.perplexity; });
  for (std::size_t q = 0; q < perplexities.size(); ++q)
    perplexities[q].error = evaluation.quantized[q].prediction.perplexity_error;
  perplexities.push_back({.label = evaluation.original.label,
                          .bytes = static_cast<double>(evaluation.original.bytes),
                          .value = evaluation.original.prediction.perplexity,
                          .error = evaluation.original.prediction.perplexity_error,
                          .is_original = true});
  html += figure("Perplexity, with its standard error",
                 size_chart("Perplexity over the size of each checkpoint", perplexities, {}));
  return html + "</div></section>";
}

std::string position_section(const Evaluation& evaluation) {
  std::vector<PositionLine> lines;
  std::size_t positions = 0;
  std::string legend;
  for (std::size_t q = 0; q < evaluation.quantized.size(); ++q) {
    const ModelQuality& quality = evaluation.quantized[q];
    lines.push_back({quality.label, quality.kl_by_position});
    positions = std::max(positions, quality.kl_by_position.size());
    append(legend, "<span>{}{}</span>", series_marker(q), html_text(quality.label));
  }
  const std::size_t span = position_span(positions);
  return fmt::format(
      "<section id=positions><h2>KL divergence by position</h2><p class=lead>The mean over sequences of the divergence "
      "at each position: with more text before it, a token is easier to predict. A line that rises shows errors that "
      "add up.{}</p><p class=legend>{}</p><div class=\"scroll hint\">{}</div></section>",
      span == 1 ? std::string() : fmt::format(" A point: the mean of {} positions.", span), legend,
      position_chart("KL divergence by position", lines));
}

// Tokens as text, or as "#17 #4" without a tokenizer; a token of no text by its id as well. Ends of lines and tabs are
// arrows: many fonts have no picture of them, and text is full of them.
std::string shown(std::span<const std::int32_t> ids, const EvaluationFacts& facts) {
  std::string text;
  if (facts.tokenizer != nullptr)
    for (const char c : facts.tokenizer->decode(ids)) text += c == '\n' ? "↵" : c == '\t' ? "⇥" : std::string(1, c);
  if (text.empty())
    for (const std::int32_t id : ids) text += fmt::format("{}#{}", text.empty() ? "" : " ", id);
  return html_text(text);
}

std::string guess_cell(const TokenDifference::Guess& guess, double of_what_came, const EvaluationFacts& facts) {
  return fmt::format("<td><span class=token>{}</span> {}<small>what came: {}</small>",
                     guess.token < 0 ? std::string("nothing") : shown({&guess.token, 1}, facts),
                     probability(guess.probability), probability(of_what_came));
}

std::string token_section(const Evaluation& evaluation, const EvaluationFacts& facts) {
  std::string html = fmt::format(
      "<section id=tokens><h2>Where they differ most</h2><p class=lead>The tokens with the largest KL divergence, with "
      "the text before them. <mark>Marked</mark> is the token that came; beside it what the original and the "
      "checkpoint "
      "found most likely.{}</p>",
      facts.tokenizer == nullptr ? " There is no tokenizer: numbers are ids." : "");
  for (std::size_t q = 0; q < evaluation.quantized.size(); ++q) {
    const ModelQuality& quality = evaluation.quantized[q];
    append(html, "<details id=t{}{}><summary><span class=name>{}</span><span class=db>{}</span></summary>", q,
           q == 0 ? " open" : "", html_text(quality.label),
           quality.differences.empty() ? std::string("no difference")
                                       : fmt::format("KL up to {}", short_number(quality.differences.front().kl, 3)));
    if (!quality.differences.empty()) {
      html +=
          "<table class=tokens><thead><tr><th scope=col>KL<th scope=col>Text and the token that came<th "
          "scope=col>Original<th scope=col>Checkpoint</thead><tbody>";
      for (const TokenDifference& difference : quality.differences) {
        append(
            html,
            "<tr data-sequence={} data-position={}>{}<td class=context>{}<mark>{}</mark><small>sequence {}, position "
            "{}</small>",
            difference.sequence, difference.position, number_cell(difference.kl, short_number(difference.kl, 3)),
            shown(difference.context, facts), shown({&difference.token, 1}, facts), difference.sequence,
            difference.position);
        html += guess_cell(difference.original_top, difference.original_probability, facts);
        html += guess_cell(difference.top, difference.probability, facts);
      }
      html += "</tbody></table>";
    }
    html += "</details>";
  }
  return html + "</section>";
}

}  // namespace

std::string evaluation_page(const Evaluation& evaluation, const EvaluationFacts& facts) {
  const std::string model = html_text(evaluation.original.label);
  const bool has_charts = !evaluation.quantized.empty();
  std::string html = open_page({.title = fmt::format("{}: what the model lost", model),
                                .skip_to = has_charts ? "sizes" : "summary",
                                .skip_text = has_charts ? "Skip to the charts" : "Skip to the summary"});
  append(html, "<main><header><p class=eyebrow>What the model lost <span>{}</span></p><h1>{}</h1></header>", model,
         finding(evaluation));
  html += summary_section(evaluation, facts);
  if (has_charts) html += size_section(evaluation);
  if (has_charts && !evaluation.is_encoder) {
    html += position_section(evaluation);
    html += token_section(evaluation, facts);
  }
  return html + close_page("kvant eval --json", "docs/evaluate.md");
}

}  // namespace kvant::cli
