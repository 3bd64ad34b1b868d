// Linear layers that write codes: their rounding against exact arithmetic in integers, ties and both ends worked out by
// hand, biases, NaN, typed plans, and what they refuse. tests/ops/linear_test.cc has the sizes, types and layouts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/linear_case.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

void expect_codes(const LinearCase& c, const std::vector<std::int32_t>& codes, const std::string& about) {
  std::vector<std::byte> want;
  for (const std::int32_t code : codes) want.push_back(static_cast<std::byte>(code & 0xFF));
  EXPECT_TRUE(c.equal(c.wanted(), want)) << "the reference on: " << about;
  for (const ArchSku isa : linear_isas())
    for (const bool packed : {false, true})
      for (const int threads : {1, 3})
        EXPECT_TRUE(is_right(c, want, isa, {.packed = packed}, Stream::cpu(threads))) << about;
}

// One row of activations and one of weights for each output; all sums are one product.
LinearCase products(const std::vector<std::int8_t>& a, ElementKind output) {
  const auto n = static_cast<std::int64_t>(a.size());
  LinearCase c(n, 1, 1, {ElementKind::s8, ElementKind::s8, output}, CodeData::least, CodeData::least, 0);
  std::memcpy(c.a.data(), a.data(), a.size());
  c.w[0] = std::byte{1};
  return c;
}

TEST(LinearCodes, TiesGoToTheEvenQuotientAndBothEndsSaturate) {
  using enum ElementKind;
  LinearCase halves = products({-5, -3, -1, 0, 1, 3, 5, 127, -128}, s8);
  halves.weight_scale.values = {0.5};
  expect_codes(halves, {-2, -2, 0, 0, 0, 2, 2, 64, -64}, "halves");
  // The zero point is added after rounding: an odd one does not change which way a tie goes.
  halves.output_zero_point = 1;
  expect_codes(halves, {-1, -1, 1, 1, 1, 3, 3, 65, -63}, "halves and an odd zero point");
  halves.output_scale = 0.25f;
  expect_codes(halves, {-9, -5, -1, 1, 3, 7, 11, 127, -128}, "saturated");
  LinearCase unsigned_codes = products({-128, -100, -1, 0, 1, 26, 127}, u8);
  unsigned_codes.output_zero_point = 100;
  expect_codes(unsigned_codes, {0, 0, 99, 100, 101, 126, 227}, "u8");
  unsigned_codes.output_zero_point = 255;
  expect_codes(unsigned_codes, {127, 155, 254, 255, 255, 255, 255}, "u8 at its end");
  unsigned_codes.output_scale = 1e-30f;
  unsigned_codes.output_zero_point = 3;
  expect_codes(unsigned_codes, {0, 0, 0, 3, 255, 255, 255}, "quotients beyond every integer");
}

// What f32 cannot hold on the way shows the order of the steps.
TEST(LinearCodes, TheScalesMeetBeforeTheyAreDivided) {
  LinearCase c = products({2, -2}, ElementKind::s8);
  c.act_scale.values = c.weight_scale.values = {held(1e20, ElementKind::f32)};
  c.output_scale = 1e38f;  // 1e20 * (1e20 / 1e38) would be 100
  expect_codes(c, {127, -128}, "infinity");
  c.act_scale.values = c.weight_scale.values = {0x1p-80};
  c.output_scale = 0x1p-149f;  // 2^-80 * (2^-80 / 2^-149) would be 2^-11
  c.act_zero_point.values = {-(1 << 13)};
  expect_codes(c, {0, 0}, "nothing");
}

TEST(LinearCodes, BiasesAreNumbersInStepsOfTheOutput) {
  LinearCase c = products({0, 1, 2, -3}, ElementKind::s8);
  c.weight_scale.values = {0.5};
  c.output_scale = 0.25f;
  c.output_zero_point = -7;
  c.bias_kind = ElementKind::f32;
  c.bias = {1.125};  // 4.5 steps
  expect_codes(c, {-3, -1, 1, -9}, "4.5, 6.5, 8.5 and -1.5");
}

