// What one layer lost: against a plain computation in long double, weights that were smoothed, what is odd and legal.
#include "measure/layer_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/measure/compare_case.h"

namespace kvant::tests {
namespace {

// The definition, in long double and in one loop.
LayerLoss expected_loss(const FixtureLayer& layer) {
  LayerLoss loss;
  loss.module = layer.module;
  loss.rows = layer.rows;
  loss.columns = layer.columns;
  long double ww = 0, ee = 0, wv = 0, vv = 0, largest = -1;
  std::uint64_t ends = 0, finite = 0;
  for (std::uint64_t r = 0; r < layer.rows; ++r)
    for (std::uint64_t c = 0; c < layer.columns; ++c) {
      const std::uint64_t i = r * layer.columns + c;
      const long double w = layer.quantized[i];
      if (!std::isfinite(layer.quantized[i])) {
        ++loss.non_finite;
        continue;
      }
      const long double v =
          static_cast<long double>(layer.scales[layer.scale_at(r, c)]) * static_cast<long double>(layer.steps(r, c));
      const long double e = w - v;
      ww += w * w;
      ee += e * e;
      wv += w * v;
      vv += v * v;
      ends += layer.is_at_end(i) ? 1u : 0u;
      ++finite;
      if (std::abs(e) > largest) {
        largest = std::abs(e);
        loss.largest_row = r;
        loss.largest_column = c;
      }
    }
  loss.largest_error = finite == 0 ? 0 : static_cast<double>(largest);
  loss.sqnr_db = ee == 0 ? kInf : static_cast<double>(10 * std::log10(ww / ee));
  loss.mse = finite == 0 ? 0 : static_cast<double>(ee / static_cast<long double>(finite));
  loss.cosine = ww == 0 && vv == 0 ? 1 : ww == 0 || vv == 0 ? 0 : static_cast<double>(wv / std::sqrt(ww * vv));
  loss.at_ends = finite == 0 ? 0 : static_cast<double>(ends) / static_cast<double>(finite);
  return loss;
}

// Columns whose largest magnitude is more than 6 times the median of the columns'.
std::uint64_t expected_outliers(const FixtureLayer& layer) {
  std::vector<double> largest(layer.columns, 0);
  for (std::size_t i = 0; i < layer.quantized.size(); ++i)
    if (std::isfinite(layer.quantized[i]))
      largest[i % layer.columns] = std::max(largest[i % layer.columns], std::abs(layer.quantized[i]));
  std::vector<double> sorted = largest;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  const double median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  return static_cast<std::uint64_t>(
      std::count_if(largest.begin(), largest.end(), [&](double magnitude) { return magnitude > 6 * median; }));
}

void expect_close(const LayerLoss& got, const LayerLoss& want) {
  EXPECT_EQ(got.module, want.module);
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.columns, want.columns);
  EXPECT_EQ(got.non_finite, want.non_finite);
  EXPECT_EQ(got.at_ends, want.at_ends);
  if (std::isinf(want.sqnr_db))
    EXPECT_EQ(got.sqnr_db, want.sqnr_db);
  else
    EXPECT_NEAR(got.sqnr_db, want.sqnr_db, 1e-9);
  EXPECT_NEAR(got.mse, want.mse, 1e-12 * want.mse);
  EXPECT_NEAR(got.cosine, want.cosine, 1e-12);
  EXPECT_NEAR(got.largest_error, want.largest_error, 1e-15 * want.largest_error);
  EXPECT_EQ(got.largest_row, want.largest_row);
  EXPECT_EQ(got.largest_column, want.largest_column);
}

struct Case {
  std::string name;
  DType dtype;
  Scheme scheme;
};

class CompareSchemes : public testing::TestWithParam<Case> {};

TEST_P(CompareSchemes, AgreesWithThePlainComputation) {
  const auto& [name, dtype_of_case, scheme_of_case] = GetParam();
  const DType dtype = dtype_of_case;  // Clang 14 captures no bindings
  const Scheme& scheme = scheme_of_case;
  std::vector<FixtureLayer> layers;
  const auto add = [&](const char* module, std::uint64_t rows, std::uint64_t columns, std::uint32_t seed) {
    return make_layer(module, rows, whole_groups(scheme, columns), dtype, scheme, seed);
  };
  layers.push_back(add("a.small", 3, 1, 1));
  layers.push_back(add("b.tall", 301, 2, 2));
  layers.push_back(add("c.wide", 3, 24 * 700, 3));  // beyond a block, which ends inside a group of 24
  layers.push_back(add("d.square", 97, 24 * 5, 4));
  // NaN, infinities and a row of zeros.
  FixtureLayer odd = add("e.odd", 6, 24 * 4, 5);
  const std::size_t columns = odd.columns;
  odd.weights[3] = kNan;
  odd.weights[columns] = kInf;
  odd.weights[columns + 95] = -kInf;
  for (std::size_t i = 0; i < columns; ++i) odd.weights[2 * columns + i] = 0;
  for (std::size_t i = 0; i < columns; ++i) odd.weights[3 * columns + i] = kNan;
  odd.quantized = odd.weights;
  quantize_plainly(odd, scheme);
  layers.push_back(odd);
  Pair pair(scheme, layers);
  pair.write();
  const auto got = pair.compare();
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->quantized.size(), 1u);
  const ModelLoss& model = got->quantized[0];
  ASSERT_EQ(model.layers.size(), layers.size());
  for (std::size_t i = 1; i < model.layers.size(); ++i) EXPECT_LE(model.layers[i - 1].sqnr_db, model.layers[i].sqnr_db);
  for (const FixtureLayer& layer : layers) {
    SCOPED_TRACE(layer.module);
    const auto it = std::find_if(model.layers.begin(), model.layers.end(),
                                 [&](const LayerLoss& loss) { return loss.module == layer.module; });
    ASSERT_NE(it, model.layers.end());
    expect_close(*it, expected_loss(layer));
    EXPECT_FALSE(it->smoothed);
    EXPECT_EQ(it->outlier_channels, expected_outliers(layer));
    EXPECT_EQ(it->dead_channels, layer.module == "e.odd" ? 1u : 0u);
    EXPECT_EQ(it->kind, model::LayerKind::other);
    EXPECT_EQ(it->block, std::nullopt);
    EXPECT_EQ(it->output_sqnr_db, std::nullopt);
  }
  for (const int threads : {1, 2, 3})
    for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{100'000}, std::uint64_t{1} << 30}) {
      SCOPED_TRACE(fmt::format("{} threads, {} bytes", threads, memory));
      const auto again = pair.compare(threads, memory);
      ASSERT_TRUE(again.ok()) << again.status().message();
      expect_same_bits(*got, *again);
    }
}

