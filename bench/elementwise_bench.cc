#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
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
  QuantizeKind op;
  Granularity granularity;
  ElementKind in;
  ElementKind out;
  Numerics numerics;
  Shape shape;
  int threads;
  ElementKind scale = ElementKind::f32;  // f64 becomes f64; e8m0
};

bool is_backward(QuantizeKind op) { return elementwise_operator(op).backward_of.has_value(); }

// "quantize" for quantize_backward: the direction is a column of its own.
std::string forward_name(QuantizeKind op) {
  return std::string(name(elementwise_operator(op).backward_of.value_or(op)));
}

// The operator and its limit in turns, the best of each: what disturbs one disturbs the other.
void run_case(benchmark::State& state, const Case& c) {
  const std::int64_t n = *c.shape.element_count();
  const bool backward = is_backward(c.op);
  const ElementKind float_kind = is_float(c.in) ? c.in : c.out;
  const ElementKind read = backward ? float_kind : c.in;
  const ElementKind write = backward ? float_kind : c.out;
  const bool two_inputs = backward && elementwise_operator(c.op).reads_input;
  std::byte* x = input_buffer().get(static_cast<std::size_t>(row_bytes(read, n)));
  std::byte* dy = two_inputs ? gradient_buffer().get(static_cast<std::size_t>(row_bytes(read, n))) : nullptr;
  std::byte* out = output_buffer().get(static_cast<std::size_t>(row_bytes(write, n)));
  fill_normal(x, read, n);
  if (two_inputs) fill_normal(dy, read, n);

  const Stream stream = Stream::cpu(c.threads);
  const auto plan = ElementwisePlan::select(
      stream, {.op = c.op, .shape = c.shape, .granularity = c.granularity, .input = c.in, .output = c.out},
      {.numerics = c.numerics});
  if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());

  const Shape parameters = *parameter_shape(c.shape, c.granularity);
  const std::size_t count = static_cast<std::size_t>(*parameters.element_count());
  std::vector<float> scale(count);
  std::vector<double> scale64(count);
  std::vector<std::int32_t> zero_point(count, 3);
  for (std::size_t i = 0; i < count; ++i) {
    scale[i] = 0.02f + 0.0001f * static_cast<float>(i % 100);
    scale64[i] = scale[i];
  }
  ElementwiseArgs args;
  args.input = {x, read, c.shape, 0};
  args.grad_output = {two_inputs ? dy : x, float_kind, c.shape, 0};
  args.output = {out, write, c.shape, 0};
  std::vector<std::uint8_t> powers(count);
  for (std::size_t i = 0; i < count; ++i) powers[i] = static_cast<std::uint8_t>(118 + i % 7);
  args.scale = float_kind == ElementKind::f64 ? AnyParameter(AnyRef{scale64.data(), ElementKind::f64, parameters, 0})
                                              : AnyParameter(AnyRef{scale.data(), ElementKind::f32, parameters, 0});
  if (c.scale == ElementKind::e8m0) args.scale = AnyParameter(AnyRef{powers.data(), c.scale, parameters, 0});
  const bool has_zero_point = !has_float_grid(c.in) && !has_float_grid(c.out);
  if (has_zero_point) args.zero_point = AnyParameter(AnyRef{zero_point.data(), ElementKind::s32, parameters, 0});
  if (const Status status = plan->can_implement(args); !status.ok())
    return state.SkipWithError(std::string(status.message()).c_str());

  const Traffic traffic{x, two_inputs ? dy : nullptr, out, n, bits_per_element(read) / 4, bits_per_element(write) / 4};
  const bool limited = n >= 4096;  // below, a call is all overhead
  const int repeat = static_cast<int>(std::clamp<std::int64_t>((1 << 21) / n, 1, 20000));
  double best = 1e9, limit = 1e9;
  bool ok = true;
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = seconds_of([&] { ok = plan->run(stream, {}, args).ok() && ok; }, repeat);
    best = std::min(best, seconds);
    if (limited) {
      limit = std::min(limit, seconds_of([&] { move(stream, traffic, Stores::plain); }, repeat));
      limit = std::min(limit, seconds_of([&] { move(stream, traffic, Stores::non_temporal); }, repeat));
    }
    state.SetIterationTime(seconds);
  }
  if (!ok) return state.SkipWithError("run() refused");
  Row row;
  row.op = forward_name(c.op);
  row.granularity = name(c.granularity.kind());
  row.axis = c.granularity.axis();
  row.group_size = c.granularity.group_size();
  row.block_size = {c.granularity.block_rows(), c.granularity.block_columns()};
  row.direction = backward ? "backward" : "forward";
  row.in = name(c.in);
  row.out = name(c.out);
  row.numerics = name(c.numerics);
  if (c.scale != ElementKind::f32) row.mode = fmt::format("scale {}", name(c.scale));
  row.isa = name(plan->sku().arch);
  for (int i = 0; i < c.shape.rank(); ++i) row.shape.push_back(c.shape[i]);
  row.threads = c.threads;
  row.seconds = best;
  row.bytes = static_cast<double>(row_bytes(read, n) * (two_inputs ? 2 : 1) + row_bytes(write, n));
  row.limit_seconds = limited ? limit : 0;
  add(std::move(row));
}

