#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <vector>

#include "base/refuse.h"
#include "cli/commands.h"
#include "cli/linear_timing.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/report/report_file.h"
#include "cli/sizes.h"
#include "cli/table.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "kvant/stream.h"
#include "measure/compare.h"
#include "measure/output_losses.h"
#include "model/demo_model.h"
#include "model/layer_kind.h"
#include "quantize/output_folder.h"
#include "quantize/quantize_checkpoint.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;

struct DemoOptions {
  std::string output = "kvant-demo";
  std::string report;  // empty: kReport in the output
  bool json = false;
  int threads = 0;
};

constexpr const char* kDemoExamples =
    "  kvant demo                         # in ./kvant-demo\n"
    "  kvant demo --output /tmp/kvant-demo\n"
    "  kvant demo -q                      # the tables alone";

constexpr std::string_view kModel = "model", kStats = "stats.safetensors", kPlain = "w8a8", kSmooth = "w8a8-smooth",
                           kReport = "report.html";

// Whether an earlier demo made this output: config.json keeps the model's name, and before there is a config.json there
// is only what kvant quantize writes first.
bool is_demo_output(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return false;
  if (fs::is_empty(folder, error)) return true;
  const fs::path config = folder / io::kConfigName;
  if (!fs::exists(config, error)) return fs::is_directory(folder / quantize::kOwnFolder, error);
  const auto text = io::read_text(config, 1'000'000);
  if (!text.ok()) return false;
  const auto document = io::parse_json(*text, config.string());
  return document.ok() && document->is_object() && document->value("_name_or_path", io::Json()) == "kvant demo";
}

Status check_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) return {};
  const std::string shown = io::printable(folder.string());
  if (!fs::is_directory(status))
    return base::invalid_problem("{}: is not a folder; choose another with --output", shown);
  const std::set<std::string_view> ours = {kModel, kStats, kPlain, kSmooth, kReport};
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const bool is_output = name == kPlain || name == kSmooth;
    if (name == std::string(kStats) + ".partial" || name == std::string(kReport) + ".partial" ||
        (ours.contains(name) && !is_output))
      continue;
    if (is_output && is_demo_output(entries->path())) continue;
    if (is_report(entries->path())) continue;
    return base::invalid_problem("{}: holds {}, which the demo did not write; choose another folder with --output",
                                 shown, io::printable(name));
  }
  if (error) return base::invalid_problem("{}: {}", shown, error.message());
  return {};
}

Result<quantize::CheckpointPlan> quantize_demo(const DemoOptions& options, const fs::path& folder, bool smooth,
                                               ProgressBar& progress) {
  quantize::QuantizeOptions recipe;
  recipe.input = folder / kModel;
  recipe.output = folder / (smooth ? kSmooth : kPlain);
  recipe.threads = options.threads;
  recipe.force = true;
  if (smooth) {
    recipe.smooth = true;
    recipe.stats = folder / kStats;
  }
  auto quantizer = quantize::CheckpointQuantizer::plan(recipe);
  if (!quantizer.ok()) return quantizer.status();
  const auto outcome = quantizer->run(progress);
  if (!outcome.ok()) return outcome.status();
  return quantizer->what();
}

// Both checkpoints beside the model, on weights and on outputs.
Result<measure::Comparison> compare(const DemoOptions& options, const fs::path& folder, const Stream& stream,
                                    ProgressBar& progress) {
  auto comparison = measure::compare({.original = folder / kModel,
                                      .quantized = {folder / kPlain, folder / kSmooth},
                                      .stats = folder / kStats,
                                      .details = true,
                                      .threads = options.threads},
                                     progress);
  if (!comparison.ok()) return comparison;
  for (measure::ModelLoss& loss : comparison->quantized) {
    const auto outputs = measure::output_losses({}, folder / kModel, loss.path, stream);
    if (!outputs.ok()) return outputs.status();
    for (measure::LayerLoss& layer : loss.layers)
      for (const measure::OutputLoss& output : *outputs)
        if (output.module == layer.module) layer.output_sqnr_db = output.sqnr_db;
  }
  return comparison;
}

struct Loss {
  double weights = 0, outputs = 0;
};

std::map<std::string, Loss> losses(const measure::ModelLoss& loss) {
  std::map<std::string, Loss> by_module;
  for (const measure::LayerLoss& layer : loss.layers)
    by_module[layer.module] = {layer.sqnr_db, layer.output_sqnr_db.value_or(0)};
  return by_module;
}

// As they stand in the model.
std::vector<std::string> modules_in_order(const measure::ModelLoss& loss) {
  std::vector<std::string> modules;
  for (const measure::LayerLoss& layer : loss.layers) modules.push_back(layer.module);
  std::ranges::sort(modules, model::stands_before);
  return modules;
}

