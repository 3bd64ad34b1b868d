#include "quantize/convert_gguf.h"

#include <fmt/core.h>

#include <memory>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/terminal.h"
#include "format/gguf_blocks.h"
#include "io/file.h"
#include "io/json.h"
#include "model/gguf_network.h"

namespace kvant::cli {
namespace {

struct ConvertOptions {
  std::string input, output;
  std::string dtype = "f32";
  bool resume = false, force = false, json = false;
  int threads = 0;
};

constexpr const char* kConvertExamples =
    "  kvant convert model.gguf -o ./model              # every value as it is, in f32\n"
    "  kvant convert model.gguf -o ./model --dtype bf16\n"
    "  kvant quantize ./model -o ./model-w8a8           # then go on with it";

io::DType dtype_of(const std::string& text) {
  if (text == "f16") return io::DType::f16;
  return text == "bf16" ? io::DType::bf16 : io::DType::f32;
}

void print_summary(const quantize::ConvertOutcome& outcome, const ConvertOptions& options) {
  const std::string output = io::printable(options.output);
  std::string text = fmt::format("{}: a {} model, {} in {}\n", output, outcome.model_type,
                                 counted(outcome.tensors, "tensor"), options.dtype);
  text += fmt::format("size      {} → {}\n", byte_size(outcome.bytes_read), byte_size(outcome.bytes_written));
  text += fmt::format("shards    {} written", outcome.shards_written);
  if (outcome.shards_kept > 0) text += fmt::format(", {} kept from the run before", outcome.shards_kept);
  text += fmt::format("\nvalues    {}\n", outcome.rounded == 0
                                              ? "all as they were"
                                              : fmt::format("{} rounded", grouped_digits(outcome.rounded)));
  text += fmt::format("time      {}\n", duration(outcome.seconds));
  text += fmt::format("\nnext:\n  kvant quantize {0} -o {1}\n", shell_word(output), shell_word(output + "-w8a8"));
  print(text);
}

io::Json json_of(const quantize::ConvertOutcome& outcome, const ConvertOptions& options) {
  return {{"format", "kvant-convert-1"},
          {"input", options.input},
          {"output", options.output},
          {"dtype", options.dtype},
          {"model_type", outcome.model_type},
          {"tensors", outcome.tensors},
          {"shards_written", outcome.shards_written},
          {"shards_kept", outcome.shards_kept},
          {"bytes_read", outcome.bytes_read},
          {"bytes_written", outcome.bytes_written},
          {"rounded", outcome.rounded},
          {"seconds", outcome.seconds},
          {"warnings", outcome.warnings}};
}

int run(const ConvertOptions& options, const Request& request) {
  if (options.resume && options.force) {
    fail("--resume continues an output and --force replaces it: give one of the two; try 'kvant convert --help'");
    return kUsage;
  }
  ProgressBar progress(request.quiet);
  ProgressBar::set_last_words(
      fmt::format("stopped; the same command with --resume{} continues after the last finished shard",
                  options.force ? " in place of --force" : ""));
  const auto outcome = quantize::convert_gguf({.input = options.input,
                                               .output = options.output,
                                               .dtype = dtype_of(options.dtype),
                                               .threads = options.threads,
                                               .resume = options.resume,
                                               .force = options.force},
                                              progress);
  progress.finish();
  if (!outcome.ok()) return fail(outcome.status());
  if (!request.quiet)
    for (const std::string& warning : outcome->warnings)
      tell(fmt::format("{} {}", Terminal::of(2).yellow("warning:"), warning));
  if (options.json)
    print_json(json_of(*outcome, options));
  else if (!request.quiet)
    print_summary(*outcome, options);
  return kDone;
}

}  // namespace

Command convert_command() {
  const auto options = std::make_shared<ConvertOptions>();
  return {
      .name = "convert",
      .description =
          "Convert a GGUF file to a checkpoint. Writes a folder with safetensors, config.json and the tokenizer, which "
          "kvant quantize and transformers read. Knows the architectures " +
          model::names_of_gguf_architectures() + " and the types " + format::names_of_decoded_types() + ".",
      .examples = kConvertExamples,
      .arguments = {{.name = "IN", .help = "The .gguf file", .to = &options->input, .required = true, .is_path = true},
                    {.name = "--output",
                     .letter = "-o",
                     .placeholder = "OUT",
                     .help = "Folder to write",
                     .to = &options->output,
                     .required = true,
                     .is_path = true},
                    {.name = "--dtype",
                     .help = "Type of the values: f32 (default) holds all of them exactly; f16 and bf16 take half the "
                             "room and are exact only where the file itself has that type",
                     .to = &options->dtype,
                     .choices = {"f32", "f16", "bf16"}},
                    threads_option(options->threads),
                    {.name = "--resume", .help = "Continue an interrupted run", .to = &options->resume},
                    {.name = "--force", .help = "Replace an existing output", .to = &options->force},
                    json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
