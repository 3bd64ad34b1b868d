// compare: against a plain computation in long double, the same bits for any threads and memory, what is odd and legal,
// several checkpoints at once, which layers get details (layer_detail_test.cc has what is in them), the JSON document,
// and checkpoints that do not belong together.
#include "measure/compare.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "measure/row_sums.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitized.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using io::DType;
using measure::CompareOptions;
using measure::Comparison;
using measure::LayerDetails;
using measure::LayerLoss;
using measure::ModelLoss;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Original and quantized folder of some layers; `s` smooths the first of them.
struct Pair {
  ScratchFolder scratch;
  CheckpointFixture original, quantized;

  Pair(const Scheme& scheme, const std::vector<FixtureLayer>& layers) {
    quantized.config["quantization_config"] = format::quantization_config(scheme, {});
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

// The definition, in long double and in one loop.
LayerLoss expected_loss(const FixtureLayer& layer, int q_max) {
  LayerLoss loss;
  loss.module = layer.module;
  loss.rows = layer.rows;
  loss.columns = layer.columns;
  long double ww = 0, ee = 0, wv = 0, vv = 0, largest = -1;
  std::uint64_t ends = 0, finite = 0;
  for (std::uint64_t r = 0; r < layer.rows; ++r)
    for (std::uint64_t c = 0; c < layer.columns; ++c) {
      const std::uint64_t i = r * layer.columns + c, g = r * layer.groups() + c / layer.group;
      const long double w = layer.quantized[i];
      if (!std::isfinite(layer.quantized[i])) {
        ++loss.non_finite;
        continue;
      }
      const long double v =
          static_cast<long double>(layer.scales[g]) * static_cast<long double>(layer.codes[i] - layer.zero_points[g]);
      const long double e = w - v;
      ww += w * w;
      ee += e * e;
      wv += w * v;
      vv += v * v;
      ends += layer.codes[i] >= q_max || layer.codes[i] <= -q_max ? 1u : 0u;
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

void expect_same_bits(const ModelLoss& a, const ModelLoss& b) {
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
  EXPECT_EQ(a.mean_sqnr_db, b.mean_sqnr_db);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.unquantized, b.unquantized);
}
void expect_same_bits(const Comparison& a, const Comparison& b) {
  ASSERT_EQ(a.quantized.size(), b.quantized.size());
  for (std::size_t i = 0; i < a.quantized.size(); ++i) expect_same_bits(a.quantized[i], b.quantized[i]);
}

struct Case {
  const char* name;
  DType dtype;
  Scheme scheme;
};

class CompareSchemes : public testing::TestWithParam<Case> {};

TEST_P(CompareSchemes, AgreesWithThePlainComputation) {
  const auto& [name, dtype, scheme] = GetParam();
  const int q_max = code_range(scheme.spec().weights.code).max;
  const std::uint64_t unit = scheme.spec().has_groups() ? 24 : 1;
  std::vector<FixtureLayer> layers;
  layers.push_back(make_layer("a.small", 3, unit, dtype, scheme, 1));
  layers.push_back(make_layer("b.tall", 301, 2 * unit, dtype, scheme, 2));
  layers.push_back(make_layer("c.wide", 3, 24 * 700, dtype, scheme, 3));  // beyond a block, which ends inside a group
  layers.push_back(make_layer("d.square", 97, 24 * 5, dtype, scheme, 4));
  // NaN, infinities and a row of zeros.
  FixtureLayer odd = make_layer("e.odd", 6, 24 * 4, dtype, scheme, 5);
  odd.weights[3] = kNan;
  odd.weights[24 * 4] = kInf;
  odd.weights[24 * 4 + 95] = -kInf;
  for (std::size_t i = 0; i < 24 * 4; ++i) odd.weights[2 * 24 * 4 + i] = 0;
  for (std::size_t i = 0; i < 24 * 4; ++i) odd.weights[3 * 24 * 4 + i] = kNan;
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
    expect_close(*it, expected_loss(layer, q_max));
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

INSTANTIATE_TEST_SUITE_P(All, CompareSchemes,
                         testing::Values(Case{"f32_w8a8", DType::f32, w8a8()}, Case{"f16_w8a8", DType::f16, w8a8()},
                                         Case{"bf16_w8a8", DType::bf16, w8a8()}, Case{"f64_w8a8", DType::f64, w8a8()},
                                         Case{"bf16_static", DType::bf16, w8a8_static()},
                                         Case{"f32_static_asymmetric", DType::f32, w8a8_static(true)},
                                         Case{"f32_w4a16", DType::f32, w4a16(24)},
                                         Case{"bf16_w4a16", DType::bf16, w4a16(12)},
                                         Case{"f16_w4a16_asymmetric", DType::f16, w4a16(24, true)},
                                         Case{"f64_w4a16_asymmetric", DType::f64, w4a16(8, true)},
                                         Case{"bf16_w4a16_single", DType::bf16, w4a16(1, true)}),
                         [](const auto& instance) { return instance.param.name; });

TEST(Compare, WeightsAreSmoothedAsTheQuantizerSawThem) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (const Scheme& scheme : {w8a8(), w4a16(40)}) {
      SCOPED_TRACE(io::name(dtype));
      const std::uint64_t columns = 40 * 130;
      FixtureLayer layer = make_layer("block.q_proj", 5, columns, dtype, scheme);
      FixtureLayer next = make_layer("block.up_proj", 5, columns, dtype, scheme, 2);
      const FixtureLayer other = make_layer("block.o_proj", 5, 40, dtype, scheme);
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
        expect_close(loss, expected_loss(made, code_range(scheme.spec().weights.code).max));
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
  EXPECT_EQ(got->quantized[0].mean_sqnr_db, std::nullopt);
  const io::Json json = to_json(*got);
  EXPECT_EQ(json["quantized"][0]["layers"][0]["sqnr_db"], "nan");
  EXPECT_EQ(json["quantized"][0]["layers"][1]["sqnr_db"], "-inf");
  EXPECT_EQ(json["quantized"][0]["layers"][2]["sqnr_db"], "inf");
  EXPECT_EQ(json["quantized"][0]["scheme"], "w8a8");
  EXPECT_FALSE(json.dump().empty());
}

TEST(Compare, CountsWhatWasLeftAsItIs) {
  ScratchFolder scratch;
  small_model(w8a8(), false).write(scratch / "original");
  small_model(w8a8()).write(scratch / "quantized");
  class Bytes : public base::Silence {
   public:
    void begin(std::string_view, std::uint64_t bytes) override { promised = bytes; }
    void advance(std::uint64_t bytes) override { done += bytes; }
    std::uint64_t promised = 0;
    std::atomic<std::uint64_t> done = 0;
  } progress;
  const auto got = measure::compare(
      {.original = scratch / "original", .quantized = {scratch / "quantized"}, .threads = 2}, progress);
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->quantized.size(), 1u);
  const ModelLoss& model = got->quantized[0];
  EXPECT_EQ(model.layers.size(), 7u);
  EXPECT_EQ(model.unquantized, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(model.path, scratch / "quantized");
  EXPECT_EQ(model.label, "quantized");
  EXPECT_EQ(model.bytes, 2u * (2 * 24 * 32 + 32) + 7 * (16 * 32 + 2 * 16));
  EXPECT_EQ(got->original, scratch / "original");
  EXPECT_EQ(got->model_type, "llama");
  EXPECT_EQ(got->bytes, 2u * (2 * 24 * 32 + 7 * 16 * 32 + 32));
  EXPECT_EQ(got->parameters, got->bytes / 2);
  EXPECT_TRUE(got->details.empty());
  double sum = 0;
  for (const LayerLoss& loss : model.layers) {
    sum += loss.sqnr_db;
    EXPECT_EQ(loss.block, 0u) << loss.module;
    EXPECT_EQ(loss.kind, model::kind_of(loss.module));
    EXPECT_NE(loss.kind, model::LayerKind::other) << loss.module;
  }
  ASSERT_TRUE(model.mean_sqnr_db);
  EXPECT_DOUBLE_EQ(*model.mean_sqnr_db, sum / 7);
  EXPECT_GT(*model.mean_sqnr_db, 35);
  EXPECT_EQ(progress.promised, 7u * 16 * 32 * 2);
  EXPECT_EQ(progress.done.load(), progress.promised);
}

TEST(Compare, RefusesWhatDoesNotBelongTogether) {
  const FixtureLayer layer = make_layer("a.b", 4, 16, DType::f32, w8a8());
  const auto outcome = [&](auto&& change) {
    Pair pair(w8a8(), {layer});
    change(pair);
    pair.write();
    return pair.compare().status();
  };
  constexpr auto kBad = StatusCode::InvalidProblem;
  EXPECT_TRUE(refused(outcome([](Pair& p) { p.original.find("a.b.weight")->name = "a.c.weight"; }), kBad,
                      {"original", "has no tensor 'a.b.weight'", "do not belong together"}));
  EXPECT_TRUE(refused(outcome([](Pair& p) {
                        p.original.find("a.b.weight")->shape = {16, 4};
                      }),
                      kBad, {"model.safetensors", "'a.b.weight' has shape [16, 4], the quantized one [4, 16]"}));
  EXPECT_TRUE(refused(outcome([](Pair& p) { p.original.find("a.b.weight")->dtype = DType::i32; }), kBad,
                      {"'a.b.weight' holds I32", "must be F32"}));
  EXPECT_TRUE(refused(outcome([](Pair& p) { p.quantized.config.erase("quantization_config"); }), kBad,
                      {"quantized", "is not quantized", "quantization_config"}));
  EXPECT_TRUE(refused(outcome([](Pair& p) { p.quantized.remove("a.b.weight_scale"); }), kBad,
                      {"'a.b.weight_scale' is missing"}));
  for (const double scale : {0.0, -1.0, kNan, kInf})
    EXPECT_TRUE(
        refused(outcome([&](Pair& p) {
                  *p.quantized.find("a.b.weight_scale") = f32_tensor("a.b.weight_scale", {4, 1}, {1, 1, scale, 1});
                }),
                kBad, {"the scale of row 2, group 0 of layer 'a.b' is", "must be finite and positive"}));
  Pair pair(w8a8(), {layer});
  pair.write();
  EXPECT_TRUE(refused(pair.compare(-1).status(), kBad, {"-1 threads"}));
}

TEST(Compare, RefusesSmoothingThatDoesNotFit) {
  const FixtureLayer layer = make_layer("a.b", 4, 16, DType::f32, w8a8());
  Pair pair(w8a8(), {layer});
  pair.write();
  fs::create_directory(pair.scratch / "quantized/kvant");
  const auto outcome = [&](const FixtureTensor& s) {
    write_safetensors(pair.scratch / "quantized/kvant/smoothing.safetensors", {s}, {{"a.b", "norm"}});
    return pair.compare().status();
  };
  constexpr auto kBad = StatusCode::InvalidProblem;
  EXPECT_TRUE(refused(outcome(f32_tensor("other", {16}, std::vector<double>(16, 1))), kBad,
                      {"smoothing.safetensors", "the vector 'norm'", "'a.b'", "is missing"}));
  EXPECT_TRUE(refused(outcome(f32_tensor("norm", {8}, std::vector<double>(8, 1))), kBad,
                      {"'norm' is F32 [8], must be F32 [16] for layer 'a.b'"}));
  EXPECT_TRUE(refused(outcome(f16_tensor("norm", {16}, std::vector<double>(16, 1))), kBad, {"'norm' is F16 [16]"}));
  std::vector<double> s(16, 1);
  s[5] = kNan;
  EXPECT_TRUE(refused(outcome(f32_tensor("norm", {16}, s)), kBad, {"element 5 of 'norm' is nan, must be finite"}));
  put_text(pair.scratch / "quantized/kvant/smoothing.safetensors", "x");
  EXPECT_TRUE(refused(pair.compare().status(), kBad, {"smoothing.safetensors"}));
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
      quantized.config["quantization_config"] = format::quantization_config(schemes[q], {});
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
constexpr auto kAsItIs = [](FixtureLayer&, std::size_t) {};
constexpr auto kAll = [](std::size_t, const std::string&) { return false; };

std::vector<FixtureLayer> numbered_layers(std::size_t count, std::uint64_t rows = 4, std::uint64_t columns = 48) {
  std::vector<FixtureLayer> layers;
  for (std::size_t i = 0; i < count; ++i)
    layers.push_back(make_layer(fmt::format("model.layers.{}.mlp.up_proj", i), rows, columns, DType::bf16, w8a8(),
                                static_cast<std::uint32_t>(i + 1)));
  return layers;
}

TEST(CompareSeveral, EachIsWhatItIsAlone) {
  std::vector<FixtureLayer> layers = numbered_layers(5, 70, 48);
  layers.push_back(make_layer("wide", 3, 48 * 200, DType::f32, w8a8(), 90));
  const Several several(
      {w8a8(), w4a16(24, true), w8a8_static(), w4a16(16)}, layers, kAsItIs,
      [](std::size_t q, const std::string& module) { return q == 1 && module == "model.layers.2.mlp.up_proj"; });
  const auto together = several.compare(several.paths, true);
  ASSERT_TRUE(together.ok()) << together.status().message();
  ASSERT_EQ(together->quantized.size(), 4u);
  for (std::size_t q = 0; q < 4; ++q) {
    SCOPED_TRACE(q);
    const auto alone = several.compare({several.paths[q]}, true);
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    EXPECT_EQ(together->quantized[q].path, several.paths[q]);
    EXPECT_EQ(together->quantized[q].scheme.kind, several.schemes[q].kind);
    expect_same_bits(together->quantized[q], alone->quantized[0]);
    EXPECT_EQ(together->bytes, alone->bytes);
    EXPECT_EQ(together->parameters, alone->parameters);
    // All six layers have details in both.
    ASSERT_EQ(together->details.size(), 6u);
    const io::Json all = to_json(*together)["details"], own = to_json(*alone)["details"];
    for (const io::Json& details : own) {
      const auto it = std::find_if(all.begin(), all.end(),
                                   [&](const io::Json& other) { return other["module"] == details["module"]; });
      ASSERT_NE(it, all.end()) << details["module"];
      EXPECT_EQ((*it)["quantized"][q].dump(), details["quantized"][0].dump()) << details["module"];
    }
  }
  EXPECT_EQ(together->quantized[1].layers.size(), 5u);
  EXPECT_EQ(together->quantized[1].unquantized, std::vector<std::string>{"model.layers.2.mlp.up_proj"});
  for (const LayerDetails& details : together->details) {
    ASSERT_EQ(details.quantized.size(), 4u);
    for (std::size_t q = 0; q < 4; ++q)
      EXPECT_EQ(details.quantized[q].has_value(), q != 1 || details.module != "model.layers.2.mlp.up_proj");
  }
}

TEST(CompareSeveral, SideBySideTheWorstOfThemDecides) {
  Comparison comparison;
  const auto add = [&](std::vector<std::pair<std::string, double>> layers) {
    measure::ModelLoss& loss = comparison.quantized.emplace_back();
    for (const auto& [module, sqnr_db] : layers) {
      loss.layers.emplace_back();
      loss.layers.back().module = module;
      loss.layers.back().sqnr_db = sqnr_db;
    }
  };
  EXPECT_TRUE(side_by_side(comparison).empty());
  add({{"lost", -kInf}, {"a", 20}, {"b", 30}, {"exact", kInf}, {"broken", kInf}});
  add({{"broken", kNan}, {"b", 10}, {"c", 20}, {"exact", kInf}, {"lost", kInf}});
  const std::vector<measure::SideBySide> layers = side_by_side(comparison);
  std::string order;
  for (const measure::SideBySide& layer : layers) order += layer.worst->module + " ";
  EXPECT_EQ(order, "broken lost b a c exact ");
  const std::vector<LayerLoss>&first = comparison.quantized[0].layers, &second = comparison.quantized[1].layers;
  ASSERT_EQ(layers.size(), 6u);
  EXPECT_EQ(layers[0].worst, &second[0]);
  EXPECT_EQ(layers[0].losses, (std::vector<const LayerLoss*>{&first[4], &second[0]}));
  EXPECT_EQ(layers[1].worst, &first[0]);
  EXPECT_EQ(layers[2].worst, &second[1]);
  EXPECT_EQ(layers[3].losses, (std::vector<const LayerLoss*>{&first[1], nullptr}));
  EXPECT_EQ(layers[4].losses, (std::vector<const LayerLoss*>{nullptr, &second[2]}));
}

TEST(CompareSeveral, MeritsAreOfTheLayersThatAllHave) {
  const auto weights = [](const LayerLoss& l) { return std::optional(l.sqnr_db); };
  const auto loss = [](std::string module, double sqnr_db, std::optional<double> output = {}) {
    LayerLoss layer;
    layer.module = std::move(module);
    layer.sqnr_db = sqnr_db;
    layer.output_sqnr_db = output;
    return layer;
  };
  Comparison comparison;
  EXPECT_TRUE(measure::merits(comparison, weights).empty());
  comparison.quantized.resize(2);
  comparison.quantized[0].layers = {loss("a", 40, 30), loss("b", 20), loss("c", 10)};
  EXPECT_EQ(measure::merits(comparison, weights), (std::vector<double>{-200, -200}));
  comparison.quantized[1].layers = {loss("a", kInf, 10), loss("b", kNan)};
  EXPECT_EQ(measure::merits(comparison, weights), (std::vector<double>{30, 0}));
  EXPECT_EQ(measure::merits(comparison, [](const LayerLoss& l) { return l.output_sqnr_db; }),
            (std::vector<double>{30, 10}));
  comparison.quantized[1].layers = {loss("a", -1000)};
  EXPECT_EQ(measure::merits(comparison, weights), (std::vector<double>{40, -200}));
}

TEST(CompareSeveral, LabelsTellThemApart) {
  const Several several({w8a8()}, numbered_layers(1), kAsItIs, kAll);
  const auto labels = [&](const std::vector<fs::path>& paths) {
    for (const fs::path& path : paths) {
      fs::create_directories(path.parent_path());
      fs::copy(several.paths[0], path, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    }
    const auto got = several.compare(paths, false);
    EXPECT_TRUE(got.ok()) << got.status().message();
    std::vector<std::string> all;
    for (const ModelLoss& model : got->quantized) all.push_back(model.label);
    return all;
  };
  const fs::path root = several.scratch / "models";
  EXPECT_EQ(labels({root / "a", root / "b"}), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(labels({root / "x/out", root / "y/out"}), (std::vector<std::string>{"x/out", "y/out"}));
  const std::vector<std::string> mixed = labels({root / "x/out", root / "y/out", root / "c"});
  EXPECT_EQ(mixed[0], "x/out");
  EXPECT_EQ(mixed[1], "y/out");
}

TEST(CompareSeveral, RefusesAnyThatDoesNotBelong) {
  const Several several({w8a8(), w8a8()}, numbered_layers(2), kAsItIs, kAll);
  const Several other({w8a8()}, {make_layer("stranger", 4, 48, DType::bf16, w8a8())}, kAsItIs, kAll);
  EXPECT_TRUE(refused(several.compare({several.paths[0], other.paths[0]}, false).status(), StatusCode::InvalidProblem,
                      {"has no tensor 'stranger.weight'", "do not belong together"}));
  EXPECT_FALSE(several.compare({several.paths[0], several.scratch / "nothing"}, false).ok());
}

// How many layers get details, for so many checkpoints.
std::size_t details_for(std::size_t checkpoints) { return std::max<std::size_t>(8, measure::kDetails / checkpoints); }

TEST(CompareDetails, AreOfTheWorstByTheWorstCheckpoint) {
  constexpr std::size_t kLayers = 40;
  for (const std::size_t checkpoints : {1u, 2u, 3u, 5u}) {
    SCOPED_TRACE(checkpoints);
    // An outlier makes a layer lose more; each checkpoint spares others.
    const auto change = [](FixtureLayer& layer, std::size_t q) {
      const std::size_t i = std::stoul(layer.module.substr(13));
      if (i % 3 != q % 3) layer.quantized[5] = 0.3 + static_cast<double>(i * 7 % kLayers) / 16;
    };
    const Several several(std::vector<Scheme>(checkpoints, w8a8()), numbered_layers(kLayers), change, kAll);
    const auto got = several.compare(several.paths, true);
    ASSERT_TRUE(got.ok()) << got.status().message();
    std::map<std::string, double> worst;
    for (const ModelLoss& model : got->quantized)
      for (const LayerLoss& loss : model.layers) {
        const auto [it, is_new] = worst.emplace(loss.module, loss.sqnr_db);
        if (!is_new) it->second = std::min(it->second, loss.sqnr_db);
      }
    std::vector<std::pair<double, std::string>> want;
    for (const auto& [module, sqnr] : worst) want.emplace_back(sqnr, module);
    std::sort(want.begin(), want.end());
    want.resize(details_for(checkpoints));
    ASSERT_EQ(got->details.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got->details[i].module, want[i].second) << i;
      EXPECT_EQ(got->details[i].quantized.size(), checkpoints);
    }
  }
}

TEST(CompareDetails, OnlyWhenAskedFor) {
  const Several several({w8a8()}, numbered_layers(3), kAsItIs, kAll);
  const auto without = several.compare(several.paths, false), with = several.compare(several.paths, true);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_TRUE(without->details.empty());
  EXPECT_EQ(with->details.size(), 3u);
  expect_same_bits(*without, *with);
  EXPECT_EQ(to_json(*without)["details"], io::Json::array());
}

TEST(CompareDetails, AreTheSameForAnyThreadsAndMemory) {
  std::vector<FixtureLayer> layers = numbered_layers(3, 301, 48);
  layers.push_back(make_layer("wide", 5, 48 * 200, DType::f16, w8a8(), 90));
  layers.push_back(make_layer("large", 1024, 480, DType::f64, w8a8(), 91));
  FixtureLayer odd = make_layer("odd", 6, 96, DType::f32, w8a8(), 92);
  odd.weights[3] = kNan;
  odd.weights[96] = kInf;
  odd.weights[96 + 95] = -kInf;
  for (std::size_t i = 0; i < 96; ++i) odd.weights[3 * 96 + i] = kNan;
  odd.quantized = odd.weights;
  layers.push_back(odd);
  // Many errors of one size: the order among them must not depend on who was first.
  FixtureLayer even = make_layer("even", 300, 96, DType::f32, w8a8(), 93);
  for (std::size_t i = 0; i < even.weights.size(); ++i) even.weights[i] = i % 96 == 0 ? 127 : 0.5;
  even.quantized = even.weights;
  layers.push_back(even);
  const Several several({w8a8(), w4a16(24, true)}, layers, kAsItIs, kAll);
  const auto got = several.compare(several.paths, true, 1);
  ASSERT_TRUE(got.ok()) << got.status().message();
  ASSERT_EQ(got->details.size(), layers.size());
  const std::string want = to_json(*got)["details"].dump();
  // The least is enough for what is kept of each column of the widest layer, and cuts it into many tiles.
  for (const int threads : {1, 2, 5})
    for (const std::uint64_t memory : {std::uint64_t{6'000'000}, std::uint64_t{20'000'000}, std::uint64_t{1} << 30}) {
      SCOPED_TRACE(fmt::format("{} threads, {} bytes", threads, memory));
      const auto again = several.compare(several.paths, true, threads, memory);
      ASSERT_TRUE(again.ok()) << again.status().message();
      expect_same_bits(*got, *again);
      EXPECT_TRUE(to_json(*again)["details"].dump() == want);
    }
  // Below that, wide layers have no details; those of the others stay the same.
  const auto tiny = several.compare(several.paths, true, 2, 400'000);
  ASSERT_TRUE(tiny.ok()) << tiny.status().message();
  expect_same_bits(*got, *tiny);
  EXPECT_GT(tiny->details.size(), 0u);
  EXPECT_LT(tiny->details.size(), layers.size());
  const io::Json all = to_json(*got)["details"], fewer = to_json(*tiny)["details"];
  for (const io::Json& details : fewer)
    EXPECT_NE(std::find(all.begin(), all.end(), details), all.end()) << details["module"];
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

TEST(CompareWarnings, SayWhatAPersonShouldKnow) {
  ModelLoss model;
  EXPECT_TRUE(warnings_of(model).empty());
  LayerLoss good;
  good.module = "good.q_proj";
  good.sqnr_db = 40;
  model.layers = {good};
  EXPECT_TRUE(warnings_of(model).empty());
  LayerLoss nan = good, dead = good, saturated = good;
  nan.module = "layer.with.nan";
  nan.non_finite = 17;
  dead.module = "layer.dead";
  dead.dead_channels = 23;
  saturated.module = "layer.saturated";
  saturated.saturated = true;
  const auto told = [&](const LayerLoss& loss, const std::string& word) {
    model.layers = {good, loss};
    for (const std::string& sentence : warnings_of(model))
      if (sentence.find(word) != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(told(nan, "17"));
  EXPECT_TRUE(told(nan, "finite"));
  EXPECT_TRUE(told(dead, "23"));
  EXPECT_TRUE(told(saturated, "ends"));
  model.layers = {nan, dead, saturated, good};
  EXPECT_GE(warnings_of(model).size(), 3u);
}

// The keys of an object, sorted.
std::vector<std::string> keys(const io::Json& object) {
  std::vector<std::string> all;
  for (const auto& [key, value] : object.items()) all.push_back(key);
  std::sort(all.begin(), all.end());
  return all;
}
using Keys = std::vector<std::string>;

TEST(CompareJson, HasTheShapeOfTheSchema) {
  const Several several({w8a8(), w4a16(24)}, numbered_layers(3), kAsItIs, [](std::size_t q, const std::string& module) {
    return q == 1 && module == "model.layers.1.mlp.up_proj";
  });
  const auto got = several.compare(several.paths, true);
  ASSERT_TRUE(got.ok()) << got.status().message();
  const io::Json json = to_json(*got);
  EXPECT_EQ(json["format"], "kvant-compare-1");
  EXPECT_EQ(keys(json["original"]), (Keys{"bytes", "model_type", "parameters", "path"}));
  EXPECT_EQ(json["original"]["path"], (several.scratch / "original").string());
  EXPECT_EQ(json["original"]["model_type"], "llama");
  EXPECT_EQ(json["original"]["bytes"], got->bytes);
  EXPECT_EQ(json["original"]["parameters"], got->parameters);
  ASSERT_EQ(json["quantized"].size(), 2u);
  for (std::size_t q = 0; q < 2; ++q) {
    const io::Json& model = json["quantized"][q];
    EXPECT_EQ(keys(model), (Keys{"bytes", "label", "layers", "mean_output_sqnr_db", "mean_sqnr_db", "path", "scheme",
                                 "unquantized", "warnings"}));
    EXPECT_EQ(model["label"], fmt::format("q{}", q));
    ASSERT_EQ(model["layers"].size(), got->quantized[q].layers.size());
    for (std::size_t i = 0; i < model["layers"].size(); ++i) {
      const io::Json& layer = model["layers"][i];
      const LayerLoss& loss = got->quantized[q].layers[i];
      EXPECT_EQ(keys(layer), (Keys{"at_ends", "block", "columns", "cosine", "dead_channels", "input_ratio", "kind",
                                   "largest_column", "largest_error", "largest_row", "module", "mse", "non_finite",
                                   "outlier_channels", "output_sqnr_db", "rows", "saturated", "smoothed", "sqnr_db"}));
      EXPECT_EQ(layer["module"], loss.module);
      EXPECT_EQ(layer["kind"], "up");
      EXPECT_EQ(layer["block"], *loss.block);
      EXPECT_EQ(layer["sqnr_db"], loss.sqnr_db);
      EXPECT_EQ(layer["outlier_channels"], *loss.outlier_channels);
      EXPECT_EQ(layer["saturated"], loss.saturated);
      EXPECT_TRUE(layer["output_sqnr_db"].is_null());
    }
  }
  ASSERT_EQ(json["details"].size(), 3u);
  for (const io::Json& details : json["details"]) {
    EXPECT_EQ(keys(details), (Keys{"module", "quantized"}));
    ASSERT_EQ(details["quantized"].size(), 2u);
    EXPECT_EQ(details["quantized"][1].is_null(), details["module"] == "model.layers.1.mlp.up_proj");
    const io::Json& detail = details["quantized"][0];
    EXPECT_EQ(keys(detail), (Keys{"channels", "histogram", "inputs", "largest_errors", "row_stride", "strip"}));
    EXPECT_EQ(keys(detail["histogram"]), (Keys{"above", "below", "bins_per_code", "counts", "first_code", "weights"}));
    EXPECT_EQ(keys(detail["channels"]), (Keys{"largest", "least", "span", "sqnr_db"}));
    EXPECT_EQ(keys(detail["strip"]), (Keys{"column_span", "columns", "rms", "row_span", "rows"}));
    EXPECT_TRUE(detail["inputs"].is_null());
    for (const io::Json& error : detail["largest_errors"]) {
      EXPECT_EQ(keys(error), (Keys{"column", "error", "row", "value", "weight"}));
      EXPECT_EQ(error["error"].get<double>(), error["weight"].get<double>() - error["value"].get<double>());
    }
  }
}

// The most memory that this process ever had, in bytes.
std::uint64_t peak_memory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

// A file whose last tensor is a hole.
void write_sparse(const fs::path& path, const std::vector<FixtureTensor>& tensors, const io::TensorInfo& hole) {
  std::vector<io::TensorInfo> infos;
  for (const FixtureTensor& tensor : tensors) infos.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  infos.push_back(hole);
  const auto layout = io::lay_out_safetensors(infos, kPt);
  must(layout.status());
  std::string text = layout->header;
  for (const FixtureTensor& tensor : tensors)
    text.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  put_text(path, text);
  fs::resize_file(path, layout->file_bytes);
}

TEST(Compare, MemoryIsBoundedWhereARowIsLargerThanIt) {
  ScratchFolder scratch;
  constexpr std::uint64_t kRows = 2, kColumns = 40'000'000;
  for (const Scheme& scheme : {w8a8(), w4a16(kColumns)}) {
    const bool four = scheme.spec().has_groups();
    CheckpointFixture model;
    model.config["quantization_config"] = format::quantization_config(scheme, {});
    model.write(scratch / "quantized");
    const FixtureTensor scales = f32_tensor("a.weight_scale", {kRows, 1}, {1, 1});
    if (four)
      write_sparse(scratch / "quantized/model.safetensors",
                   {scales, i64_tensor("a.weight_shape", {2}, {kRows, kColumns})},
                   {"a.weight_packed", DType::i32, {kRows, kColumns / 8}, 0, 0});
    else
      write_sparse(scratch / "quantized/model.safetensors", {scales}, {"a.weight", DType::i8, {kRows, kColumns}, 0, 0});
    write_sparse(scratch / "original.safetensors", {}, {"a.weight", DType::bf16, {kRows, kColumns}, 0, 0});
    const std::uint64_t before = peak_memory();
    base::Silence silence;
    const auto got = measure::compare({.original = scratch / "original.safetensors",
                                       .quantized = {scratch / "quantized"},
                                       .details = true,
                                       .threads = 2,
                                       .max_memory = std::uint64_t{16} << 20},
                                      silence);
    ASSERT_TRUE(got.ok()) << got.status().message();
    // A hole of packed codes is -8 everywhere, with scale 1.
    const LayerLoss& loss = got->quantized[0].layers[0];
    EXPECT_EQ(loss.mse, four ? 64 : 0);
    EXPECT_EQ(loss.at_ends, four ? 1 : 0);
    EXPECT_EQ(loss.saturated, four);
    EXPECT_EQ(loss.dead_channels, kRows);
    EXPECT_EQ(loss.outlier_channels, std::nullopt);
    // What details keep of each column would not fit either.
    EXPECT_TRUE(got->details.empty());
    if (!kSanitized) {
      EXPECT_LT(peak_memory(), before + (std::uint64_t{24} << 20));
    }
  }
}

TEST(RowSums, EveryLaneWidthGivesTheSameBits) {
  for (std::size_t count = 0; count <= 70; ++count) {
    std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count), DType::f32);
    if (count > 20) values[count / 2] = 0;
    if (count > 40) values[11] = kNan;
    std::vector<std::int8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
    const std::vector<float> floats(values.begin(), values.end());
    const auto check = [&](const auto* w) {
      const measure::Loss a =
          measure::segment_loss(w, codes.data(), count, 0.01f, -3, 127, measure::LaneWidth::baseline);
      const measure::Loss b =
          measure::segment_loss(w, codes.data(), count, 0.01f, -3, 127, measure::LaneWidth::machine);
      EXPECT_EQ(a.sums.weights, b.sums.weights) << count;
      EXPECT_EQ(a.sums.errors, b.sums.errors) << count;
      EXPECT_EQ(a.sums.products, b.sums.products) << count;
      EXPECT_EQ(a.sums.values, b.sums.values) << count;
      EXPECT_EQ(a.largest, b.largest) << count;
      EXPECT_EQ(a.at_ends, b.at_ends) << count;
      EXPECT_EQ(a.non_finite, b.non_finite) << count;
      const measure::ValueSums c = measure::value_sums(w, count, measure::LaneWidth::baseline);
      const measure::ValueSums d = measure::value_sums(w, count, measure::LaneWidth::machine);
      EXPECT_EQ(c.squares, d.squares) << count;
      EXPECT_EQ(c.zeros, d.zeros) << count;
      EXPECT_EQ(c.zeros, count > 20 ? 1u : 0u) << count;
      EXPECT_EQ(d.nan, count > 40 ? 1u : 0u) << count;
    };
    check(floats.data());
    check(values.data());
  }
}

TEST(RowSums, DrawingsHaveTheSameBitsToo) {
  using measure::LaneWidth;
  constexpr std::size_t kBins = 256, kCell = 8;
  for (std::size_t count = 0; count <= 300; count += count < 70 ? 1 : 23) {
    std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count), DType::f32);
    if (count > 4) values[count / 2] = -1e30;
    if (count > 5) values[count / 3] = 1e30;
    std::vector<std::int8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
    const std::vector<float> floats(values.begin(), values.end());
    const auto check = [&](const auto* w) {
      struct Drawing {
        std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(measure::kGridTables * (kBins + 2));
        std::vector<double> errors = std::vector<double>(64, 1), magnitudes = std::vector<double>(300);
        std::vector<float> largest = std::vector<float>(300, 0.01f);
        bool operator==(const Drawing&) const = default;
      } drawings[2];
      for (const LaneWidth lanes : {LaneWidth::baseline, LaneWidth::machine}) {
        Drawing& drawing = drawings[lanes == LaneWidth::machine ? 1 : 0];
        measure::count_on_grid(w, count, 0.01f, -3, -128, 1, kBins, drawing.counts.data(), lanes);
        measure::add_cell_errors(w, codes.data(), count, 0.01f, -3, 5, kCell, drawing.errors.data(), lanes);
        measure::error_magnitudes(w, codes.data(), count, 0.01f, -3, drawing.magnitudes.data(), lanes);
        measure::raise_to_magnitudes(w, count, drawing.largest.data(), lanes);
      }
      EXPECT_EQ(drawings[0], drawings[1]) << count;
      // What they are, in plain words.
      std::vector<std::uint64_t> counts(kBins + 2);
      std::vector<double> errors(64, 0);
      for (std::size_t i = 0; i < count; ++i) {
        const float t = static_cast<float>(w[i]) / 0.01f + -3.0f - -128.5f;
        ++counts[t < 0 ? 0 : t >= 256 ? kBins + 1 : 1 + static_cast<std::size_t>(t)];
        const double e = static_cast<double>(w[i]) - static_cast<double>(0.01f) * (codes[i] + 3);
        errors[(i + 5) / kCell] += e * e;
        EXPECT_EQ(drawings[0].magnitudes[i], std::abs(e));
        EXPECT_EQ(drawings[0].largest[i], std::max(0.01f, std::abs(static_cast<float>(w[i]))));
      }
      for (std::size_t bin = 0; bin < kBins + 2; ++bin) {
        std::uint64_t got = 0;
        for (std::size_t table = 0; table < measure::kGridTables; ++table)
          got += drawings[0].counts[table * (kBins + 2) + bin];
        EXPECT_EQ(got, counts[bin]) << count << " bin " << bin;
      }
      for (std::size_t cell = 0; cell < errors.size(); ++cell)
        EXPECT_NEAR(drawings[0].errors[cell], 1 + errors[cell], 1e-12 * (1 + errors[cell]))
            << count << " cell " << cell;
    };
    check(floats.data());
    check(values.data());
  }
}

TEST(RowSums, WidensEveryValueOf16Bits) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(all.data());
  for (const ElementKind kind : {ElementKind::f16, ElementKind::bf16}) {
    measure::widen(kind, bytes, all.size(), wide.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float want = kind == ElementKind::f16 ? to_float(Half{all[i]}) : to_float(BFloat16{all[i]});
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(want)) << i;
    }
  }
}

}  // namespace
}  // namespace kvant::tests