TEST(LinearCodes, WithoutInFeaturesTheBiasIsWritten) {
  LinearCase c(2, 0, 3, {ElementKind::u8, ElementKind::s8, ElementKind::u8}, CodeData::uniform, CodeData::uniform, 1);
  c.output_scale = 0.5f;
  c.output_zero_point = 9;
  c.act_scale = {{kNan, kInf}, true};  // nothing is scaled
  expect_codes(c, {9, 9, 9, 9, 9, 9}, "no bias");
  c.bias_kind = ElementKind::f32;
  c.bias = {1.25, -40.0, 1000.0};
  expect_codes(c, {11, 0, 255, 11, 0, 255}, "a bias");
}

TEST(LinearCodes, NanIsTheZeroPointAndInfinitySaturates) {
  LinearCase c = products({0, 1, -1, 1, 5, 5}, ElementKind::s8);
  c.output_zero_point = 17;
  c.act_scale = {{kInf, kInf, kInf, kNan, 0.0, -2.0}, true};
  expect_codes(c, {17, 127, -128, 17, 17, 7}, "scales of a tensor");
}

// rne(sum * factor) in integers. The factor is mantissa * 2^exponent, from 2^-38 to 1.
std::int64_t exact_quotient(std::int64_t sum, float factor) {
  int exponent = 0;
  const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(factor, &exponent), 24));
  exponent -= 24;
  const std::int64_t product = sum * mantissa;  // below 2^29 * 2^24
  const std::int64_t unit = std::int64_t{1} << -exponent;
  std::int64_t quotient = product >> -exponent;  // rounded down
  const std::int64_t rest = product - quotient * unit;
  if (rest > unit - rest || (rest == unit - rest && quotient % 2 != 0)) ++quotient;
  return quotient;
}

// Sums of up to 2^29 by zero points, factors that bring them into the range of codes, many of them ties or beside one.
TEST(LinearCodes, RoundsAsExactArithmeticDoes) {
  std::mt19937 random(11);
  int ties = 0;
  for (int round = 0; round < 600; ++round) {
    const ElementKind output = kByteKinds[round % 2];
    constexpr std::int64_t kRows = 24, kColumns = 19;
    LinearCase c(kRows, 1, kColumns, {ElementKind::s8, ElementKind::s8, output}, CodeData::uniform, CodeData::uniform,
                 static_cast<std::uint32_t>(random()));
    const int bits = static_cast<int>(random() % 22);
    c.act_zero_point = {{}, true};
    for (std::int64_t i = 0; i < kRows; ++i)
      c.act_zero_point.values.push_back(static_cast<std::int32_t>(random() % (1u << bits)));
    const auto mantissa = [&] { return round % 3 == 0 ? 1.0 : 1.0 + static_cast<double>(random() % 5) * 0x1p-23; };
    c.act_scale.values = {mantissa() * std::ldexp(1.0, -bits)};
    c.weight_scale.values = {mantissa() * 0x1p-3};
    c.output_scale = static_cast<float>(mantissa());
    c.output_zero_point = code_range(output).min + static_cast<std::int32_t>(random() % 256);
    const float factor = rounded_quotient(
        rounded_product(static_cast<float>(c.act_scale.values[0]), static_cast<float>(c.weight_scale.values[0])),
        c.output_scale);
    std::vector<std::byte> want;
    for (std::int64_t m = 0; m < kRows; ++m)
      for (std::int64_t n = 0; n < kColumns; ++n) {
        const std::int64_t sum = (widened(c.a, ElementKind::s8)[static_cast<std::size_t>(m)] - c.act_zero_point[m]) *
                                 std::int64_t{widened(c.w, ElementKind::s8)[static_cast<std::size_t>(n)]};
        ASSERT_LT(std::abs(sum), std::int64_t{1} << 29);
        const double y = static_cast<double>(sum) * static_cast<double>(factor);  // exact: 29 and 24 bits
        ties += std::fabs(y - std::floor(y)) == 0.5 && std::fabs(y) < 128;
        const std::int64_t code = exact_quotient(sum, factor) + c.output_zero_point;
        const CodeRange range = code_range(output);
        want.push_back(static_cast<std::byte>(std::clamp<std::int64_t>(code, range.min, range.max) & 0xFF));
      }
    ASSERT_TRUE(c.equal(c.wanted(), want)) << "the reference";
    for (const ArchSku isa : linear_isas()) ASSERT_TRUE(is_right(c, want, isa, {.packed = round % 4 < 2}));
  }
  EXPECT_GT(ties, 1000);
}

