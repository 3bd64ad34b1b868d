#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/decibels_argument.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/progress_bar.h"
#include "cli/report/report_file.h"
#include "cli/run_options.h"
#include "cli/scheme_help.h"
#include "cli/sizes.h"
#include "cli/smooth_argument.h"
#include "cli/table.h"
#include "cli/text_argument.h"
#include "format/activation_stats.h"
#include "format/module_name.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"
#include "measure/calibrate.h"
#include "measure/compare.h"
#include "model/families.h"
#include "quantize/quantize_checkpoint.h"

namespace kvant::cli {
namespace {

using quantize::Action;

struct QuantizeOptions {
  std::string input, output;
  std::string scheme = kDefaultScheme;
  std::string stats, alpha, smooth_groups, activation_range, least_input_db, method, damping, scale, scale_dtype,
      report;
  std::vector<std::string> ignore, include, overrides;
  std::string group_size;  // empty: the scheme's own; "auto"
  TextOptions text;        // of --sequential
  bool sequential = false, no_act_order = false, kv_fp8 = false, asymmetric = false, resume = false, force = false,
       json = false, dry_run = false;
  int threads = 0;
  std::uint64_t max_memory = quantize::kDefaultMaxMemory;
};

constexpr const char* kQuantizeExamples =
    "  kvant quantize ./Llama -o ./Llama-w8a8\n"
    "  kvant calibrate ./Llama --text corpus.txt -o stats.safetensors     # statistics of activations, then:\n"
    "  kvant quantize ./Llama -o ./Llama-w8a8 --stats stats.safetensors --smooth\n"
    "  kvant quantize ./Llama -o ./Llama-fp8 --scheme fp8 --kv-fp8 --stats stats.safetensors\n"
    "  kvant quantize ./Llama --scheme w4a16 --group-size 64 --dry-run\n"
    "  kvant quantize ./Llama -o ./Llama-w8a8 --ignore 're:.*down_proj'\n"
    "  kvant quantize ./Llama -o ./Llama-fp8 --scheme fp8 --override 're:.*mlp.*=nvfp4a16'";

// A number from 0 to 1.
bool parse_share(const std::string& text, double& share) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  return error == std::errc() && rest == text.data() + text.size() && share >= 0 && share <= 1;
}

std::string alpha_problem(const std::string& text) {
  double alpha = 0;
  if (text == kFamilyAlpha || parse_share(text, alpha)) return {};
  return fmt::format("'{}' is not a number from 0 to 1", io::printable(text));
}

std::string damping_problem(const std::string& text) {
  double share = 0;
  if (parse_share(text, share) && share > 0) return {};
  return fmt::format("'{}' is not a number above 0, at most 1", io::printable(text));
}

io::DType scale_dtype_named(const std::string& text) {
  if (text == "float16" || text == "f16") return io::DType::f16;
  if (text == "bfloat16" || text == "bf16") return io::DType::bf16;
  return io::DType::f32;
}

std::optional<format::ScaleChoice> scale_choice_named(const std::string& text) {
  for (const format::ScaleChoice choice : format::scale_choices())
    if (text == format::name(choice)) return choice;
  return std::nullopt;
}

std::vector<std::string> scale_choice_names() {
  std::vector<std::string> names;
  for (const format::ScaleChoice choice : format::scale_choices()) names.emplace_back(format::name(choice));
  return names;
}

constexpr const char* kAuto = "auto";
constexpr const char* kRound = "round";
constexpr const char* kMinmax = "minmax";
constexpr const char* kMse = "mse";
constexpr const char* kGptq = "gptq";

// A whole number, or nothing.
std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string group_size_problem(const std::string& text) {
  if (text == kAuto || whole_number(text)) return {};
  return fmt::format("'{}' is neither a whole number nor {}", io::printable(text), kAuto);
}

// "PATTERN=SCHEME"; the pattern may have an equals sign, a scheme has none.
std::string override_problem(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    return fmt::format("'{}' must be PATTERN=SCHEME, or PATTERN=none", io::printable(text));
  const std::string scheme = text.substr(equals + 1);
  return scheme == "none" ? std::string() : scheme_problem(scheme);
}

Result<format::Scheme> scheme_of(const QuantizeOptions& options) {
  const auto row = format::scheme_named(options.scheme);
  if (!row.ok()) return row.status();
  format::SchemeOptions wishes{.asymmetric = options.asymmetric, .scale_choice = scale_choice_named(options.scale)};
  if (options.group_size == kAuto)
    wishes.group_size = (*row)->scheme.weights.group_size;  // refused where the scheme takes none
  else if (!options.group_size.empty())
    wishes.group_size = whole_number(options.group_size);
  if (!options.scale_dtype.empty()) wishes.scale_dtype = scale_dtype_named(options.scale_dtype);
  return format::with_options(**row, wishes);
}

Result<quantize::QuantizeOptions> recipe_of(const QuantizeOptions& options) {
  quantize::QuantizeOptions recipe;
  recipe.input = options.input;
  recipe.output = options.output;
  const auto scheme = scheme_of(options);
  if (!scheme.ok()) return scheme.status();
  recipe.scheme = *scheme;
  recipe.fits_group_size = options.group_size == kAuto;
  for (const std::string& text : options.overrides) {
    const std::size_t equals = text.rfind('=');
    quantize::SchemeOverride made{.pattern = text.substr(0, equals), .scheme = std::nullopt};
    if (const std::string name = text.substr(equals + 1); name != "none") {
      const auto row = format::scheme_named(name);
      if (!row.ok()) return row.status();
      // --scale is for all schemes that it fits.
      auto overriding = format::with_options(**row, {.scale_choice = scale_choice_named(options.scale)});
      if (!overriding.ok()) overriding = format::with_options(**row, {});
      if (!overriding.ok()) return overriding.status();
      made.scheme = *overriding;
    }
    recipe.overrides.push_back(std::move(made));
  }
  if (!options.stats.empty()) recipe.stats = options.stats;
  recipe.fp8_kv_cache = options.kv_fp8;
  if (options.activation_range == kMinmax) recipe.activation_range = quantize::ActivationRange::minmax;
  if (!options.least_input_db.empty()) recipe.least_input_db = decibels_in(options.least_input_db);
  if (options.method == kGptq) {
    recipe.feedback = quantize::FeedbackOptions{.by_size = !options.no_act_order};
    if (!options.damping.empty()) parse_share(options.damping, recipe.feedback->damping);
  }
  recipe.smooth = !options.alpha.empty();
  double alpha = 0;
  if (recipe.smooth && options.alpha != kFamilyAlpha && parse_share(options.alpha, alpha)) recipe.alpha = alpha;
  if (!options.smooth_groups.empty()) recipe.smooth_groups = options.smooth_groups;
  recipe.ignore = options.ignore;
  recipe.include = options.include;
  recipe.threads = options.threads;
  recipe.max_memory = options.max_memory;
  recipe.resume = options.resume;
  recipe.force = options.force;
  return recipe;
}

bool writes_one_file(const QuantizeOptions& options) { return options.output.ends_with(".safetensors"); }

// Beside the output, and left there.
std::string stats_of_sequential(const QuantizeOptions& options) { return options.output + ".stats.safetensors"; }

// For a person who stops the run.
std::string how_to_resume(const QuantizeOptions& options) {
  return fmt::format("stopped; the same command with --resume{} {}", options.force ? " in place of --force" : "",
                     writes_one_file(options) ? "writes the file anew" : "continues after the last finished shard");
}

// What the options show by themselves, before any file is opened. Empty: nothing is wrong.
std::string misuse(const QuantizeOptions& options) {
  const auto recipe = recipe_of(options);
  if (!recipe.ok()) return std::string(recipe.status().message());
  constexpr const char* kGiveStats =
      "needs activation statistics; give them with --stats FILE, which 'kvant calibrate' writes";
  const auto uses = [](const format::Scheme& scheme) {
    return scheme.needs_statistics() || scheme.scale_choice == format::ScaleChoice::search;
  };
  bool uses_stats = options.kv_fp8 || options.method == kGptq || uses(recipe->scheme);
  for (const quantize::SchemeOverride& override : recipe->overrides)
    uses_stats = uses_stats || (override.scheme && uses(*override.scheme));
  const bool is_gptq = options.method == kGptq;
  const bool has_text = !options.text.text.empty() || !options.text.tokens.empty();
  if (options.sequential && !is_gptq) return "--sequential has no effect without --method gptq";
  if (options.sequential && !options.stats.empty())
    return "--sequential collects its own statistics: give it --text FILE, not --stats";
  if (options.sequential && !has_text) return "--sequential needs a text; give it with --text FILE, or --tokens FILE";
  if (!options.sequential && has_text)
    return "--text has no effect without --sequential; 'kvant calibrate' makes statistics for --stats from a text";
  if (options.sequential && options.dry_run)
    return "--dry-run writes no statistics, which --sequential collects: leave out one of them";
  if (options.sequential && writes_one_file(options))
    return "--sequential runs the model, which takes a folder with config.json";
  const bool has_stats = !options.stats.empty() || options.sequential;
  bool is_static = recipe->scheme.has_static_integers();
  for (const quantize::SchemeOverride& override : recipe->overrides)
    is_static = is_static || (override.scheme && override.scheme->has_static_integers());
  if (!is_static && !options.activation_range.empty())
    return "--activation-range has no effect without a scheme of static int8 activations, such as w8a8-static";
  if (!is_static && !options.least_input_db.empty())
    return "--min-input-sqnr has no effect without a scheme of static int8 activations, such as w8a8-static";
  if (!has_stats && !options.alpha.empty()) return fmt::format("--smooth {}", kGiveStats);
  if (!has_stats && is_gptq)
    return "--method gptq needs the Hessians of inputs; give them with --stats FILE, which 'kvant calibrate --hessian' "
           "writes";
  if (!is_gptq && !options.damping.empty()) return "--damping has no effect without --method gptq";
  if (!is_gptq && options.no_act_order) return "--no-act-order has no effect without --method gptq";
  if (!has_stats && options.kv_fp8) return fmt::format("--kv-fp8 {}", kGiveStats);
  if (!has_stats && recipe->scheme.needs_statistics()) return fmt::format("--scheme {} {}", options.scheme, kGiveStats);
  if (!options.stats.empty() && options.alpha.empty() && options.report.empty() && !uses_stats)
    return fmt::format(
        "--stats has no effect on {} by itself; --smooth, --method gptq, --kv-fp8, --scale search, --report and the "
        "schemes that store activation scales ({}) use it",
        options.scheme, schemes_with_statistics());
  if (options.alpha.empty() && !options.smooth_groups.empty()) return "--smooth-groups has no effect without --smooth";
  if (options.dry_run && !options.report.empty())
    return "--report cannot be combined with --dry-run, which quantizes nothing";
  if (options.resume && options.force) return "--resume continues an output and --force replaces it; use one of them";
  return {};
}

std::string ratio(std::uint64_t before, std::uint64_t after) {
  return fmt::format("{} → {} ({:.1f} %)", byte_size(before), byte_size(after),
                     before == 0 ? 100.0 : 100.0 * static_cast<double>(after) / static_cast<double>(before));
}

std::size_t count(const quantize::CheckpointPlan& plan, Action action) {
  std::size_t number = 0;
  for (const quantize::TensorPlan& tensor : plan.tensors) number += tensor.action == action ? 1 : 0;
  return number;
}

std::string table_of(const quantize::CheckpointPlan& plan, const Terminal& terminal) {
  Table table({{"tensor", Column::Align::left, true},
               {"dtype", Column::Align::left, false, true},
               {"shape", Column::Align::left, false, true},
               {"action"},
               {"before", Column::Align::right},
               {"after", Column::Align::right},
               {"why", Column::Align::left, true}});
  for (const quantize::TensorPlan& tensor : plan.tensors)
    table.add({io::printable(tensor.name), std::string(io::name(tensor.dtype)), base::bracketed(tensor.shape),
               std::string(quantize::name(tensor.action)), byte_size(tensor.bytes_before),
               byte_size(tensor.bytes_after), tensor.reason});
  return table.text(terminal);
}

std::string smoothing_line(const quantize::CheckpointPlan& plan) {
  return fmt::format("{} of norm and linears, alpha {:g}", counted(plan.smoothed.size(), "group"), plan.alpha);
}

// Empty: keys and values stay what they are.
std::string cache_line(const quantize::CheckpointPlan& plan) {
  if (!plan.fp8_kv_cache) return {};
  const std::size_t scales = count(plan, Action::add_scale);
  return scales == 0 ? std::string("FP8 keys and values, by the scales of the input")
                     : fmt::format("FP8 keys and values, {}", counted(scales, "new scale"));
}

void tell_warnings(const quantize::CheckpointPlan& plan) {
  const Terminal terminal = Terminal::of(2);
  for (const std::string& warning : plan.warnings) tell(fmt::format("{} {}", terminal.yellow("warning:"), warning));
}

std::string plan_totals(const quantize::CheckpointPlan& plan) {
  std::string text;
  text += fmt::format("{} quantized, {} copied", counted(count(plan, Action::quantize), "layer"),
                      counted(count(plan, Action::copy), "tensor"));
  if (!plan.smoothed.empty()) text += fmt::format("; smoothing: {}", smoothing_line(plan));
  if (plan.fp8_kv_cache) text += fmt::format("; KV cache: {}", cache_line(plan));
  text += fmt::format("\nsize             {}\n", ratio(plan.bytes_before, plan.bytes_after));
  text += fmt::format("expected memory  {} at most\n", byte_size(plan.expected_memory));
  if (!plan.ignore.empty()) {
    text += "ignore list     ";
    for (const std::string& pattern : plan.ignore) text += " " + io::printable(pattern);
    text += "\n";
  }
  if (!plan.files_copied.empty()) {
    text += "files copied    ";
    for (const std::string& file : plan.files_copied) text += " " + io::printable(file);
    text += "\n";
  }
  return text;
}

io::Json json_of(const quantize::CheckpointPlan& plan, const QuantizeOptions& options) {
  io::Json document = {{"format", "kvant-quantize-1"},
                       {"input", options.input},
                       {"output", options.output.empty() ? io::Json() : io::Json(options.output)},
                       {"scheme", options.scheme},
                       {"layers_quantized", count(plan, Action::quantize)},
                       {"bytes_before", plan.bytes_before},
                       {"bytes_after", plan.bytes_after},
                       {"expected_memory", plan.expected_memory},
                       {"fp8_kv_cache", plan.fp8_kv_cache},
                       {"alpha", plan.smoothed.empty() ? io::Json() : io::Json(plan.alpha)},
                       {"smoothed", io::Json::array()},
                       {"ignore", plan.ignore},
                       {"files_copied", plan.files_copied},
                       {"warnings", plan.warnings}};
  for (const quantize::SmoothedGroup& group : plan.smoothed)
    document["smoothed"].push_back({{"norm", group.norm}, {"readers", group.readers}});
  io::Json tensors = io::Json::array();
  for (const quantize::TensorPlan& tensor : plan.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"dtype", io::name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"role", model::name(tensor.role)},
                       {"action", quantize::name(tensor.action)},
                       {"reason", tensor.reason},
                       {"bytes_before", tensor.bytes_before},
                       {"bytes_after", tensor.bytes_after}});
  document["tensors"] = std::move(tensors);
  return document;
}

