// An f32 linear layer with its buffers, what the chain of include/kvant/f32_linear.h makes of it, and the ways tests
// run it: raw or packed, dense or strided, at any address, on any instruction set.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kvant/f32_linear.h"
#include "kvant/packed_f32_weight.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/isas.h"
#include "tests/support/linear_layout.h"
#include "tests/support/linear_reference.h"

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

class PreparedF32Linear;

struct F32LinearCase {
  using Prepared = PreparedF32Linear;

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

  testing::AssertionResult equal(std::span<const std::byte> got, std::span<const std::byte> want) const {
    return equal_outputs(*this, ElementKind::f32, got, want);
  }

  static float float_at(std::span<const std::byte> bytes, std::int64_t index) {
    float value;
    std::memcpy(&value, &bytes[static_cast<std::size_t>(index) * sizeof value], sizeof value);
    return value;
  }
};

class PreparedF32Linear : public PreparedLayer<AnyF32LinearPlan, AnyF32LinearArgs, PackedF32Weight> {
 public:
  PreparedF32Linear(const F32LinearCase& c, const PlanPreference& preference, const LinearLayout& layout,
                    const Stream& stream = Stream::cpu(1))
      : PreparedLayer(
            AnyF32LinearPlan::select(
                stream,
                {.max_rows = c.m + layout.spare_rows, .in_features = c.k, .out_features = c.n, .weight = c.weight},
                preference),
            c.m, c.n, ElementKind::f32, layout),
        input_(c.x, c.m, c.k * 4, (c.k + layout.activation_gap) * 4, layout),
        weight_(c.w, c.n, c.k * width(c.weight), (c.k + layout.weight_gap) * width(c.weight), layout),
        bias_(c.bias, layout) {
    if (!status().ok()) return;
    args_.input = {input_.data(), ElementKind::f32, layout.shape(c.m, c.k),
                   LinearLayout::stride(c.k, layout.activation_gap)};
    if (c.has_bias) args_.bias = {bias_.data(), ElementKind::f32, {c.n}, 0};
    put_weight({weight_.data(), c.weight, {c.n, c.k}, LinearLayout::stride(c.k, layout.weight_gap)}, weight_, layout,
               stream, preference);
  }

 private:
  static std::int64_t width(ElementKind kind) { return static_cast<std::int64_t>(width_of(kind)); }

  Place input_, weight_, bias_;
};

}  // namespace kvant::tests
