// An f32 linear layer with its buffers, what the chain of include/kvant/f32_linear.h makes of it, and the ways tests
// run it: raw or packed, dense or strided, at any address, on any instruction set.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ios>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvant/f32_linear.h"
#include "kvant/packed_f32_weight.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/isas.h"
#include "tests/support/kernel_log.h"
#include "tests/support/linear_case.h"

namespace kvant::tests {

inline constexpr ElementKind kF32WeightKinds[] = {ElementKind::f32, ElementKind::f16, ElementKind::bf16};

// The instruction sets of this build that this machine has.
inline const std::vector<ArchSku>& runnable_isas() {
  static const std::vector<ArchSku> isas = [] {
    std::vector<ArchSku> some;
    for (const ArchSku isa : compiled_isas())
      if (cpu::can_run(isa)) some.push_back(isa);
    return some;
  }();
  return isas;
}

struct F32LinearCase {
  std::int64_t m, k, n;
  ElementKind weight;
  std::vector<std::byte> x, w;  // dense
  std::vector<std::byte> bias;  // of f32
  bool has_bias;

  F32LinearCase(std::int64_t rows, std::int64_t in_features, std::int64_t out_features, ElementKind weight_kind,
                bool with_bias, std::uint32_t seed, Data data = Data::normal)
      : m(rows),
        k(in_features),
        n(out_features),
        weight(weight_kind),
        x(draw(data, ElementKind::f32, m * k, seed)),
        w(draw(data, weight, n * k, seed + 1)),
        bias(draw(data, ElementKind::f32, n, seed + 2)),
        has_bias(with_bias) {}

  // One output after the other, each one chain.
  std::vector<std::byte> wanted() const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(m * n) * sizeof(float));
    std::vector<float> row(static_cast<std::size_t>(k));
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < k; ++i)
        row[static_cast<std::size_t>(i)] =
            static_cast<float>(get_float(&w[static_cast<std::size_t>(j * k + i) * width_of(weight)], weight));
      for (std::int64_t i = 0; i < m; ++i) {
        float y = 0;
        for (std::int64_t at = 0; at < k; ++at)
          y = std::fma(float_at(x, i * k + at), row[static_cast<std::size_t>(at)], y);
        if (has_bias) y = rounded_sum(y, float_at(bias, j));
        std::memcpy(&bytes[static_cast<std::size_t>(i * n + j) * sizeof(float)], &y, sizeof y);
      }
    }
    return bytes;
  }

  std::string text() const {
    return std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + " (M, K, N) " +
           std::string(name(weight)) + " weights, " + (has_bias ? "with bias" : "no bias");
  }

  // The first output that differs, with its place and numbers; any NaN equals any NaN.
  testing::AssertionResult equal(std::span<const std::byte> got, std::span<const std::byte> want) const {
    const std::int64_t at = first_difference(got, want, ElementKind::f32);
    if (at == -1) return testing::AssertionSuccess();
    if (got.size() != want.size() || n == 0)
      return testing::AssertionFailure() << got.size() << " bytes, wanted " << want.size() << " in " << text();
    return testing::AssertionFailure() << "y[" << at / n << ", " << at % n << "] is " << std::hexfloat
                                       << float_at(got, at) << ", wanted " << float_at(want, at) << " in " << text();
  }

  static float float_at(std::span<const std::byte> bytes, std::int64_t index) {
    float value;
    std::memcpy(&value, &bytes[static_cast<std::size_t>(index) * sizeof value], sizeof value);
    return value;
  }
};

