#include <fmt/core.h>

#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/scheme_help.h"
#include "cli/table.h"
#include "io/file.h"
#include "io/json.h"
#include "kvant/build_info.h"
#include "kvant/stream.h"
#include "kvant/version.h"

namespace kvant::cli {
namespace {

struct InfoOptions {
  bool json = false;
};

constexpr const char* kInfoExamples =
    "  kvant info\n"
    "  kvant info --json\n"
    "  KVANT_FORCE_ISA=scalar kvant info";

std::string compiler() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

// Whether a plan for a GPU can be had, or CUDA's reason why not.
std::string cuda_text(const BuildInfo& build) {
  if (!build.has_cuda) return "CUDA is not in this build";
  const Status status = Stream::cuda(nullptr).status();
  return status.ok() ? "CUDA" : fmt::format("CUDA is in this build, but {}", status.message());
}

int run(const InfoOptions& options, const Request& /*request*/) {
  const Stream stream = Stream::cpu();
  const BuildInfo build = build_info();
  // The one that select() takes. Empty: what was asked for cannot be had.
  const auto requested = default_isa();
  const std::string_view chosen = requested.ok() ? name(*requested) : std::string_view();
  const char* const forced = std::getenv("KVANT_FORCE_ISA");
  const std::string force = forced == nullptr ? "" : forced;

  if (options.json) {
    io::Json sets = io::Json::array();
    for (const BuildInfo::InstructionSet& set : build.instruction_sets) {
      io::Json kernels = io::Json::object();
      for (const BuildInfo::Family& family : set.families) kernels[std::string(family.name)] = family.kernels;
      sets.push_back({{"name", name(set.arch)},
                      {"runs_here", set.runs_here},
                      {"chosen", chosen == name(set.arch)},
                      {"kernels", kernels}});
    }
    io::Json schemes = io::Json::array();
    for (const std::string& scheme : scheme_names()) schemes.push_back(scheme);
    print_json(io::Json{{"format", "kvant-info-1"},
                        {"version", version()},
                        {"compiler", compiler()},
                        {"backends", {{"cpu", true}, {"cuda", build.has_cuda}}},
                        {"instruction_sets", sets},
                        {"force_isa", force.empty() ? io::Json() : io::Json(force)},
                        {"threads", stream.threads()},
                        {"schemes", schemes}});
  } else {
    std::string text = fmt::format("kvant {}, built with {}\n", version(), compiler());
    text += fmt::format("backends         CPU; {}\n", cuda_text(build));
    text += fmt::format("threads          {}\n", stream.threads());
    text += fmt::format("instruction set  {}{}\n", chosen.empty() ? "none" : chosen,
                        force.empty() ? " (KVANT_FORCE_ISA can force another)"
                                      : fmt::format(" (KVANT_FORCE_ISA={})", io::printable(force)));
    text += fmt::format("schemes          {}\n\n", base::joined(scheme_names(), ", "));
    std::vector<Column> columns = {{"kernels"}, {"here"}};
    for (const BuildInfo::Family& family : build.instruction_sets.front().families)
      columns.push_back({std::string(family.name), Column::Align::right});
    Table table(columns);
    for (const BuildInfo::InstructionSet& set : build.instruction_sets) {
      std::vector<std::string> cells = {std::string(name(set.arch)), !set.runs_here             ? "cannot run"
                                                                     : chosen == name(set.arch) ? "chosen"
                                                                                                : "runs"};
      for (const BuildInfo::Family& family : set.families) cells.push_back(fmt::format("{}", family.kernels));
      table.add(std::move(cells));
    }
    print(text + table.text(Terminal::of(1)));
  }
  return requested.ok() ? kDone : fail(requested.status());
}

}  // namespace

Command info_command() {
  const auto options = std::make_shared<InfoOptions>();
  return {
      .name = "info",
      .description =
          "Show what this build and this machine can do. Version, compiler, backends, threads, and the kernels of each "
          "instruction set.",
      .examples = kInfoExamples,
      .arguments = {json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
