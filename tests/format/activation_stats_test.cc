// Files of statistics: what is read of each form, whose input a module reads, and what is refused.
#include "format/activation_stats.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::ActivationStats;
using format::Statistic;

struct StatsFixture {
  std::vector<FixtureTensor> tensors = {
      i64_tensor("q.count", {1}, {7}),
      i64_tensor("q.histogram", {5}, {1, 2, 3, 4, 9}),
      float_tensor("q.histogram_limit", io::DType::f64, {1}, {4}),
      f32_tensor("q.absmax", {2}, {3, 2}),
      f32_tensor("q.min", {2}, {-3, -1}),
      f32_tensor("q.max", {2}, {1, 2}),
      f32_tensor("q.mean_square", {2}, {0.5, 0.25}),
      f32_tensor("q.int8_error", {2}, {0.01, 0.02}),
      f32_tensor("q.int8_asymmetric_error", {2}, {0.03, 0.04}),
      f32_tensor("q.hessian", {2, 2}, {1, 2, 2, 5}),
      f32_tensor("k.absmax", {2}, {3, 2}),
  };
  Metadata metadata = {{"format", "pt"}, {"k.same_input_as", "q"}};

  FixtureTensor& at(std::string_view name) {
    for (FixtureTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::runtime_error("no such tensor");
  }
  Result<ActivationStats> open() const {
    const ScratchFolder scratch;
    write_safetensors(scratch / "stats.safetensors", tensors, metadata);
    return ActivationStats::open(scratch / "stats.safetensors");
  }
};

TEST(ActivationStats, AreReadByTheModuleOrTheOneWhoseInputItReads) {
  const auto stats = StatsFixture().open();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  for (const char* module : {"q", "k"}) {
    EXPECT_EQ(stats->count(module).value(), 7);
    EXPECT_EQ(stats->absmax(module, 2).value(), (std::vector<float>{3, 2}));
    EXPECT_EQ(stats->min_max(module, 2)->min, (std::vector<float>{-3, -1}));
    EXPECT_EQ(stats->channels(module, Statistic::mean_square, 2).value(), (std::vector<float>{0.5, 0.25}));
    EXPECT_EQ(stats->channels(module, format::error_of(DynamicRangeMode::symmetric), 2).value(),
              (std::vector<float>{0.01f, 0.02f}));
    EXPECT_EQ(stats->channels(module, format::error_of(DynamicRangeMode::asymmetric), 2).value(),
              (std::vector<float>{0.03f, 0.04f}));
    const auto histogram = stats->histogram(module);
    ASSERT_TRUE(histogram.ok()) << histogram.status().message();
    EXPECT_EQ(histogram->limit, 4);
    EXPECT_EQ(histogram->counts, (std::vector<std::int64_t>{1, 2, 3, 4}));
    EXPECT_EQ(histogram->zeros, 9);
    ASSERT_TRUE(stats->has(module, Statistic::hessian));
    std::vector<float> row(2);
    ASSERT_TRUE(stats->read_hessian(module, 2, 1, row).ok());
    EXPECT_EQ(row, (std::vector<float>{2, 5}));
  }
  EXPECT_FALSE(stats->has_absmax("v"));
}

TEST(ActivationStats, KnowTheirModules) {
  StatsFixture f;
  f.tensors.push_back(f32_tensor("o.kurtosis", {2}, {3, 3}));
  f.tensors.push_back(f32_tensor("absmax", {2}, {3, 3}));
  f.metadata["v.same_input_as"] = "q";
  const auto stats = f.open();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->modules(), (std::vector<std::string>{"q", "k", "v"}));
  EXPECT_EQ(stats->in_features("v"), 2u);
  EXPECT_EQ(stats->in_features("o"), std::nullopt);
  EXPECT_EQ(*stats->same_input_as("v"), "q");
  EXPECT_EQ(stats->same_input_as("q"), nullptr);
  EXPECT_TRUE(stats->has_ranges());
  // One that has nothing but a mean can be pointed to as well.
  StatsFixture means;
  means.tensors = {f32_tensor("q.mean_square", {2}, {0.5, 0.25})};
  ASSERT_TRUE(means.open().ok()) << means.open().status().message();
  EXPECT_FALSE(means.open()->has_ranges());
}

