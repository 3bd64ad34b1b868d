#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/table.h"
#include "core/device_kernel.h"
#include "cpu/features.h"
#include "format/scheme.h"
#include "io/file.h"
#include "io/json.h"
#include "kvant/stream.h"
#include "kvant/version.h"
#include "ops/preference.h"
#include "ops/registry.h"

namespace kvant::cli {
namespace {

struct Options {
  bool json = false;
};

constexpr const char* kExamples =
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

struct Family {
  std::string_view name;
  std::size_t kernels = 0;
};

template <class Kernels>
std::size_t count(const Kernels& kernels, ArchSku arch) {
  std::size_t number = 0;
  for (const auto* const kernel : kernels) number += kernel->sku.arch == arch ? 1 : 0;
  return number;
}

std::vector<Family> families(ArchSku arch) {
  return {{"element-wise", count(ops::elementwise_kernels(), arch)},
          {"range", count(ops::range_kernels(), arch)},
          {"dynamic range", count(ops::dynamic_range_kernels(), arch)},
          {"linear", count(ops::linear_kernels(), arch)},
          {"f32 linear", count(ops::f32_linear_kernels(), arch)}};
}

// Whether a plan for a GPU can be had, or CUDA's reason why not.
std::string cuda_text() {
  if (!cuda::is_built()) return "CUDA is not in this build";
  const Status status = Stream::cuda(nullptr).status();
  return status.ok() ? "CUDA" : fmt::format("CUDA is in this build, but {}", status.message());
}

int run(const Options& options, const Request& /*request*/) {
  const Stream stream = Stream::cpu();
  const auto requested = ops::target_of("info", stream, {});
  // The one that select() takes: what was asked for, or the best that runs. Empty: what was asked for cannot be had.
  std::string_view chosen;
  if (requested.ok() && requested->isa) {
    chosen = name(*requested->isa);
  } else if (requested.ok()) {
    for (const ArchSku arch : cpu::compiled_isas())
      if (chosen.empty() && cpu::can_run(arch)) chosen = name(arch);
  }
  const char* const forced = std::getenv("KVANT_FORCE_ISA");
  const std::string force = forced == nullptr ? "" : forced;

  if (options.json) {
    io::Json sets = io::Json::array();
    for (const ArchSku arch : cpu::compiled_isas()) {
      io::Json kernels = io::Json::object();
      for (const Family& family : families(arch)) kernels[std::string(family.name)] = family.kernels;
      sets.push_back({{"name", name(arch)},
                      {"runs_here", cpu::can_run(arch)},
                      {"chosen", chosen == name(arch)},
                      {"kernels", kernels}});
    }
    io::Json schemes = io::Json::array();
    for (const auto kind : {format::SchemeKind::w8a8, format::SchemeKind::w8a8_static, format::SchemeKind::w4a16})
      schemes.push_back(format::name(kind));
    print_json(io::Json{{"version", version()},
                        {"compiler", compiler()},
                        {"backends", {{"cpu", true}, {"cuda", cuda::is_built()}}},
                        {"instruction_sets", sets},
                        {"force_isa", force.empty() ? io::Json() : io::Json(force)},
                        {"threads", stream.threads()},
                        {"schemes", schemes}});
  } else {
    std::string text = fmt::format("kvant {}, built with {}\n", version(), compiler());
    text += fmt::format("backends         CPU; {}\n", cuda_text());
    text += fmt::format("threads          {}\n", stream.threads());
    text += fmt::format("instruction set  {}{}\n", chosen.empty() ? "none" : chosen,
                        force.empty() ? " (KVANT_FORCE_ISA can force another)"
                                      : fmt::format(" (KVANT_FORCE_ISA={})", io::printable(force)));
    text += "schemes          w8a8, w8a8-static, w4a16\n\n";
    std::vector<Column> columns = {{"kernels"}, {"here"}};
    for (const Family& family : families(ArchSku::scalar))
      columns.push_back({std::string(family.name), Column::Align::right});
    Table table(std::move(columns));
    for (const ArchSku arch : cpu::compiled_isas()) {
      std::vector<std::string> cells = {std::string(name(arch)), !cpu::can_run(arch)    ? "cannot run"
                                                                 : chosen == name(arch) ? "chosen"
                                                                                        : "runs"};
      for (const Family& family : families(arch)) cells.push_back(fmt::format("{}", family.kernels));
      table.add(std::move(cells));
    }
    print(text + table.text(Terminal::of(1)));
  }
  return requested.ok() ? kDone : fail(requested.status());
}

}  // namespace

void add_info_command(CLI::App& app, Request& request) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *add_command<Options>(
      app, request, "info",
      "Say what this build and this machine can do. Version, compiler, backends, threads, and the kernels of each "
      "instruction set.",
      kExamples, run, options);
  add_json(command, options->json);
}

}  // namespace kvant::cli
