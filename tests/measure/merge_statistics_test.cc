// Merged statistics beside those of all rows at once, and what the tool's test does not reach.
#include "measure/merge_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "format/activation_stats.h"
#include "io/scratch_folder.h"
#include "measure/statistics_parts.h"
#include "measure/statistics_summary.h"
#include "model/imatrix.h"
#include "tests/fuzz/corpus.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/network_steps_case.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::ActivationStats;
using format::Statistic;

constexpr std::int64_t kIn = 19;

// A file of the rows of x, of two modules that read the same.
void write_statistics(const fs::path& path, const ScratchFolder& scratch, std::span<const float> x) {
  measure::StatisticsTools tools = measure::StatisticsTools::select(Stream::cpu(1)).value();
  measure::InputStatistics statistics = measure::InputStatistics::make(kIn, true).value();
  must(statistics.add(tools, x.data(), kIn, static_cast<std::int64_t>(x.size()) / kIn));
  must(statistics.finish(tools));
  const io::ScratchFolder folder = io::ScratchFolder::open(scratch / "parts", false).value();
  const measure::StatisticsParts parts(folder, {{"format", "pt"}});
  const std::vector<measure::SeenInput> inputs = {{{"q", "k"}, &statistics}};
  must(parts.write_block(0, inputs));
  base::Silence silence;
  must(parts.join(1, false, path, true, silence).status());
}

Result<measure::MergedStatistics> merge(std::vector<fs::path> inputs, const fs::path& output) {
  base::Silence silence;
  return measure::merge_statistics({.inputs = std::move(inputs), .output = output, .overwrite = true}, silence);
}

// The parts of one text have very different ranges: down to zeros alone, whose limit is 2^-1000.
TEST(MergeStatistics, HaveTheHistogramOfAllRows) {
  const ScratchFolder scratch;
  std::vector<float> x = some_numbers(static_cast<std::size_t>(4 * kIn), 5);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t part = i / kIn;
    x[i] = part == 0 ? std::ldexp(x[i], -70) : part == 1 ? x[i] : part == 2 ? 0.0F : x[i] * 1000;
  }
  x[kIn + 3] = -0x1p-149F;  // stays on its side of zero
  write_statistics(scratch / "all", scratch, x);
  std::vector<fs::path> parts;
  for (std::size_t part = 0; part < 4; ++part) {
    parts.push_back(scratch / std::to_string(part));
    write_statistics(parts.back(), scratch, std::span(x).subspan(part * kIn, kIn));
  }
  const auto all = ActivationStats::open(scratch / "all");
  ASSERT_TRUE(all.ok()) << all.status().message();
  for (int order = 0; order < 2; ++order) {
    const auto merged = merge(parts, scratch / "merged");
    ASSERT_TRUE(merged.ok()) << merged.status().message();
    EXPECT_EQ(merged->modules, 2u);
    EXPECT_EQ(merged->warnings, std::vector<std::string>());
    const auto stats = ActivationStats::open(scratch / "merged");
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    ASSERT_NE(stats->same_input_as("k"), nullptr);
    EXPECT_EQ(*stats->same_input_as("k"), "q");
    for (const char* module : {"q", "k"}) {
      const auto histogram = stats->histogram(module), wanted = all->histogram(module);
      ASSERT_TRUE(histogram.ok()) << histogram.status().message();
      EXPECT_EQ(histogram->limit, wanted->limit);
      EXPECT_EQ(histogram->counts, wanted->counts);
      EXPECT_EQ(histogram->zeros, wanted->zeros);
      EXPECT_EQ(stats->count(module).value(), 4);
      for (const Statistic statistic : {Statistic::absmax, Statistic::min, Statistic::max})
        EXPECT_EQ(stats->channels(module, statistic, kIn).value(), all->channels(module, statistic, kIn).value());
    }
    std::reverse(parts.begin(), parts.end());
  }
}

