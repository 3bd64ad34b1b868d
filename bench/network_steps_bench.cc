#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "bench/measure.h"
#include "bench/operators.h"
#include "bench/report.h"
#include "kvant/kvant.h"

namespace kvant::bench {
namespace {

// On one thread and in the cache, as callers run them.
void run_case(benchmark::State& state, const std::string& mode, const Shape& shape, double bytes, double macs,
              const std::function<void(const NetworkSteps&)>& step) {
  const auto steps = NetworkSteps::select(Stream::cpu(1));
  if (!steps.ok()) return state.SkipWithError(std::string(steps.status().message()).c_str());
  const int repeat = macs > 0 ? 1 : 20;
  double best = 1e9;
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = seconds_of([&] { step(*steps); }, repeat);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
  }
  Row row;
  row.op = "steps";
  row.mode = mode;
  row.direction = "forward";
  row.in = row.out = "f32";
  row.numerics = "exact";
  row.isa = name(steps->sku().arch);
  for (int i = 0; i < shape.rank(); ++i) row.shape.push_back(shape[i]);
  row.seconds = best;
  row.bytes = bytes;
  row.macs = macs;
  add(std::move(row));
}

void register_case(const std::string& mode, const Shape& shape, double bytes, double macs,
                   const std::function<void(const NetworkSteps&)>& step) {
  const std::string title = fmt::format("network_steps/{}/{}", mode, shape_name(shape));
  benchmark::RegisterBenchmark(title.c_str(),
                               [=](benchmark::State& state) { run_case(state, mode, shape, bytes, macs, step); })
      ->UseManualTime()
      ->Iterations(1000);
}

}  // namespace

void register_network_steps() {
  constexpr std::int64_t kRow = 2048;
  constexpr std::size_t kBytes = sizeof(float) * 128 * 1024;
  const auto floats = [](Buffer& buffer) { return reinterpret_cast<float*>(buffer.get(kBytes)); };
  float *x = floats(input_buffer()), *y = floats(gradient_buffer()), *out = floats(output_buffer());
  const auto fill = [=] {
    fill_normal(reinterpret_cast<std::byte*>(x), ElementKind::f32, kBytes / sizeof(float));
    fill_normal(reinterpret_cast<std::byte*>(y), ElementKind::f32, kBytes / sizeof(float));
  };
  fill();

  using Activation = NetworkSteps::Activation;
  const auto row = [&](const char* mode, int buffers, const std::function<void(const NetworkSteps&)>& step) {
    register_case(mode, {kRow}, 4.0 * kRow * buffers, 0, step);
  };
  row("rms_norm", 3, [=](const NetworkSteps& s) { s.rms_norm(x, y, 1e-6f, kRow, out); });
  row("layer_norm", 4, [=](const NetworkSteps& s) { s.layer_norm(x, y, y, 1e-6f, kRow, out); });
  row("softmax", 2, [=](const NetworkSteps& s) { s.softmax(out, kRow); });
  row("add", 3, [=](const NetworkSteps& s) { s.add(out, y, kRow); });
  row("gated_silu", 3, [=](const NetworkSteps& s) { s.gated(Activation::silu, x, y, kRow, out); });
  row("gated_gelu", 3, [=](const NetworkSteps& s) { s.gated(Activation::gelu, x, y, kRow, out); });
  row("gated_gelu_tanh", 3, [=](const NetworkSteps& s) { s.gated(Activation::gelu_tanh, x, y, kRow, out); });
  row("distribution", 1, [=](const NetworkSteps& s) { benchmark::DoNotOptimize(s.distribution(x, kRow)); });
  row("kl_divergence", 2, [=](const NetworkSteps& s) {
    const NetworkSteps::Distribution of_x{8, 4, 0};
    benchmark::DoNotOptimize(s.kl_divergence(x, of_x, y, of_x, kRow));
  });

  // Scores and values of a head: rows, depth, columns.
  for (const auto& [rows, depth, columns] : {std::array<std::int64_t, 3>{128, 64, 512},
                                             {128, 512, 64},
                                             {128, 128, 512},
                                             {128, 512, 128},
                                             {1, 64, 512},
                                             {1, 512, 64}}) {
    const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(depth),
               n = static_cast<std::size_t>(columns);
    register_case("chain_products", {rows, depth, columns},
                  4.0 * static_cast<double>(rows * depth + depth * columns + rows * columns),
                  static_cast<double>(rows * depth * columns),
                  [=](const NetworkSteps& s) { s.chain_products(x, k, y, n, m, k, n, out, n); });
  }
}

}  // namespace kvant::bench