int dry_run(const quantize::CheckpointQuantizer& quantizer, const QuantizeOptions& options, const Request& request) {
  const quantize::CheckpointPlan& plan = quantizer.what();
  const Status output = options.output.empty() ? Status() : quantizer.check_output();
  if (options.json) {
    io::Json document = json_of(plan, options);
    document["dry_run"] = true;
    document["refusal"] = output.ok() ? io::Json() : io::Json(output.message());
    print_json(document);
    return kDone;
  }
  print(table_of(plan, Terminal::of(1)));
  print("\n" + plan_totals(plan));
  for (const std::string& warning : plan.warnings) print("warning: " + warning + "\n");
  if (!output.ok()) print(fmt::format("the run would be refused: {}\n", output.message()));
  if (!request.quiet) tell("nothing was written (--dry-run)");
  return kDone;
}

void print_summary(const quantize::CheckpointPlan& plan, const quantize::QuantizeOutcome& outcome,
                   const QuantizeOptions& options, bool reported) {
  const double seconds = outcome.seconds > 0 ? outcome.seconds : 1e-9;
  std::string text = fmt::format("{}: {} quantized to {}\n", io::printable(options.output),
                                 counted(count(plan, Action::quantize), "layer"), options.scheme);
  text += fmt::format("size      {}\n", ratio(plan.bytes_before, plan.bytes_after));
  if (!plan.smoothed.empty()) text += fmt::format("smoothed  {}\n", smoothing_line(plan));
  if (plan.fp8_kv_cache) text += fmt::format("KV cache  {}\n", cache_line(plan));
  text += fmt::format("shards    {} written", outcome.shards_written);
  if (outcome.shards_kept > 0) text += fmt::format(", {} kept from the previous run", outcome.shards_kept);
  text += fmt::format("\ntime      {}, {} read at {}\n", duration(outcome.seconds), byte_size(outcome.bytes_read),
                      rate(static_cast<double>(outcome.bytes_read) / seconds));
  if (outcome.non_finite > 0)
    text += fmt::format("warning: {} NaN or infinite; 'kvant inspect --stats {}' shows where\n",
                        outcome.non_finite == 1 ? "1 weight is" : fmt::format("{} weights are", outcome.non_finite),
                        shell_word(io::printable(options.input)));
  if (!options.report.empty() && reported) text += fmt::format("report    {}\n", io::printable(options.report));
  if (!plan.warnings.empty()) text += counted(plan.warnings.size(), "warning") + " above\n";
  print(text);
  print(fmt::format("\nnext:\n  kvant compare {0} {1}\n  kvant verify {1}\n", shell_word(io::printable(options.input)),
                    shell_word(io::printable(options.output))));
}

