#include "recipes/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/commands.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "io/file.h"

namespace kvant::cli {
namespace {

struct Options {
  std::string original, quantized;
  bool json = false;
  int top = 0;
  int threads = 0;
  std::uint64_t max_memory = recipes::CompareOptions().max_memory;
};

constexpr const char* kExamples =
    "  kvant compare ./Llama ./Llama-w8a8\n"
    "  kvant compare ./Llama ./Llama-w4a16 --top 10\n"
    "  kvant compare ./Llama ./Llama-w8a8 --json | jq '.layers[0]'";

std::string decibels(double db) { return std::isinf(db) && db > 0 ? "exact" : fmt::format("{:.2f}", db); }

std::string table_of(const recipes::Comparison& comparison, int top) {
  Table table({{"layer", Column::Align::left, true},
               {"shape", Column::Align::left, false, true},
               {"SQNR dB", Column::Align::right},
               {"MSE", Column::Align::right, false, true},
               {"cosine", Column::Align::right},
               {"largest error", Column::Align::right, false, true},
               {"at", Column::Align::left, false, true},
               {"at ends", Column::Align::right},
               {""}});
  for (std::size_t i = 0; i < comparison.layers.size(); ++i) {
    if (top > 0 && i >= static_cast<std::size_t>(top)) break;
    const recipes::LayerLoss& layer = comparison.layers[i];
    std::string remark = layer.smoothed ? "smoothed" : "";
    if (layer.non_finite > 0) remark += fmt::format("{}{} not finite", remark.empty() ? "" : ", ", layer.non_finite);
    table.add({io::printable(layer.module), fmt::format("[{}, {}]", layer.rows, layer.columns), decibels(layer.sqnr_db),
               fmt::format("{:.3g}", layer.mse), fmt::format("{:.6f}", layer.cosine),
               fmt::format("{:.3g}", layer.largest_error),
               fmt::format("[{}, {}]", layer.largest_row, layer.largest_column),
               fmt::format("{:.2f} %", 100 * layer.at_ends), remark});
  }
  return table.text(Terminal::of(1));
}

std::string totals(const recipes::Comparison& comparison, int top) {
  std::string text;
  if (top > 0 && static_cast<std::size_t>(top) < comparison.layers.size())
    text += fmt::format("… and {} that lost less\n",
                        counted(comparison.layers.size() - static_cast<std::size_t>(top), "layer"));
  text += fmt::format("\n{}: {} quantized, {} not\n", recipes::name(comparison.scheme.kind),
                      counted(comparison.layers.size(), "layer"), counted(comparison.unquantized.size(), "linear"));
  if (!comparison.layers.empty())
    text += fmt::format("SQNR  mean {:.2f} dB, worst {} dB ({})\n", comparison.mean_sqnr_db,
                        decibels(comparison.layers.front().sqnr_db), io::printable(comparison.layers.front().module));
  text += fmt::format(
      "size  {} → {} ({:.1f} %)\n", file_size(comparison.bytes_original), file_size(comparison.bytes_quantized),
      comparison.bytes_original == 0
          ? 100.0
          : 100.0 * static_cast<double>(comparison.bytes_quantized) / static_cast<double>(comparison.bytes_original));
  return text;
}

int run(const Options& options, const Request& request) {
  ProgressBar progress(request.quiet);
  const auto comparison = recipes::compare({.original = options.original,
                                            .quantized = options.quantized,
                                            .threads = options.threads,
                                            .max_memory = options.max_memory},
                                           progress);
  progress.finish();
  if (!comparison.ok()) return fail(comparison.status());
  if (options.json) {
    print_json(recipes::to_json(*comparison));
    return kDone;
  }
  print(table_of(*comparison, options.top));
  print(totals(*comparison, options.top));
  if (request.verbose)
    for (const std::string& module : comparison->unquantized) tell("left as it was: " + io::printable(module));
  return kDone;
}

}  // namespace

void add_compare_command(CLI::App& app, Request& request) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *add_command<Options>(
      app, request, "compare",
      "Show what each layer lost. SQNR (signal to quantization noise, higher is better), mean squared error, cosine, "
      "largest error and the share of codes at the ends of their range; the worst layer first.",
      kExamples, run, options);
  add_text(command, "ORIGINAL", options->original, "PATH", "The checkpoint before quantizing")->required();
  add_text(command, "QUANTIZED", options->quantized, "PATH", "What kvant quantize made of it")->required();
  add_count(command, "--top", options->top, 1, "N", "Print only the N worst layers (of the table, not of --json)");
  add_threads(command, options->threads);
  add_max_memory(command, options->max_memory);
  add_json(command, options->json);
}

}  // namespace kvant::cli
