// The steps of a network, row by row: the same bits on every instruction set, sums in their order, and what the numbers
// mean.
#include "kvant/network_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "semantics/elementary.h"
#include "semantics/exponential.h"
#include "semantics/one_number.h"
#include "tests/support/network_steps_case.h"

namespace kvant::tests {
namespace {

using Activation = NetworkSteps::Activation;
using Numbers = std::vector<float>;
using One = semantics::OneNumber<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEpsilon = 1e-5f;
constexpr Activation kEveryActivation[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                           Activation::quick_gelu};
static_assert(std::size(kEveryActivation) == NetworkSteps::kActivations);

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 67; ++n) all.push_back(n);
  for (const std::size_t n : {127u, 128u, 511u, 512u, 513u, 1000u, 4099u}) all.push_back(n);
  return all;
}

// ---- Plain forms, in the order of the contract ----

// Lane i % 16, then l and l + 8, l + 4, l + 2, l + 1.
template <class T, class Add>
T plain_sum(std::size_t n, const Add& add) {
  T lanes[16] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % 16] = add(lanes[i % 16], i);
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

Numbers plain_rms_norm(const Numbers& x, const Numbers& weight) {
  const float squares = plain_sum<float>(x.size(), [&](float sum, std::size_t i) { return std::fma(x[i], x[i], sum); });
  const float r = 1 / std::sqrt(squares / static_cast<float>(x.size()) + kEpsilon);
  Numbers y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = weight[i] * (x[i] * r);
  return y;
}

Numbers plain_layer_norm(const Numbers& x, const Numbers* weight, const Numbers* bias) {
  const auto n = static_cast<float>(x.size());
  const float mean = plain_sum<float>(x.size(), [&](float sum, std::size_t i) { return sum + x[i]; }) / n;
  const float squares =
      plain_sum<float>(x.size(), [&](float sum, std::size_t i) { return std::fma(x[i] - mean, x[i] - mean, sum); });
  const float r = 1 / std::sqrt(squares / n + kEpsilon);
  Numbers y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - mean) * r;
    if (weight != nullptr) y[i] *= (*weight)[i];
    if (bias != nullptr) y[i] += (*bias)[i];
  }
  return y;
}

Numbers plain_softmax(const Numbers& x) {
  float max = -kInf;
  for (const float v : x) max = std::fmax(max, v);
  if (std::isinf(max)) max = 0;
  Numbers y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = semantics::exponential<One>(x[i] - max);
  const float sum = plain_sum<float>(x.size(), [&](float before, std::size_t i) { return before + y[i]; });
  for (float& v : y) v *= sum == 0 ? 0 : 1 / sum;
  return y;
}

double plain_log_sum_exp(const Numbers& x) {
  double max = -static_cast<double>(kInf);
  for (const float v : x) max = std::fmax(max, static_cast<double>(v));
  if (std::isinf(max)) max = 0;
  return max + semantics::logarithm(plain_sum<double>(x.size(), [&](double sum, std::size_t i) {
           return sum + semantics::exponential(static_cast<double>(x[i]) - max);
         }));
}

double plain_divergence(const Numbers& p, double p_lse, const Numbers& q, double q_lse) {
  return plain_sum<double>(p.size(), [&](double sum, std::size_t i) {
    const double lp = static_cast<double>(p[i]) - p_lse, lq = static_cast<double>(q[i]) - q_lse;
    const double e = semantics::exponential(lp);
    return sum + (e == 0 ? 0 : e * (lp - lq));
  });
}

// ---- The same bits ----

// Runs a step on copies of three rows, each of which ends at a guard page; all of them are its result.
Numbers after(const Numbers& a, const Numbers& b, const Numbers& c,
              const std::function<void(float*, float*, float*)>& step) {
  Guarded<float> x(a), y(b), z(c);
  step(x.data(), y.data(), z.data());
  Numbers all = x.values();
  for (const float v : y.values()) all.push_back(v);
  for (const float v : z.values()) all.push_back(v);
  return all;
}

