#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/demo_folder.h"
#include "cli/evaluation_table.h"
#include "cli/linear_timing.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/report/evaluation_page.h"
#include "cli/report/report_file.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "cli/text_argument.h"
#include "io/file.h"
#include "io/json.h"
#include "kvant/stream.h"
#include "measure/calibrate.h"
#include "measure/compare.h"
#include "measure/evaluate.h"
#include "measure/output_losses.h"
#include "model/layer_kind.h"
#include "quantize/quantize_checkpoint.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

struct DemoOptions {
  std::string output = "kvant-demo";
  std::string report;  // empty: the folder's own
  bool json = false;
  int threads = 0;
};

constexpr const char* kDemoExamples =
    "  kvant demo                         # in ./kvant-demo\n"
    "  kvant demo --output /tmp/kvant-demo\n"
    "  kvant demo -q                      # the tables alone\n"
    "  kvant demo --verbose               # with the loss of every layer";

// What the model is quantized to.
struct Recipe {
  std::string_view name;  // of its folder
  std::string_view scheme;
  bool smooth = false;
  std::optional<std::int64_t> group_size = std::nullopt;
  std::string_view what = {};
};
constexpr Recipe kRecipes[] = {
    {.name = "w8a8", .scheme = "w8a8", .what = "8 bits, activations quantized at run time"},
    {.name = "w8a8-smooth", .scheme = "w8a8", .smooth = true, .what = "the same after smoothing"},
    {.name = "w8a8-static", .scheme = "w8a8-static", .what = "8 bits, activation scales from the statistics"},
    {.name = "w4a16", .scheme = "w4a16", .group_size = 32, .what = "4-bit weights in groups of 32"},
};

std::vector<std::string_view> names() {
  std::vector<std::string_view> names;
  for (const Recipe& recipe : kRecipes) names.push_back(recipe.name);
  return names;
}

std::vector<fs::path> paths_in(const DemoFolder& folder) {
  std::vector<fs::path> paths;
  for (const Recipe& recipe : kRecipes) paths.push_back(folder.path / recipe.name);
  return paths;
}

Result<model::TokenText> read_text(const DemoFolder& folder, const fs::path& text, int max_tokens = 0) {
  TextOptions options;
  options.text = text.string();
  options.max_tokens = max_tokens;
  return read_text_for(folder.model(), options);
}

Status calibrate(const DemoFolder& folder, int threads, base::Progress& progress) {
  auto text = read_text(folder, folder.calibration_text());
  if (!text.ok()) return text.status();
  return measure::calibrate({.model = folder.model(),
                             .output = folder.stats(),
                             .overwrite = true,
                             .text = std::move(text).value(),
                             .run = {.threads = threads}},
                            progress)
      .status();
}

Status quantize(const DemoFolder& folder, const Recipe& recipe, int threads, base::Progress& progress) {
  quantize::QuantizeOptions options;
  options.input = folder.model();
  options.output = folder.path / recipe.name;
  const auto row = format::scheme_named(recipe.scheme);
  if (!row.ok()) return row.status();
  const auto scheme = format::with_options(**row, {.group_size = recipe.group_size});
  if (!scheme.ok()) return scheme.status();
  options.scheme = *scheme;
  options.smooth = recipe.smooth;
  if (recipe.smooth || scheme->needs_statistics()) options.stats = folder.stats();
  options.threads = threads;
  options.force = true;
  auto quantizer = quantize::CheckpointQuantizer::plan(options);
  if (!quantizer.ok()) return quantizer.status();
  return quantizer->run(progress).status();
}

Result<measure::Comparison> compare(const DemoFolder& folder, int threads, base::Progress& progress) {
  constexpr int kTokens = 1024;  // enough for the error of an output
  const auto text = read_text(folder, folder.held_out_text(), kTokens);
  if (!text.ok()) return text.status();
  auto outputs = measure::measure_outputs(folder.model(), paths_in(folder), *text, threads, progress);
  if (!outputs.ok()) return outputs.status();
  return measure::compare({.original = folder.model(),
                           .quantized = paths_in(folder),
                           .stats = folder.stats(),
                           .outputs = std::move(outputs).value(),
                           .details = true,
                           .threads = threads},
                          progress);
}

Result<measure::Evaluation> evaluate(const DemoFolder& folder, int threads, base::Progress& progress) {
  auto text = read_text(folder, folder.held_out_text());
  if (!text.ok()) return text.status();
  return measure::evaluate({.original = folder.model(),
                            .quantized = paths_in(folder),
                            .text = std::move(text).value(),
                            .run = {.threads = threads}},
                           progress);
}

