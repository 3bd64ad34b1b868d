#include "measure/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/decibels_argument.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/report/report_file.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "io/file.h"
#include "io/json.h"

namespace kvant::cli {
namespace {

struct CompareOptions {
  std::string original;
  std::vector<std::string> quantized;
  std::string stats, report, min_sqnr;
  bool json = false;
  int top = 0;
  int threads = 0;
  std::uint64_t max_memory = measure::CompareOptions().max_memory;
};

constexpr const char* kCompareExamples =
    "  kvant compare ./Llama ./Llama-w8a8\n"
    "  kvant compare ./Llama ./Llama-w8a8 --report loss.html\n"
    "  kvant compare ./Llama ./Llama-w8a8 ./Llama-w4a16 --top 10\n"
    "  kvant compare ./Llama ./Llama-w8a8 --json | jq '.quantized[0].layers[0]'";

std::string table_of(const measure::ModelLoss& loss, int top) {
  const auto any = [&](const auto& has) { return std::ranges::any_of(loss.layers, has); };
  const bool has_inputs = any([](const measure::LayerLoss& layer) { return layer.input_ratio.has_value(); });
  const bool has_outputs =
      any([](const measure::LayerLoss& layer) { return layer.estimated_output_sqnr_db.has_value(); });
  Table table({{"layer", Column::Align::left, true},
               {"shape", Column::Align::left, false, true},
               {"SQNR dB", Column::Align::right},
               {"MSE", Column::Align::right, false, true},
               {"cosine", Column::Align::right},
               {"largest error", Column::Align::right, false, true},
               {"at", Column::Align::left, false, true},
               {"at ends", Column::Align::right},
               {has_outputs ? "output dB" : "", Column::Align::right},
               {has_inputs ? "input range" : "", Column::Align::right, false, true},
               {""}});
  for (std::size_t i = 0; i < loss.layers.size(); ++i) {
    if (top > 0 && i >= static_cast<std::size_t>(top)) break;
    const measure::LayerLoss& layer = loss.layers[i];
    std::string remark = layer.smoothed ? "smoothed" : "";
    if (layer.non_finite > 0) remark += fmt::format("{}{} not finite", remark.empty() ? "" : ", ", layer.non_finite);
    table.add({io::printable(layer.module), fmt::format("[{}, {}]", layer.rows, layer.columns), decibels(layer.sqnr_db),
               fmt::format("{:.3g}", layer.mse), fmt::format("{:.6f}", layer.cosine),
               fmt::format("{:.3g}", layer.largest_error),
               fmt::format("[{}, {}]", layer.largest_row, layer.largest_column),
               fmt::format("{:.2f} %", 100 * layer.at_ends),
               layer.estimated_output_sqnr_db ? decibels(*layer.estimated_output_sqnr_db) : "",
               layer.input_ratio ? fmt::format("{:.3g}", *layer.input_ratio) : "", remark});
  }
  return table.text(Terminal::of(1));
}

// SQNR of every layer in every checkpoint.
std::string table_of(const measure::Comparison& comparison, const std::vector<measure::SideBySide>& layers, int top) {
  std::vector<Column> columns = {{"SQNR in dB", Column::Align::left, true}};
  for (const measure::ModelLoss& loss : comparison.quantized)
    columns.push_back({io::printable(loss.label), Column::Align::right});
  Table table(std::move(columns));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (top > 0 && i >= static_cast<std::size_t>(top)) break;
    std::vector<std::string> cells = {io::printable(layers[i].worst->module)};
    for (const measure::LayerLoss* const loss : layers[i].losses)
      cells.push_back(loss == nullptr ? "-" : decibels(loss->sqnr_db));
    table.add(std::move(cells));
  }
  return table.text(Terminal::of(1));
}

std::string left_out(std::size_t layers, int top) {
  if (top <= 0 || static_cast<std::size_t>(top) >= layers) return {};
  return fmt::format("… and {} that lost less\n", counted(layers - static_cast<std::size_t>(top), "layer"));
}

std::string totals(const measure::Comparison& comparison, const measure::ModelLoss& loss) {
  std::string text = "\n";
  if (comparison.quantized.size() > 1) text += io::printable(loss.label) + "\n";
  text += fmt::format("{}: {} quantized, {} not\n", loss.scheme, counted(loss.layers.size(), "layer"),
                      counted(loss.unquantized.size(), "linear"));
  const std::optional<double> mean = mean_sqnr_db(loss, measure::Judged::weights);
  if (!loss.layers.empty())
    text += fmt::format("SQNR  {}worst {} ({})\n", mean ? fmt::format("mean {:.2f} dB, ", *mean) : std::string(),
                        decibels_with_unit(loss.layers.front().sqnr_db), io::printable(loss.layers.front().module));
  text += fmt::format(
      "size  {} → {} ({:.1f} %)\n", byte_size(comparison.bytes), byte_size(loss.bytes),
      comparison.bytes == 0 ? 100.0 : 100.0 * static_cast<double>(loss.bytes) / static_cast<double>(comparison.bytes));
  for (const std::string& warning : measure::warnings_of(loss)) text += fmt::format("warning: {}\n", warning);
  return text;
}

void print_tables(const measure::Comparison& comparison, int top) {
  const std::vector<measure::SideBySide> layers = side_by_side(comparison);
  print(comparison.quantized.size() == 1 ? table_of(comparison.quantized.front(), top)
                                         : table_of(comparison, layers, top));
  print(left_out(layers.size(), top));
  for (const measure::ModelLoss& loss : comparison.quantized) print(totals(comparison, loss));
  for (const std::string& warning : comparison.warnings) print(fmt::format("warning: {}\n", warning));
}

// Of the checkpoints with layers below the bound; empty: there are none. NaN is below every bound.
std::string below(const measure::Comparison& comparison, double bound) {
  const measure::Judged by = judged_by(comparison);
  std::string text;
  for (const measure::ModelLoss& loss : comparison.quantized) {
    std::size_t known = 0, count = 0;
    const measure::LayerLoss* worst = nullptr;
    for (const measure::LayerLoss& layer : loss.layers) {
      const std::optional<double> db = sqnr_db_of(layer, by);
      known += db ? 1 : 0;
      if (!db || *db >= bound) continue;
      ++count;
      if (worst == nullptr || is_before(layer, *worst, by)) worst = &layer;
    }
    if (worst == nullptr) continue;
    text += fmt::format("{}{}: {} of {} are below {:g} dB by their {}, the worst is '{}' with {}",
                        text.empty() ? "" : "; ", io::printable(loss.label), count, counted(known, "layer"), bound,
                        by == measure::Judged::weights ? "weights" : "outputs", io::printable(worst->module),
                        decibels_with_unit(*sqnr_db_of(*worst, by)));
  }
  return text;
}

int run(const CompareOptions& options, const Request& request) {
  if (!options.report.empty())
    if (const Status s = check_report_path(options.report); !s.ok()) return fail(s);
  measure::CompareOptions recipe{.original = options.original,
                                 .quantized = {options.quantized.begin(), options.quantized.end()},
                                 .details = options.json || !options.report.empty(),
                                 .threads = options.threads,
                                 .max_memory = options.max_memory};
  if (!options.stats.empty()) recipe.stats = options.stats;
  ProgressBar progress(request.quiet);
  const auto comparison = measure::compare(recipe, progress);
  progress.finish();
  if (!comparison.ok()) return fail(comparison.status());
  const ReportFacts facts{request.command, {}};
  if (options.json)
    print_json(comparison_json(*comparison, facts));
  else
    print_tables(*comparison, options.top);
  if (!options.report.empty()) {
    if (const Status s = write_report(options.report, *comparison, facts); !s.ok()) return fail(s);
    if (!options.json) print(fmt::format("\nreport  {}\n", io::printable(options.report)));
  }
  const std::string too_low =
      options.min_sqnr.empty() ? std::string() : below(*comparison, *decibels_in(options.min_sqnr));
  if (options.json) return too_low.empty() ? kDone : fail(too_low);
  if (request.verbose)
    for (const measure::ModelLoss& loss : comparison->quantized)
      for (const std::string& module : loss.unquantized)
        tell(fmt::format("not quantized{}: {}",
                         comparison->quantized.size() > 1 ? " in " + io::printable(loss.label) : std::string(),
                         io::printable(module)));
  return too_low.empty() ? kDone : fail(too_low);
}

}  // namespace

