#include <fmt/core.h>

#include <memory>
#include <utility>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "io/file.h"
#include "io/json.h"
#include "measure/merge_statistics.h"
#include "measure/statistics_summary.h"
#include "model/gguf_network.h"
#include "model/imatrix.h"

namespace kvant::cli {
namespace {

struct StatsOptions {
  std::string action;
  std::vector<std::string> files;
  std::string output, model_type;
  bool force = false, json = false;
};

constexpr const char* kStatsExamples =
    "  kvant stats show stats.safetensors\n"
    "  kvant stats merge news.safetensors code.safetensors -o stats.safetensors\n"
    "  kvant stats merge imatrix.gguf -o stats.safetensors    # an imatrix as statistics";

// What is wrong with the line; empty: nothing.
std::string misuse(const StatsOptions& options) {
  if (options.action == "merge") return options.output.empty() ? "merge needs --output FILE" : "";
  if (options.files.size() != 1) return fmt::format("show takes one file, not {}", options.files.size());
  if (!options.output.empty() || options.force) return "show writes nothing: --output and --force are of merge";
  return {};
}

// Of both documents: what is in one tells it from the other.
constexpr const char* kFormat = "kvant-stats-1";

int merge(const StatsOptions& options, const Request& request) {
  ProgressBar progress(request.quiet);
  const auto merged = measure::merge_statistics({.inputs = {options.files.begin(), options.files.end()},
                                                 .model_type = options.model_type,
                                                 .output = options.output,
                                                 .overwrite = options.force},
                                                progress);
  progress.finish();
  if (!merged.ok()) return fail(merged.status());
  if (options.json) {
    print_json(io::Json{{"format", kFormat},
                        {"output", io::json_name(options.output)},
                        {"files", options.files.size()},
                        {"modules", merged->modules},
                        {"modules_of_all_files", merged->shared},
                        {"warnings", merged->warnings}});
    return kDone;
  }
  const Terminal terminal = Terminal::of(2);
  for (const std::string& warning : merged->warnings) tell(fmt::format("{} {}", terminal.yellow("warning:"), warning));
  print(fmt::format("{}: statistics of {} from {}\n", io::printable(options.output), counted(merged->modules, "module"),
                    counted(options.files.size(), "file")));
  return kDone;
}

template <class T>
io::Json json_or_null(const std::optional<T>& value) {
  return value ? io::Json(*value) : io::Json();
}

io::Json json_of(const measure::InputSummary& input) {
  return {{"module", input.module},
          {"channels", json_or_null(input.channels)},
          {"rows", json_or_null(input.rows)},
          {"absmax", json_or_null(input.absmax)},
          {"mean_square", json_or_null(input.mean_square)},
          {"histogram", input.histogram},
          {"hessian", input.hessian},
          {"same_input_as", input.same_input_as.empty() ? io::Json() : io::Json(input.same_input_as)}};
}

int show(const StatsOptions& options) {
  const std::string& file = options.files.front();
  const auto stats = model::open_statistics(file, options.model_type);
  if (!stats.ok()) return fail(stats.status());
  const auto summary = measure::summarize(*stats);
  if (!summary.ok()) return fail(summary.status());
  if (options.json) {
    io::Json document = {{"format", kFormat},
                         {"file", io::json_name(file)},
                         {"metadata", stats->metadata()},
                         {"modules", io::Json::array()},
                         {"keys_and_values", io::Json::array()}};
    for (const measure::CacheSummary& cache : summary->caches)
      document["keys_and_values"].push_back({{"attention", cache.attention},
                                             {"keys_absmax", json_or_null(cache.keys_absmax)},
                                             {"values_absmax", json_or_null(cache.values_absmax)}});
    for (const measure::InputSummary& input : summary->inputs) document["modules"].push_back(json_of(input));
    print_json(document);
    return kDone;
  }
  Table table({{"module", Column::Align::left, true},
               {"channels", Column::Align::right},
               {"rows", Column::Align::right},
               {"absmax", Column::Align::right},
               {"E[x²]", Column::Align::right},
               {"also", Column::Align::left, false, true}});
  const auto number = [](const std::optional<double>& value) { return value ? fmt::format("{:.4g}", *value) : "-"; };
  for (const measure::InputSummary& input : summary->inputs) {
    std::vector<std::string_view> also;
    if (input.histogram) also.emplace_back("histogram");
    if (input.hessian) also.emplace_back("Hessian");
    table.add({io::printable(input.module), input.channels ? fmt::format("{}", *input.channels) : "-",
               input.rows ? fmt::format("{}", *input.rows) : "-", number(input.absmax), number(input.mean_square),
               base::joined(also, ", ")});
  }
  print(table.text(Terminal::of(1)));
  if (!summary->caches.empty()) {
    Table caches({{"attention", Column::Align::left, true},
                  {"absmax of keys", Column::Align::right},
                  {"of values", Column::Align::right}});
    for (const measure::CacheSummary& cache : summary->caches)
      caches.add({io::printable(cache.attention), number(cache.keys_absmax), number(cache.values_absmax)});
    print("\n" + caches.text(Terminal::of(1)));
  }
  const auto tokens = stats->metadata().find("tokens");
  print(fmt::format(
      "\n{}: statistics of {}{}\n", io::printable(file), counted(summary->inputs.size(), "module"),
      tokens == stats->metadata().end() ? "" : fmt::format(" from {} tokens", io::printable(tokens->second))));
  return kDone;
}

int run(const StatsOptions& options, const Request& request) {
  if (const std::string wrong = misuse(options); !wrong.empty()) {
    fail(fmt::format("{}; try 'kvant stats --help'", wrong));
    return kUsage;
  }
  return options.action == "merge" ? merge(options, request) : show(options);
}

}  // namespace

Command stats_command() {
  const auto options = std::make_shared<StatsOptions>();
  return {
      .name = "stats",
      .description =
          "Merge statistics of activations, or show them. Statistics of several texts become those of all of them: max "
          "and min, means weighted by rows, sums of counts, histograms and Hessians. Files are those of kvant "
          "calibrate, "
          "or an imatrix of llama.cpp in GGUF.",
      .examples = kStatsExamples,
      .arguments = {{.name = "ACTION",
                     .help = "merge files into one, or show one as a table",
                     .to = &options->action,
                     .required = true,
                     .choices = {"merge", "show"}},
                    {.name = "FILE",
                     .help = "The statistics; of merge several, all of the same model",
                     .to = &options->files,
                     .required = true,
                     .is_path = true},
                    {.name = "--output",
                     .letter = "-o",
                     .placeholder = "FILE",
                     .help = "What merge writes, a safetensors file",
                     .to = &options->output,
                     .is_path = true},
                    {.name = "--model-type",
                     .help = "Whose names the experts of an imatrix get: model_type of config.json",
                     .to = &options->model_type,
                     .choices = model::model_types_with_experts()},
                    {.name = "--force", .help = "Overwrite the output if it exists", .to = &options->force},
                    json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
