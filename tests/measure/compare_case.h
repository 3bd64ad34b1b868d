// Checkpoints to compare, and comparisons that must be the same, bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "measure/compare.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/scratch.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {

using format::Scheme;
using io::DType;
using measure::CompareOptions;
using measure::Comparison;
using measure::LayerDetails;
using measure::LayerLoss;
using measure::ModelLoss;

// Original and quantized folder of some layers; `s` smooths the first of them.
struct Pair {
  ScratchFolder scratch;
  CheckpointFixture original, quantized;

  Pair(const Scheme& scheme, const std::vector<FixtureLayer>& layers) {
    quantized.config["quantization_config"] = config_json(scheme);
    for (const FixtureLayer& layer : layers) {
      original.add(original_tensor(layer));
      quantized.add(quantized_tensors(layer, scheme));
    }
  }
  void write() const {
    original.write(scratch / "original");
    quantized.write(scratch / "quantized");
  }
  Result<Comparison> compare(int threads = 2, std::uint64_t max_memory = std::uint64_t{1} << 30) const {
    base::Silence silence;
    return measure::compare({.original = scratch / "original",
                             .quantized = {scratch / "quantized"},
                             .threads = threads,
                             .max_memory = max_memory},
                            silence);
  }
};

inline void expect_same_bits(const ModelLoss& a, const ModelLoss& b) {
  ASSERT_EQ(a.layers.size(), b.layers.size());
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const LayerLoss &x = a.layers[i], &y = b.layers[i];
    EXPECT_EQ(x.module, y.module);
    EXPECT_EQ(bits(x.sqnr_db), bits(y.sqnr_db)) << x.module;
    EXPECT_EQ(bits(x.mse), bits(y.mse)) << x.module;
    EXPECT_EQ(bits(x.cosine), bits(y.cosine)) << x.module;
    EXPECT_EQ(bits(x.largest_error), bits(y.largest_error)) << x.module;
    EXPECT_EQ(x.largest_row, y.largest_row) << x.module;
    EXPECT_EQ(x.largest_column, y.largest_column) << x.module;
    EXPECT_EQ(bits(x.at_ends), bits(y.at_ends)) << x.module;
    EXPECT_EQ(x.non_finite, y.non_finite) << x.module;
    EXPECT_EQ(x.kind, y.kind) << x.module;
    EXPECT_EQ(x.block, y.block) << x.module;
    EXPECT_EQ(x.dead_channels, y.dead_channels) << x.module;
    EXPECT_EQ(x.saturated, y.saturated) << x.module;
    EXPECT_EQ(x.smoothed, y.smoothed) << x.module;
    // Where memory is too small for all columns there are none.
    if (x.outlier_channels && y.outlier_channels) {
      EXPECT_EQ(x.outlier_channels, y.outlier_channels) << x.module;
    }
  }
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.unquantized, b.unquantized);
}

inline void expect_same_bits(const Comparison& a, const Comparison& b) {
  ASSERT_EQ(a.quantized.size(), b.quantized.size());
  for (std::size_t i = 0; i < a.quantized.size(); ++i) expect_same_bits(a.quantized[i], b.quantized[i]);
}

// Quantized folders of one original. All have the same layers unless one is left out.
struct Several {
  ScratchFolder scratch;
  std::vector<Scheme> schemes;
  std::vector<FixtureLayer> layers;  // as the first scheme quantizes them
  std::vector<fs::path> paths;

  // `leave_out(q, module)`: not quantized in checkpoint q. `change(layer, q)` comes before quantizing.
  template <class Change, class LeaveOut>
  Several(std::vector<Scheme> of, std::vector<FixtureLayer> made, Change&& change, LeaveOut&& leave_out)
      : schemes(std::move(of)), layers(std::move(made)) {
    CheckpointFixture original;
    for (const FixtureLayer& layer : layers) original.add(original_tensor(layer));
    original.write(scratch / "original");
    for (std::size_t q = 0; q < schemes.size(); ++q) {
      CheckpointFixture quantized;
      quantized.config["quantization_config"] = config_json(schemes[q]);
      for (const FixtureLayer& layer : layers) {
        if (leave_out(q, layer.module)) {
          quantized.add(original_tensor(layer));
          continue;
        }
        FixtureLayer changed = layer;
        change(changed, q);
        quantize_plainly(changed, schemes[q]);
        quantized.add(quantized_tensors(changed, schemes[q]));
      }
      paths.push_back(scratch / fmt::format("q{}", q));
      quantized.write(paths.back());
    }
  }
  Result<Comparison> compare(std::vector<fs::path> which, bool details, int threads = 2,
                             std::uint64_t max_memory = std::uint64_t{1} << 30) const {
    base::Silence silence;
    return measure::compare({.original = scratch / "original",
                             .quantized = std::move(which),
                             .details = details,
                             .threads = threads,
                             .max_memory = max_memory},
                            silence);
  }
};
inline constexpr auto kAsItIs = [](FixtureLayer&, std::size_t) {};
inline constexpr auto kAll = [](std::size_t, const std::string&) { return false; };

inline std::vector<FixtureLayer> numbered_layers(std::size_t count, std::uint64_t rows = 4,
                                                 std::uint64_t columns = 48) {
  std::vector<FixtureLayer> layers;
  for (std::size_t i = 0; i < count; ++i)
    layers.push_back(make_layer(fmt::format("model.layers.{}.mlp.up_proj", i), rows, columns, DType::bf16, w8a8(),
                                static_cast<std::uint32_t>(i + 1)));
  return layers;
}

}  // namespace kvant::tests