// What the report reads of the statistics, it reads after the work is done: a bad one is refused before.
Status check_statistics(const quantize::CheckpointQuantizer& quantizer, const QuantizeOptions& options) {
  const format::ActivationStats* const stats = quantizer.statistics();
  if (options.report.empty() || stats == nullptr) return {};
  for (const quantize::TensorPlan& tensor : quantizer.what().tensors) {
    const std::string_view module = format::module_of(tensor.name);
    if (tensor.action != Action::quantize || !stats->has_absmax(module)) continue;
    if (const auto absmax = stats->absmax(module, tensor.shape[1]); !absmax.ok()) return absmax.status();
  }
  return {};
}

// What the report shows: the output beside the input.
Result<measure::Comparison> compare_output(const QuantizeOptions& options, ProgressBar& progress) {
  measure::CompareOptions recipe{.original = options.input,
                                 .quantized = {options.output},
                                 .details = true,
                                 .threads = options.threads,
                                 .max_memory = options.max_memory};
  if (!options.stats.empty()) recipe.stats = options.stats;
  if (options.sequential) recipe.stats = stats_of_sequential(options);
  return measure::compare(recipe, progress);
}

// What can be refused before a model is run for a long time, and the group size that fits all of its layers.
Status plan_through(quantize::QuantizeOptions& recipe) {
  if (recipe.scheme.needs_statistics() || recipe.smooth || recipe.fp8_kv_cache) return {};
  quantize::QuantizeOptions without = recipe;
  without.feedback = std::nullopt;
  const auto planned = quantize::CheckpointQuantizer::plan(without);
  if (!planned.ok()) return planned.status();
  // What is resumed has the manifest of the whole recipe.
  if (!recipe.resume)
    if (Status s = planned->check_output(); !s.ok()) return s;
  recipe.scheme = planned->what().schemes.front();
  recipe.fits_group_size = false;
  return {};
}