std::string shown_decibels(const std::optional<double>& db) { return db ? fmt::format("{:.1f}", *db) : ""; }

// The loss of layers, on average.
std::string mean_table(const measure::Comparison& comparison) {
  constexpr auto kRight = Column::Align::right;
  Table table({{"SQNR in dB"},
               {"weights", kRight},
               {"outputs", kRight},
               {"worst output", kRight},
               {"layer", Column::Align::left, true}});
  for (const measure::ModelLoss& loss : comparison.quantized) {
    const auto worst = std::ranges::min_element(
        loss.layers, {}, [](const measure::LayerLoss& layer) { return layer.output_sqnr_db.value_or(0); });
    if (worst == loss.layers.end()) continue;
    table.add({loss.label, shown_decibels(mean_sqnr_db(loss, measure::Judged::weights)),
               shown_decibels(mean_sqnr_db(loss, measure::Judged::outputs)), shown_decibels(worst->output_sqnr_db),
               worst->module});
  }
  return table.text(Terminal::of(1));
}

// The loss of every layer's output, as layers stand in the model.
std::string layer_table(const measure::Comparison& comparison) {
  std::vector<Column> columns = {{"output SQNR in dB", Column::Align::left, true}};
  for (const measure::ModelLoss& loss : comparison.quantized) columns.push_back({loss.label, Column::Align::right});
  Table table(std::move(columns));
  std::vector<measure::SideBySide> layers = side_by_side(comparison);
  std::ranges::sort(layers, model::stands_before,
                    [](const measure::SideBySide& layer) -> const std::string& { return layer.worst->module; });
  for (const measure::SideBySide& layer : layers) {
    std::vector<std::string> cells = {layer.worst->module};
    for (const measure::LayerLoss* const loss : layer.losses)
      cells.push_back(loss == nullptr ? "" : shown_decibels(loss->output_sqnr_db));
    table.add(std::move(cells));
  }
  return table.text(Terminal::of(1));
}

Result<std::string> speed_table(const Stream& all) {
  constexpr LinearShape kShape{128, 4096, 4096};
  constexpr double kDemoBudget = 0.25;
  constexpr auto kRight = Column::Align::right;
  Table table({{fmt::format("linear {} x {} x {}", kShape.rows, kShape.in, kShape.out)},
               {"threads", kRight},
               {"time", kRight},
               {"speed", kRight},
               {"", kRight}});
  std::vector<Stream> streams = {Stream::cpu(1)};
  if (all.threads() > 1) streams.push_back(all);
  for (const Stream& stream : streams) {
    const auto f32 = time_f32_linear(stream, kShape, kDemoBudget);
    if (!f32.ok()) return f32.status();
    const auto w8a8 = time_w8a8_linear(stream, kShape, kDemoBudget);
    if (!w8a8.ok()) return w8a8.status();
    for (const auto& [label, seconds] : {std::pair{"f32", *f32}, std::pair{"W8A8", *w8a8}})
      table.add({label, fmt::format("{}", stream.threads()), fmt::format("{:.2f} ms", seconds * 1e3),
                 fmt::format("{:.1f} GMAC/s", kShape.macs() / seconds / 1e9),
                 seconds == *f32 ? "" : fmt::format("{:.1f} times as fast", *f32 / seconds)});
  }
  return table.text(Terminal::of(1));
}

void print_files(const DemoFolder& folder, const fs::path& report) {
  const auto shown = [](const fs::path& path) { return shell_word(io::printable_path(path)); };
  Table files({{""}, {""}});
  files.add({"  " + shown(folder.model()), "the model, bf16"});
  files.add({"  " + shown(folder.calibration_text()), "text for the statistics"});
  files.add({"  " + shown(folder.stats()), "statistics of its activations"});
  files.add({"  " + shown(folder.held_out_text()), "text that it did not learn from"});
  for (const Recipe& recipe : kRecipes) files.add({"  " + shown(folder.path / recipe.name), std::string(recipe.what)});
  files.add({"  " + shown(report), "what each layer lost, for a browser"});
  files.add({"  " + shown(folder.evaluation()), "what the model lost, for a browser"});
  print("\nfiles:" + files.text(Terminal::of(1)));
  const std::string model = shown(folder.model()), first = shown(folder.path / kRecipes[0].name),
                    last = shown(folder.path / std::rbegin(kRecipes)->name);
  print(
      fmt::format("\ntry next:\n"
                  "  kvant eval {0} {2} --text {3}\n"
                  "  kvant compare {0} {1} {2}\n"
                  "  kvant verify {1}\n"
                  "  kvant inspect {0} --stats\n",
                  model, first, last, shown(folder.held_out_text())));
}

