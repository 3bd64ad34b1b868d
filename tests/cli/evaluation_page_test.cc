// The page of an evaluation with numbers that no real one has: it stays small, and nothing in it is out of place.
#include "cli/report/evaluation_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <string_view>

#include "cli/report/frame.h"
#include "cli/report/quality_charts.h"

namespace kvant::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

measure::ModelQuality quality(std::string label, double kl, double perplexity) {
  measure::ModelQuality one;
  one.label = std::move(label);
  one.bytes = 1'000'000;
  one.bits_per_weight = 4.25;
  one.mean_kl = kl;
  one.kl_99 = kl;
  one.prediction = {perplexity, 0.5};
  one.kl_by_position.assign(2047, kl);
  one.verdict = measure::judge_loss(kl, perplexity, 10);
  return one;
}

measure::Evaluation evaluation() {
  measure::Evaluation made;
  made.model_type = "llama";
  made.original = quality("original", 0, 10);
  return made;
}

TEST(EvaluationPage, StaysSmallWithManyCheckpointsAndPositions) {
  measure::Evaluation made = evaluation();
  for (int i = 0; i < 12; ++i) made.quantized.push_back(quality("q" + std::to_string(i), 0.01 * i + 0.001, 10.1));
  for (measure::ModelQuality& one : made.quantized)
    for (std::size_t i = 0; i < measure::kDifferences; ++i) {
      measure::TokenDifference difference;
      difference.context.assign(30, 123456);
      difference.kl = 1;
      one.differences.push_back(difference);
    }
  const std::string page = evaluation_page(made, {});
  EXPECT_TRUE(page.starts_with(kReportStart));
  EXPECT_LT(page.size(), 400'000u);
  // Too many to name in a sentence.
  EXPECT_TRUE(contains(page, "<h1>2 good, 10 noticeable.</h1>"));
  EXPECT_TRUE(contains(page, "A point: the mean of 21 positions."));
  EXPECT_TRUE(contains(page, "<title>positions 0–20\n"));
  EXPECT_TRUE(contains(page, "<title>positions 2037–2046\n"));
}

TEST(EvaluationPage, HasAPlaceForNumbersThatAreNone) {
  measure::Evaluation made = evaluation();
  made.quantized = {quality("inf", kInfinity, kNan), quality("nothing", 0, 10), quality("huge", 1e300, 1e300)};
  const std::string page = evaluation_page(made, {});
  // Every coordinate is a number inside the drawing or its margin.
  const std::string drawn = page.substr(page.find("<main>"));
  const std::regex translate("translate\\(([^ ]+) ([^)]+)\\)");
  int points = 0;
  for (std::sregex_iterator at(drawn.begin(), drawn.end(), translate), end; at != end; ++at, ++points)
    for (const int group : {1, 2}) {
      const double value = std::stod((*at)[static_cast<std::size_t>(group)].str());
      EXPECT_GE(value, 0);
      EXPECT_LE(value, 1000);
    }
  EXPECT_GE(points, 7);
  EXPECT_TRUE(contains(page, "<b>nothing</b> is good, <b>inf</b> is broken, <b>huge</b> is broken."));
  EXPECT_TRUE(contains(page, "<td data-v=inf>∞"));
}

TEST(EvaluationPage, OfAnEncoderShowsWhatEncodersHave) {
  measure::Evaluation made = evaluation();
  made.is_encoder = true;
  made.quantized = {quality("<b>", 0, 0)};
  made.quantized[0].rank_agreement = 0.9375;
  const std::string page = evaluation_page(made, {.command = "kvant eval '<x>'"});
  EXPECT_TRUE(contains(page, "<td data-v=0.9375>0.9375"));
  EXPECT_TRUE(contains(page, "&lt;b&gt;"));
  EXPECT_TRUE(contains(page, "<code>kvant eval &#39;&lt;x&gt;&#39;</code>"));
  EXPECT_FALSE(contains(page, "<b><b>"));
  EXPECT_FALSE(contains(page, "Mean KL"));
  EXPECT_FALSE(contains(page, "id=tokens"));
}

TEST(SizeChart, PutsLabelsApart) {
  std::vector<SizePoint> points;
  for (std::size_t i = 0; i < 5; ++i) points.push_back({.label = "same", .bytes = 100, .value = 1, .series = i});
  const std::string svg = size_chart("x", points, {});
  const std::regex label("<text x=[0-9.]+ y=([0-9.]+)>same</text>");
  std::vector<double> heights;
  for (std::sregex_iterator at(svg.begin(), svg.end(), label), end; at != end; ++at)
    heights.push_back(std::stod((*at)[1].str()));
  ASSERT_EQ(heights.size(), 5u);
  for (std::size_t i = 1; i < heights.size(); ++i) EXPECT_GE(heights[i] - heights[i - 1], 15);
}

TEST(PositionSpan, KeepsAtMostHundredPoints) {
  EXPECT_EQ(position_span(0), 1u);
  EXPECT_EQ(position_span(100), 1u);
  EXPECT_EQ(position_span(101), 2u);
  EXPECT_EQ(position_span(2047), 21u);
}

}  // namespace
}  // namespace kvant::cli