std::string loss_table(const measure::Comparison& comparison) {
  const std::vector<std::string> order = modules_in_order(comparison.quantized[0]);
  const std::map<std::string, Loss> plain = losses(comparison.quantized[0]), smooth = losses(comparison.quantized[1]);
  constexpr auto kRight = Column::Align::right;
  Table table({{"SQNR in dB", Column::Align::left, true},
               {"weights plain", kRight},
               {"smoothed", kRight},
               {"outputs plain", kRight},
               {"smoothed", kRight},
               {"gain", kRight}});
  Loss plain_sum, smooth_sum;
  const auto add = [&](const std::string& name, const Loss& p, const Loss& s) {
    table.add({name, fmt::format("{:.1f}", p.weights), fmt::format("{:.1f}", s.weights),
               fmt::format("{:.1f}", p.outputs), fmt::format("{:.1f}", s.outputs),
               fmt::format("{:+.1f}", s.outputs - p.outputs)});
  };
  double layers = 0;
  for (const std::string& module : order) {
    const auto p = plain.find(module), s = smooth.find(module);
    if (p == plain.end() || s == smooth.end()) continue;
    add(module, p->second, s->second);
    plain_sum = {plain_sum.weights + p->second.weights, plain_sum.outputs + p->second.outputs};
    smooth_sum = {smooth_sum.weights + s->second.weights, smooth_sum.outputs + s->second.outputs};
    ++layers;
  }
  if (layers > 0)
    add("mean", {plain_sum.weights / layers, plain_sum.outputs / layers},
        {smooth_sum.weights / layers, smooth_sum.outputs / layers});
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
    for (const auto& [label, seconds] :
         {std::pair{"f32", *f32}, std::pair{"W8A8, activations quantized inside", *w8a8}})
      table.add({label, fmt::format("{}", stream.threads()), fmt::format("{:.2f} ms", seconds * 1e3),
                 fmt::format("{:.1f} GMAC/s", kShape.macs() / seconds / 1e9),
                 seconds == *f32 ? "" : fmt::format("{:.1f} times as fast", *f32 / seconds)});
  }
  return table.text(Terminal::of(1));
}

int run(const DemoOptions& options, const Request& request) {
  const fs::path folder = options.output;
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return fail(stream.status());
  if (const Status s = check_folder(folder); !s.ok()) return fail(s);
  const fs::path report = options.report.empty() ? folder / kReport : fs::path(options.report);
  if (const Status s = check_report_path(report, folder); !s.ok()) return fail(s);
  const std::string shown = shell_word(io::printable(folder.string()));
  const auto step = [&](const std::string& line) {
    if (!request.quiet) tell(line);
  };

  const model::DemoModel model;
  step(fmt::format("writing a Llama-like model of {} layers with outlier channels, and its activation statistics",
                   model.layers));
  if (const Status s = model::write_demo_model(model, folder / kModel, folder / kStats); !s.ok()) return fail(s);

  ProgressBar progress(!request.verbose);
  step("quantizing it to w8a8");
  const auto plain_plan = quantize_demo(options, folder, false, progress);
  if (!plain_plan.ok()) return fail(plain_plan.status());
  step("quantizing it to w8a8 with smoothing");
  const auto smooth_plan = quantize_demo(options, folder, true, progress);
  if (!smooth_plan.ok()) return fail(smooth_plan.status());

  step("comparing weights, and outputs of every linear for generated activations");
  const auto comparison = compare(options, folder, stream, progress);
  if (!comparison.ok()) return fail(comparison.status());
  progress.finish();
  const ReportFacts facts{request.command, {}};
  if (const Status s = write_report(report, *comparison, facts); !s.ok()) return fail(s);
  if (options.json) {
    print_json(comparison_json(*comparison, facts));
    return kDone;
  }
  step("timing a linear layer");
  const auto speed = speed_table(stream);
  if (!speed.ok()) return fail(speed.status());

  step("");
  print(loss_table(*comparison));
  print(fmt::format("\nsize {} → {}; smoothed: {} of norm and linears, alpha {:g}\n",
                    file_size(plain_plan->bytes_before), file_size(plain_plan->bytes_after),
                    counted(smooth_plan->smoothed.size(), "group"), smooth_plan->alpha));
  if (!request.quiet)
    print(
        "SQNR: signal to quantization noise, higher is better. Outputs are what counts: smoothing moves the outliers "
        "of the activations into the weights, which lose some precision so that the products gain more.\n");
  print("\n" + *speed);
  if (request.quiet) return kDone;
  print(
      fmt::format("\nfiles:\n"
                  "  {0}/{1}              the model, bf16\n"
                  "  {0}/{2}  statistics of its activations\n"
                  "  {0}/{3}               quantized without smoothing\n"
                  "  {0}/{4}        quantized with smoothing\n"
                  "\nreport, for a browser:\n"
                  "  {5}\n",
                  shown, kModel, kStats, kPlain, kSmooth, shell_word(io::printable(report.string()))));
  print(
      fmt::format("\ntry next:\n"
                  "  kvant inspect {0}/{1} --stats\n"
                  "  kvant compare {0}/{1} {0}/{3} {0}/{4}\n"
                  "  kvant verify {0}/{3}\n"
                  "  kvant quantize {0}/{1} -o {0}-w4a16 --scheme w4a16 --group-size 32 --dry-run\n",
                  shown, kModel, kStats, kPlain, kSmooth));
  return kDone;
}

}  // namespace

Command demo_command() {
  const auto options = std::make_shared<DemoOptions>();
  return {
      .name = "demo",
      .description =
          "Show what kvant does, on a generated model. Writes a small Llama-like checkpoint with outlier channels and "
          "its activation statistics, quantizes it with and without smoothing, compares the two on weights and on "
          "outputs, "
          "writes a report of what each layer lost, and times the W8A8 linear against f32.",
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
