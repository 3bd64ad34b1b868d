#include <fmt/core.h>

#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text_argument.h"
#include "io/file.h"
#include "io/json.h"
#include "measure/evaluate.h"

namespace kvant::cli {
namespace {

struct EvalOptions {
  std::string original;
  std::vector<std::string> quantized;
  TextOptions text;
  int threads = 0;
  bool json = false;
};

constexpr const char* kEvalExamples =
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 ./SmolLM2-w4a16 --text held-out.txt\n"
    "  kvant eval ./SmolLM2 --text held-out.txt --length 2048     # the perplexity of one model\n"
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 --tokens ids.txt --json | jq '.quantized[0].mean_kl'";

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

void print_language(const measure::Evaluation& evaluation, const Terminal& terminal) {
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
  print(table.text(terminal));
  if (evaluation.quantized.empty()) return;
  print(
      "\nKL: divergence from the original's predictions in nats, mean over tokens; same top: how often both find the "
      "same token most likely. good: KL below 0.02 and perplexity within 2 %; broken: KL above 0.3 or perplexity "
      "half as high again.\n");
}

void print_encoder(const measure::Evaluation& evaluation, const Terminal& terminal) {
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
  print(table.text(terminal));
  print(
      "\ncosine: between the original's and the checkpoint's embeddings of a sentence, the mean of its last hidden "
      "states. good: above 0.999 on average; broken: below 0.98.\n");
}

int run(const EvalOptions& options, const Request& request) {
  auto text = read_text_for(options.original, options.text);
  if (!text.ok()) return fail(text.status());
  ProgressBar progress(request.quiet);
  const auto evaluation = measure::evaluate({.original = options.original,
                                             .quantized = {options.quantized.begin(), options.quantized.end()},
                                             .text = std::move(text).value(),
                                             .threads = options.threads},
                                            progress);
  progress.finish();
  if (!evaluation.ok()) return fail(evaluation.status());
  if (options.json) {
    print_json(measure::to_json(*evaluation));
    return kDone;
  }
  const Terminal terminal = Terminal::of(1);
  if (!request.quiet)
    print(fmt::format("{} in {}\n\n", fmt::format("{} tokens", grouped_digits(evaluation->tokens)),
                      counted(evaluation->sequences, "sequence")));
  if (evaluation->is_encoder)
    print_encoder(*evaluation, terminal);
  else
    print_language(*evaluation, terminal);
  return kDone;
}

}  // namespace

Command eval_command() {
  const auto options = std::make_shared<EvalOptions>();
  std::vector<Argument> arguments = {
      checkpoint_positional("ORIGINAL", options->original),
      {.name = "QUANTIZED", .help = "Quantized checkpoints of it", .to = &options->quantized, .is_path = true}};
  for (Argument& argument : text_arguments(options->text)) arguments.push_back(std::move(argument));
  arguments.push_back(threads_option(options->threads));
  arguments.push_back(json_option(options->json));
  return {.name = "eval",
          .description =
              "Measure what the model lost. Runs the original and its quantized checkpoints over a text, "
              "block by block, and compares their predictions: perplexity, KL divergence, how often the "
              "most likely token is the same. For encoders: the cosine between embeddings of sentences. "
              "The numbers are the same for any number of threads.",
          .examples = kEvalExamples,
          .arguments = std::move(arguments),
          .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
