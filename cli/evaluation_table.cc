#include "cli/evaluation_table.h"

#include <fmt/core.h>

#include <vector>

#include "cli/sizes.h"
#include "cli/table.h"
#include "io/file.h"

namespace kvant::cli {
namespace {

std::string colored(const Terminal& terminal, measure::Verdict verdict) {
  const std::string text(measure::name(verdict));
  switch (verdict) {
    case measure::Verdict::good: return terminal.green(text);
    case measure::Verdict::noticeable: return terminal.yellow(text);
    case measure::Verdict::broken: return terminal.red(text);
  }
  return text;
}

std::string perplexity(const measure::ModelQuality& quality) {
  const double value = quality.prediction.perplexity, error = quality.prediction.perplexity_error;
  // A model that is broken has one of any size.
  if (!(value < 10000)) return fmt::format("{:.3g} ± {:.3g}", value, error);
  const int digits = value < 100 ? 3 : 1;
  return fmt::format("{:.{}f} ± {:.{}f}", value, digits, error, digits);
}

std::string bits(const measure::ModelQuality& quality) { return fmt::format("{:.2f}", quality.bits_per_weight); }

Table language_table(const measure::Evaluation& evaluation, const Terminal& terminal) {
  using Align = Column::Align;
  Table table({{.title = "checkpoint", .shrinks = true},
               {.title = "size", .align = Align::right},
               {.title = "bits", .align = Align::right},
               {.title = "perplexity", .align = Align::right},
               {.title = "KL", .align = Align::right},
               {.title = "KL 99%", .align = Align::right, .optional = true},
               {.title = "same top", .align = Align::right},
               {.title = "log p", .align = Align::right, .optional = true},
               {.title = "verdict"}});
  table.add({io::printable(evaluation.original.label), byte_size(evaluation.original.bytes), bits(evaluation.original),
             perplexity(evaluation.original)});
  for (const measure::ModelQuality& quality : evaluation.quantized)
    table.add({io::printable(quality.label), byte_size(quality.bytes), bits(quality), perplexity(quality),
               fmt::format("{:.4f}", quality.mean_kl), fmt::format("{:.3f}", quality.kl_99),
               fmt::format("{:.1f} %", 100 * quality.same_top),
               fmt::format("{:+.4f}", -quality.mean_log_probability_change), colored(terminal, quality.verdict)});
  return table;
}

Table encoder_table(const measure::Evaluation& evaluation, const Terminal& terminal) {
  using Align = Column::Align;
  Table table({{.title = "checkpoint", .shrinks = true},
               {.title = "size", .align = Align::right},
               {.title = "bits", .align = Align::right},
               {.title = "mean cosine", .align = Align::right},
               {.title = "min cosine", .align = Align::right},
               {.title = "ranks", .align = Align::right},
               {.title = "verdict"}});
  table.add(
      {io::printable(evaluation.original.label), byte_size(evaluation.original.bytes), bits(evaluation.original)});
  for (const measure::ModelQuality& quality : evaluation.quantized)
    table.add({io::printable(quality.label), byte_size(quality.bytes), bits(quality),
               fmt::format("{:.5f}", quality.mean_cosine), fmt::format("{:.5f}", quality.min_cosine),
               quality.rank_agreement ? fmt::format("{:.4f}", *quality.rank_agreement) : "-",
               colored(terminal, quality.verdict)});
  return table;
}

// What the columns are, and the rule of the verdict. A paragraph each.
std::vector<std::string> legend(const measure::Evaluation& evaluation) {
  std::string columns = "bits: of a weight of the blocks' linears, with its share of scales.";
  if (evaluation.quantized.empty()) return {columns};
  columns +=
      evaluation.is_encoder
          ? " cosine: between the original's and the checkpoint's embeddings of a sentence, the mean of its last "
            "hidden states. ranks: whether both order the other sentences alike, 1 for the same order."
          : " KL: divergence from the original's predictions in nats, mean over tokens, and its 99th "
            "percentile. same top: how often both find the same token most likely. log p: of the tokens that "
            "came, above or below the original's, mean.";
  return {columns, measure::verdict_rule(evaluation.is_encoder)};
}

}  // namespace

std::string evaluation_text(const measure::Evaluation& evaluation, const Terminal& terminal) {
  std::string text =
      (evaluation.is_encoder ? encoder_table(evaluation, terminal) : language_table(evaluation, terminal))
          .text(terminal);
  for (const std::string& sentences : legend(evaluation)) text += "\n" + paragraph(sentences, terminal);
  return text;
}

}  // namespace kvant::cli
