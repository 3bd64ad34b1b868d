// GPTQ: its factors beside a plain decomposition in long double, its rounding beside plain loops, and the same bits of
// both for any number of threads, any instruction set, and rows alone or together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "quantize/feedback_factors.h"
#include "quantize/feedback_rounding.h"
#include "tests/support/isas.h"

namespace kvant::tests {
namespace {

using quantize::FeedbackFactors;
using quantize::FeedbackOptions;
using quantize::FeedbackRounding;

using Matrix = std::vector<std::vector<float>>;

// Σ x xᵀ of inputs that know of each other, with some that are large.
Matrix some_hessian(std::size_t n, std::uint32_t seed, std::size_t samples = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::vector<double>> sums(n, std::vector<double>(n));
  for (std::size_t s = 0; s < (samples == 0 ? 2 * n + 3 : samples); ++s) {
    const float common = normal(random);
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = (normal(random) + common) * (i % 11 == 3 ? 20.0f : 1.0f);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) sums[i][j] += static_cast<double>(x[i]) * static_cast<double>(x[j]);
  }
  Matrix h(n, std::vector<float>(n));
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) h[i][j] = static_cast<float>(sums[i][j]);
  return h;
}

FeedbackFactors::ReadRows reader_of(const Matrix& h) {
  return [&h](std::uint64_t row, std::span<float> to) -> Status {
    for (std::size_t at = 0; at < to.size(); at += h.size(), ++row)
      std::copy(h[row].begin(), h[row].end(), to.begin() + static_cast<std::ptrdiff_t>(at));
    return {};
  };
}

FeedbackFactors factors_of(const Matrix& h, const Stream& stream, std::span<const float> s = {},
                           const FeedbackOptions& options = {}) {
  auto made = FeedbackFactors::make(stream, h.size(), reader_of(h), s, options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  EXPECT_TRUE(made->has_value());
  return std::move(**made);
}

// As one triangle, row after row.
std::vector<float> numbers_of(const FeedbackFactors& factors) {
  std::vector<float> all;
  for (std::size_t b = 0; b < factors.blocks(); ++b) {
    const FeedbackFactors::Block block = factors.block(b);
    for (std::size_t k = 0; k < block.count; ++k)
      all.insert(all.end(), block.factors + k * block.stride, block.factors + k * block.stride + block.first + k);
  }
  return all;
}

// H = Gᵀ D G from the last column to the first, as the books have it.
std::vector<long double> plain_factors(const Matrix& h, const std::vector<std::uint32_t>& order,
                                       const std::vector<float>& s, double damping) {
  const std::size_t n = h.size();
  std::vector<std::vector<long double>> a(n, std::vector<long double>(n));
  long double mean = 0;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      a[i][j] = static_cast<long double>(h[order[i]][order[j]]) /
                (static_cast<long double>(s[order[i]]) * static_cast<long double>(s[order[j]]));
  for (std::size_t i = 0; i < n; ++i) mean += a[i][i] / static_cast<long double>(n);
  for (std::size_t i = 0; i < n; ++i) a[i][i] += mean > 0 ? static_cast<long double>(damping) * mean : 1;
  std::vector<std::vector<long double>> g(n, std::vector<long double>(n));
  for (std::size_t k = n; k-- > 0;) {
    for (std::size_t i = 0; i < k; ++i) g[k][i] = a[k][i] / a[k][k];
    for (std::size_t i = 0; i < k; ++i)
      for (std::size_t j = 0; j < k; ++j) a[i][j] -= g[k][i] * a[k][k] * g[k][j];
  }
  std::vector<long double> all;
  for (std::size_t k = 0; k < n; ++k)
    all.insert(all.end(), g[k].begin(), g[k].begin() + static_cast<std::ptrdiff_t>(k));
  return all;
}

std::vector<float> smoothing(std::size_t n) {
  std::vector<float> s(n);
  for (std::size_t i = 0; i < n; ++i) s[i] = 0.25f + static_cast<float>(i % 7) * 0.5f;
  return s;
}

TEST(FeedbackFactors, AreThoseOfThePlainDecomposition) {
  for (const std::size_t n : {1u, 2u, 3u, 17u, 127u, 128u, 129u, 256u, 290u})
    for (const bool smoothed : {false, true})
      for (const bool by_size : {smoothed, n < 50}) {
        const Matrix h = some_hessian(n, static_cast<std::uint32_t>(n));
        const std::vector<float> s = smoothed ? smoothing(n) : std::vector<float>(n, 1.0f);
        const FeedbackFactors factors =
            factors_of(h, Stream::cpu(1), smoothed ? s : std::vector<float>(), {.damping = 0.02, .by_size = by_size});
        EXPECT_EQ(factors.damping(), 0.02);
        std::vector<std::uint32_t> order(n);
        std::iota(order.begin(), order.end(), 0u);
        if (by_size)
          std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
            return h[a][a] / (s[a] * s[a]) > h[b][b] / (s[b] * s[b]);
          });
        ASSERT_EQ(std::vector<std::uint32_t>(factors.order().begin(), factors.order().end()), order);
        const std::vector<float> got = numbers_of(factors);
        const std::vector<long double> want = plain_factors(h, order, s, 0.02);
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(want[i]),
                      1e-6 * std::max(1.0, std::fabs(static_cast<double>(want[i]))))
              << n << " at " << i;
      }
}