TEST(MergeStatistics, RefuseSumsThatAreTooLarge) {
  const ScratchFolder scratch;
  const auto refuses = [&](std::vector<FixtureTensor> tensors, std::string_view part) {
    write_safetensors(scratch / "a", tensors);
    EXPECT_TRUE(invalid(merge({scratch / "a", scratch / "a"}, scratch / "b").status(), part));
    EXPECT_FALSE(fs::exists(scratch / "b"));
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  refuses({f32_tensor("q.hessian", {2, 2}, {1, 2, 0x1p127, 5})},
          "'q.hessian' over the files is 3.402823669209385e+38 at [1, 0]");
  for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{1, kMost, 0}, {1, 1, kMost}})
    refuses({i64_tensor("q.histogram", {3}, counts), float_tensor("q.histogram_limit", io::DType::f64, {1}, {4})},
            "the sum of 'q.histogram' over the files is above 2^63 - 1");
  EXPECT_TRUE(invalid(merge({}, scratch / "b").status(), "no files were given"));
}

// A histogram without its limit says nothing, and neither does a limit without a histogram.
TEST(MergeStatistics, LeaveOutHalfAHistogram) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "a", {i64_tensor("q.histogram", {3}, {1, 2, 3}), f32_tensor("q.absmax", {1}, {2})});
  ASSERT_TRUE(merge({scratch / "a"}, scratch / "b").ok());
  const auto stats = ActivationStats::open(scratch / "b");
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->tensors().size(), 1u);
}

TEST(StatisticsSummary, ShowWhatThereIs) {
  const ScratchFolder scratch;
  write_safetensors(
      scratch / "a",
      {f32_tensor("b.10.x.absmax", {2}, {3, 4}), f32_tensor("b.9.x.mean_square", {2}, {0.5, 1}),
       i64_tensor("b.9.x.count", {1}, {7}), f32_tensor("b.9.x.hessian", {2, 2}, {1, 2, 2, 5}),
       f32_tensor("b.10.x.self_attn.k.absmax", {2}, {5, 6}), f32_tensor("b.9.y.self_attn.v.absmax", {1}, {7}),
       f32_tensor("b.9.x.self_attn.v.absmax", {1}, {8}), f32_tensor("b.9.x.self_attn.k.absmax", {1}, {9})},
      {{"b.9.y.same_input_as", "b.9.x"}});
  const auto summary = measure::summarize(ActivationStats::open(scratch / "a").value());
  ASSERT_TRUE(summary.ok()) << summary.status().message();
  const std::vector<measure::InputSummary>& inputs = summary->inputs;
  ASSERT_EQ(inputs.size(), 3u);
  EXPECT_EQ(inputs[0].module, "b.9.x");
  EXPECT_EQ(inputs[0].mean_square, 0.75);
  EXPECT_EQ(inputs[0].absmax, std::nullopt);
  EXPECT_EQ(inputs[1].module, "b.9.y");
  EXPECT_EQ(inputs[1].same_input_as, "b.9.x");
  EXPECT_EQ(inputs[1].rows, 7);
  EXPECT_TRUE(inputs[1].hessian);
  EXPECT_EQ(inputs[2].module, "b.10.x");
  EXPECT_EQ(inputs[2].absmax, 4);
  EXPECT_EQ(inputs[2].rows, std::nullopt);
  const std::vector<measure::CacheSummary>& caches = summary->caches;
  ASSERT_EQ(caches.size(), 3u);
  EXPECT_EQ(caches[0].attention, "b.9.x.self_attn");
  EXPECT_EQ(caches[0].keys_absmax, 9);
  EXPECT_EQ(caches[0].values_absmax, 8);
  EXPECT_EQ(caches[1].attention, "b.9.y.self_attn");
  EXPECT_EQ(caches[1].keys_absmax, std::nullopt);
  EXPECT_EQ(caches[2].attention, "b.10.x.self_attn");
  EXPECT_EQ(caches[2].keys_absmax, 6);
}

TEST(MergeStatistics, CorpusOfStatistics) {
  const auto check = [](const fs::path& path, const std::string& /*bytes*/) {
    EXPECT_EQ(model::open_statistics(path, "mixtral").ok(), is_legal(path));
  };
  EXPECT_GE(run_corpus("statistics", check), 20);
}

}  // namespace
}  // namespace kvant::tests
