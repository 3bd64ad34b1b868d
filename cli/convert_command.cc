#include "quantize/convert_gguf.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/terminal.h"
#include "format/dialects.h"
#include "format/gguf_blocks.h"
#include "io/file.h"
#include "io/json.h"
#include "model/gguf_network.h"
#include "quantize/quantize_checkpoint.h"

namespace kvant::cli {
namespace {

constexpr std::string_view kCodes = format::kCompressedTensors;

struct ConvertOptions {
  std::string input, output;
  std::string to;
  bool resume = false, force = false, json = false;
  int threads = 0;
};

constexpr const char* kConvertExamples =
    "  kvant convert model.gguf -o ./model                    # every value as it is, in f32\n"
    "  kvant convert ./DeepSeek-V3 -o ./bf16 --to bf16        # the values of a quantized checkpoint\n"
    "  kvant convert ./Qwen3-GPTQ -o ./ct --to compressed-tensors   # its codes, as vLLM's own format has them\n"
    "  kvant quantize ./model -o ./model-w8a8                 # then go on with it";

io::DType dtype_of(const std::string& text) {
  if (text == "f16") return io::DType::f16;
  return text == "bf16" ? io::DType::bf16 : io::DType::f32;
}

// What is told of a run, whatever the input was.
struct Converted {
  std::string what;  // "a llama model, 21 tensors in f32"
  std::string to;
  std::string model_type;
  std::uint64_t tensors = 0, shards_written = 0, shards_kept = 0, bytes_read = 0, bytes_written = 0, rounded = 0;
  double seconds = 0;
  std::vector<std::string> warnings;
  std::string values;  // a sentence on what became of them
};

void print_summary(const Converted& done, const ConvertOptions& options) {
  const std::string output = io::printable(options.output);
  std::string text = fmt::format("{}: {}\n", output, done.what);
  text += fmt::format("size      {} → {}\n", byte_size(done.bytes_read), byte_size(done.bytes_written));
  text += fmt::format("shards    {} written", done.shards_written);
  if (done.shards_kept > 0) text += fmt::format(", {} kept from the run before", done.shards_kept);
  text += fmt::format("\nvalues    {}\n", done.values);
  text += fmt::format("time      {}\n", duration(done.seconds));
  if (done.to == kCodes)
    text += fmt::format("\nnext:\n  kvant verify {0}\n", shell_word(output));
  else
    text += fmt::format("\nnext:\n  kvant quantize {0} -o {1}\n", shell_word(output), shell_word(output + "-w8a8"));
  print(text);
}

io::Json json_of(const Converted& done, const ConvertOptions& options) {
  return {{"format", "kvant-convert-2"},
          {"input", options.input},
          {"output", options.output},
          {"to", done.to},
          {"model_type", done.model_type},
          {"tensors", done.tensors},
          {"shards_written", done.shards_written},
          {"shards_kept", done.shards_kept},
          {"bytes_read", done.bytes_read},
          {"bytes_written", done.bytes_written},
          {"rounded", done.rounded},
          {"seconds", done.seconds},
          {"warnings", done.warnings}};
}

std::string values_sentence(std::uint64_t rounded) {
  return rounded == 0 ? std::string("all as they were") : fmt::format("{} rounded", grouped_digits(rounded));
}

// What the outcomes of both ways have in common.
template <class Outcome>
Converted told_of(const Outcome& outcome, const std::string& to) {
  Converted done;
  done.to = to;
  done.shards_written = outcome.shards_written;
  done.shards_kept = outcome.shards_kept;
  done.bytes_read = outcome.bytes_read;
  done.bytes_written = outcome.bytes_written;
  done.rounded = outcome.rounded;
  done.seconds = outcome.seconds;
  done.values = values_sentence(outcome.rounded);
  return done;
}

Result<Converted> convert_gguf_file(const ConvertOptions& options, ProgressBar& progress) {
  const std::string to = options.to.empty() ? "f32" : options.to;
  if (to == kCodes)
    return base::unsupported("--to {}: a GGUF becomes a checkpoint of f32, f16 or bf16; quantize that one", to);
  const auto outcome = quantize::convert_gguf({.input = options.input,
                                               .output = options.output,
                                               .dtype = dtype_of(to),
                                               .threads = options.threads,
                                               .resume = options.resume,
                                               .force = options.force},
                                              progress);
  if (!outcome.ok()) return outcome.status();
  Converted done = told_of(*outcome, to);
  done.what = fmt::format("a {} model, {} in {}", outcome->model_type, counted(outcome->tensors, "tensor"), to);
  done.model_type = outcome->model_type;
  done.tensors = outcome->tensors;
  done.warnings = outcome->warnings;
  return done;
}

Result<Converted> convert_checkpoint(const ConvertOptions& options, ProgressBar& progress) {
  quantize::QuantizeOptions asked;
  asked.input = options.input;
  asked.output = options.output;
  asked.conversion.emplace();
  if (options.to != kCodes) asked.conversion->values = dtype_of(options.to);
  asked.threads = options.threads;
  asked.resume = options.resume;
  asked.force = options.force;
  auto planned = quantize::CheckpointQuantizer::plan(asked);
  if (!planned.ok()) return planned.status();
  const auto outcome = planned->run(progress);
  if (!outcome.ok()) return outcome.status();
  const quantize::CheckpointPlan& plan = planned->what();
  const auto layers = static_cast<std::uint64_t>(std::count_if(
      plan.tensors.begin(), plan.tensors.end(),
      [](const quantize::TensorPlan& tensor) { return tensor.source && tensor.source->codes.has_value(); }));
  Converted done = told_of(*outcome, options.to);
  done.what = fmt::format("{}, {} in {}", plan.quantized_as, counted(layers, "layer"), options.to);
  done.model_type = plan.model_type;
  done.tensors = plan.tensors.size();
  done.warnings = plan.warnings;
  if (options.to == kCodes)
    done.values = plan.warnings.empty() ? "codes and scales as they were" : "codes as they were, see the warning";
  return done;
}

int run(const ConvertOptions& options, const Request& request) {
  if (options.resume && options.force) {
    fail("--resume continues an output and --force replaces it: give one of the two; try 'kvant convert --help'");
    return kUsage;
  }
  // One that is damaged or missing is still meant as one.
  const bool is_gguf = options.input.ends_with(".gguf") || io::is_gguf(options.input);
  if (!is_gguf && options.to.empty()) {
    fail(
        "--to is missing: what the checkpoint becomes, compressed-tensors, bf16, f16 or f32; try 'kvant convert "
        "--help'");
    return kUsage;
  }
  ProgressBar progress(request.quiet);
  ProgressBar::set_last_words(
      fmt::format("stopped; the same command with --resume{} continues after the last finished shard",
                  options.force ? " in place of --force" : ""));
  const auto done = is_gguf ? convert_gguf_file(options, progress) : convert_checkpoint(options, progress);
  progress.finish();
  if (!done.ok()) return fail(done.status());
  if (!request.quiet)
    for (const std::string& warning : done->warnings)
      tell(fmt::format("{} {}", Terminal::of(2).yellow("warning:"), warning));
  if (options.json)
    print_json(json_of(*done, options));
  else if (!request.quiet)
    print_summary(*done, options);
  return kDone;
}

}  // namespace

Command convert_command() {
  const auto options = std::make_shared<ConvertOptions>();
  return {
      .name = "convert",
      .description =
          "Convert a GGUF file, or a checkpoint that is quantized already, to a checkpoint that kvant quantize and "
          "transformers read: the values of its codes, or the same codes in the layout of compressed-tensors. Reads "
          "compressed-tensors, DeepSeek's FP8, ModelOpt's FP8 and NVFP4, gpt-oss's MXFP4, GPTQ and AWQ. Of GGUF it "
          "knows the architectures " +
          model::names_of_gguf_architectures() + " and the types " + format::names_of_decoded_types() + ".",
      .examples = kConvertExamples,
      .arguments = {{.name = "IN",
                     .help = "The .gguf file, folder or .safetensors file",
                     .to = &options->input,
                     .required = true,
                     .is_path = true},
                    {.name = "--output",
                     .letter = "-o",
                     .placeholder = "OUT",
                     .help = "Folder to write",
                     .to = &options->output,
                     .required = true,
                     .is_path = true},
                    {.name = "--to",
                     .help = "What it becomes: values in f32 (default for a GGUF), which holds all of them exactly, in "
                             "f16 or bf16, where the summary says how many were rounded; or compressed-tensors, the "
                             "same codes in the layout that kvant writes",
                     .to = &options->to,
                     .choices = {"f32", "f16", "bf16", std::string(kCodes)}},
                    threads_option(options->threads),
                    {.name = "--resume", .help = "Continue an interrupted run", .to = &options->resume},
                    {.name = "--force", .help = "Replace an existing output", .to = &options->force},
                    json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
