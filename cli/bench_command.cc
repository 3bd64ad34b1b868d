#include <fmt/core.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/linear_timing.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/table.h"
#include "kvant/dynamic_range.h"
#include "kvant/quantize.h"
#include "kvant/stream.h"

namespace kvant::cli {
namespace {

struct BenchOptions {
  int threads = 0;
};

constexpr const char* kBenchExamples =
    "  kvant bench                        # one thread, then all of them\n"
    "  kvant bench --threads 4\n"
    "  KVANT_FORCE_ISA=scalar kvant bench # without the vector kernels";

constexpr double kBudget = 0.3;
constexpr std::int64_t kRows = 2048, kColumns = 4096;

struct Measured {
  double seconds = 0;
  std::string kernel;
};

Result<Measured> quantize_per_tensor(const Stream& stream) {
  const Shape shape = {kRows, kColumns};
  std::vector<float> x(static_cast<std::size_t>(kRows * kColumns), 0.5f);
  std::vector<std::int8_t> q(x.size());
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = shape});
  if (!plan.ok()) return plan.status();
  const auto best = best_seconds(kBudget, [&] {
    return plan->run(stream, {}, {.input = {x.data(), shape}, .output = {q.data(), shape}, .scale = 0.01f});
  });
  if (!best.ok()) return best.status();
  return Measured{*best, plan->sku().name()};
}

Result<Measured> quantize_per_token(const Stream& stream) {
  const Shape shape = {kRows, kColumns};
  std::vector<BFloat16> x(static_cast<std::size_t>(kRows * kColumns), to_bfloat16(0.5f));
  std::vector<std::int8_t> q(x.size());
  std::vector<float> scale(static_cast<std::size_t>(kRows));
  const auto plan =
      DynamicRangeQuantizePlan<BFloat16, std::int8_t>::select(stream, {.shape = shape, .scope = PerToken{}});
  if (!plan.ok()) return plan.status();
  std::vector<std::byte> scratch(plan->workspace_size());
  const auto best = best_seconds(kBudget, [&] {
    return plan->run(stream, {scratch.data(), scratch.size()},
                     {.input = {x.data(), shape}, .output = {q.data(), shape}, .scale_out = {scale.data(), {kRows}}});
  });
  if (!best.ok()) return best.status();
  return Measured{*best, plan->sku().name()};
}

int run(const BenchOptions& options, const Request& request) {
  const Stream all = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!all.status().ok()) return fail(all.status());
  std::vector<Stream> streams = {Stream::cpu(1)};
  if (all.threads() > 1) streams.push_back(all);

  Table table({{"operator"},
               {"size"},
               {"threads", Column::Align::right},
               {"time", Column::Align::right},
               {"speed", Column::Align::right}});
  const auto add = [&](const std::string& what, const std::string& size, const Stream& stream, double seconds,
                       const std::string& speed) {
    table.add({what, size, fmt::format("{}", stream.threads()), fmt::format("{:.3f} ms", seconds * 1e3), speed});
  };
  constexpr double kElements = static_cast<double>(kRows * kColumns);
  const std::string size = fmt::format("{} x {}", kRows, kColumns);
  std::vector<std::string> kernels;
  for (const Stream& stream : streams) {
    const auto time = quantize_per_tensor(stream);
    if (!time.ok()) return fail(time.status());
    // Read and written: 4 bytes in, 1 out.
    add("quantize f32 → s8, per tensor", size, stream, time->seconds,
        fmt::format("{:.1f} GB/s", 5 * kElements / time->seconds / 1e9));
    if (&stream == &streams.front()) kernels.push_back(time->kernel);
  }
  for (const Stream& stream : streams) {
    const auto time = quantize_per_token(stream);
    if (!time.ok()) return fail(time.status());
    add("dynamic range bf16 → s8, per token", size, stream, time->seconds,
        fmt::format("{:.1f} GB/s", 3 * kElements / time->seconds / 1e9));
    if (&stream == &streams.front()) kernels.push_back(time->kernel);
  }
  const std::pair<const char*, decltype(&time_f32_linear)> linears[] = {
      {"f32 linear", &time_f32_linear}, {"W8A8 linear, f32 in and out", &time_w8a8_linear}};
  for (const LinearShape& shape : {LinearShape{128, 4096, 4096}, LinearShape{1, 4096, 4096}})
    for (const auto& [what, time_linear] : linears)
      for (const Stream& stream : streams) {
        const auto time = time_linear(stream, shape, kBudget);
        if (!time.ok()) return fail(time.status());
        add(what, fmt::format("{} x {} x {}", shape.rows, shape.in, shape.out), stream, *time,
            fmt::format("{:.1f} GMAC/s", shape.macs() / *time / 1e9));
      }
  print(table.text(Terminal::of(1)));
  if (request.quiet) return kDone;
  print(
      "\nThe best of several calls. GB/s: bytes read and written. GMAC/s: billion multiplications and "
      "additions a second.\n");
  if (request.verbose) print(fmt::format("kernels: {}\n", base::joined(kernels, ", ")));
  return kDone;
}

}  // namespace

Command bench_command() {
  const auto options = std::make_shared<BenchOptions>();
  return {.name = "bench",
          .description = "Time the main operators. Takes a few seconds; ./dev bench of the sources is the long form.",
          .examples = kBenchExamples,
          .arguments = {threads_option(options->threads)},
          .run = [options](const Request& request) { return run(*options, request); }};
}

}  // namespace kvant::cli
