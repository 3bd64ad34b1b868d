// Exponentials, the error function and activations, beside a math library with more digits.
#include "semantics/exponential.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <random>
#include <string>

#include "semantics/activation.h"
#include "semantics/one_number.h"
#include "tests/support/ulps.h"

namespace kvant::tests {
namespace {

using One = semantics::OneNumber<float>;
using OneDouble = semantics::OneNumber<double>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kInfDouble = std::numeric_limits<double>::infinity();

float exponential(float x) { return semantics::exponential<One>(x); }
double exponential(double x) { return semantics::exponential<OneDouble>(x); }
float error_function(float x) { return semantics::error_function<One>(x); }

// f(x) for numbers of all magnitudes and both signs, every `step`-th of all that there are.
template <class Function>
void for_each_float(std::uint32_t step, const Function& f) {
  for (std::uint32_t bits = 0; bits < 0x7F800000; bits += step) {
    f(std::bit_cast<float>(bits));
    f(-std::bit_cast<float>(bits));
  }
}

TEST(Exponential, OfF32IsOffByLessThanAnUlp) {
  WorstError worst;
  const auto check = [&](float x) {
    const long double want = std::exp(static_cast<double>(x));
    if (want < static_cast<long double>(std::numeric_limits<float>::min()))
      EXPECT_EQ(exponential(x), 0.0f) << x;
    else
      worst.add(x, exponential(x), want);
  };
  for_each_float(1009, check);
  for (int i = -90000; i <= 90000; ++i) check(static_cast<float>(i) * 0.001f);
  EXPECT_LE(worst.ulps, 0.91) << "at " << worst.at;
  RecordProperty("ulps", std::to_string(worst.ulps));
}

TEST(Exponential, OfF64IsOffByLessThanAnUlp) {
  WorstError worst;
  std::mt19937_64 random(1);
  const auto check = [&](double x) {
    const long double want = std::exp(static_cast<long double>(x));
    if (want < static_cast<long double>(std::numeric_limits<double>::min()))
      EXPECT_EQ(exponential(x), 0.0) << x;
    else
      worst.add(x, exponential(x), want);
  };
  for (int i = 0; i < 1000000; ++i) check(std::uniform_real_distribution<double>(-715, 715)(random));
  for (int i = 0; i < 200000; ++i) check(std::uniform_real_distribution<double>(-1, 1)(random));
  for (int e = -1074; e < 1024; ++e) check(std::ldexp(1.3, e)), check(-std::ldexp(1.3, e));
  EXPECT_LE(worst.ulps, 0.9) << "at " << worst.at;
  RecordProperty("ulps", std::to_string(worst.ulps));
}

TEST(Exponential, Ends) {
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_EQ(exponential(-0.0f), 1.0f);
  EXPECT_EQ(exponential(kInf), kInf);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(exponential(-kInf)), 0u);
  EXPECT_EQ(exponential(std::numeric_limits<float>::max()), kInf);
  EXPECT_EQ(exponential(std::numeric_limits<float>::lowest()), 0.0f);
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7FC00001u, 0x7FFFFFFFu, 0xFFC001FFu})
    EXPECT_TRUE(std::isnan(exponential(std::bit_cast<float>(bits)))) << std::hex << bits;
  // The last numbers before +Inf and 0.
  EXPECT_LE(ulps_off(exponential(0x1.62e42ep+6f), std::exp(static_cast<long double>(0x1.62e42ep+6f))), 1);
  EXPECT_EQ(exponential(0x1.62e43p+6f), kInf);
  EXPECT_LE(ulps_off(exponential(-0x1.5d589ep+6f), std::exp(static_cast<long double>(-0x1.5d589ep+6f))), 1);
  EXPECT_EQ(exponential(-0x1.5d58ap+6f), 0.0f);

  EXPECT_EQ(exponential(0.0), 1.0);
  EXPECT_EQ(exponential(kInfDouble), kInfDouble);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(exponential(-kInfDouble)), 0u);
  EXPECT_EQ(exponential(std::numeric_limits<double>::max()), kInfDouble);
  EXPECT_EQ(exponential(std::numeric_limits<double>::lowest()), 0.0);
  EXPECT_TRUE(std::isnan(exponential(std::bit_cast<double>(0x7FF8000000000FFFull))));
  EXPECT_LE(ulps_off(exponential(0x1.62e42fefa39efp+9), std::exp(0x1.62e42fefa39efp+9L)), 1);
  EXPECT_EQ(exponential(0x1.62e42fefa39fp+9), kInfDouble);
  EXPECT_LE(ulps_off(exponential(-0x1.6232bdd7abcd2p+9), std::exp(-0x1.6232bdd7abcd2p+9L)), 1);
  EXPECT_EQ(exponential(-0x1.6232bdd7abcd3p+9), 0.0);
}