// Every scheme once, in weights of one type after the other; some in all of them.
std::vector<Case> cases() {
  constexpr DType kDtypes[] = {DType::bf16, DType::f32, DType::f16, DType::f64};
  std::vector<Scheme> schemes = all_schemes(24);
  for (const Scheme& scheme : foreign_schemes()) schemes.push_back(scheme);
  schemes.push_back(w4a16(1, true));
  std::vector<Case> all;
  const auto add = [&](const Scheme& scheme, DType dtype) {
    all.push_back({fmt::format("{}_{}_{}", io::name(dtype), identifier(scheme), all.size()), dtype, scheme});
  };
  for (std::size_t i = 0; i < schemes.size(); ++i) add(schemes[i], kDtypes[i % std::size(kDtypes)]);
  for (const DType dtype : kDtypes)
    for (const Scheme& scheme : {w8a8(), fp8_blocks(16, 20), scheme_of("nvfp4")}) add(scheme, dtype);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CompareSchemes, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST(Compare, WeightsAreSmoothedAsTheQuantizerSawThem) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (const Scheme& scheme : {w8a8(), w4a16(40), scheme_of("fp8"), scheme_of("nvfp4a16")}) {
      SCOPED_TRACE(io::name(dtype));
      const std::uint64_t columns = 80 * 65;
      FixtureLayer layer = make_layer("block.q_proj", 5, columns, dtype, scheme);
      FixtureLayer next = make_layer("block.up_proj", 5, columns, dtype, scheme, 2);
      const FixtureLayer other = make_layer("block.o_proj", 5, 80, dtype, scheme);
      std::vector<double> s(columns);
      for (std::size_t j = 0; j < s.size(); ++j) s[j] = rounded(0.3 + static_cast<double>(j % 17) / 3, DType::f32);
      const std::vector<double> next_s(s.rbegin(), s.rend());
      const auto smooth = [&](FixtureLayer& smoothed, const std::vector<double>& by) {
        for (std::size_t i = 0; i < smoothed.weights.size(); ++i) {
          const double w = smoothed.weights[i], factor = by[i % columns];
          const float product = static_cast<float>(w) * static_cast<float>(factor);
          smoothed.quantized[i] = dtype == DType::f64 ? w * factor : rounded(static_cast<double>(product), dtype);
        }
        quantize_plainly(smoothed, scheme);
      };
      smooth(layer, s);
      smooth(next, next_s);
      Pair pair(scheme, {layer, next, other});
      pair.write();
      fs::create_directory(pair.scratch / "quantized/kvant");
      write_safetensors(pair.scratch / "quantized/kvant/smoothing.safetensors",
                        {f32_tensor("block.norm", {columns}, s), f32_tensor("block.norm2", {columns}, next_s)},
                        {{"format", "pt"}, {"block.q_proj", "block.norm"}, {"block.up_proj", "block.norm2"}});
      const auto got = pair.compare();
      ASSERT_TRUE(got.ok()) << got.status().message();
      ASSERT_EQ(got->quantized[0].layers.size(), 3u);
      for (const LayerLoss& loss : got->quantized[0].layers) {
        EXPECT_EQ(loss.smoothed, loss.module != "block.o_proj");
        const FixtureLayer& made = !loss.smoothed ? other : loss.module == layer.module ? layer : next;
        expect_close(loss, expected_loss(made));
        EXPECT_EQ(loss.outlier_channels, expected_outliers(made));
      }
      for (const int threads : {1, 3})
        for (const std::uint64_t memory : {std::uint64_t{1}, std::uint64_t{300'000}}) {
          const auto again = pair.compare(threads, memory);
          ASSERT_TRUE(again.ok()) << again.status().message();
          expect_same_bits(*got, *again);
        }
    }
}

TEST(Compare, WhatHasNoErrorIsInfinite) {
  FixtureLayer exact = make_layer("exact", 2, 8, DType::f32, w8a8());
  for (std::size_t i = 0; i < 16; ++i) {
    exact.codes[i] = static_cast<int>(i) - 8;
    exact.weights[i] = exact.codes[i] * 0.5;
  }
  exact.scales = {0.5, 0.5};
  FixtureLayer zero = exact;
  zero.module = "zero";
  zero.weights.assign(16, 0);
  zero.codes.assign(16, 0);
  FixtureLayer lost = exact;  // something from nothing
  lost.module = "lost";
  lost.weights.assign(16, 0);
  FixtureLayer nothing = exact;
  nothing.module = "nothing";
  nothing.weights.assign(16, kNan);
  FixtureLayer empty = make_layer("empty", 2, 0, DType::f32, w8a8());
  empty.scales = {1, 1};
  Pair pair(w8a8(), {zero, lost, exact, nothing, empty});
  pair.write();
  const auto got = pair.compare();
  ASSERT_TRUE(got.ok()) << got.status().message();
  const std::vector<LayerLoss>& layers = got->quantized[0].layers;
  ASSERT_EQ(layers.size(), 5u);
  // Nothing finite is the worst that there is, not nothing lost.
  EXPECT_EQ(layers[0].module, "nothing");
  EXPECT_TRUE(std::isnan(layers[0].sqnr_db));
  EXPECT_TRUE(std::isnan(layers[0].cosine));
  EXPECT_EQ(layers[0].non_finite, 16u);
  EXPECT_EQ(layers[1].module, "lost");
  EXPECT_EQ(layers[1].sqnr_db, -kInf);
  EXPECT_EQ(layers[1].cosine, 0);
  const char* const names[] = {"nothing", "lost", "empty", "exact", "zero"};
  for (std::size_t i = 2; i < 5; ++i) {
    EXPECT_EQ(layers[i].module, names[i]);
    EXPECT_EQ(layers[i].sqnr_db, kInf);
    EXPECT_EQ(layers[i].cosine, 1);
    EXPECT_EQ(layers[i].mse, 0);
    EXPECT_EQ(layers[i].largest_error, 0);
  }
  EXPECT_EQ(layers[1].dead_channels, 2u);  // "lost": the original has zeros
  EXPECT_EQ(layers[3].dead_channels, 0u);
  EXPECT_EQ(layers[4].dead_channels, 2u);
  EXPECT_EQ(mean_sqnr_db(got->quantized[0], measure::Judged::weights), std::nullopt);
  const io::Json json = to_json(*got);
  EXPECT_EQ(json["quantized"][0]["layers"][0]["sqnr_db"], "nan");
  EXPECT_EQ(json["quantized"][0]["layers"][1]["sqnr_db"], "-inf");
  EXPECT_EQ(json["quantized"][0]["layers"][2]["sqnr_db"], "inf");
  EXPECT_EQ(json["quantized"][0]["scheme"], "w8a8");
  EXPECT_FALSE(json.dump().empty());
}

// One layer of given weights.
LayerLoss loss_of(FixtureLayer layer, const Scheme& scheme) {
  Pair pair(scheme, {layer});
  pair.write();
  const auto got = pair.compare();
  EXPECT_TRUE(got.ok()) << got.status().message();
  return got.ok() ? got->quantized[0].layers.at(0) : LayerLoss();
}

TEST(CompareLayer, DeadChannelsAreRowsOfZeros) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const std::uint64_t columns : {1u, 30u, 5000u}) {
      FixtureLayer layer = make_layer("a", 9, columns, dtype, w8a8());
      for (double& weight : layer.weights) weight = weight == 0 ? 1 : weight;
      EXPECT_EQ(loss_of(layer, w8a8()).dead_channels, 0u);
      for (const std::uint64_t row : {0u, 4u, 8u})
        for (std::uint64_t c = 0; c < columns; ++c) layer.weights[row * columns + c] = c % 2 == 0 ? 0.0 : -0.0;
      // All but one: alive.
      for (std::uint64_t c = 0; c + 1 < columns; ++c) layer.weights[6 * columns + c] = 0;
      layer.quantized = layer.weights;
      quantize_plainly(layer, w8a8());
      EXPECT_EQ(loss_of(layer, w8a8()).dead_channels, 3u) << columns;
    }
}