struct Step {
  std::string name;
  std::function<void(const NetworkSteps&, std::size_t n, float* x, float* y, float* z)> run;
};

std::vector<Step> every_step() {
  std::vector<Step> all = {
      {"rms_norm", [](auto& s, auto n, auto x, auto y, auto z) { s.rms_norm(x, y, kEpsilon, n, z); }},
      {"rms_norm in place", [](auto& s, auto n, auto x, auto y, auto) { s.rms_norm(x, y, kEpsilon, n, x); }},
      {"layer_norm", [](auto& s, auto n, auto x, auto y, auto z) { s.layer_norm(x, y, z, kEpsilon, n, x); }},
      {"layer_norm without bias",
       [](auto& s, auto n, auto x, auto y, auto z) { s.layer_norm(x, y, nullptr, kEpsilon, n, z); }},
      {"softmax", [](auto& s, auto n, auto x, auto, auto) { s.softmax(x, n); }},
      {"scale", [](auto& s, auto n, auto x, auto, auto) { s.scale(x, -1.7f, n); }},
      {"add", [](auto& s, auto n, auto x, auto y, auto) { s.add(x, y, n); }},
      {"multiply_add", [](auto& s, auto n, auto x, auto y, auto) { s.multiply_add(x, 0.3f, y, n); }},
      {"rotate_half", [](auto& s, auto n, auto x, auto y, auto z) { s.rotate_half(x, y, z, n / 2); }},
  };
  for (const Activation activation : kEveryActivation) {
    const std::string number = std::to_string(static_cast<int>(activation));
    all.push_back({"activate " + number, [=](auto& s, auto n, auto x, auto, auto) { s.activate(activation, x, n); }});
    all.push_back(
        {"gated " + number, [=](auto& s, auto n, auto x, auto y, auto z) { s.gated(activation, x, y, n, z); }});
  }
  return all;
}

TEST(NetworkSteps, RowsAreTheSameBitsOnEveryInstructionSet) {
  const std::vector<NetworkSteps> all = every_network_steps();
  for (const std::size_t n : sizes())
    for (const bool special : {false, true})
      for (const Step& step : every_step()) {
        const auto seed = static_cast<std::uint32_t>(n);
        const Numbers a = some_numbers(n, seed, special), b = some_numbers(n, seed + 1, special),
                      c = some_numbers(n, seed + 2, special);
        const auto by = [&](const NetworkSteps& steps) {
          return after(a, b, c, [&](float* x, float* y, float* z) { step.run(steps, n, x, y, z); });
        };
        const Numbers want = by(all.back());
        for (const NetworkSteps& steps : all)
          ASSERT_TRUE(same_bits(by(steps), want)) << step.name << " n " << n << " " << steps.sku().name();
      }
}

TEST(NetworkSteps, NormsAndSoftmaxAddInTheOrderOfTheContract) {
  for (const NetworkSteps& steps : every_network_steps())
    for (const std::size_t n : sizes()) {
      const auto seed = static_cast<std::uint32_t>(n);
      const Numbers x = some_numbers(n, seed), weight = some_numbers(n, seed + 1), bias = some_numbers(n, seed + 2);
      Numbers y(n);
      const std::string where = steps.sku().name() + " n " + std::to_string(n);
      steps.rms_norm(x.data(), weight.data(), kEpsilon, n, y.data());
      ASSERT_TRUE(same_bits(y, plain_rms_norm(x, weight))) << where;
      steps.layer_norm(x.data(), weight.data(), bias.data(), kEpsilon, n, y.data());
      ASSERT_TRUE(same_bits(y, plain_layer_norm(x, &weight, &bias))) << where;
      steps.layer_norm(x.data(), nullptr, nullptr, kEpsilon, n, y.data());
      ASSERT_TRUE(same_bits(y, plain_layer_norm(x, nullptr, nullptr))) << where;
      y = x;
      steps.softmax(y.data(), n);
      ASSERT_TRUE(same_bits(y, plain_softmax(x))) << where;
    }
}

