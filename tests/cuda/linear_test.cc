// Linear layers on the CUDA backend against the scalar kernels of the CPU: equal bits for every size, pair of types,
// layout and value, of all three plans.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/registry.h"
#include "tests/cuda/same_on_device.h"
#include "tests/support/linear_case.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

// One row, few, a tile of 16 and beside it, several tiles.
constexpr std::int64_t kRows[] = {1, 2, 3, 5, 9, 16, 17, 40, 130};

// The operands of a case, in host memory and in the layout that is asked for.
testing::AssertionResult same(const LinearCase& c, const DeviceRun& how = {}, const LinearLayout& layout = {}) {
  const PreparedLinear linear(c, {.isa = ArchSku::scalar}, layout);
  if (!linear.status().ok()) return testing::AssertionFailure() << linear.status().message() << " in " << c.text();
  return same_on_device<AnyLinearPlan>(c.descriptor(layout.spare_rows), linear.args(), c.text() + " " + layout.text(),
                                       how);
}

// Pairs of code types and kinds of output, in turn and out of step with each other and with the orders of threads.
class Turns {
 public:
  LinearKinds kinds() {
    ++next_;
    return {kByteKinds[next_ % 2], kByteKinds[next_ / 2 % 2],
            kLinearOutputs[(next_ + next_ / 4) % kLinearOutputs.size()]};
  }
  std::uint32_t seed() const { return next_; }
  DeviceRun run() const { return {.turn = next_ + next_ / 3}; }

 private:
  std::uint32_t next_ = 0;
};

LinearCase ordinary(std::int64_t m, std::int64_t k, std::int64_t n, Turns& turns) {
  const LinearKinds kinds = turns.kinds();
  LinearCase c(m, k, n, kinds, CodeData::uniform, CodeData::uniform, turns.seed());
  c.draw_parameters(turns.seed());
  return c;
}

// ---- every size ----

TEST(CudaLinear, EveryNumberOfRowsWithEveryK) {
  constexpr std::int64_t kColumns[] = {1, 3, 8, 9, 16, 33, 65, 5, 7};
  Turns turns;
  for (const std::int64_t m : kRows)
    for (const std::int64_t k : {0, 1, 3, 4, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 70, 127, 130, 200})
      for (int again = 0; again < 2; ++again) {
        const std::int64_t n = kColumns[(turns.seed() + turns.seed() / 9) % std::size(kColumns)];
        const LinearCase c = ordinary(m, k, n, turns);
        ASSERT_TRUE(same(c, turns.run()));
      }
}

TEST(CudaLinear, EveryNumberOfRowsWithEveryN) {
  constexpr std::int64_t kDepths[] = {1, 64, 31, 5, 32, 48, 100};
  Turns turns;
  for (const std::int64_t m : kRows)
    for (const std::int64_t n : {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 140}) {
      const std::int64_t k = kDepths[(turns.seed() + turns.seed() / 7) % std::size(kDepths)];
      const LinearCase c = ordinary(m, k, n, turns);
      ASSERT_TRUE(same(c, turns.run()));
    }
  ASSERT_TRUE(same(ordinary(0, 7, 5, turns), turns.run()));
}

// More rows of tiles than a group of them has, in one column of tiles and in several.
TEST(CudaLinear, ManyRowsOfTiles) {
  Turns turns;
  for (const auto& [m, n] : {std::array<std::int64_t, 2>{1030, 5}, {1200, 130}})
    ASSERT_TRUE(same(ordinary(m, 9, n, turns), turns.run()));
}

// In all orders of threads: one row, few rows and whole tiles, each with ends that are not.
TEST(CudaLinear, OrdersOfThreadsDoNotMatter) {
  Turns turns;
  for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{1, 515, 37}, {3, 130, 70}, {17, 200, 33}, {70, 96, 129}})
    for (int pair = 0; pair < 4; ++pair) ASSERT_TRUE(same(ordinary(m, k, n, turns)));
}

// ---- every value ----

// The sum itself comes out in f64, so that one lost unit shows.
TEST(CudaLinear, SumsAreExactForEveryKindOfData) {
  std::uint32_t next = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const CodeData activations : kAllCodeData)
        for (const CodeData weights : {CodeData::uniform, CodeData::extreme, CodeData::most, CodeData::period_1,
                                       CodeData::period_4, CodeData::mixed_rows}) {
          ++next;
          const std::int64_t m = next % 3 == 0 ? 1 : next % 3 == 1 ? 5 : 19;
          const LinearCase c(m, 99, 19, {activation, weight, ElementKind::f64}, activations, weights, next);
          ASSERT_TRUE(same(c, {.turn = next / 2}))
              << "activations " << static_cast<int>(activations) << " weights " << static_cast<int>(weights);
        }
}

