#include <fmt/core.h>

#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/evaluation_table.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/report/evaluation_page.h"
#include "cli/report/report_file.h"
#include "cli/run_options.h"
#include "cli/sizes.h"
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
  RunOptions run;
  std::string report;
  bool json = false;
};

constexpr const char* kEvalExamples =
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 ./SmolLM2-w4a16 --text held-out.txt\n"
    "  kvant eval ./SmolLM2 ./SmolLM2-w4a16 --text held-out.txt --report eval.html\n"
    "  kvant eval ./SmolLM2 --text held-out.txt --length 2048     # the perplexity of one model\n"
    "  kvant eval model-F16.gguf model-Q4_K_M.gguf --text held-out.txt\n"
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 --tokens ids.txt --json | jq '.quantized[0].mean_kl'";

int run(const EvalOptions& options, const Request& request) {
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
                                             .run = options.run.in(scratch)},
                                            progress);
  progress.finish();
  if (!evaluation.ok()) return fail(evaluation.status());
  // Ids came without a tokenizer, and then tokens are shown by them.
  const auto tokenizer = tokenizer_of(options.original);
  const EvaluationFacts facts{request.command, tokenizer.ok() ? &*tokenizer : nullptr};
  if (options.json) {
    print_json(evaluation_json(*evaluation, facts));
  } else {
    if (!request.quiet)
      print(fmt::format("{} tokens in {}\n\n", grouped_digits(evaluation->tokens),
                        counted(evaluation->sequences, "sequence")));
    print(evaluation_text(*evaluation, Terminal::of(1)));
  }
  if (!options.report.empty()) {
    if (const Status s = write_page(options.report, evaluation_page(*evaluation, facts)); !s.ok()) return fail(s);
    if (!options.json) print(fmt::format("\nreport  {}\n", io::printable(options.report)));
  }
  return kDone;
}

}  // namespace

Command eval_command() {
  const auto options = std::make_shared<EvalOptions>();
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
          .examples = kEvalExamples,
          .arguments = std::move(arguments),
          .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