void register_case(const Case& c) {
  const std::string scale = c.scale == ElementKind::f32 ? "" : fmt::format("_{}", name(c.scale));
  const std::string title =
      fmt::format("{}/{}{}/{}_{}/{}/{}/threads{}", name(c.op), granularity_name(c.granularity), scale, name(c.in),
                  name(c.out), name(c.numerics), shape_name(c.shape), c.threads);
  const bool small = *c.shape.element_count() < (1 << 20);
  benchmark::RegisterBenchmark(title.c_str(), [c](benchmark::State& state) { run_case(state, c); })
      ->UseManualTime()
      ->Iterations(small ? 600 : 9);  // short ones in many pieces, to meet a quiet moment
}

}  // namespace

void register_elementwise() {
  constexpr ElementKind kF32 = ElementKind::f32, kF64 = ElementKind::f64, kF16 = ElementKind::f16,
                        kBf16 = ElementKind::bf16, kS8 = ElementKind::s8;
  const Shape flat = {std::int64_t{64} << 20};
  const Shape matrix = {16384, 4096};
  for (const int threads : thread_counts()) {
    const auto forward_and_backward = [&](Granularity g, ElementKind f, ElementKind code, Numerics numerics,
                                          const Shape& shape) {
      for (const ElementwiseOperator& o : kElementwiseOperators) {
        const auto kind = [&](ElementClass element_class) { return element_class == ElementClass::code ? code : f; };
        register_case({o.op, g, kind(o.input), kind(o.output), numerics, shape, threads});
      }
    };
    for (const ElementKind f : {kF32, kF16, kBf16, kF64})
      forward_and_backward(Granularity::per_tensor(), f, kS8, Numerics::exact, flat);
    for (const ElementKind f : {kF32, kF16, kBf16})
      for (const Granularity g :
           {Granularity::per_channel(1), Granularity::per_group(1, 32), Granularity::per_group(1, 128),
            Granularity::per_block(128, 128), Granularity::per_token()})
        forward_and_backward(g, f, kS8, Numerics::exact, matrix);
    for (const ElementKind f : {kF32, kF16, kBf16}) {
      register_case({QuantizeKind::quantize, Granularity::per_tensor(), f, kS8, Numerics::reciprocal, flat, threads});
      for (const ElementKind code : {ElementKind::u8, ElementKind::s4, ElementKind::u4, ElementKind::s16,
                                     ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1}) {
        register_case({QuantizeKind::quantize, Granularity::per_tensor(), f, code, Numerics::exact, flat, threads});
        register_case({QuantizeKind::dequantize, Granularity::per_tensor(), code, f, Numerics::exact, flat, threads});
      }
    }
  }
  for (const int threads : thread_counts())
    for (const ElementKind f : {kF32, kBf16})
      register_case({QuantizeKind::quantize, Granularity::per_group(1, 32), f, ElementKind::e2m1, Numerics::exact,
                     matrix, threads, ElementKind::e8m0});
  for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal})
    register_case({QuantizeKind::quantize, Granularity::per_tensor(), kF32, kS8, numerics, {64 * 1024}, 1});
  for (const QuantizeKind op : {QuantizeKind::quantize, QuantizeKind::fake_quantize})
    register_case(
        {op, Granularity::per_tensor(), kF32, op == QuantizeKind::quantize ? kS8 : kF32, Numerics::exact, {64}, 1});
}

}  // namespace kvant::bench
