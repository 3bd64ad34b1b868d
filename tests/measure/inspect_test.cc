// inspect: what is listed, and statistics against a plain computation, the same for any threads and memory.
#include "measure/inspect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

using io::DType;
using measure::Inspection;
using measure::ValueStats;

Result<Inspection> inspected(const fs::path& path, bool stats = false, int threads = 2,
                             std::uint64_t max_memory = std::uint64_t{1} << 30) {
  base::Silence silence;
  return measure::inspect({path, stats, threads, max_memory}, silence);
}

// In long double, in one loop.
ValueStats expected_stats(const std::vector<double>& values, std::uint64_t rows, std::uint64_t columns, bool matrix) {
  ValueStats stats;
  std::vector<double> magnitudes(columns, 0);
  long double squares = 0;
  std::uint64_t finite = 0;
  for (std::uint64_t i = 0; i < rows * columns; ++i) {
    const double x = values[i];
    if (std::isnan(x)) ++stats.nan;
    if (std::isinf(x)) ++stats.infinite;
    if (x == 0) ++stats.zeros;
    if (!std::isfinite(x)) continue;
    stats.min = finite == 0 ? x : std::min(stats.min, x);
    stats.max = finite == 0 ? x : std::max(stats.max, x);
    squares += static_cast<long double>(x) * static_cast<long double>(x);
    ++finite;
    magnitudes[i % columns] = std::max(magnitudes[i % columns], std::abs(x));
  }
  if (finite == 0) return stats;
  stats.rms = static_cast<double>(std::sqrt(squares / static_cast<long double>(finite)));
  if (!matrix) return stats;
  std::vector<double> sorted = magnitudes;
  std::sort(sorted.begin(), sorted.end());
  const double median = (sorted[(columns - 1) / 2] + sorted[columns / 2]) / 2;
  for (std::uint64_t j = 0; j < columns; ++j)
    if (magnitudes[j] > 6 * median) stats.outlier_channels.push_back(j);
  return stats;
}

io::Json json_of(const Inspection& inspection) {
  std::string text;
  write_json(inspection, [&](std::string_view piece) { text += piece; });
  auto parsed = io::parse_json(text, "inspection");
  must(parsed.status());
  return std::move(parsed).value();
}

TEST(Inspect, ListsTensorsInTheOrderOfTheData) {
  ScratchFolder scratch;
  small_model(w4a16(8, true)).write(scratch / "m");
  const auto got = inspected(scratch / "m");
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->model_type, "llama");
  EXPECT_EQ(got->scheme, "w4a16, groups of 8, asymmetric");
  ASSERT_EQ(got->tensors.size(), 3u + 7 * 4);
  EXPECT_EQ(got->tensors[0].info.name, "model.embed_tokens.weight");
  EXPECT_EQ(got->tensors[0].shard, "model-00001-of-00002.safetensors");
  EXPECT_EQ(got->tensors[0].judgement.role, model::Role::embedding);
  EXPECT_EQ(got->tensors.back().info.name, "lm_head.weight");
  EXPECT_EQ(got->tensors.back().shard, "model-00002-of-00002.safetensors");
  EXPECT_FALSE(got->tensors[0].stats.has_value());
  EXPECT_EQ(got->metadata.at("model-00001-of-00002.safetensors").at("format"), "pt");
  std::uint64_t bytes = 0;
  for (const auto& tensor : got->tensors) bytes += tensor.info.bytes();
  EXPECT_EQ(got->bytes, bytes);
  const io::Json json = json_of(*got);
  EXPECT_EQ(json["bytes"], bytes);
  EXPECT_EQ(json["tensors"][0]["dtype"], "BF16");
  EXPECT_EQ(json["tensors"][0]["shape"], io::Json::array({24, 32}));
  EXPECT_EQ(json["tensors"][0]["role"], "embedding");
  EXPECT_EQ(json["metadata"]["model-00001-of-00002.safetensors"]["format"], "pt");
  EXPECT_FALSE(json["tensors"][0].contains("stats"));
}

TEST(Inspect, PlainForeignAndBrokenCheckpoints) {
  ScratchFolder scratch;
  CheckpointFixture model = small_model(w8a8(), false);
  model.write(scratch / "plain");
  EXPECT_EQ(inspected(scratch / "plain")->scheme, "");
  EXPECT_FALSE(json_of(*inspected(scratch / "plain")).contains("scheme"));
  model.config["quantization_config"] = {{"quant_method", "gptq"}};
  model.write(scratch / "foreign");
  EXPECT_NE(inspected(scratch / "foreign")->scheme.find("gptq"), std::string::npos);
  model.config["model_type"] = 7;
  model.write(scratch / "odd");
  EXPECT_EQ(inspected(scratch / "odd")->model_type, "");
  EXPECT_TRUE(refused(inspected(scratch / "none").status(), StatusCode::InvalidProblem, {"none", "no such"}));
  EXPECT_FALSE(inspected(scratch / "plain", true, -1).ok());
  // A name that is not UTF-8 must not make dump() throw.
  const fs::path latin = scratch / "caf\xe9.safetensors";
  write_safetensors(latin, {f32_tensor("x", {1}, {1})});
  const auto got = inspected(latin, true);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_NE(json_of(*got).dump().find("caf\\\\xe9"), std::string::npos);
}