TEST(FeedbackFactors, AreTheSameBitsEverywhere) {
  for (const std::size_t n : {129u, 500u}) {
    const Matrix h = some_hessian(n, 5);
    const std::vector<float> one = numbers_of(factors_of(h, Stream::cpu(1)));
    EXPECT_EQ(numbers_of(factors_of(h, Stream::cpu(2))), one);
    EXPECT_EQ(numbers_of(factors_of(h, Stream::cpu(5))), one);
    for (const ArchSku isa : compiled_isas()) {
      if (!cpu::can_run(isa)) continue;
      ASSERT_EQ(setenv("KVANT_FORCE_ISA", std::string(name(isa)).c_str(), 1), 0);
      EXPECT_EQ(numbers_of(factors_of(h, Stream::cpu(2))), one) << name(isa);
      ASSERT_EQ(unsetenv("KVANT_FORCE_ISA"), 0);
    }
  }
}

TEST(FeedbackFactors, OfInputsThatAreAlwaysZero) {
  // All of them: nothing makes up for anything.
  for (const float factor : numbers_of(factors_of(Matrix(150, std::vector<float>(150)), Stream::cpu(1))))
    EXPECT_EQ(factor, 0);
  // One of them: it comes last, and has no part in the others.
  Matrix h = some_hessian(150, 9);
  for (std::size_t i = 0; i < 150; ++i) h[i][70] = h[70][i] = 0;
  const FeedbackFactors factors = factors_of(h, Stream::cpu(1));
  EXPECT_EQ(factors.order().back(), 70u);
  const std::vector<float> numbers = numbers_of(factors);
  for (std::size_t i = 0; i < 149; ++i) EXPECT_EQ(numbers[numbers.size() - 1 - i], 0);
}

TEST(FeedbackFactors, OfFewerRowsThanChannels) {
  // A matrix of rank 5: what is added to the diagonal is all that makes it definite.
  const FeedbackFactors factors = factors_of(some_hessian(200, 3, 5), Stream::cpu(1));
  for (const float factor : numbers_of(factors)) EXPECT_TRUE(std::isfinite(factor));
}

