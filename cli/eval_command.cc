#include <fmt/core.h>

#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/evaluation_table.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/terminal.h"
#include "cli/text_argument.h"
#include "io/json.h"
#include "measure/evaluate.h"

namespace kvant::cli {
namespace {

struct Options {
  std::string original;
  std::vector<std::string> quantized;
  TextOptions text;
  int threads = 0;
  bool json = false;
};

constexpr const char* kExamples =
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 ./SmolLM2-w4a16 --text held-out.txt\n"
    "  kvant eval ./SmolLM2 --text held-out.txt --length 2048     # the perplexity of one model\n"
    "  kvant eval ./SmolLM2 ./SmolLM2-w8a8 --tokens ids.txt --json | jq '.quantized[0].mean_kl'";

int run(const Options& options, const Request& request) {
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
  print(evaluation_text(*evaluation, terminal));
  return kDone;
}

}  // namespace

Command eval_command() {
  const auto options = std::make_shared<Options>();
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
          .examples = kExamples,
          .arguments = std::move(arguments),
          .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
