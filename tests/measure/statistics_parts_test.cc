// Parts of a calibration: the same bytes for any batches, one file of all of them, and what is refused.
#include "measure/statistics_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/network_steps_case.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::Statistic;
using measure::InputStatistics;
using measure::StatisticsParts;
using measure::StatisticsTools;

constexpr std::int64_t kIn = 37, kRows = 700, kStride = 40;
const std::map<std::string, std::string> kRun = {{"format", "pt"}, {"tokens", "700"}};

InputStatistics statistics_of(std::uint32_t seed, std::int64_t batch) {
  const std::vector<float> x = some_numbers(static_cast<std::size_t>(kRows * kStride), seed);
  StatisticsTools tools = StatisticsTools::select(Stream::cpu(2)).value();
  InputStatistics statistics = InputStatistics::make(kIn, true).value();
  for (std::int64_t row = 0; row < kRows; row += batch)
    EXPECT_TRUE(statistics.add(tools, x.data() + row * kStride, kStride, std::min(batch, kRows - row)).ok());
  EXPECT_TRUE(statistics.finish(tools).ok());
  EXPECT_EQ(statistics.rows(), kRows);
  EXPECT_FALSE(statistics.channel_not_finite());
  return statistics;
}

// Two blocks and a head, of which the first block was made by an earlier process.
void write_parts(const io::ScratchFolder& folder, std::int64_t batch) {
  const InputStatistics a = statistics_of(1, batch), b = statistics_of(2, batch), c = statistics_of(3, batch);
  const std::vector<measure::SeenInput> first = {{{"0.q", "0.k"}, &a}, {{"0.o"}, &b}}, second = {{{"1.q", "1.k"}, &c}};
  const std::vector<measure::SeenInput> head = {{{"head"}, &a}};
  ASSERT_TRUE(StatisticsParts(folder, kRun).write_block(0, first).ok());
  const StatisticsParts again(folder, kRun);
  ASSERT_TRUE(again.write_block(1, second).ok());
  ASSERT_TRUE(again.write_head(head).ok());
}

TEST(StatisticsParts, BecomeOneFileThatBatchesDoNotShow) {
  const ScratchFolder scratch;
  base::Silence silence;
  const io::ScratchFolder folder = io::ScratchFolder::open(scratch / "parts", false).value();
  std::vector<std::string> files;
  for (const std::int64_t batch : {std::int64_t{700}, std::int64_t{512}, std::int64_t{33}}) {
    write_parts(folder, batch);
    const auto names = StatisticsParts(folder, kRun).join(2, true, scratch / "stats", true, silence);
    ASSERT_TRUE(names.ok()) << names.status().message();
    EXPECT_EQ(names->size(), 6 * 7 + 4 * 3u);
    EXPECT_TRUE(names->contains("1.k.count"));
    files.push_back(text_of(scratch / "stats"));
    EXPECT_TRUE(files.back() == files.front()) << batch;
  }
  const auto stats = format::ActivationStats::open(scratch / "stats");
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->metadata().at("tokens"), "700");
  for (const io::TensorInfo& tensor : stats->tensors())
    EXPECT_EQ(tensor.begin % (static_cast<std::uint64_t>(io::bits(tensor.dtype)) / 8), 0u) << tensor.name;
  for (const char* module : {"0.q", "0.k", "0.o", "1.q", "1.k", "head"}) {
    EXPECT_EQ(stats->count(module).value(), kRows) << module;
    EXPECT_TRUE(stats->has(module, Statistic::hessian)) << module;
    const auto histogram = stats->histogram(module);
    ASSERT_TRUE(histogram.ok()) << histogram.status().message();
    std::int64_t values = histogram->zeros;
    for (const std::int64_t count : histogram->counts) values += count;
    EXPECT_EQ(values, kRows * kIn) << module;
    // The diagonal is the mean of squares once more.
    const std::vector<float> square = stats->channels(module, Statistic::mean_square, kIn).value();
    std::vector<float> rows(kIn * kIn);
    ASSERT_TRUE(stats->read_hessian(module, kIn, 0, rows).ok());
    for (std::size_t i = 0; i < kIn; ++i)
      EXPECT_NEAR(rows[i * kIn + i], square[i] * kRows, 1e-5 * static_cast<double>(square[i]) * kRows);
  }
}

TEST(StatisticsParts, OfAnotherRunAreRefused) {
  const ScratchFolder scratch;
  base::Silence silence;
  const io::ScratchFolder folder = io::ScratchFolder::open(scratch / "parts", false).value();
  write_parts(folder, 700);
  const auto join = [&](std::map<std::string, std::string> run, std::size_t blocks) {
    return StatisticsParts(folder, std::move(run)).join(blocks, true, scratch / "stats", true, silence).status();
  };
  EXPECT_TRUE(
      invalid(join({{"tokens", "701"}}, 2), {"block-00000.scratch", "another run", "tokens is '700', not '701'"}));
  EXPECT_TRUE(invalid(join({{"hessian", "no"}}, 2), {"hessian is '', not 'no'"}));
  const Status missing = join(kRun, 3);
  EXPECT_NE(missing.message().find("block-00002.scratch"), std::string_view::npos) << missing.message();
  EXPECT_FALSE(fs::exists(scratch / "stats"));
}

}  // namespace
}  // namespace kvant::tests
