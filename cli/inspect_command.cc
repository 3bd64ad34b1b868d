#include "base/text.h"
#include "measure/inspect.h"

#include <fmt/core.h>

#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/inspect_gguf.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "io/file.h"
#include "io/gguf.h"

namespace kvant::cli {
namespace {

struct InspectOptions {
  std::string path;
  bool stats = false, json = false;
  int threads = 0;
  std::uint64_t max_memory = measure::InspectOptions().max_memory;
};

constexpr const char* kInspectExamples =
    "  kvant inspect ./Llama\n"
    "  kvant inspect model.safetensors --stats      # ranges, outlier channels, NaN and infinities\n"
    "  kvant inspect ./Llama --json | jq '.tensors[].name'\n"
    "  kvant inspect model.gguf";

std::string channels(const std::vector<std::uint64_t>& outliers) {
  if (outliers.empty()) return "-";
  constexpr std::size_t kShown = 4;
  std::string text = fmt::format("{}: ", outliers.size());
  for (std::size_t i = 0; i < outliers.size() && i < kShown; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : " ", outliers[i]);
  return outliers.size() > kShown ? text + " …" : text;
}

std::string table_of(const measure::Inspection& inspection, bool stats) {
  std::set<std::string> shards;
  for (const measure::InspectedTensor& tensor : inspection.tensors) shards.insert(tensor.shard);
  std::vector<Column> columns = {{"tensor", Column::Align::left, true},
                                 {"dtype"},
                                 {"shape"},
                                 {"size", Column::Align::right},
                                 {"role", Column::Align::left, false, true}};
  if (stats)
    for (const char* const title : {"min", "max", "rms", "zeros", "NaN", "infinite"})
      columns.push_back({title, Column::Align::right, false, std::string_view(title) == "zeros"});
  if (stats) columns.push_back({"outlier channels"});
  if (shards.size() > 1) columns.push_back({"shard", Column::Align::left, true, true});
  Table table(std::move(columns));
  for (const measure::InspectedTensor& tensor : inspection.tensors) {
    std::vector<std::string> cells = {io::printable(tensor.info.name), std::string(io::name(tensor.info.dtype)),
                                      base::bracketed(tensor.info.shape), byte_size(tensor.info.bytes()),
                                      std::string(model::name(tensor.judgement.role))};
    if (stats && tensor.stats) {
      const measure::ValueStats& s = *tensor.stats;
      for (const double value : {s.min, s.max, s.rms}) cells.push_back(fmt::format("{:.4g}", value));
      for (const std::uint64_t number : {s.zeros, s.nan, s.infinite}) cells.push_back(fmt::format("{}", number));
      cells.push_back(tensor.info.shape.size() == 2 ? channels(s.outlier_channels) : "");
    } else if (stats) {
      cells.insert(cells.end(), 7, "");
    }
    if (shards.size() > 1) cells.push_back(io::printable(tensor.shard));
    table.add(std::move(cells));
  }
  return table.text(Terminal::of(1));
}

std::string totals(const measure::Inspection& inspection) {
  std::string text = fmt::format("\n{}: {}, {}", io::printable(inspection.path.string()),
                                 counted(inspection.tensors.size(), "tensor"), byte_size(inspection.bytes));
  if (!inspection.model_type.empty()) text += fmt::format(", a {} model", io::printable(inspection.model_type));
  text += inspection.scheme.empty() ? ", not quantized\n"
                                    : fmt::format(", quantized as {}\n", io::printable(inspection.scheme));
  std::uint64_t nan = 0, infinite = 0;
  for (const measure::InspectedTensor& tensor : inspection.tensors)
    if (tensor.stats) {
      nan += tensor.stats->nan;
      infinite += tensor.stats->infinite;
    }
  if (nan + infinite > 0) text += fmt::format("not finite: {} NaN, {} infinite\n", nan, infinite);
  for (const auto& [shard, metadata] : inspection.metadata) {
    if (metadata.empty()) continue;
    text += fmt::format("metadata of {}:\n", io::printable(shard));
    for (const auto& [key, value] : metadata)
      text += fmt::format("  {} = {}\n", io::printable(key), io::printable(value));
  }
  return text;
}

int run(const InspectOptions& options, const Request& request) {
  if (io::is_gguf(options.path)) {
    if (options.stats)
      return fail(fmt::format("{}: --stats reads safetensors; convert it first with 'kvant convert'",
                              io::printable(options.path)));
    return inspect_gguf(options.path, options.json);
  }
  ProgressBar progress(request.quiet || !options.stats);
  const auto inspection = measure::inspect(
      {.path = options.path, .stats = options.stats, .threads = options.threads, .max_memory = options.max_memory},
      progress);
  progress.finish();
  if (!inspection.ok()) return fail(inspection.status());
  if (options.json) {
    measure::write_json(*inspection, print);
    return kDone;
  }
  print(table_of(*inspection, options.stats));
  print(totals(*inspection));
  return kDone;
}

}  // namespace

Command inspect_command() {
  const auto options = std::make_shared<InspectOptions>();
  Argument path = checkpoint_positional("PATH", options->path);
  path.help = "The checkpoint: a folder, one .safetensors file, or one .gguf file";
  return {
      .name = "inspect",
      .description =
          "Show what is in a checkpoint. Its tensors with dtypes, shapes, sizes and roles, and its metadata.",
      .examples = kInspectExamples,
      .arguments = {path,
                    {.name = "--stats",
                     .help = "Read all values: range, root mean square, zeros, outlier channels, NaN and infinities",
                     .to = &options->stats},
                    threads_option(options->threads),
                    max_memory_option(options->max_memory),
                    json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