TEST(NetworkSteps, DistributionsAddInTheOrderOfTheContract) {
  for (const NetworkSteps& steps : every_network_steps())
    for (const std::size_t n : sizes())
      for (const bool special : {false, true}) {
        const auto seed = static_cast<std::uint32_t>(n);
        Guarded<float> p(some_numbers(n, seed, special)), q(some_numbers(n, seed + 1, special));
        const NetworkSteps::Distribution of_p = steps.distribution(p.data(), n), of_q = steps.distribution(q.data(), n);
        const double divergence = steps.kl_divergence(p.data(), of_p, q.data(), of_q, n);
        const std::vector<double> got = {of_p.log_sum_exp, of_q.log_sum_exp, divergence};
        const std::vector<double> want = {plain_log_sum_exp(p.values()), plain_log_sum_exp(q.values()),
                                          plain_divergence(p.values(), of_p.log_sum_exp, q.values(), of_q.log_sum_exp)};
        ASSERT_TRUE(same_bits(got, want)) << steps.sku().name() << " n " << n;
        std::int64_t first = -1;
        for (std::size_t i = 0; i < n; ++i)
          if (!std::isnan(p.data()[i]) && (first < 0 || p.data()[i] > p.data()[first]))
            first = static_cast<std::int64_t>(i);
        ASSERT_EQ(of_p.argmax, first) << steps.sku().name() << " n " << n;
        ASSERT_EQ(of_p.max, static_cast<double>(first < 0 ? -kInf : p.data()[first])) << n;
      }
}

TEST(NetworkSteps, ElementsAreWhatTheFormulasSay) {
  const std::size_t n = 41;
  const Numbers x = some_numbers(n, 1), y = some_numbers(n, 2);
  for (const NetworkSteps& steps : every_network_steps()) {
    Numbers scaled = x, added = x, fused = x;
    steps.scale(scaled.data(), -1.7f, n);
    steps.add(added.data(), y.data(), n);
    steps.multiply_add(fused.data(), 0.3f, y.data(), n);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(scaled[i], x[i] * -1.7f);
      EXPECT_EQ(added[i], x[i] + y[i]);
      EXPECT_EQ(fused[i], std::fma(0.3f, y[i], x[i]));
    }
    Numbers turned = x;
    const std::size_t half = n / 2;
    steps.rotate_half(turned.data(), y.data(), y.data() + half, half);
    for (std::size_t i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half], c = y[i], s = y[i + half];
      const float ac = a * c, bs = b * s, bc = b * c, as = a * s;
      EXPECT_EQ(turned[i], ac - bs);
      EXPECT_EQ(turned[i + half], bc + as);
    }
    EXPECT_EQ(turned[n - 1], x[n - 1]);
    for (const Activation activation : kEveryActivation) {
      Numbers activated = x, gated(n);
      steps.activate(activation, activated.data(), n);
      steps.gated(activation, x.data(), y.data(), n, gated.data());
      for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(gated[i], activated[i] * y[i]);
    }
  }
}

TEST(NetworkSteps, ActivationsAreTheOnesThatTheirNamesSay) {
  const Numbers x = some_numbers(1000, 5);
  const auto check = [&](Activation activation, const std::function<double(double)>& want) {
    for (const NetworkSteps& steps : every_network_steps()) {
      Numbers y = x;
      steps.activate(activation, y.data(), y.size());
      for (std::size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(y[i], want(static_cast<double>(x[i])), 2e-7 * std::fabs(static_cast<double>(x[i]))) << x[i];
    }
  };
  check(Activation::silu, [](double v) { return v / (1 + std::exp(-v)); });
  check(Activation::gelu, [](double v) { return v / 2 * (1 + std::erf(v / std::numbers::sqrt2)); });
  check(Activation::gelu_tanh,
        [](double v) { return v / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v))); });
  check(Activation::relu, [](double v) { return v > 0 ? v : 0.0; });
  check(Activation::quick_gelu, [](double v) { return v / (1 + std::exp(-1.702 * v)); });
}