// Every product of two codes, each in a sum of its own.
TEST(CudaLinear, EveryProduct) {
  std::uint32_t turn = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds) {
      LinearCase c(256, 1, 256, {activation, weight, ElementKind::f64}, CodeData::least, CodeData::least, 0);
      for (std::size_t i = 0; i < c.a.size(); ++i) c.a[i] = c.w[i] = static_cast<std::byte>(i);
      ASSERT_TRUE(same(c, {.turn = turn++}));
    }
}

// Sums that just fit 32 bits and sums that just do not, with zero points that make them larger still.
TEST(CudaLinear, SumsBeyond32Bits) {
  struct Limit {
    ElementKind activation, weight;
    std::int64_t k;  // the last that fits
  };
  std::uint32_t turn = 0;
  for (const Limit& limit :
       {Limit{ElementKind::s8, ElementKind::s8, 131071}, Limit{ElementKind::u8, ElementKind::s8, 65793},
        Limit{ElementKind::s8, ElementKind::u8, 65793}, Limit{ElementKind::u8, ElementKind::u8, 33025}})
    for (const auto& [more, m, n] : {std::array<std::int64_t, 3>{0, 1, 2}, {1, 1, 3}, {2, 3, 1}, {1, 17, 2}}) {
      LinearCase c(m, limit.k + more, n, {limit.activation, limit.weight, ElementKind::f64}, CodeData::extreme,
                   CodeData::extreme, 0);
      if (more == 2) c.act_zero_point.values = {limit.activation == ElementKind::s8 ? 127 : -255};
      if (more == 2 && limit.weight == ElementKind::s8) c.weight_zero_point.values = {127};
      ASSERT_TRUE(same(c, {.turn = turn++}));
    }
}

// Depths whose sums take 64 bits on the way, with ends that are no whole step, and zero points that need the sums of
// both operands' codes.
TEST(CudaLinear, DepthsBeyond32BitsWithZeroPoints) {
  std::uint32_t next = 0;
  for (const auto& [activation, weight] : {std::array<ElementKind, 2>{ElementKind::u8, ElementKind::u8},
                                           {ElementKind::s8, ElementKind::u8},
                                           {ElementKind::u8, ElementKind::s8}}) {
    LinearCase c(next == 0 ? 70 : 18, 131080 + next, next == 1 ? 68 : 3, {activation, weight, ElementKind::f64},
                 CodeData::uniform, CodeData::uniform, next);
    c.act_zero_point = {{}, true};
    for (std::int64_t i = 0; i < c.m; ++i) c.act_zero_point.values.push_back(static_cast<std::int32_t>(i - 7));
    c.weight_zero_point = {{next == 0 ? 128 : 3}};
    // The first has rows at multiples of 16 bytes.
    const LinearLayout layout{.activation_gap = next == 0 ? 8 : 0, .weight_gap = next == 0 ? 8 : 0};
    ASSERT_TRUE(same(c, {.turn = next++}, layout));
  }
}

// The longest that a warp takes alone: what its lanes add up comes close to the end of their 32 bits.
TEST(CudaLinear, LongestRowsOfAWarp) {
  const LinearCase c(1, 1 << 21, 1, {ElementKind::s8, ElementKind::s8, ElementKind::f64}, CodeData::extreme,
                     CodeData::extreme, 0);
  ASSERT_TRUE(same(c, {.turn = 0}));
}

// ---- parameters ----

// A zero point in the middle of u8, as 0 is in s8, needs no sums of codes if it is known before the launch.
TEST(CudaLinear, ZeroPointsInTheMiddleOfTheirType) {
  std::uint32_t next = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const std::int64_t m : {3, 20})
        for (const std::int64_t k : {37, 64, 130})
          for (const int middle : {1, 2, 3}) {  // as bits: 1 of the activation, 2 of the weight
            ++next;
            LinearCase c(m, k, 11, {activation, weight, ElementKind::f64}, CodeData::uniform, CodeData::uniform, next);
            if ((middle & 1) != 0 && activation == ElementKind::u8) c.act_zero_point = {{128}};
            if ((middle & 2) != 0 && weight == ElementKind::u8) c.weight_zero_point = {{128}};
            ASSERT_TRUE(same(c, {.turn = next}));
          }
}

