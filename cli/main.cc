// kvant: quantizes checkpoints, and says what became of them.
#include <fcntl.h>
#include <fmt/core.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/sizes.h"
#include "cli/smooth_argument.h"
#include "io/file.h"
#include "kvant/version.h"

namespace {

using namespace kvant::cli;

// A file that is opened must not become standard output because that was closed.
void occupy_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) != -1) continue;
    // Writing to it fails, and is reported as it should be.
    const int opened = open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY);
    if (opened != descriptor && opened >= 0) close(opened);
  }
}

Program kvant_program(Request& request) {
  return {
      .name = "kvant",
      .version = "kvant " KVANT_VERSION,
      .description = "Quantizes safetensors checkpoints into ones that vLLM and transformers load.",
      .footer =
          "Examples:\n"
          "  kvant demo                                     # see what it does, on a small language model\n"
          "  kvant quantize ./Llama -o ./Llama-w8a8         # 8-bit weights and activations\n"
          "  kvant compare ./Llama ./Llama-w8a8             # what each layer lost\n"
          "  kvant eval ./Llama ./Llama-w8a8 --text t.txt   # what the model lost\n"
          "\n"
          "More: 'kvant help COMMAND' and 'man kvant'.",
      .options = {{.name = "--quiet", .letter = "-q", .help = "Print only results and errors", .to = &request.quiet},
                  {.name = "--verbose",
                   .letter = "-v",
                   .help = "Print more: every tensor, time and peak memory",
                   .to = &request.verbose}},
      .commands = {quantize_command(), calibrate_command(), stats_command(), eval_command(), convert_command(),
                   inspect_command(), compare_command(), verify_command(), demo_command(), info_command(),
                   bench_command()}};
}

int run(int argc, char** argv) {
  Request request;
  Program program = kvant_program(request);
  program.commands.push_back(completion_command(program));
  program.commands.push_back(help_command(program));
  request.command = program.name;
  for (int i = 1; i < argc; ++i) request.command += " " + shell_word(argv[i]);
  const auto [command, exit_code] = parse(program, join_smooth_argument({argv + std::min(argc, 1), argv + argc}));
  if (command == nullptr) return exit_code;
  const auto begin = std::chrono::steady_clock::now();
  const int code = command->run(request);
  if (request.verbose) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    tell(fmt::format("took {}, peak memory {}", duration(seconds),
                     byte_size(static_cast<std::uint64_t>(usage.ru_maxrss) * 1024)));
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  // What is large goes back to the system when it is freed, so that --max-memory holds: left to itself, glibc keeps
  // blocks of up to 32 MiB for later, in pieces.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  occupy_standard_streams();
  signal(SIGXFSZ, SIG_IGN);  // so that the limit on file sizes is an error with a sentence
  signal(SIGPIPE, SIG_IGN);  // so that a reader who went away does not stop a job that writes files
  int code = kFailed;
  try {
    code = run(argc, argv);
  } catch (const std::bad_alloc&) {
    code = fail("out of memory; a smaller --max-memory or fewer --threads may help");
  } catch (const std::exception& error) {
    code = fail(kvant::io::printable(error.what()));
  } catch (...) {
    code = fail("unknown exception");
  }
  return flush_results(code);
}