int run(const DemoOptions& options, const Request& request) {
  const DemoFolder folder{options.output};
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return fail(stream.status());
  if (const Status s = check_demo_folder(folder, names()); !s.ok()) return fail(s);
  const fs::path report = options.report.empty() ? folder.report() : fs::path(options.report);
  if (const Status s = check_report_path(report, folder.path); !s.ok()) return fail(s);
  const auto step = [&](const std::string& line) {
    if (!request.quiet) tell(line);
  };
  ProgressBar progress(!request.verbose);

  step("writing a small language model, which learned kvant's own documents and sources");
  if (const Status s = write_demo_files(folder); !s.ok()) return fail(s);
  step("collecting statistics of its activations");
  if (const Status s = calibrate(folder, options.threads, progress); !s.ok()) return fail(s);
  for (const Recipe& recipe : kRecipes) {
    step(fmt::format("quantizing it: {}, {}", recipe.name, recipe.what));
    if (const Status s = quantize(folder, recipe, options.threads, progress); !s.ok()) return fail(s);
  }
  step("comparing weights and outputs of every layer");
  const auto comparison = compare(folder, options.threads, progress);
  if (!comparison.ok()) return fail(comparison.status());
  const ReportFacts facts{request.command, {}};
  if (const Status s = write_report(report, *comparison, facts); !s.ok()) return fail(s);
  step("running all of them over a text that the model did not learn from");
  const auto evaluation = evaluate(folder, options.threads, progress);
  progress.finish();
  if (!evaluation.ok()) return fail(evaluation.status());
  const auto tokenizer = tokenizer_of(folder.model());
  if (!tokenizer.ok()) return fail(tokenizer.status());
  const EvaluationFacts evaluation_facts{request.command, &*tokenizer};
  if (const Status s = write_page(folder.evaluation(), evaluation_page(*evaluation, evaluation_facts)); !s.ok())
    return fail(s);
  if (options.json) {
    print_json({{"format", "kvant-demo-1"},
                {"comparison", comparison_json(*comparison, facts)},
                {"evaluation", evaluation_json(*evaluation, evaluation_facts)}});
    return kDone;
  }
  step("timing a linear layer");
  const auto speed = speed_table(stream);
  if (!speed.ok()) return fail(speed.status());

  const Terminal terminal = Terminal::of(1);
  step("");
  if (request.verbose) print(layer_table(*comparison) + "\n");
  print(mean_table(*comparison));
  if (!request.quiet) {
    print("\n" +
          paragraph("Means over layers, the worst output, and its layer. SQNR: signal to quantization noise, higher "
                    "is better; 6 dB more are half the error. Outputs are what a layer computes for a text, with "
                    "its activations quantized as well.",
                    terminal));
    print("\n" + paragraph(fmt::format("Over {} tokens of a text that the model did not learn from, the lower the "
                                       "perplexity the better:",
                                       grouped_digits(evaluation->tokens)),
                           terminal));
  }
  print("\n");
  print(evaluation_text(*evaluation, terminal));
  print("\n" + *speed);
  if (!request.quiet) print_files(folder, report);
  return kDone;
}

}  // namespace

Command demo_command() {
  const auto options = std::make_shared<DemoOptions>();
  return {
      .name = "demo",
      .description =
          "Show what kvant does, on a small language model that it brings along. Writes the model, collects statistics "
          "of its activations, quantizes it to 8 and 4 bits, compares every layer, writes reports, evaluates all "
          "checkpoints on a text that the model did not learn from, and times the W8A8 linear against f32. Takes a few "
          "seconds.",
      .examples = kDemoExamples,
      .arguments = {{.name = "--output",
                     .placeholder = "FOLDER",
                     .help = "Where to write (default ./kvant-demo); what an earlier demo wrote there is replaced, "
                             "anything else refused",
                     .to = &options->output,
                     .is_path = true},
                    report_option(options->report,
                                  "Where to write the report (default report.html in the output folder)"),
                    threads_option(options->threads),
                    json_option(options->json)},
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