TEST(CompareLayer, SaturatedIsFourTimesAsManyAtTheEndsAsEvenlySpread) {
  // 4 * 254 weights evenly spread have 4 at the ends for 8 bits; beside one for each of the 4 scales, 16 are allowed.
  const auto with_ends = [](std::size_t ends) {
    FixtureLayer layer = make_layer("a", 4, 254, DType::f32, w8a8());
    layer.scales.assign(4, 0.01);
    for (std::size_t i = 0; i < layer.codes.size(); ++i) layer.codes[i] = static_cast<int>(i % 200) - 100;
    for (std::size_t i = 0; i < ends; ++i) layer.codes[i * 47] = i % 3 == 0 ? -128 : i % 3 == 1 ? -127 : 127;
    return loss_of(layer, w8a8());
  };
  for (const std::size_t ends : {0u, 4u, 12u, 19u, 20u}) EXPECT_FALSE(with_ends(ends).saturated) << ends;
  EXPECT_TRUE(with_ends(21).saturated);
  EXPECT_EQ(with_ends(21).at_ends, 21.0 / (4 * 254));
  // A single weight for each scale is always at the end.
  EXPECT_FALSE(loss_of(make_layer("a", 50, 1, DType::f32, w8a8()), w8a8()).saturated);
  EXPECT_EQ(loss_of(make_layer("a", 50, 1, DType::f32, w8a8()), w8a8()).at_ends, 1);
  EXPECT_FALSE(loss_of(make_layer("a", 50, 8, DType::f32, w4a16(1)), w4a16(1)).saturated);
  EXPECT_FALSE(loss_of(make_layer("a", 50, 256, DType::f32, w4a16(128)), w4a16(128)).saturated);
  // All at the ends, but none beyond them: weights of three values, which are exact.
  FixtureLayer ternary = make_layer("a", 4, 64, DType::f32, w8a8());
  ternary.scales.assign(4, 0.5);
  for (std::size_t i = 0; i < ternary.codes.size(); ++i) {
    ternary.codes[i] = static_cast<int>(i % 3) * 127 - 127;
    ternary.weights[i] = ternary.codes[i] * 0.5;
  }
  EXPECT_FALSE(loss_of(ternary, w8a8()).saturated);
  // Clipped at a quarter of its range.
  FixtureLayer clipped = make_layer("a", 8, 256, DType::f32, w4a16(128));
  for (double& scale : clipped.scales) scale /= 4;
  for (std::size_t i = 0; i < clipped.codes.size(); ++i)
    clipped.codes[i] =
        std::clamp(static_cast<int>(std::nearbyint(clipped.weights[i] / clipped.scales[i / 128])), -8, 7);
  EXPECT_TRUE(loss_of(clipped, w4a16(128)).saturated);
  // Steps of a floating-point grid are as coarse as its largest: what lies in the last of them is not clipped.
  for (const std::string_view name : {"fp8", "fp8-tensor", "mxfp4a16", "nvfp4a16"}) {
    SCOPED_TRACE(name);
    const Scheme scheme = scheme_of(name);
    FixtureLayer floats = make_layer("a", 8, 256, DType::f32, scheme);
    EXPECT_FALSE(loss_of(floats, scheme).saturated);
    if (scheme.weights.scale_code) continue;
    for (double& scale : floats.scales) scale /= 4;
    for (std::size_t i = 0; i < floats.codes.size(); ++i)
      floats.codes[i] = code_of(floats, floats.weights[i], floats.scales[floats.scale_at(i / 256, i % 256)], 0);
    EXPECT_TRUE(loss_of(floats, scheme).saturated);
  }
}