TEST(CudaLinear, HugeActivationZeroPoints) {
  constexpr std::int32_t kMax = 1 << 23;
  const std::vector<std::int32_t> mixed = huge_zero_points();
  Turns turns;
  for (const std::int64_t m : {std::int64_t{3}, static_cast<std::int64_t>(mixed.size())})
    for (int pair = 0; pair < 8; ++pair) {
      const LinearKinds kinds = turns.kinds();
      LinearCase c(m, 400, 11, kinds, CodeData::uniform, pair % 2 == 0 ? CodeData::uniform : CodeData::extreme, 2);
      c.act_zero_point = {m > 3 ? mixed : std::vector<std::int32_t>{kMax + 1, -kMax - 1, 32768}, true};
      if (pair % 3 != 0) c.weight_zero_point = {{code_range(kinds.weight).max}};
      ASSERT_TRUE(same(c, turns.run()));
      c.act_zero_point = {{pair % 2 == 0 ? kMax : -kMax}};
      ASSERT_TRUE(same(c, turns.run()));
    }
}

TEST(CudaLinear, WeightZeroPointsBeyondTheirTypeCountAsItsEnds) {
  Turns turns;
  for (const std::int64_t m : {1, 4, 20})
    for (int pair = 0; pair < 4; ++pair) {
      LinearCase c(m, 130, 9, turns.kinds(), CodeData::uniform, CodeData::uniform, 4);
      c.weight_zero_point = {{-129, 128, 256, -1, std::numeric_limits<std::int32_t>::max(),
                              std::numeric_limits<std::int32_t>::min(), 0, 127, -128},
                             true};
      ASSERT_TRUE(same(c, turns.run()));
    }
}

// Scales and zero points as numbers and as tensors, with each kind of bias, for few rows and many.
TEST(CudaLinear, EveryFormOfParameters) {
  std::uint32_t next = 0;
  for (unsigned tensors = 0; tensors < 16; ++tensors)
    for (const int bias : {0, 1, 2}) {
      ++next;
      const LinearKinds kinds{kByteKinds[next % 2], kByteKinds[next / 3 % 2],
                              kLinearOutputs[next % kLinearOutputs.size()]};
      LinearCase c(next % 5 == 0 ? 18 : 3, 37, 11, kinds, CodeData::uniform, CodeData::uniform, next);
      const auto scales = [&](bool tensor, std::int64_t count) {
        Numbers<double> numbers{{}, tensor};
        for (std::int64_t i = 0; i < (tensor ? count : 1); ++i)
          numbers.values.push_back(held(0.003 * static_cast<double>(i + 1), c.scale_type()));
        return numbers;
      };
      const auto zero_points = [&](bool tensor, std::int64_t count) {
        Numbers<std::int32_t> numbers{{}, tensor};
        for (std::int64_t i = 0; i < (tensor ? count : 1); ++i)
          numbers.values.push_back(static_cast<std::int32_t>(7 + 5 * i));
        return numbers;
      };
      c.act_scale = scales((tensors & 1) != 0, c.m);
      c.weight_scale = scales((tensors & 2) != 0, c.n);
      c.act_zero_point = zero_points((tensors & 4) != 0, c.m);
      c.weight_zero_point = zero_points((tensors & 8) != 0, c.n);
      std::mt19937 random(next);
      if (bias != 0) c.draw_bias(bias == 1 ? c.other_bias_type() : c.scale_type(), random);
      ASSERT_TRUE(same(c, {.turn = next / 2}));
    }
}