TEST(FeedbackFactors, DampMoreWhereAPivotIsNotPositive) {
  // Not a sum of squares: with a tenth of the mean it is definite.
  Matrix h(2, std::vector<float>(2, 1.0f));
  h[0][1] = h[1][0] = 1.05f;
  EXPECT_EQ(factors_of(h, Stream::cpu(1), {}, {.damping = 0.01}).damping(), 0.1);
  h[0][1] = h[1][0] = 1.5f;
  EXPECT_EQ(factors_of(h, Stream::cpu(1), {}, {.damping = 0.3}).damping(), 1);
  h[0][1] = h[1][0] = 3;
  const auto none = FeedbackFactors::make(Stream::cpu(1), 2, reader_of(h), {}, {});
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

TEST(FeedbackFactors, HandBackWhatReadingRefuses) {
  const auto made = FeedbackFactors::make(
      Stream::cpu(1), 4, [](std::uint64_t, std::span<float>) { return Status(StatusCode::InvalidProblem, "no rows"); },
      {}, {});
  EXPECT_EQ(made.status().message(), "no rows");
}

// ---- Rounding ----

struct Case {
  std::size_t rows, columns, group;
  ElementKind code;
  bool asymmetric = false;
};

std::vector<float> some_weights(const Case& c) {
  std::mt19937 random(static_cast<std::uint32_t>(c.rows * 1000 + c.columns));
  std::normal_distribution<float> normal;
  std::vector<float> weights(c.rows * c.columns);
  for (float& w : weights) w = normal(random);
  return weights;
}

struct Parameters {
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
};
Parameters parameters_of(const Case& c) {
  Parameters p;
  const std::size_t groups = (c.columns + c.group - 1) / c.group;
  for (std::size_t i = 0; i < c.rows * groups; ++i) {
    p.scales.push_back(0.2f + static_cast<float>(i % 5) * 0.0625f);
    if (c.asymmetric) p.zero_points.push_back(static_cast<std::int32_t>(i % 9) - 4);
  }
  return p;
}

std::vector<float> rounded(const Case& c, const FeedbackFactors& factors, std::vector<float> weights) {
  const Parameters p = parameters_of(c);
  auto rounding = FeedbackRounding::make();
  EXPECT_TRUE(rounding.ok());
  rounding->round(factors, c.code, {.group = c.group, .scales = p.scales, .zero_points = p.zero_points}, weights);
  return weights;
}

double nearest(double y, const Case& c, std::int32_t zero_point) {
  if (!has_float_grid(c.code)) {
    const CodeRange range = code_range(c.code);
    return std::clamp(std::nearbyint(y) + zero_point, static_cast<double>(range.min), static_cast<double>(range.max)) -
           zero_point;
  }
  static const double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double magnitude = std::fabs(y);
  std::size_t best = 0;
  for (std::size_t i = 1; i < 8; ++i) {
    const double middle = (kE2m1[i - 1] + kE2m1[i]) / 2;
    if (magnitude > middle || (magnitude == middle && i % 2 == 0)) best = i;
  }
  return std::copysign(kE2m1[best], y);
}

// Column by column, in f32 as the kernels: a block's products first, then what the block itself adds.
std::vector<float> plainly_rounded(const Case& c, const FeedbackFactors& factors, const std::vector<float>& weights) {
  const Parameters p = parameters_of(c);
  const std::size_t groups = (c.columns + c.group - 1) / c.group;
  std::vector<float> out = weights;
  for (std::size_t r = 0; r < c.rows; ++r) {
    std::vector<float> errors(c.columns);
    for (std::size_t b = 0; b < factors.blocks(); ++b) {
      const FeedbackFactors::Block block = factors.block(b);
      for (std::size_t k = block.first; k < block.first + block.count; ++k) {
        const float* const factor = block.factors + (k - block.first) * block.stride;
        const std::size_t column = factors.order()[k], at = r * groups + column / c.group;
        const float given = weights[r * c.columns + column], weight = std::isfinite(given) ? given : 0;
        float target = 0;
        for (std::size_t i = 0; i < block.first; ++i) target = std::fma(factor[i], errors[i], target);
        target += weight;
        for (std::size_t i = block.first; i < k; ++i) target = std::fma(factor[i], errors[i], target);
        const auto d = static_cast<float>(
            nearest(static_cast<double>(target / p.scales[at]), c, c.asymmetric ? p.zero_points[at] : 0));
        const float value = p.scales[at] * d;
        errors[k] = weight - value;
        if (std::isfinite(given)) out[r * c.columns + column] = value;
      }
    }
  }
  return out;
}

const Case kCases[] = {
    {1, 1, 1, ElementKind::s4},     {3, 40, 8, ElementKind::s4},           {5, 128, 32, ElementKind::s4, true},
    {9, 300, 100, ElementKind::s8}, {64, 257, 257, ElementKind::s4, true}, {7, 160, 16, ElementKind::e2m1}};

TEST(FeedbackRounding, IsThatOfPlainLoops) {
  for (const Case& c : kCases)
    for (const bool by_size : {false, true}) {
      const FeedbackFactors factors = factors_of(some_hessian(c.columns, 21), Stream::cpu(2), {}, {.by_size = by_size});
      const std::vector<float> weights = some_weights(c);
      EXPECT_EQ(rounded(c, factors, weights), plainly_rounded(c, factors, weights)) << c.rows << " by " << c.columns;
    }
}

TEST(FeedbackRounding, RowsAloneAreRowsOfMany) {
  const Case all{11, 200, 40, ElementKind::s4};
  const FeedbackFactors factors = factors_of(some_hessian(all.columns, 22), Stream::cpu(1));
  const std::vector<float> weights = some_weights(all), together = rounded(all, factors, weights);
  // The parameters of the first row are those of a matrix of one row.
  const Case one{1, 200, 40, ElementKind::s4};
  EXPECT_EQ(rounded(one, factors, {weights.begin(), weights.begin() + 200}),
            std::vector<float>(together.begin(), together.begin() + 200));
}

TEST(FeedbackRounding, WhatIsNotFiniteStays) {
  const Case c{2, 140, 20, ElementKind::s4};
  const FeedbackFactors factors = factors_of(some_hessian(c.columns, 23), Stream::cpu(1));
  std::vector<float> weights = some_weights(c);
  weights[3] = std::numeric_limits<float>::infinity();
  weights[150] = -std::numeric_limits<float>::infinity();
  weights[151] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> got = rounded(c, factors, weights), want = plainly_rounded(c, factors, weights);
  EXPECT_TRUE(std::isnan(got[151]));
  EXPECT_EQ(got[3], weights[3]);
  EXPECT_EQ(got[150], weights[150]);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 151, want.begin()));
  EXPECT_TRUE(std::equal(got.begin() + 152, got.end(), want.begin() + 152));
}