TEST(CompareLayer, OutlierChannelsAreColumns) {
  for (const DType dtype : {DType::f32, DType::f16, DType::f64}) {
    FixtureLayer layer = make_layer("a", 5, 41, dtype, w8a8());
    for (std::size_t i = 0; i < layer.weights.size(); ++i) layer.weights[i] = i % 2 == 0 ? 0.25 : -0.5;
    const auto outliers = [&] {
      layer.quantized = layer.weights;
      quantize_plainly(layer, w8a8());
      EXPECT_EQ(*loss_of(layer, w8a8()).outlier_channels, expected_outliers(layer));
      return *loss_of(layer, w8a8()).outlier_channels;
    };
    EXPECT_EQ(outliers(), 0u);
    layer.weights[2 * 41 + 7] = 3;  // 6 times as large is not more than that
    EXPECT_EQ(outliers(), 0u);
    layer.weights[2 * 41 + 7] = 3.125;
    layer.weights[4 * 41 + 40] = -50;
    layer.weights[0] = 50;
    EXPECT_EQ(outliers(), 3u);
    layer.weights[1] = kInf;  // not finite, not counted
    layer.weights[2] = kNan;
    EXPECT_EQ(outliers(), 3u);
    layer.weights.assign(layer.weights.size(), 0);
    EXPECT_EQ(outliers(), 0u);
    layer.weights[3] = 0.125;  // beside a median of zero
    EXPECT_EQ(outliers(), 1u);
  }
}

}  // namespace
}  // namespace kvant::tests