// A plan with everything that a run needs, so that run() can be called again and under other circumstances.
class PreparedF32Linear {
 public:
  PreparedF32Linear(const F32LinearCase& c, const PlanPreference& preference, const LinearLayout& layout,
                    const Stream& stream = Stream::cpu(1))
      : case_(c),
        output_stride_((c.n + layout.output_gap) * 4),
        input_(c.x, c.m, c.k * 4, (c.k + layout.activation_gap) * 4, layout),
        weight_(c.w, c.n, c.k * weight_width(), (c.k + layout.weight_gap) * weight_width(), layout),
        bias_(c.bias, layout),
        output_(c.m == 0 ? 0 : static_cast<std::size_t>((c.m - 1) * output_stride_ + c.n * 4), layout) {
    const auto plan = AnyF32LinearPlan::select(
        stream, {.max_rows = c.m + layout.spare_rows, .in_features = c.k, .out_features = c.n, .weight = c.weight},
        preference);
    status_ = plan.status();
    if (!plan.ok()) return;
    plan_ = *plan;
    scratch_.emplace(plan_->workspace_size(), layout);
    std::fill_n(scratch_->data(), scratch_->size(), std::byte{0xFF});  // NaN
    const auto stride = [](std::int64_t row, std::int64_t gap) { return gap == 0 ? 0 : row + gap; };
    const auto with_last = [&](std::int64_t last) {
      std::vector<std::int64_t> sizes = layout.leading.value_or(std::vector<std::int64_t>{c.m});
      sizes.push_back(last);
      return Shape(std::span<const std::int64_t>(sizes));
    };
    const AnyRef weight{weight_.data(), c.weight, {c.n, c.k}, stride(c.k, layout.weight_gap)};
    args_.input = {input_.data(), ElementKind::f32, with_last(c.k), stride(c.k, layout.activation_gap)};
    if (c.has_bias) args_.bias = {bias_.data(), ElementKind::f32, {c.n}, 0};
    args_.output = {output_.data(), ElementKind::f32, with_last(c.n), stride(c.n, layout.output_gap)};
    if (!layout.packed) {
      args_.weight = weight;
      return;
    }
    const auto packed = PackedF32Weight::pack(stream, weight, preference);
    status_ = packed.status();
    if (!packed.ok()) return;
    packed_ = *packed;
    args_.packed_weight = &*packed_;
    std::fill_n(weight_.data(), weight_.size(), std::byte{0x5A});  // it is not needed any more
  }
  PreparedF32Linear(const PreparedF32Linear&) = delete;
  PreparedF32Linear& operator=(const PreparedF32Linear&) = delete;

  const Status& status() const { return status_; }  // of select() and pack()
  const AnyF32LinearPlan& plan() const { return *plan_; }
  const AnyF32LinearArgs& args() const { return args_; }

  Status run(const Stream& stream) const { return plan_->run(stream, {scratch_->data(), scratch_->size()}, args_); }

  void forget_output() const { std::fill_n(output_.data(), output_.size(), Place::kMark); }
  std::vector<std::byte> output() const {
    std::vector<std::byte> dense;
    for (std::int64_t r = 0; r < case_.m; ++r)
      dense.insert(dense.end(), output_.data() + r * output_stride_, output_.data() + r * output_stride_ + case_.n * 4);
    return dense;
  }
  // Nothing was written but rows of the output and the scratch.
  bool kept_to_its_rows() const {
    for (std::int64_t r = 0; r + 1 < case_.m; ++r)
      if (!std::all_of(output_.data() + r * output_stride_ + case_.n * 4, output_.data() + (r + 1) * output_stride_,
                       Place::is_mark))
        return false;
    return output_.margins_are_untouched() && scratch_->margins_are_untouched();
  }

 private:
  std::int64_t weight_width() const { return static_cast<std::int64_t>(width_of(case_.weight)); }

  const F32LinearCase& case_;
  std::int64_t output_stride_;  // bytes
  Place input_, weight_, bias_, output_;
  std::optional<Place> scratch_;
  std::optional<AnyF32LinearPlan> plan_;
  std::optional<PackedF32Weight> packed_;
  AnyF32LinearArgs args_;
  Status status_;
};

// Runs a case once and compares.
inline testing::AssertionResult is_right(const F32LinearCase& c, std::span<const std::byte> want, ArchSku isa,
                                         const LinearLayout& layout, const Stream& stream = Stream::cpu(1)) {
  const PreparedF32Linear linear(c, {.isa = isa}, layout, stream);
  const auto where = [&] {
    return " (" + std::string(name(isa)) + ", " + layout.text() + ", " + std::to_string(stream.threads()) + " threads)";
  };
  if (!linear.status().ok())
    return testing::AssertionFailure() << linear.status().message() << " in " << c.text() << where();
  if (const Status done = linear.run(stream); !done.ok())
    return testing::AssertionFailure() << done.message() << " in " << c.text() << where();
  note_kernel(linear.plan().sku());
  if (testing::AssertionResult result = c.equal(linear.output(), want); !result) return result << where();
  if (!linear.kept_to_its_rows())
    return testing::AssertionFailure() << "wrote beside its rows in " << c.text() << where();
  return testing::AssertionSuccess();
}

}  // namespace kvant::tests