// What it is for: less error of the outputs than the nearest codes have, at the price of that of the weights.
TEST(FeedbackRounding, OutputsLoseLess) {
  const Case c{32, 256, 64, ElementKind::s4};
  const Matrix h = some_hessian(c.columns, 24);
  const std::vector<float> weights = some_weights(c);
  const auto loss = [&](const std::vector<float>& values) {
    double sum = 0;
    for (std::size_t r = 0; r < c.rows; ++r)
      for (std::size_t i = 0; i < c.columns; ++i)
        for (std::size_t j = 0; j < c.columns; ++j)
          sum += static_cast<double>(weights[r * c.columns + i] - values[r * c.columns + i]) *
                 static_cast<double>(h[i][j]) *
                 static_cast<double>(weights[r * c.columns + j] - values[r * c.columns + j]);
    return sum;
  };
  const double plain = loss(rounded(c, factors_of(Matrix(256, std::vector<float>(256)), Stream::cpu(1)), weights));
  const double natural = loss(rounded(c, factors_of(h, Stream::cpu(1), {}, {.by_size = false}), weights));
  const double by_size = loss(rounded(c, factors_of(h, Stream::cpu(1)), weights));
  EXPECT_LT(natural, 0.6 * plain);
  EXPECT_LT(by_size, natural);
}

}  // namespace
}  // namespace kvant::tests