Command compare_command() {
  const auto options = std::make_shared<CompareOptions>();
  return {
      .name = "compare",
      .description =
          "Show what each layer lost. SQNR (signal to quantization noise, higher is better), mean squared error, "
          "cosine, "
          "largest error and the share of codes at the ends of their range; the worst layer first.",
      .examples = kCompareExamples,
      .arguments =
          {{.name = "ORIGINAL",
            .help = "The checkpoint before quantizing",
            .to = &options->original,
            .required = true,
            .is_path = true},
           {.name = "QUANTIZED",
            .help = "What kvant quantize made of it; several are shown side by side",
            .to = &options->quantized,
            .required = true,
            .is_path = true},
           report_option(options->report, "Write an HTML page that shows what each layer lost"),
           {.name = "--stats",
            .placeholder = "FILE",
            .help = "Activation statistics: an estimate of what each layer's output loses, by which the report judges "
                    "them; it shows ranges of the inputs before and after smoothing",
            .to = &options->stats,
            .is_path = true},
           {.name = "--min-sqnr",
            .placeholder = "DB",
            .help = "End with exit code 1 if a layer has less, by its output where --stats estimates it, else by its "
                    "weights",
            .to = &options->min_sqnr,
            .check = decibels_problem},
           {.name = "--top",
            .placeholder = "N",
            .help = "Print only the N worst layers (of the table, not of --json)",
            .to = Count{&options->top, 1}},
           threads_option(options->threads),
           max_memory_option(options->max_memory),
           json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