TEST(ErrorFunction, IsOffByAboutAnUlp) {
  WorstError worst;
  const auto check = [&](float x) { worst.add(x, error_function(x), std::erf(static_cast<long double>(x))); };
  for_each_float(4001, check);
  for (int i = -45000; i <= 45000; ++i) check(static_cast<float>(i) * 0.0001f);
  EXPECT_LE(worst.ulps, 1.21) << "at " << worst.at;
  RecordProperty("ulps", std::to_string(worst.ulps));
}

TEST(ErrorFunction, Ends) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(error_function(-0.0f)), 0x80000000u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(error_function(0.0f)), 0u);
  EXPECT_EQ(error_function(kInf), 1.0f);
  EXPECT_EQ(error_function(-kInf), -1.0f);
  EXPECT_EQ(error_function(3.95f), 1.0f);
  EXPECT_TRUE(std::isnan(error_function(std::numeric_limits<float>::quiet_NaN())));
}

// An error of less than an ulp says nothing about single bits, which are promised too: they are these.
TEST(Exponential, BitsDoNotChange) {
  BitsOfMany f32, f64, error, activations;
  for (int i = -20000; i <= 20000; ++i) {
    const float x = static_cast<float>(i) / 256;
    f32.add(exponential(x));
    f64.add(exponential(static_cast<double>(i) / 30));
    error.add(error_function(static_cast<float>(i) / 4096));
    activations.add(semantics::silu<One>(x));
    activations.add(semantics::gelu<One>(x));
    activations.add(semantics::gelu_tanh<One>(x));
    activations.add(semantics::quick_gelu<One>(x));
  }
  EXPECT_EQ(f32.all(), 0x1312ABE51D9F226Cu);
  EXPECT_EQ(f64.all(), 0xC9C7DE1A5828E162u);
  EXPECT_EQ(error.all(), 0x38571936D6EFAE94u);
  EXPECT_EQ(activations.all(), 0x72DE0DC48AAE6365u);
}

// Where e^-t is large, the rounding of t is what counts: some |t| ulps of the result.
TEST(Activation, IsCloseToItsDefinition) {
  for (int i = -12000; i <= 12000; ++i) {
    const float x = static_cast<float>(i) * 0.001f;
    const auto wide = static_cast<double>(x);
    const double u = std::sqrt(2 / std::numbers::pi) * (wide + 0.044715 * wide * wide * wide);
    const double by_silu = wide / (1 + std::exp(-wide)), by_quick = wide / (1 + std::exp(-1.702 * wide));
    const double by_gelu = wide / 2 * std::erfc(-wide / std::numbers::sqrt2), by_tanh = wide / (1 + std::exp(-2 * u));
    EXPECT_NEAR(semantics::silu<One>(x), by_silu, 1e-6 * std::fabs(by_silu)) << x;
    EXPECT_NEAR(semantics::quick_gelu<One>(x), by_quick, 2e-6 * std::fabs(by_quick)) << x;
    EXPECT_NEAR(semantics::gelu<One>(x), by_gelu, 1.2e-7 * std::fabs(wide)) << x;
    EXPECT_NEAR(semantics::gelu_tanh<One>(x), by_tanh, 1.5e-7 * (4 + std::fabs(2 * u)) * std::fabs(by_tanh) + 1e-30)
        << x;
    EXPECT_NEAR(semantics::gelu_tanh<One>(x), wide / 2 * (1 + std::tanh(u)), 1.2e-7 * std::fabs(wide)) << x;
    EXPECT_EQ(semantics::relu<One>(x), x > 0 ? x : 0.0f) << x;
  }
}

TEST(Activation, Ends) {
  constexpr float kLarge = 1e30f, kNan = std::numeric_limits<float>::quiet_NaN();
  const auto check = [&](auto act) {
    EXPECT_EQ(act(kLarge), kLarge);
    EXPECT_EQ(act(-kLarge), 0.0f);
    EXPECT_EQ(act(kInf), kInf);
    EXPECT_EQ(act(0.0f), 0.0f);
    EXPECT_TRUE(std::isnan(act(kNan)));
  };
  check([](float x) { return semantics::silu<One>(x); });
  check([](float x) { return semantics::gelu<One>(x); });
  check([](float x) { return semantics::gelu_tanh<One>(x); });
  check([](float x) { return semantics::relu<One>(x); });
  check([](float x) { return semantics::quick_gelu<One>(x); });
}

}  // namespace
}  // namespace kvant::tests