// Statistics for --sequential, beside the output. Those that an interrupted run of the same has finished are taken.
Status calibrate_through(const QuantizeOptions& options, const quantize::QuantizeOptions& recipe,
                         const Request& request) {
  const std::filesystem::path stats = *recipe.stats;
  std::error_code error;
  if (options.resume && std::filesystem::exists(stats, error)) {
    const auto there = format::ActivationStats::open(stats);
    if (!there.ok()) return there.status();
    const auto through = there->metadata().find(std::string(measure::kThroughKey));
    if (through != there->metadata().end() && through->second == measure::through_text(recipe)) return {};
    return base::invalid_problem("{}: is not of a run with these options; give the same, or start over with --force",
                                 io::printable_path(stats));
  }
  auto text = read_text_for(options.input, options.text);
  if (!text.ok()) return text.status();
  std::filesystem::path scratch = options.output;
  scratch += io::kScratchSuffix;
  ProgressBar progress(request.quiet);
  say_how_to_resume(scratch);
  const auto done = measure::calibrate(
      {.model = options.input,
       .output = stats,
       .overwrite = options.force || options.resume,
       .hessian = true,
       .through = recipe,
       .text = std::move(text).value(),
       // What running a model takes by default is more than what quantizing does.
       .run = {.threads = options.threads,
               .max_memory = options.max_memory == quantize::kDefaultMaxMemory ? 0 : options.max_memory,
               .scratch = scratch,
               .resume = options.resume}},
      progress);
  progress.finish();
  return done.status();
}

