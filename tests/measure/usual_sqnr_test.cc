// What is usual for a scheme, beside weights of a normal distribution that are rounded here.
#include "measure/usual_sqnr.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace kvant::tests {
namespace {

using measure::LayerLoss;
using measure::ModelLoss;
using measure::usual_sqnr_db;

// SQNR of normal weights in symmetric codes of which `share` have a scale in common.
double rounded_sqnr_db(double q_max, std::size_t share) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  double signal = 0, noise = 0;
  std::vector<double> row(share);
  for (std::size_t r = 0; r < (1u << 18) / share; ++r) {
    double largest = 0;
    for (double& w : row) {
      w = normal(random);
      largest = std::max(largest, std::abs(w));
    }
    const double scale = largest / q_max;
    for (const double w : row) {
      const double error = w - scale * std::round(w / scale);
      signal += w * w;
      noise += error * error;
    }
  }
  return 10 * std::log10(signal / noise);
}

TEST(UsualSqnr, IsThatOfNormalWeights) {
  for (const std::size_t share : {128u, 1024u, 4096u}) {
    const auto usual = usual_sqnr_db(ElementKind::s8, false, share);
    ASSERT_TRUE(usual.has_value());
    // Normal weights are at its upper end, where 1 dB is left for the spread of layers.
    EXPECT_NEAR(usual->most - 1, rounded_sqnr_db(127, share), 0.2) << share;
    EXPECT_LT(usual->least, usual->most - 4) << share;
  }
  // With scales that are searched for, the upper end of four bits is higher.
  for (const std::size_t share : {32u, 128u, 1024u}) {
    const auto usual = usual_sqnr_db(ElementKind::s4, false, share);
    EXPECT_GT(usual->most - 1, rounded_sqnr_db(7, share) + 0.5) << share;
    EXPECT_LT(usual->least + 1, rounded_sqnr_db(7, share)) << share;
  }
}

TEST(UsualSqnr, FollowsWhatSharesAScale) {
  double before = 100;
  for (std::uint64_t share = 1; share < 1'000'000; share *= 3) {
    const auto usual = usual_sqnr_db(ElementKind::s8, false, share);
    ASSERT_TRUE(usual.has_value());
    EXPECT_LE(usual->most, before);
    before = usual->most;
  }
  // Beyond the table its ends hold.
  EXPECT_EQ(usual_sqnr_db(ElementKind::s4, false, 1)->most, usual_sqnr_db(ElementKind::s4, false, 16)->most);
  EXPECT_GT(usual_sqnr_db(ElementKind::s4, true, 32)->most, usual_sqnr_db(ElementKind::s4, false, 32)->most);
  // Codes of floating point lose about the same whatever shares a scale.
  EXPECT_NEAR(usual_sqnr_db(ElementKind::e4m3, false, 128)->most,
              usual_sqnr_db(ElementKind::e4m3, false, 1 << 20)->most, 0.5);
  EXPECT_GT(usual_sqnr_db(ElementKind::e2m1, false, 16)->most, usual_sqnr_db(ElementKind::e2m1, false, 32)->most);
  EXPECT_FALSE(usual_sqnr_db(ElementKind::s16, false, 128).has_value());
}

TEST(UsualSqnr, OfACheckpointIsThatOfAllItsLayers) {
  ModelLoss loss;
  EXPECT_FALSE(usual_sqnr_db(loss).has_value());
  for (const std::uint64_t columns : {128u, 2048u}) {
    LayerLoss& layer = loss.layers.emplace_back();
    layer.rows = 64;
    layer.columns = columns;
  }
  EXPECT_EQ(usual_sqnr_db(loss)->most, usual_sqnr_db(ElementKind::s8, false, 128)->most);
  EXPECT_EQ(usual_sqnr_db(loss)->least, usual_sqnr_db(ElementKind::s8, false, 2048)->least);
  for (LayerLoss& layer : loss.layers)
    layer.weights = {.code = ElementKind::s4, .strategy = format::Strategy::group, .group_size = 32};
  EXPECT_EQ(usual_sqnr_db(loss)->most, usual_sqnr_db(ElementKind::s4, false, 32)->most);
  EXPECT_EQ(usual_sqnr_db(loss)->least, usual_sqnr_db(ElementKind::s4, false, 32)->least);
}

}  // namespace
}  // namespace kvant::tests
