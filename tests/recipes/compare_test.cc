// compare: against a plain computation in long double, the same bits for any threads and memory, what is odd and legal,
// and pairs of checkpoints that do not belong together.
#include "recipes/compare.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "recipes/row_sums.h"
#include "recipes/tiles.h"
#include "tests/io/scratch.h"
#include "tests/recipes/checkpoint_fixture.h"
#include "tests/refusals.h"

namespace kvant::tests {
namespace {

using io::DType;
using recipes::CompareOptions;
using recipes::Comparison;
using recipes::LayerLoss;
using recipes::Scheme;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Original and quantized folder of some layers; `s` smooths the first of them.
struct Pair {
  ScratchFolder scratch;
  CheckpointFixture original, quantized;

  Pair(const Scheme& scheme, const std::vector<FixtureLayer>& layers) {
    quantized.config["quantization_config"] = recipes::quantization_config(scheme, {});
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
    recipes::Silence silence;
    return recipes::compare({scratch / "original", scratch / "quantized", threads, max_memory}, silence);
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

void expect_same_bits(const Comparison& a, const Comparison& b) {
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
  }
}

struct Case {
  const char* name;
  DType dtype;
  Scheme scheme;
};

class CompareSchemes : public testing::TestWithParam<Case> {};

TEST_P(CompareSchemes, AgreesWithThePlainComputation) {
  const auto& [name, dtype, scheme] = GetParam();
  const int q_max = scheme.kind == recipes::SchemeKind::w4a16 ? 7 : 127;
  const std::uint64_t unit = scheme.kind == recipes::SchemeKind::w4a16 ? 24 : 1;
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
  ASSERT_EQ(got->layers.size(), layers.size());
  for (std::size_t i = 1; i < got->layers.size(); ++i) EXPECT_LE(got->layers[i - 1].sqnr_db, got->layers[i].sqnr_db);
  for (const FixtureLayer& layer : layers) {
    SCOPED_TRACE(layer.module);
    const auto it = std::find_if(got->layers.begin(), got->layers.end(),
                                 [&](const LayerLoss& loss) { return loss.module == layer.module; });
    ASSERT_NE(it, got->layers.end());
    expect_close(*it, expected_loss(layer, q_max));
    EXPECT_FALSE(it->smoothed);
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
      ASSERT_EQ(got->layers.size(), 3u);
      for (const LayerLoss& loss : got->layers) {
        EXPECT_EQ(loss.smoothed, loss.module != "block.o_proj");
        const FixtureLayer& made = !loss.smoothed ? other : loss.module == layer.module ? layer : next;
        expect_close(loss, expected_loss(made, scheme.kind == recipes::SchemeKind::w4a16 ? 7 : 127));
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
  ASSERT_EQ(got->layers.size(), 5u);
  EXPECT_EQ(got->layers[0].module, "lost");
  EXPECT_EQ(got->layers[0].sqnr_db, -kInf);
  EXPECT_EQ(got->layers[0].cosine, 0);
  const char* const names[] = {"lost", "empty", "exact", "nothing", "zero"};
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(got->layers[i].module, names[i]);
    EXPECT_EQ(got->layers[i].sqnr_db, kInf);
    EXPECT_EQ(got->layers[i].cosine, 1);
    EXPECT_EQ(got->layers[i].mse, 0);
    EXPECT_EQ(got->layers[i].largest_error, 0);
  }
  EXPECT_EQ(got->layers[3].non_finite, 16u);
  EXPECT_EQ(got->mean_sqnr_db, 0);
  const io::Json json = to_json(*got);
  EXPECT_EQ(json["layers"][0]["sqnr_db"], "-inf");
  EXPECT_EQ(json["layers"][1]["sqnr_db"], "inf");
  EXPECT_EQ(json["scheme"], "w8a8");
  EXPECT_FALSE(json.dump().empty());
}

TEST(Compare, CountsWhatWasLeftAsItIs) {
  ScratchFolder scratch;
  small_model(w8a8(), false).write(scratch / "original");
  small_model(w8a8()).write(scratch / "quantized");
  class Bytes : public recipes::Silence {
   public:
    void begin(std::string_view, std::uint64_t bytes) override { promised = bytes; }
    void advance(std::uint64_t bytes) override { done += bytes; }
    std::uint64_t promised = 0;
    std::atomic<std::uint64_t> done = 0;
  } progress;
  const auto got = recipes::compare({scratch / "original", scratch / "quantized", 2}, progress);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->layers.size(), 7u);
  EXPECT_EQ(got->unquantized, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(got->bytes_original, 2u * (2 * 24 * 32 + 7 * 16 * 32 + 32));
  EXPECT_EQ(got->bytes_quantized, 2u * (2 * 24 * 32 + 32) + 7 * (16 * 32 + 2 * 16));
  double sum = 0;
  for (const LayerLoss& loss : got->layers) sum += loss.sqnr_db;
  EXPECT_DOUBLE_EQ(got->mean_sqnr_db, sum / 7);
  EXPECT_GT(got->mean_sqnr_db, 35);
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
    const bool four = scheme.kind == recipes::SchemeKind::w4a16;
    CheckpointFixture model;
    model.config["quantization_config"] = recipes::quantization_config(scheme, {});
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
    recipes::Silence silence;
    const auto got = recipes::compare(
        {scratch / "original.safetensors", scratch / "quantized", 2, std::uint64_t{16} << 20}, silence);
    ASSERT_TRUE(got.ok()) << got.status().message();
    // A hole of packed codes is -8 everywhere, with scale 1.
    EXPECT_EQ(got->layers[0].mse, four ? 64 : 0);
    EXPECT_EQ(got->layers[0].at_ends, four ? 1 : 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(peak_memory(), before + (std::uint64_t{24} << 20));
#endif
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
      const recipes::Loss a =
          recipes::segment_loss(w, codes.data(), count, 0.01f, -3, 127, recipes::LaneWidth::baseline);
      const recipes::Loss b =
          recipes::segment_loss(w, codes.data(), count, 0.01f, -3, 127, recipes::LaneWidth::machine);
      EXPECT_EQ(a.sums.weights, b.sums.weights) << count;
      EXPECT_EQ(a.sums.errors, b.sums.errors) << count;
      EXPECT_EQ(a.sums.products, b.sums.products) << count;
      EXPECT_EQ(a.sums.values, b.sums.values) << count;
      EXPECT_EQ(a.largest, b.largest) << count;
      EXPECT_EQ(a.at_ends, b.at_ends) << count;
      EXPECT_EQ(a.non_finite, b.non_finite) << count;
      const recipes::ValueSums c = recipes::value_sums(w, count, recipes::LaneWidth::baseline);
      const recipes::ValueSums d = recipes::value_sums(w, count, recipes::LaneWidth::machine);
      EXPECT_EQ(c.squares, d.squares) << count;
      EXPECT_EQ(c.zeros, d.zeros) << count;
      EXPECT_EQ(c.zeros, count > 20 ? 1u : 0u) << count;
      EXPECT_EQ(d.nan, count > 40 ? 1u : 0u) << count;
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
    recipes::widen(kind, bytes, all.size(), wide.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float want = kind == ElementKind::f16 ? to_float(Half{all[i]}) : to_float(BFloat16{all[i]});
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(want)) << i;
    }
  }
}

TEST(Tiling, CoversEveryElementOnceInOrder) {
  for (const std::uint64_t rows : {1u, 2u, 7u})
    for (const std::uint64_t columns : {1u, 100u, 4096u, 4097u, 20000u})
      for (const std::uint64_t bytes : {1u, 1000u, 9000u, 40000u, 1000000u}) {
        const recipes::Tiling tiling(rows, columns, 2, 8, bytes);
        std::uint64_t next = 0;
        for (std::uint64_t i = 0; i < tiling.count(); ++i) {
          const recipes::Tile tile = tiling[i];
          ASSERT_EQ(tile.row * columns + tile.column, next);
          ASSERT_TRUE(tile.columns == columns || tile.rows == 1);
          ASSERT_EQ(tile.column % recipes::kBlock, 0u);
          ASSERT_LE(tile.blocks(), tiling.most_blocks());
          ASSERT_TRUE(tile.rows * (tile.columns * 2 + 8) <= bytes ||
                      (tile.rows == 1 && tile.columns <= recipes::kBlock));
          next += tile.rows * tile.columns;
        }
        ASSERT_EQ(next, rows * columns);
      }
  EXPECT_EQ(recipes::Tiling(0, 5, 2, 8, 100).count(), 0u);
  EXPECT_EQ(recipes::Tiling(5, 0, 2, 8, 100).count(), 0u);
}

}  // namespace
}  // namespace kvant::tests