int run(const QuantizeOptions& options, const Request& request) {
  if (const std::string wrong = misuse(options); !wrong.empty()) {
    fail(fmt::format("{}; try 'kvant quantize --help'", wrong));
    return kUsage;
  }
  if (!options.report.empty())
    if (const Status s = check_report_path(options.report, options.output); !s.ok()) return fail(s);
  quantize::QuantizeOptions recipe = recipe_of(options).value();
  if (options.sequential) {
    if (Status s = plan_through(recipe); !s.ok()) return fail(s);
    recipe.stats = stats_of_sequential(options);
    if (Status s = calibrate_through(options, recipe, request); !s.ok()) return fail(s);
  }
  auto quantizer = quantize::CheckpointQuantizer::plan(recipe);
  if (!quantizer.ok()) return fail(quantizer.status());
  const quantize::CheckpointPlan& plan = quantizer->what();
  if (options.dry_run) return dry_run(*quantizer, options, request);
  if (const Status s = check_statistics(*quantizer, options); !s.ok()) return fail(s);

  if (!request.quiet) tell_warnings(plan);
  if (request.verbose) tell(table_of(plan, Terminal::of(2)) + plan_totals(plan));
  if (writes_one_file(options) && options.resume && !request.quiet)
    tell(fmt::format("{}: one file is written anew; --resume continues folders only, after their last finished shard",
                     io::printable(options.output)));
  ProgressBar progress(request.quiet);
  ProgressBar::set_last_words(how_to_resume(options));
  const auto outcome = quantizer->run(progress);
  progress.finish();
  ProgressBar::set_last_words({});
  if (!outcome.ok()) return fail(outcome.status());
  // The checkpoint is there by now, whatever becomes of the report.
  const ReportFacts facts{request.command, plan.warnings};
  std::optional<measure::Comparison> comparison;
  Status reported;
  if (!options.report.empty()) {
    auto compared = compare_output(options, progress);
    progress.finish();
    reported = compared.ok() ? write_report(options.report, *compared, facts) : compared.status();
    if (compared.ok()) comparison = std::move(compared).value();
  }
  const auto end = [&] {
    if (reported.ok()) return kDone;
    return fail(
        fmt::format("{} is quantized, but there is no report: {}", io::printable(options.output), reported.message()));
  };
  if (!options.json) {
    if (!request.quiet) print_summary(plan, *outcome, options, reported.ok());
    return end();
  }
  io::Json document = json_of(plan, options);
  document["dry_run"] = false;
  document["shards_written"] = outcome->shards_written;
  document["shards_kept"] = outcome->shards_kept;
  document["bytes_read"] = outcome->bytes_read;
  document["bytes_written"] = outcome->bytes_written;
  document["seconds"] = outcome->seconds;
  document["non_finite"] = outcome->non_finite;
  if (comparison) document["comparison"] = comparison_json(*comparison, facts);
  print_json(document);
  return end();
}

}  // namespace