// Scales and biases that IEEE arithmetic turns into anything; each in its own row or column and nowhere else.
TEST(CudaLinear, SpecialValuesStayInTheirRowOrColumn) {
  const double all_ones = std::bit_cast<double>(0x7FFFFFFFFFFFFFFFu);  // a NaN that rounding must not carry over
  const std::vector<double> special = {1.0,  0.0,  -0.5, NAN,      kInf,   -kInf, 1e-40,    3e38,
                                       0.25, -0.0, 1e38, 0x1p-149, -1e-42, 1e-20, 0x1p-126, all_ones};
  const auto count = static_cast<std::int64_t>(special.size());
  std::uint32_t next = 0;
  for (const ElementKind output : kLinearOutputs)
    for (const std::int64_t m : {std::int64_t{3}, count, count + 4})
      for (const int form : {0, 1, 2, 3, 4, 5}) {
        ++next;
        const int bias = form % 3;
        const std::int64_t k = form < 3 ? 70 : 0;  // without products nothing is scaled
        LinearCase c(m, k, count, {kByteKinds[next % 2], kByteKinds[next / 2 % 2], output}, CodeData::uniform,
                     CodeData::uniform, next);
        const auto wild = [&](std::int64_t many, ElementKind kind) {
          std::vector<double> all;
          for (std::size_t i = 0; i < static_cast<std::size_t>(many); ++i)
            all.push_back(held(special[(i + next) % special.size()], kind));
          return all;
        };
        c.act_scale = {wild(m, c.scale_type()), true};
        c.weight_scale = {wild(count, c.scale_type()), true};
        if (bias != 0) {
          c.bias_kind = bias == 1 ? c.other_bias_type() : c.scale_type();
          c.bias = wild(count, *c.bias_kind);
        }
        std::fill_n(c.a.begin(), k, std::byte{0});  // zero sums: zero times infinity
        ASSERT_TRUE(same(c, {.turn = next}));
      }
}

// ---- layouts ----

TEST(CudaLinear, KeepsToItsRowsAtAnyAddressOfItsElements) {
  const LinearLayout layouts[] = {{.activation_gap = 1, .weight_gap = 3, .output_gap = 2},
                                  {.spare_rows = 5, .activation_gap = 16},
                                  {.weight_gap = 13, .output_gap = 7},
                                  {.spare_rows = 1000, .output_gap = 1},
                                  {}};
  const Shifts shifts[] = {{0, 0}, {1, 1}, {3, 0}, {0, 1}, {4, 2}, {15, 7}};
  Turns turns;
  for (const std::int64_t m : {1, 3, 9, 17, 40})
    for (const std::int64_t k : {16, 64, 77})
      for (const LinearLayout& layout : layouts) {
        const LinearCase c = ordinary(m, k, k == 64 ? 32 : 21, turns);
        DeviceRun how = turns.run();
        how.shifts = shifts[turns.seed() % std::size(shifts)];
        ASSERT_TRUE(same(c, how, layout));
      }
}

TEST(CudaLinear, ActivationsOfEveryRank) {
  Turns turns;
  for (const std::vector<std::int64_t>& leading :
       std::vector<std::vector<std::int64_t>>{{}, {1}, {12}, {3, 4}, {2, 1, 3, 2}, {1, 2, 1, 3, 1, 2, 1}})
    for (const TokenForm form : {TokenForm::flat, TokenForm::leading, TokenForm::leading_and_one}) {
      const std::int64_t m = leading.empty() || leading == std::vector<std::int64_t>{1} ? 1 : 12;
      const LinearCase c = ordinary(m, 35, 10, turns);
      ASSERT_TRUE(same(c, turns.run(), {.leading = leading, .token_form = form}));
    }
}

// Inputs may be one another: a product of a matrix with itself.
TEST(CudaLinear, InputsMayBeOneAnother) {
  const LinearCase c(19, 50, 19, {}, CodeData::uniform, CodeData::uniform, 9);
  const PreparedLinear linear(c, {.isa = ArchSku::scalar}, {});
  ASSERT_TRUE(linear.status().ok()) << linear.status().message();
  AnyLinearArgs args = linear.args();
  args.weight = args.activation;
  ASSERT_TRUE(same_on_device<AnyLinearPlan>(c.descriptor(), args, c.text() + " with itself"));
}

// ---- the plan of a static scale ----