// ---- What they mean ----

TEST(NetworkSteps, SoftmaxIsADistribution) {
  for (const NetworkSteps& steps : every_network_steps()) {
    Numbers x = some_numbers(1000, 7);
    x[3] = -kInf;
    x[999] = -kInf;
    Numbers y = x;
    steps.softmax(y.data(), y.size());
    double sum = 0, want = 0;
    for (const float v : x) want += std::exp(static_cast<double>(v));
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum += static_cast<double>(y[i]);
      const double share = std::exp(static_cast<double>(x[i])) / want;
      EXPECT_NEAR(y[i], share, 1e-6 * share);
    }
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[999], 0.0f);
  }
}

TEST(NetworkSteps, SoftmaxOfSpecialRows) {
  for (const NetworkSteps& steps : every_network_steps())
    for (const std::size_t n : {1u, 5u, 16u, 19u, 40u}) {
      Numbers none(n, -kInf);
      steps.softmax(none.data(), n);
      EXPECT_TRUE(same_bits(none, Numbers(n, 0.0f)));
      Numbers one(n, -kInf);
      one[n / 2] = -3e38f;
      steps.softmax(one.data(), n);
      for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(one[i], i == n / 2 ? 1.0f : 0.0f);
      // NaN anywhere is NaN everywhere, also among -Inf, which must not hide it.
      Numbers nan(n, -kInf);
      nan[0] = kNan;
      steps.softmax(nan.data(), n);
      EXPECT_TRUE(same_bits(nan, Numbers(n, kNan)));
      Numbers large(n, 3e38f);
      steps.softmax(large.data(), n);
      EXPECT_NEAR(large[n - 1], 1.0f / static_cast<float>(n), 1e-7f);
    }
}

TEST(NetworkSteps, NormsOfPlainRows) {
  const std::size_t n = 3000;
  const Numbers x = some_numbers(n, 9), ones(n, 1.0f);
  double squares = 0, mean = 0, deviations = 0;
  for (const float v : x)
    squares += static_cast<double>(v) * static_cast<double>(v), mean += static_cast<double>(v) / n;
  for (const float v : x) deviations += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean);
  for (const NetworkSteps& steps : every_network_steps()) {
    Numbers y(n), z(n);
    steps.rms_norm(x.data(), ones.data(), kEpsilon, n, y.data());
    steps.layer_norm(x.data(), nullptr, nullptr, kEpsilon, n, z.data());
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_NEAR(y[i], static_cast<double>(x[i]) / std::sqrt(squares / n + 1e-5), 2e-6);
      EXPECT_NEAR(z[i], (static_cast<double>(x[i]) - mean) / std::sqrt(deviations / n + 1e-5), 2e-6);
    }
  }
}