Command quantize_command() {
  const auto options = std::make_shared<QuantizeOptions>();
  std::vector<Argument> arguments = {
      checkpoint_positional("IN", options->input),
      {.name = "--output",
       .letter = "-o",
       .placeholder = "OUT",
       .help = "Folder (or .safetensors file) to write; --dry-run does without",
       .to = &options->output,
       .required = true,
       .unless = &options->dry_run,
       .is_path = true},
      {.name = "--scheme",
       .placeholder = "SCHEME",
       .help = scheme_help(),
       .to = &options->scheme,
       .choices = scheme_names(),
       .check = scheme_problem},
      {.name = "--override",
       .placeholder = "PATTERN=SCHEME",
       .help = "Another scheme for the modules that a name, or re: and a regular expression, matches; none leaves "
               "them as they are; may be repeated, the first that matches counts",
       .to = &options->overrides,
       .check = override_problem},
      {.name = "--stats",
       .placeholder = "FILE",
       .help = "Activation statistics, for --smooth, --kv-fp8, schemes that store activation scales, and --scale "
               "search, "
               "which then weighs each weight by its input: what 'kvant calibrate IN --text FILE -o STATS' makes "
               "from a "
               "text; --scale search and --report also take an imatrix of llama.cpp, which has no ranges",
       .to = &options->stats,
       .is_path = true},
      {.name = "--kv-fp8",
       .help = "Store scales for FP8 keys and values in the KV cache, of every attention layer, from --stats",
       .to = &options->kv_fp8},
      {.name = "--activation-range",
       .placeholder = "RANGE",
       .help = "Of static int8 activations: mse takes the part of their range with the least squared error (default), "
               "minmax all of it",
       .to = &options->activation_range,
       .choices = {kMse, kMinmax}},
      {.name = "--min-input-sqnr",
       .placeholder = "DB",
       .help = "Leave layers as they are whose stored scale keeps less of their usual inputs (default: quantize them, "
               "with a warning below 12 dB)",
       .to = &options->least_input_db,
       .check = decibels_problem},
      {.name = "--smooth",
       .placeholder = "[ALPHA]",
       .help = "Fold SmoothQuant smoothing into norms and weights first; ALPHA from 0 to 1 (default 0.8 for "
               "Llama-like models, else 0.5)",
       .to = &options->alpha,
       .check = alpha_problem},
      {.name = "--smooth-groups",
       .placeholder = "FAMILY|FILE",
       .help = fmt::format("Which norms feed which linears: a family ({}), or a JSON file (default: by config.json)",
                           model::names_of_families()),
       .to = &options->smooth_groups,
       .is_path = true},
      {.name = "--ignore",
       .placeholder = "PATTERN",
       .help = "Do not quantize a module: its name, or re: and a regular expression; may be repeated (lm_head, "
               "embeddings, norms and routers are left out by default)",
       .to = &options->ignore},
      {.name = "--include",
       .placeholder = "PATTERN",
       .help = "Quantize a module even if it is excluded by default or by --ignore; may be repeated",
       .to = &options->include},
      {.name = "--group-size",
       .placeholder = "N",
       .help = group_size_help(),
       .to = &options->group_size,
       .check = group_size_problem},
      {.name = "--asymmetric", .help = asymmetric_help(), .to = &options->asymmetric},
      {.name = "--scale",
       .placeholder = "CHOICE",
       .help = "How the scale of weights is found: minmax by their range; search the one with the least squared "
               "error (default for codes of 4 bits); minmax-ct as minmax with compressed-tensors' divisor",
       .to = &options->scale,
       .choices = scale_choice_names()},
      {.name = "--method",
       .placeholder = "METHOD",
       .help = "How codes are found: round takes the nearest (default); gptq makes each column make up for the errors "
               "of those before it, with the Hessians of --stats",
       .to = &options->method,
       .choices = {kRound, kGptq}},
      {.name = "--sequential",
       .help = "With gptq: collect statistics in this run, from --text; each block sees what the quantized blocks "
               "before it make",
       .to = &options->sequential}};
  for (Argument& argument : text_arguments(options->text)) {
    argument.help = "With --sequential: " + argument.help;
    arguments.push_back(std::move(argument));
  }
  for (Argument& argument : std::vector<Argument>{
           {.name = "--damping",
            .placeholder = "SHARE",
            .help = "With gptq: how much of the mean of a Hessian's diagonal is added to it (default 0.01)",
            .to = &options->damping,
            .check = damping_problem},
           {.name = "--no-act-order",
           .help = "With gptq: round columns from the first to the last, not those of large inputs first",
           .to = &options->no_act_order},
           {.name = "--scale-dtype",
           .help = "Type of the stored scales (default: that of the weights)",
           .to = &options->scale_dtype,
           .choices = {"float32", "float16", "bfloat16", "f32", "f16", "bf16"}},
           threads_option(options->threads),
           max_memory_option(options->max_memory),
           {.name = "--resume",
           .help = "Continue an interrupted run after its last finished shard; one .safetensors file is written anew",
           .to = &options->resume},
           {.name = "--force", .help = "Replace an existing output", .to = &options->force},
           report_option(options->report,
                         "Compare the output with the input afterwards and write an HTML page that shows what each "
                         "layer lost"),
           json_option(options->json),
           {.name = "--dry-run",
           .help = "Write nothing; print what would happen to each tensor and why, sizes and expected memory",
           .to = &options->dry_run}})
    arguments.push_back(std::move(argument));
  return {
      .name = "quantize",
      .description =
          "Quantize a checkpoint. Reads a safetensors file, or a folder with shards and config.json, and writes a "
          "folder in the compressed-tensors layout. Memory stays below --max-memory whatever the size; a run that was "
          "killed can be resumed; the input is never changed.",
      .examples = kQuantizeExamples,
      .arguments = std::move(arguments),
      .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