TEST(CudaSmoothQuantLinear, EqualsScalar) {
  Turns turns;
  for (const std::int64_t m : {1, 3, 17, 40})
    for (const double act_scale : {0.1, 1.0 / 3.0, 7.0})  // most are no floats
      for (const std::int32_t act_zero_point : {0, -5, 1 << 23, -(1 << 23)}) {
        LinearCase c = ordinary(m, 70, 23, turns);
        while (!is_float(c.kinds.output)) c = ordinary(m, 70, 23, turns);
        const PreparedLinear linear(c, {.isa = ArchSku::scalar}, {.spare_rows = 2, .output_gap = m % 2});
        ASSERT_TRUE(linear.status().ok()) << linear.status().message();
        AnyLinearArgs args = linear.args();
        args.act_scale = AnyParameter(AnyRef{});
        args.act_zero_point = AnyParameter(std::int32_t{0});
        const SmoothQuantLinearDescriptor d{.max_rows = m + 2,
                                            .in_features = c.k,
                                            .out_features = c.n,
                                            .act_scale = act_scale,
                                            .act_zero_point = act_zero_point,
                                            .activation = c.kinds.activation,
                                            .weight = c.kinds.weight,
                                            .output = c.kinds.output};
        ASSERT_TRUE(same_on_device<AnyLinearPlan>(d, args,
                                                  "static scale " + std::to_string(act_scale) + " zero point " +
                                                      std::to_string(act_zero_point) + " " + c.text(),
                                                  turns.run()));
      }
}

// ---- the plan that quantizes inside ----

struct QuantizedForm {
  BiasForm bias = BiasForm::none;
  std::int64_t input_gap = 0, output_gap = 0;
  std::int64_t spare_rows = 0;
};

template <class In, class W>
testing::AssertionResult same(const FloatLayer<In, W>& layer, QuantizedLinearDescriptor d, const DeviceRun& how = {},
                              const QuantizedForm& form = {}) {
  const std::int64_t m = layer.m, k = layer.k, n = layer.n;
  d.max_rows = m + form.spare_rows;
  d.in_features = k;
  d.out_features = n;
  d.input = kind_of<In>;
  d.weight = kind_of<W>;
  const std::int64_t input_stride = form.input_gap == 0 ? 0 : k + form.input_gap;
  const std::int64_t output_stride = form.output_gap == 0 ? 0 : n + form.output_gap;
  const auto dense = std::as_bytes(std::span(layer.x));
  std::vector<std::byte> x = with_gaps({dense.begin(), dense.end()}, kind_of<In>, m, k, input_stride);
  std::vector<std::byte> y = with_gaps(std::vector<std::byte>(static_cast<std::size_t>(m * n) * sizeof(In), kGap),
                                       kind_of<In>, m, n, output_stride);
  x.reserve(1);  // so that no tensor is null
  y.reserve(1);
  AnyLinearArgs args;
  args.activation = {x.data(), kind_of<In>, {m, k}, input_stride};
  if (d.smooth) args.smooth = {layer.smooth.data(), kind_of<scale_t<In>>, {k}, 0};
  args.weight = {layer.w.data(), kind_of<W>, {n, k}, 0};
  args.weight_scale = AnyParameter(AnyRef{layer.weight_scale.data(), kind_of<scale_t<In>>, {n}, 0});
  args.weight_zero_point = AnyParameter(AnyRef{layer.weight_zero_point.data(), ElementKind::s32, {n}, 0});
  args.bias = layer.bias(form.bias);
  args.output = {y.data(), kind_of<In>, {m, n}, output_stride};
  const std::string text = std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) + " (M, K, N) " +
                           std::string(name(kind_of<In>)) + "*" + std::string(name(kind_of<W>)) + " " +
                           (d.act_scale ? "static" : std::string(name(d.mode))) + (d.include_zero ? " with zero" : "") +
                           (d.smooth ? " smooth" : "") + " bias form " + std::to_string(static_cast<int>(form.bias)) +
                           " gaps " + std::to_string(form.input_gap) + " and " + std::to_string(form.output_gap);
  return same_on_device<AnyLinearPlan>(d, args, text, how);
}

template <class In>
class CudaQuantizedLinear : public testing::Test {};
using FloatTypes = testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(CudaQuantizedLinear, FloatTypes);

