// kvant: quantizes checkpoints, and says what became of them.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <string_view>
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

// How many letters differ; two that changed places count as one.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

// "; did you mean '--scheme'?", or nothing.
std::string guess(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > 40) return {};
  const std::string* best = nullptr;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // The start of a longer word is as good as a word with a letter wrong.
    const std::size_t far = candidate.starts_with(word) && word.size() > 3 ? 1 : distance(word, candidate);
    if (far < least) {
      least = far;
      best = &candidate;
    }
  }
  return best == nullptr ? std::string() : fmt::format("; did you mean '{}'?", *best);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : listed_options(app, false)) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

int usage_error(const CLI::App& app, std::string_view sentence) {
  const std::string command = app.get_parent() == nullptr ? "kvant" : "kvant " + app.get_name();
  fail(fmt::format("{}{} try '{} --help'", sentence, sentence.ends_with('?') ? "" : ";", command));
  return kUsage;
}

// A sentence for what CLI11 found wrong.
std::string sentence_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  if (error.get_name() == "ArgumentMismatch") {
    const std::string option = text.substr(0, text.find_first_of(": "));
    if (text.ends_with("missing")) return option + " needs a value";
    if (text.find("received") != std::string::npos) return option + " is given more than once";
    if (text.find("flag override") != std::string::npos) return option + " takes no value";
  }
  if (error.get_name() == "RequiredError") return text.substr(0, text.find(" is required")) + " is missing";
  return text;
}

int explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto selected = app.get_subcommands();
  const CLI::App& command = selected.empty() ? app : *selected.front();
  // What nobody understood explains more than what is missing because of it.
  for (const CLI::App* const part : {&app, &command})
    for (const std::string& word : part->remaining()) {
      if (word == "--") continue;
      const std::string shown = kvant::io::printable(word);
      if (word.starts_with('-') && word.size() > 1)
        return usage_error(command, fmt::format("unknown option '{}'{}", shown,
                                                guess(word.substr(0, word.find('=')), option_names(command))));
      if (selected.empty()) {
        std::vector<std::string> names;
        for (const CLI::App* const known : app.get_subcommands([](const CLI::App*) { return true; }))
          names.push_back(known->get_name());
        return usage_error(app, fmt::format("unknown command '{}'{}", shown, guess(word, names)));
      }
      return usage_error(command, fmt::format("'{}' is one argument too many", shown));
    }
  return usage_error(command, sentence_of(error));
}

void build(CLI::App& app, Request& request) {
  app.name("kvant");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this help");
  app.set_version_flag("--version", "kvant " KVANT_VERSION, "Print the version");
  add_loudness(app, request);
  app.require_subcommand(1, 1);
  app.footer(
      "Examples:\n"
      "  kvant demo                                     # see what it does, on a generated model\n"
      "  kvant quantize ./Llama -o ./Llama-w8a8         # 8-bit weights and activations\n"
      "  kvant compare ./Llama ./Llama-w8a8             # what each layer lost\n"
      "\n"
      "'kvant COMMAND --help' says more, and so does 'man kvant'.");
  add_quantize_command(app, request);
  add_inspect_command(app, request);
  add_compare_command(app, request);
  add_verify_command(app, request);
  add_demo_command(app, request);
  add_info_command(app, request);
  add_bench_command(app, request);
  add_completion_command(app, request);
}

int run(int argc, char** argv) {
  CLI::App app("Quantizes safetensors checkpoints into ones that vLLM and transformers load.");
  Request request;
  build(app, request);
  request.command = "kvant";
  for (int i = 1; i < argc; ++i) request.command += " " + shell_word(argv[i]);
  std::vector<std::string> words = join_smooth_argument({argv + std::min(argc, 1), argv + argc});
  if (words.empty()) {
    tell(app.help());
    return kUsage;
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    print(fmt::format("{}\n", version.what()));
    return kDone;
  } catch (const CLI::ParseError& error) {
    return explain(app, error);
  }
  const auto begin = std::chrono::steady_clock::now();
  const int code = request.run();
  if (request.verbose) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    tell(fmt::format("took {}, peak memory {}", duration(seconds),
                     memory_size(static_cast<std::uint64_t>(usage.ru_maxrss) * 1024)));
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
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
    code = fail("an exception that is none of the standard library's");
  }
  return flush_results(code);
}
