#include "measure/verify.h"

#include <fmt/core.h>

#include <memory>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/terminal.h"
#include "io/file.h"
#include "io/json.h"

namespace kvant::cli {
namespace {

struct VerifyOptions {
  std::string path;
  bool json = false;
  int threads = 0;
};

constexpr const char* kVerifyExamples =
    "  kvant verify ./Llama-w8a8\n"
    "  kvant verify model.safetensors --json\n"
    "  kvant verify -q ./Llama-w8a8 && vllm serve ./Llama-w8a8";

int run(const VerifyOptions& options, const Request& request) {
  ProgressBar progress(request.quiet);
  const auto verification = measure::verify(options.path, options.threads, progress);
  progress.finish();
  if (!verification.ok()) return fail(verification.status());
  const int code = verification->problems.empty() ? kDone : kFailed;
  if (options.json) {
    print_json(io::Json{{"format", "kvant-verify-1"},
                        {"path", options.path},
                        {"ok", verification->problems.empty()},
                        {"quantized", verification->quantized},
                        {"checks", verification->checks},
                        {"not_checked", verification->not_checked},
                        {"problems", verification->problems}});
    return code;
  }
  const Terminal terminal = Terminal::of(1);
  if (!request.quiet)
    for (const std::string& check : verification->checks) print(fmt::format("checked  {}\n", check));
  if (!request.quiet)
    for (const std::string& what : verification->not_checked) print(fmt::format("not checked  {}\n", what));
  for (const std::string& problem : verification->problems)
    print(fmt::format("{}  {}\n", terminal.red("problem"), problem));
  const std::string shown = io::printable(options.path);
  if (code == kDone)
    print(fmt::format("{}: {}, {}\n", shown, terminal.green("no problems"),
                      verification->quantized ? "quantized" : "not quantized"));
  else
    print(fmt::format("{}: {}\n", shown, counted(verification->problems.size(), "problem")));
  return code;
}

}  // namespace

Command verify_command() {
  const auto options = std::make_shared<VerifyOptions>();
  return {
      .name = "verify",
      .description =
          "Check a checkpoint strictly. Every byte of a folder that kvant wrote, by its checksums; the rules of the "
          "format, the index against the shards, and of a quantized one all that a loader would trip over: scales, "
          "shapes, the ignore list, fused layers. Says what it did not check, too. Exit code 0 only if all that was "
          "checked holds.",
      .examples = kVerifyExamples,
      .arguments = {checkpoint_positional("PATH", options->path), threads_option(options->threads),
                    json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