// Every mode with and without a smoothing vector, exact and reciprocal, signed and unsigned weights; rows of nothing
// but NaN, infinities, zero and a constant among ordinary ones.
TYPED_TEST(CudaQuantizedLinear, EqualsScalar) {
  constexpr std::array<std::int64_t, 3> kSizes[] = {{1, 1, 1}, {5, 64, 9}, {17, 129, 35}, {3, 300, 17}, {40, 70, 66},
                                                    {2, 0, 3}, {0, 5, 4},  {9, 1031, 7},  {4, 7, 0},    {1, 515, 20}};
  constexpr Data kData[] = {Data::normal, Data::specials, Data::positive, Data::one_odd, Data::any_bits};
  const Shifts shifts[] = {{0, 0}, {1, 1}, {0, 0}, {3, 0}, {0, 1}, {0, 0}, {15, 7}};
  std::uint32_t next = 0;
  const auto expect_same = [&](auto layer, const QuantizedLinearDescriptor& d, Numerics numerics) {
    if (next % 2 == 0) layer.fill_odd_rows();
    ASSERT_TRUE(same(layer, d,
                     {.turn = next + next / 3, .numerics = numerics, .shifts = shifts[next % std::size(shifts)]},
                     {.bias = static_cast<BiasForm>(next % 3),
                      .input_gap = next % 5 == 0 ? 5 : 0,
                      .output_gap = next % 4 == 0 ? 3 : 0,
                      .spare_rows = next % 3}));
  };
  for (const auto& [m, k, n] : kSizes)
    for (const ModeChoice& choice : kModes)
      for (const bool smooth : {false, true})
        for (const bool is_static : {false, true}) {
          if (is_static && choice.include_zero) continue;
          ++next;
          const QuantizedLinearDescriptor d = quantized_problem(choice, smooth, is_static, next);
          const Numerics numerics = next / 2 % 2 == 0 ? Numerics::exact : Numerics::reciprocal;
          const Data data = kData[next % std::size(kData)];
          if (next / 3 % 2 == 0)
            ASSERT_NO_FATAL_FAILURE(expect_same(FloatLayer<TypeParam>(m, k, n, data, next), d, numerics));
          else
            ASSERT_NO_FATAL_FAILURE(expect_same(FloatLayer<TypeParam, std::uint8_t>(m, k, n, data, next), d, numerics));
        }
}

// Rows too long for one block's registers or shared memory, in all orders of threads.
TYPED_TEST(CudaQuantizedLinear, LongRows) {
  const FloatLayer<TypeParam> layer(3, 20011, 3, Data::one_odd, 10);
  std::uint32_t turn = 0;
  for (const bool smooth : {false, true})
    for (const ModeChoice& choice : kModes)
      ASSERT_TRUE(
          same(layer, {.mode = choice.mode, .include_zero = choice.include_zero, .smooth = smooth}, {.turn = turn++}));
}

// x / 0, 0 / 0 and so on are what IEEE arithmetic makes of them, then codes.
TYPED_TEST(CudaQuantizedLinear, SmoothingVectorsAreNotScanned) {
  FloatLayer<TypeParam> layer(9, 90, 12, Data::normal, 11);
  layer.fill_row(2, 0.0);
  using Scale = scale_t<TypeParam>;
  const double odd[] = {0.0, -2.0, kInf, NAN, 1e-40};
  for (std::size_t i = 0; i < std::size(odd); ++i) layer.smooth[i * 17 + 1] = static_cast<Scale>(odd[i]);
  for (const ModeChoice& choice : kModes)
    ASSERT_TRUE(same(layer, {.mode = choice.mode, .include_zero = choice.include_zero, .smooth = true}));
  ASSERT_TRUE(same(layer, {.act_scale = 0.1, .smooth = true}));
}

// Far offsets with a small range: zero points of millions.
TEST(CudaQuantizedLinearF32, RowsFarFromZero) {
  const FloatLayer<float> layer = layer_far_from_zero();
  for (const bool include_zero : {false, true})
    for (const bool smooth : {false, true})
      ASSERT_TRUE(same(layer, {.mode = DynamicRangeMode::asymmetric, .include_zero = include_zero, .smooth = smooth}));
}

// ---- the list ----

TEST(CudaRegistry, HoldsLinearKernelsForEveryKindOfOutput) {
  std::set<ElementKind> outputs;
  for (const detail::LinearKernel* kernel : ops::all_kernels<detail::LinearKernel>(BackendKind::cuda)) {
    outputs.insert(kernel->sku.aux_element);
    EXPECT_EQ(kernel->sku.backend, BackendKind::cuda) << kernel->sku.name();
    EXPECT_EQ(kernel->sku.precision_guarantee.accumulator, AccumulatorKind::exact_integer) << kernel->sku.name();
    EXPECT_TRUE(kernel->sku.precision_guarantee.bit_stable_across_hardware) << kernel->sku.name();
  }
  EXPECT_EQ(outputs.size(), kLinearOutputs.size());
}

}  // namespace
}  // namespace kvant::tests