TEST(ActivationStats, RefuseTensorsOfAnotherForm) {
  const auto refuses = [](const std::function<void(StatsFixture&)>& change, Parts parts) {
    StatsFixture fixture;
    change(fixture);
    EXPECT_TRUE(invalid(fixture.open().status(), parts));
  };
  refuses([](StatsFixture& f) { f.at("q.count") = f32_tensor("q.count", {1}, {7}); },
          {"'q.count' is F32 [1], must be I64 [1]"});
  refuses(
      [](StatsFixture& f) {
        f.at("q.count") = i64_tensor("q.count", {2}, {7, 7});
      },
      {"'q.count' is I64 [2], must be I64 [1]"});
  refuses(
      [](StatsFixture& f) {
        f.at("q.histogram") = i64_tensor("q.histogram", {4}, {1, 2, 3, 4});
      },
      {"'q.histogram' is I64 [4], must be I64 [bins + 1]"});
  refuses([](StatsFixture& f) { f.at("q.histogram_limit") = f32_tensor("q.histogram_limit", {1}, {4}); },
          {"'q.histogram_limit' is F32 [1], must be F64 [1]"});
  refuses(
      [](StatsFixture& f) {
        f.at("q.hessian") = f32_tensor("q.hessian", {1, 2}, {1, 2});
      },
      {"'q.hessian' is F32 [1, 2], must be F32 [in, in]"});
  refuses(
      [](StatsFixture& f) {
        f.at("q.max") = bf16_tensor("q.max", {2}, {1, 2});
      },
      {"'q.max' is BF16 with 1 dimensions; statistics are F32 with one"});
  refuses(
      [](StatsFixture& f) {
        f.tensors.push_back(f32_tensor("q.kurtosis", {1, 1}, {1}));
      },
      {"'q.kurtosis' is F32 with 2 dimensions"});
  refuses([](StatsFixture& f) { f.metadata["v.same_input_as"] = "nobody"; },
          {"metadata 'v.same_input_as' names 'nobody', which has no statistics of its own"});
  refuses([](StatsFixture& f) { f.metadata["v.same_input_as"] = "k"; }, {"'v.same_input_as' names 'k'"});
}

TEST(ActivationStats, RefuseNumbersThatCannotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  StatsFixture f;
  f.at("q.count") = i64_tensor("q.count", {1}, {0});
  f.at("q.histogram") = i64_tensor("q.histogram", {5}, {1, 2, -3, 4, 9});
  f.at("q.mean_square") = f32_tensor("q.mean_square", {2}, {0.5, -0.25});
  f.at("q.int8_error") = f32_tensor("q.int8_error", {2}, {nan, 0});
  f.at("q.absmax") = f32_tensor("q.absmax", {2}, {-3, 2});
  f.at("q.min") = f32_tensor("q.min", {2}, {-3, 3});
  f.at("q.hessian") = f32_tensor("q.hessian", {2, 2}, {1, 2, nan, 5});
  const auto stats = f.open();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_TRUE(invalid(stats->count("k").status(), {"'q.count' is 0, must be at least 1"}));
  EXPECT_TRUE(invalid(stats->count("v").status(), {"has no 'v.count'", "--ignore v"}));
  EXPECT_TRUE(invalid(stats->histogram("q").status(), {"'q.histogram' is -3 at 2"}));
  EXPECT_TRUE(invalid(stats->channels("q", Statistic::mean_square, 2).status(),
                      {"'q.mean_square' is -0.25 at channel 1; a mean of squares cannot be negative"}));
  EXPECT_TRUE(invalid(stats->channels("q", Statistic::mean_square, 3).status(),
                      {"'q.mean_square' has 2 values, 'q.weight' has 3 input channels"}));
  EXPECT_TRUE(invalid(stats->channels("q", Statistic::int8_error, 2).status(), {"'q.int8_error' is nan at channel 0"}));
  EXPECT_TRUE(invalid(stats->absmax("q", 2).status(), {"is -3 at channel 0; a max magnitude cannot be negative"}));
  EXPECT_TRUE(invalid(stats->min_max("q", 2).status(), {"'q.min' is 3 at channel 1, above its max 2"}));
  std::vector<float> rows(4);
  EXPECT_TRUE(invalid(stats->read_hessian("k", 2, 0, rows), {"'q.hessian' is nan at [1, 0]"}));
  EXPECT_TRUE(
      invalid(stats->read_hessian("k", 3, 0, rows), {"'q.hessian' has 2 rows, 'k.weight' has 3 input channels"}));
  StatsFixture odd;
  odd.at("q.histogram_limit") = float_tensor("q.histogram_limit", io::DType::f64, {1}, {3});
  EXPECT_TRUE(invalid(odd.open()->histogram("q").status(), {"'q.histogram_limit' is 3, must be a power of two"}));
}

}  // namespace
}  // namespace kvant::tests
