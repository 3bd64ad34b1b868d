#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bench/limit.h"
#include "bench/measure.h"
#include "bench/operators.h"
#include "bench/report.h"
#include "kvant/kvant.h"

namespace kvant::bench {
namespace {

struct Case {
  DynamicRangeMode mode;
  DynamicRangeScope scope;
  ElementKind in;
  ElementKind out;
  Shape shape;
  int threads;
  std::optional<ElementKind> scale = std::nullopt;  // default: of the compute type
};

// Every element is read again when all of its segment has been seen, unless the segment stays in the cache.
bool reads_twice(const Case& c) {
  return c.scope.kind() == GranularityKind::tensor ||
         (c.scope.kind() == GranularityKind::channel && c.scope.axis() != 0);
}

void run_case(benchmark::State& state, const Case& c) {
  const std::int64_t n = *c.shape.element_count();
  const auto bytes_of = [&](ElementKind kind) { return static_cast<std::size_t>(row_bytes(kind, n)); };
  std::byte* x = input_buffer().get(bytes_of(c.in));
  std::byte* out = output_buffer().get(bytes_of(c.out));
  fill_normal(x, c.in, n);

  const Stream stream = Stream::cpu(c.threads);
  const auto plan = AnyDynamicRangeQuantizePlan::select(
      stream, {.shape = c.shape, .scope = c.scope, .mode = c.mode, .scale = c.scale, .input = c.in, .output = c.out});
  if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
  const Shape parameters = *parameter_shape(c.shape, c.scope);
  const auto count = static_cast<std::size_t>(*parameters.element_count());
  std::vector<double> scale(count);
  std::vector<std::int32_t> zero_point(count);
  std::vector<std::byte> scratch(plan->workspace_size());
  const AnyDynamicRangeQuantizeArgs args{.input = {x, c.in, c.shape, 0},
                                         .output = {out, c.out, c.shape, 0},
                                         .scale_out = {scale.data(), c.scale.value_or(scale_kind(c.in)), parameters, 0},
                                         .zero_point_out = {zero_point.data(), ElementKind::s32, parameters, 0}};

  const bool twice = reads_twice(c);
  Traffic traffic{x, nullptr, out, n, bits_per_element(c.in) / 4, bits_per_element(c.out) / 4};
  Traffic reading = traffic;
  reading.write_half_bytes = 0;
  const bool limited = n >= 65536;
  const int repeat = static_cast<int>(std::clamp<std::int64_t>((1 << 21) / n, 1, 20000));
  double best = 1e9, limit = 1e9;
  bool ok = true;
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = seconds_of(
        [&] {
          ok = plan->run(stream, {scratch.data(), scratch.size()}, args).ok() && ok;
        },
        repeat);
    best = std::min(best, seconds);
    if (limited)
      for (const Stores stores : {Stores::plain, Stores::non_temporal})
        limit = std::min(limit, seconds_of(
                                    [&] {
                                      if (twice) move(stream, reading, stores);
                                      move(stream, traffic, stores);
                                    },
                                    repeat));
    state.SetIterationTime(seconds);
  }
  if (!ok) return state.SkipWithError("run() refused");
  Row row;
  row.op = "dynamic_range";
  row.mode = c.scale ? fmt::format("{}, scale {}", name(c.mode), name(*c.scale)) : std::string(name(c.mode));
  row.granularity = name(c.scope.kind());
  row.axis = c.scope.axis();
  row.group_size = c.scope.group_size();
  row.block_size = {c.scope.block_rows(), c.scope.block_columns()};
  row.direction = "forward";
  row.in = name(c.in);
  row.out = name(c.out);
  row.numerics = "exact";
  row.isa = name(plan->sku().arch);
  for (int i = 0; i < c.shape.rank(); ++i) row.shape.push_back(c.shape[i]);
  row.threads = c.threads;
  row.seconds = best;
  row.bytes = static_cast<double>(row_bytes(c.in, n) * (twice ? 2 : 1) + row_bytes(c.out, n));
  row.limit_seconds = limited ? limit : 0;
  add(std::move(row));
}

void register_case(const Case& c) {
  const std::string title = fmt::format("dynamic_range/{}/{}{}/{}_{}/{}/threads{}", name(c.mode),
                                        granularity_name(c.scope), c.scale ? fmt::format("_{}", name(*c.scale)) : "",
                                        name(c.in), name(c.out), shape_name(c.shape), c.threads);
  benchmark::RegisterBenchmark(title.c_str(), [c](benchmark::State& state) { run_case(state, c); })
      ->UseManualTime()
      ->Iterations(*c.shape.element_count() < (1 << 20) ? 600 : 9);
}

}  // namespace

void register_dynamic_range() {
  constexpr auto kSymmetric = DynamicRangeMode::symmetric, kAsymmetric = DynamicRangeMode::asymmetric;
  const Shape matrix = {16384, 4096};
  for (const int threads : thread_counts()) {
    for (const DynamicRangeMode mode : {kSymmetric, kAsymmetric})
      for (const ElementKind in : {ElementKind::f32, ElementKind::f16, ElementKind::bf16, ElementKind::f64})
        for (const DynamicRangeScope& scope :
             {DynamicRangeScope::per_token(), DynamicRangeScope::per_group(1, 128), DynamicRangeScope::per_group(1, 32),
              DynamicRangeScope::per_group(0, 128), DynamicRangeScope::per_tensor(), DynamicRangeScope::per_channel(0),
              DynamicRangeScope::per_channel(1), DynamicRangeScope::per_block(128, 128),
              DynamicRangeScope::per_block(1, 128)})
          if (in != ElementKind::f64 || scope.kind() == GranularityKind::token)
            register_case({mode, scope, in, ElementKind::s8, matrix, threads});
    for (const ElementKind out : {ElementKind::u8, ElementKind::s4, ElementKind::u4})
      register_case({kAsymmetric, DynamicRangeScope::per_token(), ElementKind::f32, out, matrix, threads});
  }
  for (const int threads : thread_counts())
    for (const ElementKind in : {ElementKind::f32, ElementKind::bf16}) {
      register_case({kSymmetric, DynamicRangeScope::per_token(), in, ElementKind::e4m3, matrix, threads});
      register_case(
          {kSymmetric, DynamicRangeScope::per_group(1, 32), in, ElementKind::e2m1, matrix, threads, ElementKind::e8m0});
    }
  for (const DynamicRangeMode mode : {kSymmetric, kAsymmetric})
    register_case({mode, DynamicRangeScope::per_token(), ElementKind::f32, ElementKind::s8, {1, 4096}, 1});
}

}  // namespace kvant::bench
