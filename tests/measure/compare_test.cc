// compare: several checkpoints at once, the same bits for any threads and memory, which layers get details
// (layer_detail_test.cc has what is in them), and checkpoints that do not belong together.
#include "measure/compare.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/measure/compare_case.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitized.h"

namespace kvant::tests {
namespace {

TEST(Compare, CountsWhatWasLeftAsItIs) {
  ScratchFolder scratch;
  small_model(w8a8(), false).write(scratch / "original");
  small_model(w8a8()).write(scratch / "quantized");
  class Bytes : public base::Silence {
   public:
    using Progress::begin;
    void begin(std::string_view, std::uint64_t bytes, base::Unit, std::uint64_t) override { promised = bytes; }
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
  const std::optional<double> mean = mean_sqnr_db(model, measure::Judged::weights);
  ASSERT_TRUE(mean);
  EXPECT_DOUBLE_EQ(*mean, sum / 7);
  EXPECT_GT(*mean, 35);
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

TEST(CompareSeveral, EachIsWhatItIsAlone) {
  std::vector<FixtureLayer> layers = numbered_layers(5, 70, 48);
  layers.push_back(make_layer("wide", 3, 48 * 200, DType::f32, w8a8(), 90));
  const Several several(
      {w8a8(), w4a16(24, true), w8a8_static(), w4a16(16), scheme_of("fp8"), scheme_of("nvfp4a16")}, layers, kAsItIs,
      [](std::size_t q, const std::string& module) { return q == 1 && module == "model.layers.2.mlp.up_proj"; });
  const auto together = several.compare(several.paths, true);
  ASSERT_TRUE(together.ok()) << together.status().message();
  ASSERT_EQ(together->quantized.size(), 6u);
  for (std::size_t q = 0; q < 6; ++q) {
    SCOPED_TRACE(q);
    const auto alone = several.compare({several.paths[q]}, true);
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    EXPECT_EQ(together->quantized[q].path, several.paths[q]);
    EXPECT_EQ(together->quantized[q].scheme, format::describe(several.schemes[q]));
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
    ASSERT_EQ(details.quantized.size(), 6u);
    for (std::size_t q = 0; q < 4; ++q)
      EXPECT_EQ(details.quantized[q].has_value(), q != 1 || details.module != "model.layers.2.mlp.up_proj");
  }
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
    const bool four = scheme.weights.has_groups();
    CheckpointFixture model;
    model.config["quantization_config"] = config_json(scheme);
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

}  // namespace
}  // namespace kvant::tests
