// Sine, cosine, logarithm and powers in f64, beside a math library with more digits.
#include "semantics/elementary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "tests/support/ulps.h"

namespace kvant::tests {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Elementary, SineAndCosineAreOffByLessThanAnUlp) {
  WorstError sine, cosine;
  const auto check = [&](double x) {
    const auto wide = static_cast<long double>(x);
    sine.add(x, semantics::sine(x), std::sin(wide));
    cosine.add(x, semantics::cosine(x), std::cos(wide));
  };
  std::mt19937_64 random(1);
  for (const double range : {1.0, 10.0, 1000.0, semantics::kLargestAngle})
    for (int i = 0; i < 200000; ++i) check(std::uniform_real_distribution<double>(-range, range)(random));
  // Positions, times frequencies that are f32.
  for (int i = 0; i < 200000; ++i) check(i), check(i * static_cast<double>(0.8058422f));
  // Next to the zeros, where all digits but the last few cancel.
  for (int i = 1; i < 660000; i += 7) {
    const double near = i * 1.57079632679489661923;
    check(near), check(std::nextafter(near, 0.0)), check(std::nextafter(near, kInf));
  }
  EXPECT_LE(sine.ulps, 0.8) << "at " << sine.at;
  EXPECT_LE(cosine.ulps, 0.8) << "at " << cosine.at;
  RecordProperty("ulps", std::to_string(sine.ulps) + " " + std::to_string(cosine.ulps));
  EXPECT_EQ(semantics::sine(0.0), 0.0);
  EXPECT_EQ(semantics::cosine(0.0), 1.0);
  for (const double x : {kInf, -kInf, kNan, 2e6, -2e6}) {
    EXPECT_TRUE(std::isnan(semantics::sine(x))) << x;
    EXPECT_TRUE(std::isnan(semantics::cosine(x))) << x;
  }
}

TEST(Elementary, BitsDoNotChange) {
  BitsOfMany sine, cosine, logarithm, power;
  for (int i = 1; i <= 20000; ++i) {
    sine.add(semantics::sine(i * 50.125));
    cosine.add(semantics::cosine(i * 50.125));
    logarithm.add(semantics::logarithm(i / 64.0));
    power.add(semantics::power(i, -0.375));
  }
  EXPECT_EQ(sine.all(), 0x10BD3673AEFD49CCu);
  EXPECT_EQ(cosine.all(), 0xEDEE90DCF6D603FEu);
  EXPECT_EQ(logarithm.all(), 0xAEA2B59590E4B3C7u);
  EXPECT_EQ(power.all(), 0xED466B6658C7311Au);
}

TEST(Elementary, LogarithmIsOffByHalfAnUlp) {
  WorstError worst;
  const auto check = [&](double x) { worst.add(x, semantics::logarithm(x), std::log(static_cast<long double>(x))); };
  std::mt19937_64 random(2);
  for (int e = -1074; e < 1024; ++e)
    for (int i = 0; i < 200; ++i) check(std::ldexp(std::uniform_real_distribution<double>(0.5, 2)(random), e));
  for (int i = 0; i < 500000; ++i) check(std::uniform_real_distribution<double>(0.5, 2)(random));
  for (int i = 1; i < 100000; ++i) check(i), check(1.0 / i);
  EXPECT_LE(worst.ulps, 0.55) << "at " << worst.at;
  RecordProperty("ulps", std::to_string(worst.ulps));
  EXPECT_EQ(semantics::logarithm(1), 0.0);
  EXPECT_EQ(semantics::logarithm(0), -kInf);
  EXPECT_EQ(semantics::logarithm(kInf), kInf);
  EXPECT_TRUE(std::isnan(semantics::logarithm(-1)));
  EXPECT_TRUE(std::isnan(semantics::logarithm(kNan)));
}

TEST(Elementary, PowerIsOffByLessThanTwoUlps) {
  WorstError worst;
  const auto check = [&](double x, double y) {
    const long double want = std::pow(static_cast<long double>(x), static_cast<long double>(y));
    if (want > static_cast<long double>(std::numeric_limits<double>::min())) worst.add(x, semantics::power(x, y), want);
  };
  // The frequencies of rotary positions.
  for (const double base : {10000.0, 500000.0, 1000000.0})
    for (const int size : {64, 80, 96, 128, 256})
      for (int i = 0; i < size; i += 2)
        check(base, -static_cast<double>(i) / size), check(base, static_cast<double>(i) / size);
  std::mt19937_64 random(3);
  for (int i = 0; i < 300000; ++i)
    check(std::uniform_real_distribution<double>(0.01, 100)(random),
          std::uniform_real_distribution<double>(-60, 60)(random));
  EXPECT_LE(worst.ulps, 1.9) << "at " << worst.at;
  RecordProperty("ulps", std::to_string(worst.ulps));
  EXPECT_EQ(semantics::power(2, 10), 1024.0);
  EXPECT_EQ(semantics::power(3, 0), 1.0);
  EXPECT_EQ(semantics::power(10, 400), kInf);
  EXPECT_EQ(semantics::power(10, -400), 0.0);
  EXPECT_EQ(semantics::power(10, 1e308), kInf);
  EXPECT_TRUE(std::isnan(semantics::power(-2, 2)));
  EXPECT_TRUE(std::isnan(semantics::power(2, kNan)));
}

}  // namespace
}  // namespace kvant::tests