TEST(NetworkSteps, Distributions) {
  for (const NetworkSteps& steps : every_network_steps()) {
    const auto distribution = [&](const Numbers& x) { return steps.distribution(x.data(), x.size()); };
    const double inf = std::numeric_limits<double>::infinity();
    EXPECT_EQ(distribution({}).log_sum_exp, -inf);
    EXPECT_EQ(distribution({}).max, -inf);
    EXPECT_EQ(distribution({}).argmax, -1);
    EXPECT_EQ(distribution({kNan, kNan}).argmax, -1);
    EXPECT_EQ(distribution({kNan, -kInf, -kInf}).argmax, 1);
    EXPECT_TRUE(std::isnan(distribution({kNan, 1, 2}).log_sum_exp));
    EXPECT_EQ(distribution({kNan, 1, 2, 2}).argmax, 2);
    EXPECT_EQ(distribution({-kInf, -kInf}).log_sum_exp, -inf);
    EXPECT_EQ(distribution({kInf, 1}).log_sum_exp, inf);
    EXPECT_EQ(distribution({5, 5}).log_sum_exp, 5 + std::log(2.0));
    // The first of equal ones, in a later block too.
    Numbers x = some_numbers(3000, 11);
    x[2100] = x[2101] = x[2900] = 50;
    EXPECT_EQ(distribution(x).argmax, 2100);
    EXPECT_EQ(distribution(x).max, 50);

    const Numbers p = some_numbers(2000, 12), q = some_numbers(2000, 13);
    const NetworkSteps::Distribution of_p = distribution(p), of_q = distribution(q);
    double sum = 0, want = 0;
    for (const float v : p) sum += std::exp(static_cast<double>(v));
    EXPECT_NEAR(of_p.log_sum_exp, std::log(sum), 1e-13);
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double lp = static_cast<double>(p[i]) - of_p.log_sum_exp, lq = static_cast<double>(q[i]) - of_q.log_sum_exp;
      want += std::exp(lp) * (lp - lq);
    }
    EXPECT_GT(want, 0.1);
    EXPECT_NEAR(steps.kl_divergence(p.data(), of_p, q.data(), of_q, p.size()), want, 1e-12);
    EXPECT_EQ(steps.kl_divergence(p.data(), of_p, p.data(), of_p, p.size()), 0);
    // What p says never happens costs nothing; what only q says never happens costs everything.
    const Numbers never = {-kInf, 0}, always = {0, 0};
    const auto divergence = [&](const Numbers& a, const Numbers& b) {
      return steps.kl_divergence(a.data(), distribution(a), b.data(), distribution(b), a.size());
    };
    EXPECT_EQ(divergence(never, never), 0);
    EXPECT_EQ(divergence(never, always), std::log(2.0));
    EXPECT_EQ(divergence(always, never), inf);
  }
}

TEST(NetworkSteps, ChannelsKeepTheirEndsAndSquares) {
  for (const NetworkSteps& steps : every_network_steps())
    for (const std::size_t n : sizes()) {
      Guarded<float> min(Numbers(n, kInf)), max(Numbers(n, -kInf));
      Guarded<double> squares(std::vector<double>(n, 0.5));
      Numbers low(n, kInf), high(n, -kInf);
      std::vector<double> sums(n, 0.5);
      for (std::uint32_t row = 0; row < 4; ++row) {
        Guarded<float> x(some_numbers(n, row, row == 2));
        steps.add_channels(x.data(), n, min.data(), max.data(), squares.data());
        for (std::size_t i = 0; i < n; ++i) {
          const float v = x.data()[i];
          low[i] = v < low[i] ? v : low[i];
          high[i] = v > high[i] ? v : high[i];
          sums[i] += static_cast<double>(v) * static_cast<double>(v);
        }
      }
      ASSERT_TRUE(same_bits(min.values(), low)) << n;
      ASSERT_TRUE(same_bits(max.values(), high)) << n;
      ASSERT_TRUE(same_bits(squares.values(), sums)) << n;
    }
}

TEST(NetworkSteps, PromisesItsBits) {
  for (const NetworkSteps& steps : every_network_steps()) {
    EXPECT_EQ(steps.sku().op, QuantizeKind::network_steps);
    EXPECT_TRUE(steps.sku().precision_guarantee.bit_stable_across_hardware);
    EXPECT_TRUE(steps.sku().name().starts_with("network_steps_f32__")) << steps.sku().name();
  }
}

TEST(NetworkSteps, RefusesWhatCannotBeHad) {
  EXPECT_EQ(NetworkSteps::select(Stream::cpu(0)).status().code(), StatusCode::InvalidProblem);
  EXPECT_EQ(NetworkSteps::select(Stream::cpu(1), {.isa = ArchSku::sm_80}).status().code(), StatusCode::Unsupported);
}

}  // namespace
}  // namespace kvant::tests
