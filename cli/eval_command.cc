#include <fmt/core.h>

#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/report/evaluation_page.h"
#include "cli/report/report_file.h"
#include "cli/run_options.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text_argument.h"
#include "io/file.h"
#include "io/json.h"
#include "measure/evaluate.h"

namespace kvant::cli {
namespace {

struct Options {
  std::string original;
  std::vector<std::string> quantized;
  TextOptions text;
  RunOptions run;
  std::string report;
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 ./SmolLM2-w4a16 --text held-out.txt\n"
    "  kvant eval ./SmolLM2 ./SmolLM2-w4a16 --text held-out.txt --report eval.html\n"
    "  kvant eval ./SmolLM2 --text held-out.txt --length 2048     # the perplexity of one model\n"
    "  kvant eval model-F16.gguf model-Q4_K_M.gguf --text held-out.txt\n"
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
  table.add({io::printable(evaluation.original.label), file_size(evaluation.original.bytes), bits(evaluation.original),
             perplexity(evaluation.original)});
  for (const measure::ModelQuality& quality : evaluation.quantized)
    table.add({io::printable(quality.label), file_size(quality.bytes), bits(quality), perplexity(quality),
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
      {io::printable(evaluation.original.label), file_size(evaluation.original.bytes), bits(evaluation.original)});
  for (const measure::ModelQuality& quality : evaluation.quantized)
    table.add({io::printable(quality.label), file_size(quality.bytes), bits(quality),
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

void print_tables(const measure::Evaluation& evaluation, const Terminal& terminal) {
  print((evaluation.is_encoder ? encoder_table(evaluation, terminal) : language_table(evaluation, terminal))
            .text(terminal));
  for (const std::string& paragraph : legend(evaluation))
    print("\n" + (terminal.width() > 0 ? wrapped(paragraph, terminal.width(), 0) : paragraph) + "\n");
}

int run(const Options& options, const Request& request) {
  if (!options.report.empty())
    if (const Status s = check_report_path(options.report); !s.ok()) return fail(s);
  auto text = read_text_for(options.original, options.text);
  if (!text.ok()) return fail(text.status());
  std::vector<std::filesystem::path> models = {options.original};
  models.insert(models.end(), options.quantized.begin(), options.quantized.end());
  const std::filesystem::path scratch = scratch_folder("eval", models, *text, options.run);
  ProgressBar progress(request.quiet);
  say_how_to_resume(scratch);
  const auto evaluation = measure::evaluate({.original = options.original,
                                             .quantized = {options.quantized.begin(), options.quantized.end()},
                                             .text = std::move(text).value(),
                                             .threads = options.run.threads,
                                             .max_memory = options.run.max_memory,
                                             .scratch = scratch,
                                             .resume = options.run.resume},
                                            progress);
  progress.finish();
  if (!evaluation.ok()) return fail(evaluation.status());
  // Ids came without a tokenizer, and then tokens are shown by them.
  const auto tokenizer = tokenizer_of(options.original);
  const EvaluationFacts facts{request.command, tokenizer.ok() ? &*tokenizer : nullptr};
  if (options.json) {
    io::Json document = measure::to_json(*evaluation, facts.tokenizer);
    document["command"] = io::json_name(facts.command);
    print_json(document);
  } else {
    if (!request.quiet)
      print(fmt::format("{} tokens in {}\n\n", grouped_digits(evaluation->tokens),
                        counted(evaluation->sequences, "sequence")));
    print_tables(*evaluation, Terminal::of(1));
  }
  if (!options.report.empty()) {
    if (const Status s = write_page(options.report, evaluation_page(*evaluation, facts)); !s.ok()) return fail(s);
    if (!options.json) print(fmt::format("\nreport  {}\n", io::printable(options.report)));
  }
  return kDone;
}

}  // namespace

Command eval_command() {
  const auto options = std::make_shared<Options>();
  std::vector<Argument> arguments = {
      checkpoint_positional("ORIGINAL", options->original),
      {.name = "QUANTIZED", .help = "Quantized checkpoints of it", .to = &options->quantized, .is_path = true}};
  for (Argument& argument : text_arguments(options->text)) arguments.push_back(std::move(argument));
  arguments.push_back(report_option(options->report, "Write an HTML page that shows what the model lost"));
  for (Argument& argument : run_arguments(options->run, "a folder of its own in ~/.cache/kvant"))
    arguments.push_back(std::move(argument));
  arguments.push_back(json_option(options->json));
  return {.name = "eval",
          .description =
              "Measure what the model lost. Runs the original and its quantized checkpoints over a text, "
              "block by block, and compares their predictions: perplexity, KL divergence, how often the "
              "most likely token is the same. For encoders: the cosine between embeddings of sentences, and whether "
              "sentences are as near to each other as before. "
              "The numbers are the same for any number of threads and any --max-memory. A run that was stopped goes on "
              "with --resume.",
          .examples = kExamples,
          .arguments = std::move(arguments),
          .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
