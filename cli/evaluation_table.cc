#include "cli/evaluation_table.h"

#include <fmt/core.h>

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
  return fmt::format("{:.3f} ± {:.3f}", quality.prediction.perplexity, quality.prediction.perplexity_error);
}

std::string language_text(const measure::Evaluation& evaluation, const Terminal& terminal) {
  using Align = Column::Align;
  Table table({{.title = "checkpoint", .shrinks = true},
               {.title = "size", .align = Align::right},
               {.title = "perplexity", .align = Align::right},
               {.title = "KL", .align = Align::right},
               {.title = "KL 99%", .align = Align::right, .optional = true},
               {.title = "same top", .align = Align::right},
               {.title = "verdict"}});
  table.add({io::printable_path(evaluation.original.path), file_size(evaluation.original.bytes),
             perplexity(evaluation.original)});
  for (const measure::ModelQuality& quality : evaluation.quantized)
    table.add({io::printable_path(quality.path), file_size(quality.bytes), perplexity(quality),
               fmt::format("{:.4f}", quality.mean_kl), fmt::format("{:.3f}", quality.kl_99),
               fmt::format("{:.1f} %", 100 * quality.same_top), colored(terminal, quality.verdict)});
  if (evaluation.quantized.empty()) return table.text(terminal);
  return table.text(terminal) + "\n" +
         paragraph(
             "KL: divergence from the original's predictions in nats, mean over tokens; same top: how often both find "
             "the "
             "same token most likely. good: KL below 0.02 and perplexity within 2 %; broken: KL above 0.3 or "
             "perplexity "
             "half as high again.",
             terminal);
}

std::string encoder_text(const measure::Evaluation& evaluation, const Terminal& terminal) {
  using Align = Column::Align;
  Table table({{.title = "checkpoint", .shrinks = true},
               {.title = "size", .align = Align::right},
               {.title = "mean cosine", .align = Align::right},
               {.title = "min cosine", .align = Align::right},
               {.title = "verdict"}});
  table.add({io::printable_path(evaluation.original.path), file_size(evaluation.original.bytes)});
  for (const measure::ModelQuality& quality : evaluation.quantized)
    table.add({io::printable_path(quality.path), file_size(quality.bytes), fmt::format("{:.5f}", quality.mean_cosine),
               fmt::format("{:.5f}", quality.min_cosine), colored(terminal, quality.verdict)});
  return table.text(terminal) + "\n" +
         paragraph(
             "cosine: between the original's and the checkpoint's embeddings of a sentence, the mean of its last "
             "hidden "
             "states. good: above 0.999 on average; broken: below 0.98.",
             terminal);
}

}  // namespace

std::string evaluation_text(const measure::Evaluation& evaluation, const Terminal& terminal) {
  return evaluation.is_encoder ? encoder_text(evaluation, terminal) : language_text(evaluation, terminal);
}

}  // namespace kvant::cli