TEST(Inspect, StatisticsAgreeWithAPlainComputation) {
  struct Sample {
    std::string name;
    Sizes shape;
    DType dtype;
    std::vector<double> values;
  };
  std::vector<Sample> samples;
  std::uint32_t seed = 1;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const auto add = [&](std::string_view name, const Sizes& shape) -> std::vector<double>& {
      std::uint64_t count = 1;
      for (const std::uint64_t size : shape) count *= size;
      samples.push_back(
          {fmt::format("{}.{}", io::name(dtype), name), shape, dtype, random_values(count, ++seed, dtype)});
      return samples.back().values;
    };
    auto& outliers = add("outliers.weight", {50, 64});
    for (std::size_t r = 0; r < 50; r += 7) {
      outliers[r * 64 + 3] = 2;
      outliers[r * 64 + 40] = -3;
    }
    auto& odd = add("odd.weight", {7, 9});
    odd[4] = kNan;
    odd[8] = kInf;
    odd[9] = -kInf;
    odd[10] = odd[11] = 0;
    add("wide.weight", {2, 9001});
    add("long.bias", {10007});
    add("cube", {3, 5, 7});
    add("scalar", {});
    add("empty", {0, 5});
    add("hollow", {5, 0});
    add("nothing.weight", {2, 2}).assign(4, kNan);
    add("zeros.weight", {3, 3}).assign(9, 0);
    add("mostly_zeros.weight", {1, 5}) = {0, 0, 0, 0, 1};
  }
  ScratchFolder scratch;
  CheckpointFixture model;
  for (const Sample& sample : samples) model.add(float_tensor(sample.name, sample.dtype, sample.shape, sample.values));
  model.add(i8_tensor("codes", {2}, {1, 2}));
  model.write(scratch / "m");
  std::vector<std::optional<ValueStats>> first(samples.size());
  for (const int threads : {1, 2, 3})
    for (const std::uint64_t memory : {std::uint64_t{1} << 30, std::uint64_t{1} << 20, std::uint64_t{100'000}}) {
      const auto got = inspected(scratch / "m", true, threads, memory);
      ASSERT_TRUE(got.ok()) << got.status().message();
      for (const auto& tensor : got->tensors) {
        SCOPED_TRACE(fmt::format("{} with {} threads and {} bytes", tensor.info.name, threads, memory));
        if (tensor.info.name == "codes") {
          EXPECT_FALSE(tensor.stats.has_value());
          continue;
        }
        const auto at = static_cast<std::size_t>(
            std::find_if(samples.begin(), samples.end(), [&](const Sample& s) { return s.name == tensor.info.name; }) -
            samples.begin());
        const Sample& sample = samples[at];
        const bool matrix = sample.shape.size() == 2;
        const ValueStats want = expected_stats(sample.values, matrix ? sample.shape[0] : 1,
                                               matrix ? sample.shape[1] : sample.values.size(), matrix);
        ASSERT_TRUE(tensor.stats.has_value());
        const ValueStats& stats = *tensor.stats;
        EXPECT_EQ(stats.min, want.min);
        EXPECT_EQ(stats.max, want.max);
        EXPECT_NEAR(stats.rms, want.rms, 1e-13 * want.rms);
        EXPECT_EQ(stats.nan, want.nan);
        EXPECT_EQ(stats.infinite, want.infinite);
        EXPECT_EQ(stats.zeros, want.zeros);
        // Nothing is said of columns that no memory is left for.
        if (memory > 100'000) {
          EXPECT_EQ(stats.outlier_channels, want.outlier_channels);
        }
        if (!first[at]) first[at] = stats;
        EXPECT_EQ(stats.rms, first[at]->rms);
      }
    }
  const auto got = inspected(scratch / "m", true);
  const io::Json json = json_of(*got);
  for (const io::Json& tensor : json["tensors"])
    if (tensor["name"] == "F32.outliers.weight") {
      EXPECT_EQ(tensor["stats"]["outlier_channels"], io::Json::array({3, 40}));
      EXPECT_EQ(tensor["stats"]["max"], 2.0);
      EXPECT_EQ(tensor["stats"]["min"], -3.0);
    }
}

}  // namespace
}  // namespace kvant::tests
