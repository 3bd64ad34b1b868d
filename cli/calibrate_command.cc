#include <fmt/core.h>

#include <memory>
#include <utility>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/run_options.h"
#include "cli/sizes.h"
#include "cli/terminal.h"
#include "cli/text_argument.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"
#include "measure/calibrate.h"

namespace kvant::cli {
namespace {

struct CalibrateOptions {
  std::string model;
  std::string output;
  bool force = false;
  bool hessian = false;
  TextOptions text;
  RunOptions run;
  bool json = false;
};

constexpr const char* kCalibrateExamples =
    "  kvant calibrate ./SmolLM2 --text corpus.txt -o stats.safetensors\n"
    "  kvant quantize ./SmolLM2 -o ./SmolLM2-w8a8 --stats stats.safetensors --smooth";

int run(const CalibrateOptions& options, const Request& request) {
  auto text = read_text_for(options.model, options.text);
  if (!text.ok()) return fail(text.status());
  std::filesystem::path scratch = options.run.scratch;
  if (scratch.empty()) scratch = options.output + std::string(io::kScratchSuffix);
  ProgressBar progress(request.quiet);
  say_how_to_resume(scratch);
  const auto calibration = measure::calibrate({.model = options.model,
                                               .output = options.output,
                                               .overwrite = options.force,
                                               .hessian = options.hessian,
                                               .text = std::move(text).value(),
                                               .run = options.run.in(scratch)},
                                              progress);
  progress.finish();
  if (!calibration.ok()) return fail(calibration.status());
  if (options.json) {
    print_json(io::Json{{"format", "kvant-calibrate-1"},
                        {"output", io::json_name(options.output)},
                        {"linears", calibration->linears},
                        {"tokens", calibration->tokens},
                        {"unseen", calibration->unseen}});
    return kDone;
  }
  const Terminal terminal = Terminal::of(2);
  if (!calibration->unseen.empty())
    tell(fmt::format("{} {} of experts saw no token and have no statistics, the first is '{}'; give more text",
                     terminal.yellow("warning:"), counted(calibration->unseen.size(), "linear"),
                     io::printable(calibration->unseen.front())));
  print(fmt::format("{}: statistics of {} from {} tokens\n", io::printable(options.output),
                    counted(calibration->linears, "linear"), grouped_digits(calibration->tokens)));
  return kDone;
}

}  // namespace

Command calibrate_command() {
  const auto options = std::make_shared<CalibrateOptions>();
  std::vector<Argument> arguments = {checkpoint_positional("MODEL", options->model),
                                     {.name = "--output",
                                      .letter = "-o",
                                      .placeholder = "FILE",
                                      .help = "The statistics, a safetensors file",
                                      .to = &options->output,
                                      .required = true,
                                      .is_path = true}};
  for (Argument& argument : text_arguments(options->text)) arguments.push_back(std::move(argument));
  arguments.push_back(
      {.name = "--hessian",
       .help = "Also the sum of x x^T over all tokens, which GPTQ needs: 4 n^2 bytes for an input of n channels",
       .to = &options->hessian});
  arguments.push_back({.name = "--force", .help = "Overwrite the statistics if they exist", .to = &options->force});
  for (Argument& argument : run_arguments(options->run, "FILE.scratch beside the statistics"))
    arguments.push_back(std::move(argument));
  arguments.push_back(json_option(options->json));
  return {
      .name = "calibrate",
      .description =
          "Collect statistics of activations. Runs the model over a text, block by block, and writes for the "
          "input of every linear the min, max, max magnitude and mean square of each channel, the squared error of "
          "its int8 codes, and a histogram: what quantize needs for --smooth, --kv-fp8 and static schemes, and compare "
          "to estimate what outputs lose.",
      .examples = kCalibrateExamples,
      .arguments = std::move(arguments),
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
