// The figures of an evaluation against plain loops, and what becomes of numbers that are none.
#include "measure/model_quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "measure/labels.h"
#include "measure/stored_size.h"
#include "model/network.h"
#include "model/weights.h"
#include "tests/support/network_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::measure {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

model::TokenText text_of(std::vector<std::int64_t> lengths) {
  model::TokenText text;
  text.lengths = std::move(lengths);
  for (const std::int64_t length : text.lengths)
    for (std::int64_t i = 0; i < length; ++i) text.ids.push_back(static_cast<std::int32_t>(100 + text.ids.size()));
  return text;
}

std::vector<PredictedToken> tokens_of(const model::TokenText& text, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> number(0, 2);
  std::vector<PredictedToken> tokens(text.ids.size() - text.lengths.size());
  for (PredictedToken& token : tokens)
    token = {-number(random), number(random), static_cast<std::int32_t>(random() % 3), -number(random)};
  return tokens;
}

TEST(CompareTokens, GivesWhatPlainLoopsGive) {
  const model::TokenText text = text_of({40, 7, 1, 40, 2});
  const auto original = tokens_of(text, 1), own = tokens_of(text, 2);
  ModelQuality quality;
  compare_tokens(original, own, text, quality);
  const auto n = static_cast<double>(own.size());
  double kl = 0, change = 0, same = 0, loss = 0;
  std::vector<double> sorted;
  for (std::size_t i = 0; i < own.size(); ++i) {
    kl += own[i].kl;
    change += original[i].log_probability - own[i].log_probability;
    same += own[i].top == original[i].top ? 1 : 0;
    loss -= own[i].log_probability;
    sorted.push_back(own[i].kl);
  }
  std::sort(sorted.begin(), sorted.end());
  EXPECT_DOUBLE_EQ(quality.mean_kl, kl / n);
  EXPECT_DOUBLE_EQ(quality.mean_log_probability_change, change / n);
  EXPECT_DOUBLE_EQ(quality.same_top, same / n);
  EXPECT_DOUBLE_EQ(quality.prediction.perplexity, std::exp(loss / n));
  // The change is the logarithm of the ratio of perplexities.
  EXPECT_NEAR(quality.mean_log_probability_change,
              std::log(quality.prediction.perplexity / predict(original).perplexity), 1e-12);
  EXPECT_EQ(quality.kl_99, sorted[(sorted.size() - 1) * 99 / 100]);

  // By position: predictions 0 to 38 are of the first sequence, 39 to 44 of the second, the third has none.
  ASSERT_EQ(quality.kl_by_position.size(), 39u);
  EXPECT_DOUBLE_EQ(quality.kl_by_position[0], (own[0].kl + own[39].kl + own[45].kl + own[84].kl) / 4);
  EXPECT_DOUBLE_EQ(quality.kl_by_position[5], (own[5].kl + own[44].kl + own[50].kl) / 3);
  EXPECT_DOUBLE_EQ(quality.kl_by_position[38], (own[38].kl + own[83].kl) / 2);

  ASSERT_EQ(quality.differences.size(), kDifferences);
  for (std::size_t i = 0; i < kDifferences; ++i) EXPECT_EQ(quality.differences[i].kl, sorted[sorted.size() - 1 - i]);
}

TEST(CompareTokens, SaysWhereTheyDifferAndWhatCameBefore) {
  const model::TokenText text = text_of({3, 36});
  std::vector<PredictedToken> original(37), own(37);
  for (PredictedToken& token : original) token = {std::log(0.5), 0, 7, std::log(0.5)};
  own = original;
  own[1] = {std::log(0.25), 0.5, 8, std::log(0.75)};    // the third token of the first sequence
  own[36] = {std::log(0.125), 0.75, 9, std::log(0.5)};  // the last of the second
  ModelQuality quality;
  compare_tokens(original, own, text, quality);
  ASSERT_EQ(quality.differences.size(), 2u);  // where KL is 0, nothing differs
  const TokenDifference& first = quality.differences[0];
  EXPECT_EQ(first.sequence, 1u);
  EXPECT_EQ(first.position, 34);
  EXPECT_EQ(first.token, 138);
  ASSERT_EQ(first.context.size(), 30u);
  EXPECT_EQ(first.context.front(), 108);
  EXPECT_EQ(first.context.back(), 137);
  EXPECT_DOUBLE_EQ(first.original_probability, 0.5);
  EXPECT_DOUBLE_EQ(first.probability, 0.125);
  EXPECT_EQ(first.original_top.token, 7);
  EXPECT_EQ(first.top.token, 9);
  const TokenDifference& second = quality.differences[1];
  EXPECT_EQ(second.sequence, 0u);
  EXPECT_EQ(second.position, 1);
  EXPECT_EQ(second.token, 102);
  EXPECT_EQ(second.context, (std::vector<std::int32_t>{100, 101}));  // nothing of another sequence
  EXPECT_DOUBLE_EQ(second.top.probability, 0.75);
}

TEST(CompareTokens, TakesNanForInfiniteAndLessThanNothingForNothing) {
  const model::TokenText text = text_of({5});
  std::vector<PredictedToken> original(4, {-1, 0, 0, -1}), own(4, {-1, -1e-17, 0, -1});
  ModelQuality same;
  compare_tokens(original, own, text, same);
  EXPECT_EQ(same.mean_kl, 0);
  EXPECT_TRUE(same.differences.empty());
  EXPECT_EQ(same.verdict, Verdict::good);
  own[2] = {kNan, kNan, -1, kNan};
  ModelQuality broken;
  compare_tokens(original, own, text, broken);
  EXPECT_EQ(broken.mean_kl, kInfinity);
  ASSERT_EQ(broken.differences.size(), 1u);
  EXPECT_EQ(broken.differences[0].position, 2);
  EXPECT_EQ(broken.differences[0].top.token, -1);
  EXPECT_EQ(broken.verdict, Verdict::broken);
}

