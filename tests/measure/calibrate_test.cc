// Statistics of a model with experts: who sees how many rows, and who sees none.
#include "measure/calibrate.h"

#include <gtest/gtest.h>

#include "format/activation_stats.h"
#include "format/kv_cache.h"
#include "tests/support/network_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

constexpr std::string_view kExperts = "model.layers.1.block_sparse_moe.experts.";

measure::CalibrateOptions options_for(const ScratchFolder& scratch, std::vector<std::int32_t> ids) {
  mixtral_model().files().write(scratch / "model");
  return {.model = scratch / "model",
          .output = scratch / "stats",
          .overwrite = true,
          .text = model::cut(std::move(ids), 5, 0)};
}

TEST(Calibrate, ExpertsCountTheirOwnRows) {
  const ScratchFolder scratch;
  base::Silence silence;
  const auto found = calibrate(options_for(scratch, {3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32}), silence);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->tokens, 12u);
  EXPECT_EQ(found->linears + found->unseen.size(), 2 * (4 + 1 + 9) + 1u);
  const auto stats = format::ActivationStats::open(scratch / "stats");
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->count("model.layers.1.block_sparse_moe.gate").value(), 12);
  std::int64_t rows = 0;
  for (int expert = 0; expert < 3; ++expert) {
    const std::string w1 = fmt::format("{}{}.w1", kExperts, expert), w3 = fmt::format("{}{}.w3", kExperts, expert);
    if (!stats->has_absmax(w1)) continue;
    rows += stats->count(w1).value();
    EXPECT_EQ(stats->count(w3).value(), stats->count(w1).value());
    EXPECT_EQ(stats->count(fmt::format("{}{}.w2", kExperts, expert)).value(), stats->count(w1).value());
    EXPECT_EQ(stats->metadata().at(format::same_input_key(w3)), w1);
  }
  EXPECT_EQ(rows, 2 * 12);
  for (const format::CacheHalf half : format::kCacheHalves)
    EXPECT_TRUE(stats->has_absmax(format::cache_statistics_module("model.layers.1.self_attn", half)));
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"model", "stats"}));
}

TEST(Calibrate, ExpertsWithoutTokensAreNamed) {
  const ScratchFolder scratch;
  base::Silence silence;
  const auto found = calibrate(options_for(scratch, {3}), silence);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->unseen.size(), 2 * 3u);  // an expert of each block
  const auto stats = format::ActivationStats::open(scratch / "stats");
  for (const std::string& module : found->unseen)
    for (const format::Statistic statistic : {format::Statistic::absmax, format::Statistic::histogram})
      EXPECT_FALSE(stats->has(module, statistic)) << module;
}

// Nobody could read scales of them.
TEST(Calibrate, OtherFamiliesHaveNoKeysAndValues) {
  const ScratchFolder scratch;
  base::Silence silence;
  gpt2_model().files().write(scratch / "gpt2");
  measure::CalibrateOptions options = options_for(scratch, {3, 14});
  options.model = scratch / "gpt2";
  const auto found = calibrate(options, silence);
  ASSERT_TRUE(found.ok()) << found.status().message();
  const auto stats = format::ActivationStats::open(scratch / "stats");
  for (const io::TensorInfo& tensor : stats->tensors())
    EXPECT_FALSE(tensor.name.ends_with("attn.k.absmax") || tensor.name.ends_with("attn.v.absmax")) << tensor.name;
}

}  // namespace
}  // namespace kvant::tests
