// Backward passes in closed form: inside the range, at its ends, and clipped; and against finite differences of the
// forward pass's clipping ramp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/kernel_log.h"

namespace kvant::tests {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// scale 0.5, zp 3, range [-8, 7]: the quotient may lie in [-11, 4], x in [-5.5, 2] up to rounding.
const std::vector<float> kX = {0.0f,   -5.5f,  2.0f,   2.24f,   2.25f, 2.26f, -5.75f,
                               -5.74f, -5.76f, 100.0f, -100.0f, kInf,  -kInf, kNan};
// At 2.25 the quotient is 4.5, which rounds to the even 4 and is inside; at -5.75 it is -11.5, which rounds to -12.
const std::vector<bool> kInside = {true, true,  true,  true,  true,  false, false,
                                   true, false, false, false, false, false, false};

const Shape kShape = {static_cast<std::int64_t>(kX.size())};

// Every gradient is `from`; what is inside becomes `to`, the rest 0.
template <class Plan>
void expect_inside(const typename Plan::Descriptor& descriptor, float from, float to) {
  const Stream stream = Stream::cpu(1);
  std::vector<float> dy(kX.size(), from), dx(kX.size(), -1.0f);
  const auto plan = Plan::select(stream, descriptor);
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->run(stream, {},
                        {.grad_output = {dy.data(), kShape},
                         .input = {kX.data(), kShape},
                         .grad_input = {dx.data(), kShape},
                         .scale = 0.5f,
                         .zero_point = 3})
                  .ok());
  note_kernel(plan->sku());
  for (std::size_t i = 0; i < kX.size(); ++i) EXPECT_EQ(dx[i], kInside[i] ? to : 0.0f) << "x = " << kX[i];
}

TEST(Backward, OfFakeQuantizePassesGradientsInsideTheRange) {
  expect_inside<FakeQuantizeBackwardPlan<float>>({.shape = kShape, .q_min = -8, .q_max = 7}, 3.0f, 3.0f);
}

TEST(Backward, OfQuantizeDividesByTheScale) {
  expect_inside<QuantizePerTensorBackwardPlan<float, Int4>>({.shape = kShape}, 0.7f, 0.7f / 0.5f);
}

TEST(Backward, OfDequantizeMultipliesByTheScaleOfTheChannel) {
  const Stream stream = Stream::cpu(1);
  const std::vector<double> dy = {1, 2, 3, 4, 5, 6}, scale = {0.1, 10};
  std::vector<double> dq(6);
  const auto plan = DequantizePerChannelBackwardPlan<std::int8_t, double>::select(
      stream, {.shape = {2, 3}, .granularity = {.axis = 0}});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(plan->run(stream, {},
                        {.grad_output = {dy.data(), {2, 3}},
                         .grad_input = {dq.data(), {2, 3}},
                         .scale = TensorRef<double>(scale.data(), {2})})
                  .ok());
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(dq[i], dy[i] * scale[i / 3]);
}

// Straight-through: rounding counts as the identity, so the derivative of fake_quantize is that of clip(x). A central
// difference over whole grid steps of the forward pass sees exactly that slope, away from the clipping points.
TEST(Backward, AgreesWithFiniteDifferencesOfTheForwardPass) {
  const Stream stream = Stream::cpu(1);
  constexpr double kScale = 0.25;
  constexpr std::int64_t n = 801;
  std::vector<double> x(n), left(n), right(n), up(n), down(n), dy(n, 1.0), dx(n);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = -50 + static_cast<double>(i) * 0.125 + 0.01;
    left[i] = x[i] - kScale;
    right[i] = x[i] + kScale;
  }
  const auto forward = FakeQuantizePlan<double>::select(stream, {.shape = {n}});
  const auto backward = FakeQuantizeBackwardPlan<double>::select(stream, {.shape = {n}});
  ASSERT_TRUE(forward.ok() && backward.ok());
  const auto fake = [&](const std::vector<double>& in, std::vector<double>& out) {
    return forward
        ->run(stream, {}, {.input = {in.data(), {n}}, .output = {out.data(), {n}}, .scale = kScale, .zero_point = -9})
        .ok();
  };
  ASSERT_TRUE(fake(left, down) && fake(right, up));
  ASSERT_TRUE(backward
                  ->run(stream, {},
                        {.grad_output = {dy.data(), {n}},
                         .input = {x.data(), {n}},
                         .grad_input = {dx.data(), {n}},
                         .scale = kScale,
                         .zero_point = -9})
                  .ok());
  const double low = kScale * (-128 + 9), high = kScale * (127 + 9);
  int inside = 0, outside = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::fabs(x[i] - low) < 2 * kScale || std::fabs(x[i] - high) < 2 * kScale) continue;
    const double slope = (up[i] - down[i]) / (2 * kScale);
    EXPECT_EQ(slope, dx[i]) << "x = " << x[i];
    (dx[i] == 1 ? inside : outside)++;
  }
  EXPECT_GT(inside, 400);
  EXPECT_GT(outside, 100);
}

}  // namespace
}  // namespace kvant::tests