TEST(Judge, FollowsItsRule) {
  EXPECT_EQ(judge_loss(0.0199, 10.19, 10), Verdict::good);
  EXPECT_EQ(judge_loss(0.02, 10, 10), Verdict::noticeable);
  EXPECT_EQ(judge_loss(0.01, 10.2001, 10), Verdict::noticeable);
  EXPECT_EQ(judge_loss(0.3001, 10, 10), Verdict::broken);
  EXPECT_EQ(judge_loss(0.1, 15.001, 10), Verdict::broken);
  EXPECT_EQ(judge_loss(kInfinity, 10, 10), Verdict::broken);
  EXPECT_EQ(judge_loss(0.01, kNan, 10), Verdict::broken);
  EXPECT_EQ(judge_cosine(0.9991), Verdict::good);
  EXPECT_EQ(judge_cosine(0.999), Verdict::noticeable);
  EXPECT_EQ(judge_cosine(0.98), Verdict::broken);
  EXPECT_EQ(judge_cosine(kNan), Verdict::broken);
  EXPECT_EQ(verdict_rule(false),
            "good: mean KL below 0.02 and perplexity less than 2 % above the original's; broken: mean KL above 0.3, or "
            "perplexity more than 50 % above the original's, or either not finite; noticeable: between.");
  EXPECT_EQ(
      verdict_rule(true),
      "good: mean cosine above 0.999; broken: mean cosine of 0.98 or less, or not a number; noticeable: between.");
}

TEST(Embeddings, AreMeansOfStates) {
  EXPECT_EQ(embeddings_of({1, 2, 3, 4, 5, 6}, 2, text_of({2, 1})), (Embeddings{{2, 3}, {5, 6}}));
}

TEST(RankAgreement, IsTheMeanOfSpearmansCorrelations) {
  // Unit vectors by their angles, in degrees: the nearer the angles, the larger the cosine.
  const auto at = [](std::vector<double> degrees) {
    Embeddings all;
    for (const double d : degrees) all.push_back({std::cos(d / 57.3), std::sin(d / 57.3)});
    return all;
  };
  const Embeddings original = at({0, 10, 30, 70});
  EXPECT_EQ(rank_agreement(original, original), 1.0);
  EXPECT_EQ(rank_agreement(original, at({0, 5, 15, 35})), 1.0);  // closer, in the same order
  // Sentence 0 orders 1, 2, 3 as 1 2 3 and as 2 1 3: 1 - 6 (1 + 1) / (3 · 8) = 0.5. Of 1: 0 2 3, and 2 0 3 (20 and 30
  // away): 0.5. Of 2: 1 0 3, and 0 1 3: 0.5. Of 3: 2 1 0, and 1 2 0: 0.5.
  EXPECT_DOUBLE_EQ(*rank_agreement(original, at({0, 30, 10, 70})), 0.5);
  // Of each of three, the other neighbour became the nearest.
  EXPECT_EQ(rank_agreement(at({0, 10, 30}), at({0, 30, 10})), -1.0);

  // Two others are the least that can be ordered.
  EXPECT_EQ(rank_agreement(at({0, 10}), at({0, 10})), std::nullopt);
  EXPECT_EQ(rank_agreement({}, {}), std::nullopt);
  // All alike: no order. It agrees with another such one only.
  const Embeddings alike(4, {1, 1});
  EXPECT_EQ(rank_agreement(alike, alike), 1.0);
  EXPECT_EQ(rank_agreement(original, alike), 0.0);
  EXPECT_EQ(rank_agreement(original, Embeddings(4, {kNan, 1})), 0.0);
}

TEST(CompareEmbeddings, TakesMeanAndMin) {
  ModelQuality quality;
  compare_embeddings({{1, 0}, {0, 1}, {1, 1}}, {{1, 0}, {1, 1}, {2, 2}}, quality);
  EXPECT_DOUBLE_EQ(quality.min_cosine, std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(quality.mean_cosine, (2 + std::sqrt(0.5)) / 3);
  EXPECT_EQ(quality.verdict, Verdict::broken);
  ModelQuality broken;
  compare_embeddings({{1, 0}, {0, 1}}, {{kNan, 0}, {0, 1}}, broken);
  EXPECT_TRUE(std::isnan(broken.min_cosine));
  EXPECT_EQ(broken.verdict, Verdict::broken);
}

TEST(Labels, TellPathsApart) {
  EXPECT_EQ(labels_of({"/a/b/x", "/a/c/x/", "/a/c/y", "/a/c/y"}),
            (std::vector<std::string>{"b/x", "c/x", "y", "y (2)"}));
}

TEST(BitsPerWeight, CountsLinearsOfBlocksAlone) {
  for (const auto& [dtype, bits] : {std::pair{io::DType::f32, 32.0}, {io::DType::bf16, 16.0}}) {
    tests::ScratchFolder scratch;
    tests::llama_model(tests::llama_config(), dtype).files().write(scratch / "m");
    const auto weights = model::Weights::open(scratch / "m");
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    const auto network = model::make_network(weights->config(), weights->modules());
    ASSERT_TRUE(network.ok()) << network.status().message();
    EXPECT_EQ(bits_per_weight(*weights, *network), bits);
  }
}

}  // namespace
}  // namespace kvant::measure