// The codes of a plan with types, which are also those of the same layer in f64 and a quantization, as no sum is large.
template <class Out>
void expect_typed_plan_right() {
  LinearCase c(9, 75, 21, {ElementKind::u8, ElementKind::s8, kind_of<Out>}, CodeData::uniform, CodeData::uniform, 6);
  std::vector<float> weight_scale;
  for (std::int64_t i = 0; i < c.n; ++i) weight_scale.push_back(0.001f * static_cast<float>(i + 1));
  c.act_scale.values = {0.25};
  c.weight_scale = {std::vector<double>(weight_scale.begin(), weight_scale.end()), true};
  c.output_scale = 3.5f;
  c.output_zero_point = 5;
  std::mt19937 random(6);
  c.draw_bias(ElementKind::f32, random);
  const std::vector<float> bias(c.bias.begin(), c.bias.end());
  const Stream stream = Stream::cpu(1);
  for (const ArchSku isa : linear_isas()) {
    const auto plan = W8A8LinearPlan<Out>::select(
        stream, {.max_rows = c.m, .in_features = c.k, .out_features = c.n, .activation = ElementKind::u8},
        {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> scratch(plan->workspace_size());
    std::vector<Out> q(static_cast<std::size_t>(c.m * c.n));
    const Status done =
        plan->run(stream, {scratch.data(), scratch.size()},
                  {.activation = TensorRef<std::uint8_t>(reinterpret_cast<const std::uint8_t*>(c.a.data()), {c.m, c.k}),
                   .act_scale = 0.25f,
                   .weight = {reinterpret_cast<const std::int8_t*>(c.w.data()), {c.n, c.k}},
                   .weight_scale = TensorRef<float>(weight_scale.data(), {c.n}),
                   .bias = TensorRef<float>(bias.data(), {c.n}),
                   .output = {q.data(), {c.m, c.n}},
                   .output_scale = c.output_scale,
                   .output_zero_point = c.output_zero_point});
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_TRUE(c.equal(std::as_bytes(std::span(q)), c.wanted())) << name(isa);
    EXPECT_GT(std::count(q.begin(), q.end(), std::numeric_limits<Out>::max()), 0);
  }
}
TEST(LinearCodes, TypedPlans) {
  expect_typed_plan_right<std::int8_t>();
  expect_typed_plan_right<std::uint8_t>();
}

// ---- what is refused ----

// A layer whose output is of that kind, and what run() and can_implement() say of its arguments.
class Refusal {
 public:
  explicit Refusal(ElementKind output)
      : case_(2, 3, 4, {ElementKind::s8, ElementKind::s8, output}, CodeData::uniform, CodeData::uniform, 1),
        linear_(case_, {}, {}),
        args(linear_.args()) {}
  Status status() const {
    const Status asked = linear_.plan().can_implement(args);
    std::vector<std::byte> scratch(linear_.plan().workspace_size());
    const Status ran = linear_.plan().run(Stream::cpu(1), {scratch.data(), scratch.size()}, args);
    EXPECT_EQ(asked.message(), ran.message());
    return ran;
  }
  std::string sentence() const {
    EXPECT_EQ(status().code(), StatusCode::InvalidProblem);
    return std::string(status().message());
  }

 private:
  LinearCase case_;
  PreparedLinear linear_;

 public:
  AnyLinearArgs args;
};

TEST(LinearCodesRefusal, OutputScaleWithFloatingPoint) {
  for (const ElementKind output : kFloatKinds) {
    Refusal r(output);
    ASSERT_TRUE(r.status().ok()) << r.status().message();
    r.args.output_scale = 0.25f;
    EXPECT_EQ(r.sentence(), "w8a8_linear: output_scale 0.25 is given, but the output is " + std::string(name(output)) +
                                " and has no scale");
    r.args.output_scale = std::nullopt;
    r.args.output_zero_point = -3;
    EXPECT_EQ(r.sentence(), "w8a8_linear: output_zero_point -3 is given, but the output is " +
                                std::string(name(output)) + " and has no zero point");
  }
}

TEST(LinearCodesRefusal, MissingOrBadOutputScale) {
  Refusal r(ElementKind::u8);
  ASSERT_TRUE(r.status().ok()) << r.status().message();
  r.args.output_scale = std::nullopt;
  EXPECT_EQ(r.sentence(), "w8a8_linear: the output is u8, which needs an output_scale, and none is given");
  for (const float scale : {0.0f, -0.0f, -2.5f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    r.args.output_scale = scale;
    EXPECT_NE(r.sentence().find("must be finite and positive"), std::string::npos) << r.sentence();
  }
  r.args.output_scale = -2.5f;
  EXPECT_EQ(r.sentence(), "w8a8_linear: output_scale -2.5 must be finite and positive");
  for (const float scale : {1e-45f, 3e38f}) {
    r.args.output_scale = scale;
    EXPECT_TRUE(r.status().ok()) << r.status().message();
  }
}

TEST(LinearCodesRefusal, ZeroPointOutsideTheCodes) {
  for (const ElementKind output : kByteKinds) {
    const CodeRange range = code_range(output);
    Refusal r(output);
    for (const std::int32_t zero_point : {range.min - 1, range.max + 1, std::numeric_limits<std::int32_t>::min()}) {
      r.args.output_zero_point = zero_point;
      EXPECT_EQ(r.sentence(), "w8a8_linear: output_zero_point " + std::to_string(zero_point) + " must lie in [" +
                                  std::to_string(range.min) + ", " + std::to_string(range.max) + "]");
    }
    for (const std::int32_t zero_point : {range.min, range.max}) {
      r.args.output_zero_point = zero_point;
      EXPECT_TRUE(r.status().ok()) << r.status().message();
    }
  }
}

TEST(LinearCodesRefusal, BiasThatIsNotF32) {
  const double numbers[4] = {};
  for (const ElementKind kind : {ElementKind::s8, ElementKind::s32, ElementKind::f16, ElementKind::f64}) {
    Refusal r(ElementKind::s8);
    r.args.bias = {numbers, kind, {4}, 0};
    EXPECT_EQ(r.status().code(), StatusCode::Unsupported);
    EXPECT_EQ(r.status().message(), "w8a8_linear: bias has element " + std::string(name(kind)) + ", must be f32");
  }
}

TEST(LinearCodesRefusal, OtherPlans) {
  const auto smoothquant =
      AnyLinearPlan::select(Stream::cpu(1), SmoothQuantLinearDescriptor{.max_rows = 1,
                                                                        .in_features = 1,
                                                                        .out_features = 1,
                                                                        .act_scale = 1,
                                                                        .weight = ElementKind::s8,
                                                                        .output = ElementKind::s8});
  EXPECT_EQ(smoothquant.status().code(), StatusCode::Unsupported);
  EXPECT_NE(smoothquant.status().message().find("output element s8 must be one of f32"), std::string::npos)
      << smoothquant.status().message();
}

}  // namespace
}  // namespace kvant::tests
