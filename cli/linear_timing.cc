#include "cli/linear_timing.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kvant/f32_linear.h"
#include "kvant/linear.h"
#include "kvant/packed_f32_weight.h"
#include "kvant/packed_weight.h"

namespace kvant::cli {
namespace {

std::size_t product(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

// Small numbers of both signs; any data takes the same time.
std::vector<float> some_floats(std::size_t count) {
  std::vector<float> values(count);
  std::uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  return values;
}

}  // namespace

Result<double> best_seconds(double budget, const std::function<Status()>& call) {
  using Clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  for (int i = 0;; ++i) {
    const auto before = Clock::now();
    if (i >= 2 && std::chrono::duration<double>(before - begin).count() >= budget) return best;
    if (Status s = call(); !s.ok()) return s;
    best = std::min(best, std::chrono::duration<double>(Clock::now() - before).count());
  }
}

Result<double> time_w8a8_linear(const Stream& stream, const LinearShape& shape, double budget) {
  const std::vector<float> x = some_floats(product(shape.rows, shape.in));
  std::vector<float> y(product(shape.rows, shape.out));
  const std::vector<float> scale(static_cast<std::size_t>(shape.out), 0.01f);
  std::vector<std::int8_t> codes(product(shape.out, shape.in));
  std::uint32_t state = 1;
  for (std::int8_t& code : codes) {
    state = state * 1664525u + 1013904223u;
    code = static_cast<std::int8_t>(state >> 24);
  }
  const auto packed = PackedWeight::pack(stream, TensorRef<std::int8_t>(codes.data(), {shape.out, shape.in}));
  if (!packed.ok()) return packed.status();
  const auto plan = QuantizedLinearPlan<float>::select(
      stream, {.max_rows = shape.rows, .in_features = shape.in, .out_features = shape.out});
  if (!plan.ok()) return plan.status();
  std::vector<std::byte> scratch(plan->workspace_size());
  return best_seconds(budget, [&] {
    return plan->run(stream, {scratch.data(), scratch.size()},
                     {.input = {x.data(), {shape.rows, shape.in}},
                      .packed_weight = &*packed,
                      .weight_scale = TensorRef<float>(scale.data(), {shape.out}),
                      .output = {y.data(), {shape.rows, shape.out}}});
  });
}

Result<double> time_f32_linear(const Stream& stream, const LinearShape& shape, double budget) {
  const std::vector<float> x = some_floats(product(shape.rows, shape.in));
  std::vector<float> y(product(shape.rows, shape.out));
  const std::vector<float> w = some_floats(product(shape.out, shape.in));
  const auto packed = PackedF32Weight::pack(stream, TensorRef<float>(w.data(), {shape.out, shape.in}));
  if (!packed.ok()) return packed.status();
  const auto plan =
      F32LinearPlan<>::select(stream, {.max_rows = shape.rows, .in_features = shape.in, .out_features = shape.out});
  if (!plan.ok()) return plan.status();
  std::vector<std::byte> scratch(plan->workspace_size());
  return best_seconds(budget, [&] {
    return plan->run(stream, {scratch.data(), scratch.size()},
                     {.input = {x.data(), {shape.rows, shape.in}},
                      .packed_weight = &*packed,
                      .output = {y.data(), {shape.rows, shape.out}}});
  });
}

}  // namespace kvant::cli
