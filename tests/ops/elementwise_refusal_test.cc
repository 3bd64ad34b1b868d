// Every sentence with which select(), can_implement() and run() say no, and the neighbouring cases that they must not
// refuse. A refused run() leaves every byte of its output as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/plan_refusals.h"
#include "tests/support/tables.h"

namespace kvant::tests {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;
constexpr std::int32_t kMagnitude = 1 << 23;  // of zero points and fake_quantize's range
constexpr std::byte kPattern{0xA5};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span<T>(values));
}

// A problem that is in order, with its buffers. A test changes one thing and says what must be refused.
struct Problem {
  ElementwiseDescriptor descriptor;
  PlanPreference preference;
  std::vector<std::byte> input, gradient, output;  // bigger than any view here asks for
  std::vector<double> scale64;
  std::vector<float> scale32;
  std::vector<std::int32_t> zero_point;
  ElementwiseArgs args;

  explicit Problem(QuantizeKind op, const Granularity& granularity = {}, const Shape& shape = {3, 4},
                   ElementKind f = ElementKind::f32, ElementKind code = ElementKind::s8) {
    descriptor.op = op;
    descriptor.shape = shape;
    descriptor.granularity = granularity;
    descriptor.input = is_dequantize(op) ? code : f;
    descriptor.output = is_dequantize(op) || is_fake(op) ? f : code;

    const Shape parameters = parameter_shape(shape, granularity).value();
    const auto count = static_cast<std::size_t>(parameters.element_count().value());
    input.resize(4096);
    gradient.resize(4096);
    output.resize(4096, kPattern);
    scale64.resize(count, 0.5);
    scale32.resize(count, 0.5f);
    zero_point.resize(count, 1);

    const ElementKind read = is_backward(op) ? f : descriptor.input;
    const ElementKind write = is_backward(op) ? f : descriptor.output;
    args.input = {input.data(), read, shape, 0};
    args.grad_output = {gradient.data(), f, shape, 0};
    args.output = {output.data(), write, shape, 0};
    const void* scales = f == ElementKind::f64 ? static_cast<const void*>(scale64.data()) : scale32.data();
    args.scale = AnyParameter(AnyRef{scales, scale_kind(f), parameters, 0});
    if (is_fake(op) || !has_float_grid(code))
      args.zero_point = AnyParameter(AnyRef{zero_point.data(), ElementKind::s32, parameters, 0});
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  Result<ElementwisePlan> select() const { return ElementwisePlan::select(Stream::cpu(1), descriptor, preference); }
  Status selects() const { return select().status(); }

  testing::AssertionResult refuses(StatusCode code, std::string_view part) const {
    return tests::refuses(select(), args, output, code, {part});
  }
  testing::AssertionResult invalid(std::string_view part) const { return refuses(StatusCode::InvalidProblem, part); }
  testing::AssertionResult unsupported(std::string_view part) const { return refuses(StatusCode::Unsupported, part); }

  testing::AssertionResult runs() const { return tests::runs(select(), args); }
};

const std::vector<Granularity>& granularities() {
  static const std::vector<Granularity> all = {Granularity::per_tensor(), Granularity::per_channel(1),
                                               Granularity::per_token(), Granularity::per_group(1, 2),
                                               Granularity::per_block(2, 3)};
  return all;
}

// The baseline of everything below: what is not changed is not refused.
TEST(Baseline, EveryOperatorAndGranularityRuns) {
  for (const QuantizeKind op : kElementwiseKinds)
    for (const Granularity& granularity : granularities())
      for (const ElementKind f : kFloatKinds)
        for (const ElementKind code : kCodeKinds) {
          const Problem p(op, granularity, {3, 4}, f, code);
          EXPECT_TRUE(p.runs()) << name(op) << " " << name(f) << " " << name(code);
        }
}

// ---- select(): shapes ----

// For every operator and granularity; with the sentence of a quantization per tensor in full.
void expect_shape_refused(const Shape& shape, const std::string& part) {
  for (const QuantizeKind op : kElementwiseKinds)
    for (const Granularity& granularity : granularities()) {
      Problem p(op, granularity);
      p.descriptor.shape = shape;
      EXPECT_TRUE(invalid(p.selects(), part)) << name(op);
    }
  const std::string whole = "quantize_per_tensor: " + part;
  const Stream stream = Stream::cpu(1);
  QuantizePerTensorDescriptor typed;
  typed.shape = shape;
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, typed);
  EXPECT_TRUE(invalid(plan.status(), whole));
  EXPECT_EQ(plan.status().message(), whole);
  const auto alone = parameter_shape(shape, PerTensor{});
  EXPECT_EQ(alone.status().message(), "per_tensor: " + part);
}

TEST(SelectShape, NegativeSize) {
  expect_shape_refused({2, -3}, "size -3 of dimension 1 in shape [2, -3] is negative");
  expect_shape_refused({-1, 0}, "size -1 of dimension 0 in shape [-1, 0] is negative");
  expect_shape_refused({4, std::numeric_limits<std::int64_t>::min()},
                       "size -9223372036854775808 of dimension 1 in shape [4, -9223372036854775808] is negative");
}

TEST(SelectShape, RankAboveEight) {
  expect_shape_refused({1, 1, 1, 1, 1, 1, 1, 1, 1}, "rank 9 is above 8");
  expect_shape_refused({1, 1, 1, 1, 1, 1, 1, 1, 1, -1}, "rank 10 is above 8");
  EXPECT_TRUE(Problem(QuantizeKind::quantize, PerToken{}, {1, 1, 2, 1, 1, 1, 1, 3}).runs());
}

TEST(SelectShape, ProductOverflows) {
  expect_shape_refused({kHuge, kHuge}, "shape [1099511627776, 1099511627776] has more elements than 63 bits can count");
  expect_shape_refused({std::int64_t{1} << 32, std::int64_t{1} << 31},
                       "shape [4294967296, 2147483648] has more elements than 63 bits can count");
}

// The strides of such a shape could not be counted, whatever the zero makes of the product.
TEST(SelectShape, ProductOverflowsBesideZero) {
  expect_shape_refused({0, kHuge, kHuge},
                       "shape [0, 1099511627776, 1099511627776] has more elements than 63 bits can count");
  expect_shape_refused({kHuge, 0, kHuge},
                       "shape [1099511627776, 0, 1099511627776] has more elements than 63 bits can count");
  expect_shape_refused({kHuge, kHuge, 0},
                       "shape [1099511627776, 1099511627776, 0] has more elements than 63 bits can count");
}

TEST(SelectShape, BytesOverflow) {
  Problem p(QuantizeKind::quantize);
  p.descriptor.shape = {std::int64_t{1} << 60};
  EXPECT_TRUE(
      invalid(p.selects(), "quantize_per_tensor: shape [1152921504606846976] has more bytes than 63 bits can count"));
  p.descriptor.shape = {std::int64_t{1} << 59};
  EXPECT_TRUE(accepted(p.selects()));
  p.descriptor.shape = {std::int64_t{1} << 62, 0};
  EXPECT_TRUE(accepted(p.selects()));
}

// ---- select(): granularity ----

TEST(SelectGranularity, AxisOutOfRange) {
  const Stream stream = Stream::cpu(1);
  for (const int axis : {2, -3, 1000, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    const std::string part = "axis " + std::to_string(axis) + " is not in shape [3, 4] of rank 2";
    for (const QuantizeKind op : kElementwiseKinds)
      for (const Granularity& granularity : {Granularity::per_channel(axis), Granularity::per_group(axis, 2)}) {
        Problem p(op);
        p.descriptor.granularity = granularity;
        EXPECT_TRUE(invalid(p.selects(), part)) << name(op);
      }
    DequantizePerChannelDescriptor typed;
    typed.shape = {3, 4};
    typed.granularity.axis = axis;
    const auto plan = DequantizePerChannelPlan<std::uint8_t, double>::select(stream, typed);
    EXPECT_EQ(plan.status().message(), "dequantize_per_channel: " + part);
  }
  for (const int axis : {-2, -1, 0, 1}) {
    EXPECT_TRUE(Problem(QuantizeKind::quantize, PerChannel{axis}).runs());
    EXPECT_TRUE(Problem(QuantizeKind::quantize, PerGroup{axis, 2}).runs());
  }
}

TEST(SelectGranularity, RankZeroHasNoAxis) {
  Problem p(QuantizeKind::quantize);
  p.descriptor.shape = Shape();
  for (const Granularity& granularity : {Granularity::per_channel(0), Granularity::per_group(0, 1)}) {
    p.descriptor.granularity = granularity;
    EXPECT_TRUE(invalid(p.selects(), "is not in shape [] of rank 0"));
  }
  p.descriptor.granularity = Granularity::per_token();
  EXPECT_TRUE(invalid(p.selects(), "quantize_per_token: shape [] has no rows; its rank must be at least 1"));
  p.descriptor.granularity = Granularity::per_block(1, 1);
  EXPECT_TRUE(
      invalid(p.selects(), "quantize_per_block: shape [] has no rows and columns; its rank must be at least 2"));
  p.descriptor.shape = {12};
  EXPECT_TRUE(
      invalid(p.selects(), "quantize_per_block: shape [12] has no rows and columns; its rank must be at least 2"));
  EXPECT_TRUE(Problem(QuantizeKind::quantize, PerTensor{}, Shape()).runs());
}

TEST(SelectGranularity, GroupSizeBelowOne) {
  const Stream stream = Stream::cpu(1);
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const std::string part = "group_size " + std::to_string(size) + " must be positive";
    for (const QuantizeKind op : kElementwiseKinds) {
      Problem p(op);
      p.descriptor.granularity = PerGroup{1, size};
      EXPECT_TRUE(invalid(p.selects(), part)) << name(op);
    }
    FakeQuantizePerGroupDescriptor typed;
    typed.shape = {3, 4};
    typed.granularity.group_size = size;
    const auto plan = FakeQuantizePerGroupPlan<float>::select(stream, typed);
    EXPECT_EQ(plan.status().message(), "fake_quantize_per_group: " + part);
  }
  // 0 is what a descriptor has whose caller forgot it.
  QuantizePerGroupDescriptor forgotten;
  forgotten.shape = {3, 4};
  const auto plan = QuantizePerGroupPlan<float, Int4>::select(stream, forgotten);
  EXPECT_EQ(plan.status().message(), "quantize_per_group: group_size 0 must be positive");

  EXPECT_TRUE(Problem(QuantizeKind::quantize, PerGroup{1, 1}).runs());
  EXPECT_TRUE(Problem(QuantizeKind::quantize, PerGroup{1, 3}).runs());
  EXPECT_TRUE(Problem(QuantizeKind::quantize, PerGroup{1, std::numeric_limits<std::int64_t>::max()}).runs());
}

TEST(SelectGranularity, SidesOfABlockBelowOne) {
  const Stream stream = Stream::cpu(1);
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const std::string rows = "rows " + std::to_string(size) + " of a block must be positive";
    const std::string columns = "columns " + std::to_string(size) + " of a block must be positive";
    for (const QuantizeKind op : kElementwiseKinds) {
      Problem p(op);
      p.descriptor.granularity = PerBlock{size, 2};
      EXPECT_TRUE(invalid(p.selects(), rows)) << name(op);
      p.descriptor.granularity = PerBlock{2, size};
      EXPECT_TRUE(invalid(p.selects(), columns)) << name(op);
    }
    FakeQuantizePerBlockDescriptor typed;
    typed.shape = {3, 4};
    typed.granularity = {2, size};
    EXPECT_EQ(FakeQuantizePerBlockBackwardPlan<float>::select(stream, typed).status().message(),
              "fake_quantize_per_block_backward: " + columns);
  }
  // 0 is what a descriptor has whose caller forgot it.
  QuantizePerBlockDescriptor forgotten;
  forgotten.shape = {3, 4};
  const auto plan = QuantizePerBlockPlan<float, Int4>::select(stream, forgotten);
  EXPECT_EQ(plan.status().message(), "quantize_per_block: rows 0 of a block must be positive");

  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const PerBlock& block :
       {PerBlock{1, 1}, PerBlock{2, 3}, PerBlock{kMax, 1}, PerBlock{1, kMax}, PerBlock{kMax, kMax}})
    EXPECT_TRUE(Problem(QuantizeKind::quantize, block).runs());
}

// ---- select(): the code range ----

TEST(SelectRange, BeyondTheCodeType) {
  for (const QuantizeKind op : {QuantizeKind::quantize, QuantizeKind::quantize_backward})
    for (const ElementKind code : kCodeKinds) {
      if (has_float_grid(code)) continue;
      Problem p(op, {}, {3, 4}, ElementKind::f32, code);
      const CodeRange limits = code_range(code);
      const std::string of = " of " + std::string(name(code));
      p.descriptor.q_min = limits.min - 1;
      EXPECT_TRUE(invalid(p.selects(), "q_min " + std::to_string(limits.min - 1) + " is below " +
                                           std::to_string(limits.min) + ", the min" + of));
      p.descriptor.q_min = limits.min;
      p.descriptor.q_max = limits.max + 1;
      EXPECT_TRUE(invalid(p.selects(), "q_max " + std::to_string(limits.max + 1) + " is above " +
                                           std::to_string(limits.max) + ", the max" + of));
      p.descriptor.q_max = limits.max;
      EXPECT_TRUE(p.runs());
    }
  QuantizePerTokenDescriptor typed;
  typed.shape = {3, 4};
  typed.q_min = -9;
  const auto plan = QuantizePerTokenBackwardPlan<Half, Int4>::select(Stream::cpu(1), typed);
  EXPECT_TRUE(invalid(plan.status(), "quantize_per_token_backward: q_min -9 is below -8, the min of s4"));
}

TEST(SelectRange, MinimumAboveMaximum) {
  for (const QuantizeKind op : kElementwiseKinds) {
    if (is_dequantize(op)) continue;
    Problem p(op);
    p.descriptor.q_min = 5;
    p.descriptor.q_max = 4;
    EXPECT_TRUE(invalid(p.selects(), "q_min 5 is above q_max 4")) << name(op);
    p.descriptor.q_max = 5;
    EXPECT_TRUE(p.runs()) << name(op);
  }
  // Against the default of the one that is not given.
  Problem p(QuantizeKind::quantize, {}, {3, 4}, ElementKind::f32, ElementKind::u4);
  p.descriptor.q_min = 16;
  EXPECT_TRUE(invalid(p.selects(), "quantize_per_tensor: q_min 16 is above q_max 15"));
  p.descriptor.q_min.reset();
  p.descriptor.q_max = -1;
  EXPECT_TRUE(invalid(p.selects(), "quantize_per_tensor: q_min 0 is above q_max -1"));

  FakeQuantizeDescriptor typed;
  typed.shape = {3, 4};
  typed.q_min = 1;
  typed.q_max = -1;
  const auto plan = FakeQuantizePlan<float>::select(Stream::cpu(1), typed);
  EXPECT_TRUE(invalid(plan.status(), "fake_quantize_per_tensor: q_min 1 is above q_max -1"));
}

TEST(SelectRange, FakeQuantizeBeyondExactIntegers) {
  for (const QuantizeKind op : {QuantizeKind::fake_quantize, QuantizeKind::fake_quantize_backward})
    for (const ElementKind f : kFloatKinds) {
      Problem p(op, {}, {3, 4}, f);
      p.descriptor.q_min = -kMagnitude - 1;
      p.descriptor.q_max = kMagnitude;
      EXPECT_TRUE(invalid(p.selects(), "q_min -8388609 is below -8388608, the min in floating point"));
      p.descriptor.q_min = -kMagnitude;
      p.descriptor.q_max = kMagnitude + 1;
      EXPECT_TRUE(invalid(p.selects(), "q_max 8388609 is above 8388608, the max in floating point"));
      p.descriptor.q_min = std::numeric_limits<std::int32_t>::min();
      EXPECT_TRUE(invalid(p.selects(), "q_min -2147483648 is below -8388608"));
      p.descriptor.q_min = -kMagnitude;
      p.descriptor.q_max = kMagnitude;
      EXPECT_TRUE(p.runs());
    }
  FakeQuantizeDescriptor typed;
  typed.shape = {3, 4};
  typed.q_max = kMagnitude + 1;
  const auto plan = FakeQuantizeBackwardPlan<double>::select(Stream::cpu(1), typed);
  EXPECT_TRUE(invalid(plan.status(), "fake_quantize_per_tensor_backward: q_max 8388609 is above 8388608"));
}

TEST(SelectRange, DequantizeHasNone) {
  for (const QuantizeKind op : {QuantizeKind::dequantize, QuantizeKind::dequantize_backward}) {
    const std::string part = "q_min and q_max are not used here; leave them unset";
    Problem p(op);
    p.descriptor.q_min = -128;
    EXPECT_TRUE(invalid(p.selects(), part));
    p.descriptor.q_max = 127;
    EXPECT_TRUE(invalid(p.selects(), part));
    p.descriptor.q_min.reset();
    EXPECT_TRUE(invalid(p.selects(), part));
  }
}

// ---- floating-point grids ----

// The operators that have one, as a problem on it.
std::vector<QuantizeKind> grid_operators() { return {kElementwiseKinds.begin(), kElementwiseKinds.end()}; }
void put_on_grid(Problem& p, ElementKind grid) {
  if (is_fake(p.descriptor.op)) p.descriptor.grid = grid;
  p.args.zero_point = AnyParameter(std::int32_t{0});
}

TEST(FloatGrid, HasNoRangeOfCodes) {
  const std::pair<ElementKind, std::string> grids[] = {
      {ElementKind::e4m3, "448"}, {ElementKind::e5m2, "57344"}, {ElementKind::e2m1, "6"}};
  for (const QuantizeKind op : grid_operators())
    for (const auto& [grid, max] : grids) {
      if (!elementwise_operator(op).rounds) continue;
      Problem p(op, {}, {3, 4}, ElementKind::f32, grid);
      put_on_grid(p, grid);
      EXPECT_TRUE(p.runs()) << name(op);
      const std::string part = "q_min and q_max are for integer codes; " + std::string(name(grid)) +
                               " has the numbers from -" + max + " to " + max;
      p.descriptor.q_min = -1;
      EXPECT_TRUE(invalid(p.selects(), part)) << name(op);
      p.descriptor.q_min.reset();
      p.descriptor.q_max = 1;
      EXPECT_TRUE(invalid(p.selects(), part)) << name(op);
    }
}

TEST(FloatGrid, HasNoZeroPoint) {
  for (const QuantizeKind op : grid_operators())
    for (const ElementKind grid : kFloatGrids) {
      if (!reads_input(op)) continue;
      const std::string of(name(grid));
      Problem p(op, PerToken{}, {3, 4}, ElementKind::f32, grid);
      put_on_grid(p, grid);
      EXPECT_TRUE(p.runs()) << name(op);
      p.args.zero_point = AnyParameter(std::int32_t{-3});
      EXPECT_TRUE(p.invalid("zero_point -3 with " + of + ", which has no zero point, must be 0")) << name(op);
      // Not even zeros: a tensor of them is not looked at.
      p.zero_point.assign(3, 0);
      p.args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s32, {3}, 0});
      EXPECT_TRUE(p.invalid("zero_point is a tensor of shape [3]; " + of + " has no zero point, leave it 0"))
          << name(op);
      p.args.zero_point = AnyParameter(1.0f);
      EXPECT_TRUE(p.unsupported("zero_point has element f32, must be s32")) << name(op);
    }
}

TEST(FloatGrid, IsNamedForFakeQuantizeOnly) {
  for (const QuantizeKind op : grid_operators()) {
    Problem p(op);
    p.descriptor.grid = ElementKind::e4m3;
    if (is_fake(op)) {
      EXPECT_TRUE(accepted(p.selects())) << name(op);
      p.descriptor.grid = ElementKind::s8;
      EXPECT_TRUE(unsupported(p.selects(), "grid s8 must be one of e4m3, e5m2, e2m1; give integers as q_min and q_max"))
          << name(op);
    } else {
      EXPECT_TRUE(invalid(p.selects(), "grid e4m3 is for fake_quantize; the grid here is that of s8")) << name(op);
    }
  }
}

TEST(FloatGrid, OverflowsOnlyWhereItHasAWordForThat) {
  for (const QuantizeKind op : grid_operators())
    for (const ElementKind code : kCodeKinds) {
      Problem p(op, {}, {3, 4}, ElementKind::f32, code);
      if (has_float_grid(code)) put_on_grid(p, code);
      p.descriptor.saturate = false;
      const bool makes_codes = op == QuantizeKind::quantize || op == QuantizeKind::fake_quantize;
      if (!makes_codes) {
        EXPECT_TRUE(invalid(p.selects(), "saturate = false is for quantize and fake_quantize")) << name(op);
      } else if (may_overflow(code)) {
        EXPECT_TRUE(p.runs()) << name(op) << " " << name(code);
      } else {
        const std::string what(is_fake(op) && !has_float_grid(code) ? "integers" : name(code));
        EXPECT_TRUE(invalid(p.selects(), "saturate = false needs codes with NaN or infinity, " + what + " have none"))
            << name(op);
      }
    }
}

// ---- select(): element kinds ----

using Kinds = std::span<const ElementKind>;
constexpr const char* kCodeNames = "s8, u8, s4, u4, s16, u16, s2, u2, e4m3, e5m2, e2m1";

TEST(SelectKinds, InputOfTheWrongSort) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op);
    const bool from_codes = is_dequantize(op);
    const std::string wanted = from_codes ? kCodeNames : "f32, f64, f16, bf16";
    for (const ElementKind kind : from_codes ? Kinds(kFloatKinds) : Kinds(kCodeKinds)) {
      p.descriptor.input = kind;
      EXPECT_TRUE(unsupported(p.selects(), "input element " + std::string(name(kind)) + " must be one of " + wanted));
    }
    p.descriptor.input = ElementKind::s32;
    EXPECT_TRUE(unsupported(p.selects(), "input element s32 must be one of " + wanted)) << name(op);
  }
}

TEST(SelectKinds, OutputOfTheWrongSort) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op);
    const bool to_floats = is_dequantize(op) || is_fake(op);
    const std::string wanted = to_floats ? "f32, f64, f16, bf16" : kCodeNames;
    for (const ElementKind kind : to_floats ? Kinds(kCodeKinds) : Kinds(kFloatKinds)) {
      p.descriptor.output = kind;
      EXPECT_TRUE(unsupported(p.selects(), "output element " + std::string(name(kind)) + " must be one of " + wanted));
    }
    p.descriptor.output = ElementKind::s32;
    EXPECT_TRUE(unsupported(p.selects(), "output element s32 must be one of " + wanted)) << name(op);
  }
}

TEST(SelectKinds, FakeQuantizeChangesNoKind) {
  for (const QuantizeKind op : {QuantizeKind::fake_quantize, QuantizeKind::fake_quantize_backward}) {
    Problem p(op);
    p.descriptor.output = ElementKind::f64;
    EXPECT_TRUE(unsupported(p.selects(), "output element f64 must equal input element f32"));
  }
}

TEST(SelectKinds, DescriptorAgainstTheTypesOfThePlan) {
  const Stream stream = Stream::cpu(1);
  QuantizePerChannelDescriptor quantize;
  quantize.shape = {3, 4};
  quantize.input = ElementKind::f64;
  EXPECT_TRUE(unsupported((QuantizePerChannelPlan<float, std::int8_t>::select(stream, quantize).status()),
                          "quantize_per_channel: the descriptor says f64 to s8, the plan's types are f32 to s8"));
  EXPECT_TRUE(
      unsupported((QuantizePerChannelBackwardPlan<float, std::int8_t>::select(stream, quantize).status()),
                  "quantize_per_channel_backward: the descriptor says f64 to s8, the plan's types are f32 to s8"));
  quantize.input = ElementKind::f32;
  quantize.output = ElementKind::u8;
  EXPECT_TRUE(unsupported((QuantizePerChannelPlan<float, std::int8_t>::select(stream, quantize).status()),
                          "quantize_per_channel: the descriptor says f32 to u8, the plan's types are f32 to s8"));
  quantize.output = ElementKind::s8;
  EXPECT_TRUE(accepted((QuantizePerChannelPlan<float, std::int8_t>::select(stream, quantize).status())));

  DequantizePerTensorDescriptor dequantize;
  dequantize.shape = {3, 4};
  dequantize.output = ElementKind::bf16;
  EXPECT_TRUE(unsupported((DequantizePerTensorPlan<UInt4, Half>::select(stream, dequantize).status()),
                          "dequantize_per_tensor: the descriptor says u4 to bf16, the plan's types are u4 to f16"));
  dequantize.output.reset();
  dequantize.input = ElementKind::s4;
  EXPECT_TRUE(
      unsupported((DequantizePerTensorBackwardPlan<UInt4, Half>::select(stream, dequantize).status()),
                  "dequantize_per_tensor_backward: the descriptor says s4 to f16, the plan's types are u4 to f16"));

  FakeQuantizePerTokenDescriptor fake;
  fake.shape = {3, 4};
  fake.element = ElementKind::f64;
  EXPECT_TRUE(unsupported(FakeQuantizePerTokenPlan<BFloat16>::select(stream, fake).status(),
                          "fake_quantize_per_token: the descriptor says f64 to f64, the plan's types are bf16 to "
                          "bf16"));
  EXPECT_TRUE(unsupported(FakeQuantizePerTokenBackwardPlan<BFloat16>::select(stream, fake).status(),
                          "the descriptor says f64 to f64, the plan's types are bf16 to bf16"));
  fake.element = ElementKind::bf16;
  EXPECT_TRUE(accepted(FakeQuantizePerTokenPlan<BFloat16>::select(stream, fake).status()));
}

// ---- select(): what was asked of it ----

TEST(SelectPreference, CudaIsNotInThisBuild) {
  Problem p(QuantizeKind::fake_quantize_backward, PerToken{});
  p.preference.backend = BackendKind::cuda;
  EXPECT_TRUE(unsupported(p.selects(),
                          "fake_quantize_per_token_backward: backend cuda was requested, but this build "
                          "of kvant has no CUDA"));
  p.preference.backend = BackendKind::cpu;
  EXPECT_TRUE(p.runs());
}

TEST(SelectPreference, ForcedIsaThatIsNone) {
  Problem p(QuantizeKind::quantize);
  for (const char* unknown : {"sse9", "AVX2", "scalar ", "avx2,scalar"}) {
    const ScopedVariable forced("KVANT_FORCE_ISA", unknown);
    EXPECT_TRUE(unsupported(p.selects(), "quantize_per_tensor: KVANT_FORCE_ISA=" + std::string(unknown) +
                                             " is not an instruction set; known: scalar, avx2"));
    QuantizePerTensorDescriptor typed;
    typed.shape = {3, 4};
    EXPECT_TRUE(unsupported((QuantizePerTensorPlan<float, UInt4>::select(Stream::cpu(1), typed).status()),
                            "KVANT_FORCE_ISA=" + std::string(unknown)));
    // The variable only fills in what the caller left open.
    p.preference.isa = ArchSku::scalar;
    EXPECT_TRUE(p.runs());
    p.preference.isa.reset();
  }
}

TEST(SelectPreference, ForcedIsaThatIsOne) {
  const Problem p(QuantizeKind::quantize);
  {
    const ScopedVariable empty("KVANT_FORCE_ISA", "");
    EXPECT_TRUE(p.runs());
  }
  {
    const ScopedVariable unset("KVANT_FORCE_ISA", nullptr);
    EXPECT_TRUE(p.runs());
  }
  const ScopedVariable scalar("KVANT_FORCE_ISA", "scalar");
  const auto plan = ElementwisePlan::select(Stream::cpu(1), p.descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  EXPECT_EQ(plan->sku().arch, ArchSku::scalar);
}

TEST(SelectPreference, IsaThatMayBeAbsent) {
  Problem p(QuantizeKind::quantize);
  expect_avx2_or_its_name(p, "quantize_per_tensor: ");
}

// ---- can_implement() and run(): views ----

struct ViewCase {
  QuantizeKind op;
  const char* name;
  // The view in question, for reading and changing; grad_input is the output of the arguments.
  ElementKind& (*kind)(ElementwiseArgs&);
  Shape& (*shape)(ElementwiseArgs&);
  std::int64_t& (*stride)(ElementwiseArgs&);
  void (*drop)(ElementwiseArgs&);
};

template <auto kMember>
ViewCase view_case(QuantizeKind op, const char* name) {
  return {op,
          name,
          [](ElementwiseArgs& a) -> ElementKind& { return (a.*kMember).kind; },
          [](ElementwiseArgs& a) -> Shape& { return (a.*kMember).shape; },
          [](ElementwiseArgs& a) -> std::int64_t& { return (a.*kMember).row_stride; },
          [](ElementwiseArgs& a) { (a.*kMember).data = nullptr; }};
}

// Every view that every operator has.
std::vector<ViewCase> view_cases() {
  std::vector<ViewCase> all;
  for (const QuantizeKind op : kElementwiseKinds) {
    if (op != QuantizeKind::dequantize_backward) all.push_back(view_case<&ElementwiseArgs::input>(op, "input"));
    if (is_backward(op)) all.push_back(view_case<&ElementwiseArgs::grad_output>(op, "grad_output"));
    all.push_back(view_case<&ElementwiseArgs::output>(op, is_backward(op) ? "grad_input" : "output"));
  }
  return all;
}

TEST(Views, OfAnotherKind) {
  for (const ViewCase& view : view_cases()) {
    Problem p(view.op);
    const std::string had(name(view.kind(p.args)));
    view.kind(p.args) = ElementKind::f16;
    EXPECT_TRUE(p.unsupported(std::string(view.name) + " has element f16, the plan was selected for " + had));
  }
  Problem p(QuantizeKind::quantize);
  p.args.output.kind = ElementKind::u8;
  EXPECT_TRUE(p.unsupported("quantize_per_tensor: output has element u8, the plan was selected for s8"));
}

// The views of a typed plan are open structures: their kind can be overwritten, but not past the check.
TEST(Views, OfAnotherKindInTypedArguments) {
  const Stream stream = Stream::cpu(1);
  QuantizePerTensorDescriptor descriptor;
  descriptor.shape = {3, 4};
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<float> x(12);
  std::vector<std::int8_t> q(12, 0x5A);
  QuantizePerTensorArgs<float, std::int8_t> args;
  args.input = {x.data(), {3, 4}};
  args.output = {q.data(), {3, 4}};
  args.scale = 0.5f;
  EXPECT_TRUE(accepted(plan->can_implement(args)));
  args.input.kind = ElementKind::bf16;
  EXPECT_TRUE(refuses(*plan, args, bytes_of(q), StatusCode::Unsupported,
                      {"quantize_per_tensor: input has element bf16, the plan was selected for f32"}));
}

TEST(Views, OfAnotherShape) {
  for (const ViewCase& view : view_cases())
    for (const Shape& shape : {Shape{3, 5}, Shape{12}, Shape{4, 3}, Shape{3, 4, 1}, Shape(), Shape{3, -4}}) {
      Problem p(view.op);
      view.shape(p.args) = shape;
      EXPECT_TRUE(
          p.invalid(std::string(view.name) + " has shape " + shape.to_string() + ", the plan was selected for [3, 4]"))
          << name(view.op);
    }
  Problem p(QuantizeKind::quantize);
  p.args.input.shape = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_TRUE(p.invalid("quantize_per_tensor: input has shape [1, 1, 1, 1, 1, 1, 1, 1, ...], the plan was selected"));
}

TEST(Views, RowStrideTooSmall) {
  for (const ViewCase& view : view_cases())
    for (const std::int64_t stride :
         {std::int64_t{3}, std::int64_t{1}, std::int64_t{-4}, std::numeric_limits<std::int64_t>::min()}) {
      Problem p(view.op);
      view.stride(p.args) = stride;
      EXPECT_TRUE(p.invalid(std::string(view.name) + " has row stride " + std::to_string(stride) +
                            ", which is less than its row of 4"))
          << name(view.op);
      view.stride(p.args) = 4;
      EXPECT_TRUE(p.runs()) << name(view.op);
      view.stride(p.args) = 5;
      EXPECT_TRUE(p.runs()) << name(view.op);
    }
}

TEST(Views, OddRowStrideOfPackedRows) {
  for (const ElementKind code : {ElementKind::s4, ElementKind::u4}) {
    const std::string part =
        "has row stride 5; rows of " + std::string(name(code)) + " begin at a whole byte, so it must be even";
    Problem from(QuantizeKind::dequantize, {}, {3, 4}, ElementKind::f32, code);
    from.args.input.row_stride = 5;
    EXPECT_TRUE(from.invalid("dequantize_per_tensor: input " + part));
    from.args.input.row_stride = 6;
    EXPECT_TRUE(from.runs());
    Problem to(QuantizeKind::quantize, {}, {3, 4}, ElementKind::f32, code);
    to.args.output.row_stride = 5;
    EXPECT_TRUE(to.invalid("quantize_per_tensor: output " + part));
    to.args.output.row_stride = 6;
    EXPECT_TRUE(to.runs());
    to.args.input.row_stride = 5;  // floats may
    EXPECT_TRUE(to.runs());
  }
}

TEST(Views, RowStrideOverflows) {
  constexpr std::int64_t kTooFar = std::int64_t{1} << 60;   // times 8 bytes
  constexpr std::int64_t kInThree = std::int64_t{1} << 59;  // times 8 bytes times 3 rows
  for (const ViewCase& view : view_cases())
    for (const std::int64_t stride : {kTooFar, kInThree}) {
      Problem p(view.op);
      view.stride(p.args) = stride;
      EXPECT_TRUE(p.invalid(std::string(view.name) + " has row stride " + std::to_string(stride) +
                            " in shape [3, 4], more bytes than 63 bits can count"))
          << name(view.op);
    }
}

TEST(Views, NullPointers) {
  for (const ViewCase& view : view_cases()) {
    Problem p(view.op, PerToken{});
    view.drop(p.args);
    EXPECT_TRUE(p.invalid(std::string(view.name) + " is null for shape [3, 4]")) << name(view.op);
  }
  const Stream stream = Stream::cpu(1);
  DequantizePerTensorDescriptor descriptor;
  descriptor.shape = {3, 4};
  const auto plan = DequantizePerTensorBackwardPlan<std::int8_t, float>::select(stream, descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<float> dq(12, 7.0f);
  DequantizeBackwardArgs<float> args;
  args.grad_output = {nullptr, {3, 4}};
  args.grad_input = {dq.data(), {3, 4}};
  args.scale = 0.5f;
  EXPECT_TRUE(refuses(*plan, args, bytes_of(dq), StatusCode::InvalidProblem,
                      {"dequantize_per_tensor_backward: grad_output is null for shape [3, 4]"}));
}

// Views that were never filled in have rank 0: the shape gives them away before the pointer does.
TEST(Views, DefaultArguments) {
  Problem p(QuantizeKind::quantize);
  p.args.input = AnyRef();
  EXPECT_TRUE(p.invalid("quantize_per_tensor: input has shape [], the plan was selected for [3, 4]"));
}

// ---- can_implement() and run(): scales ----

TEST(Scale, OfAnotherKind) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem single(op);
    single.args.scale = AnyParameter(0.5);
    EXPECT_TRUE(single.unsupported("scale has element f64, must be f32")) << name(op);
    single.args.scale = AnyParameter(std::int32_t{1});
    EXPECT_TRUE(single.unsupported("scale has element s32, must be f32")) << name(op);
    Problem twice(op, {}, {3, 4}, ElementKind::f64);
    twice.args.scale = AnyParameter(0.5f);
    EXPECT_TRUE(twice.unsupported("scale has element f32, must be f64")) << name(op);
    // A tensor may also hold scales as checkpoints store them.
    for (const ElementKind kind : {ElementKind::s8, ElementKind::e5m2, ElementKind::f64}) {
      Problem half(op, PerToken{}, {3, 4}, ElementKind::f16);
      half.args.scale = AnyParameter(AnyRef{half.scale64.data(), kind, {3}, 0});
      EXPECT_TRUE(half.unsupported("scale has element " + std::string(name(kind)) +
                                   ", must be f32 (or a tensor of f16, bf16, e8m0, e4m3)"))
          << name(op);
    }
  }
}

TEST(Scale, OfACodeMustBeFiniteAndPositiveIfItIsOne) {
  struct Bad {
    ElementKind kind;
    std::uint16_t bits;
    const char* text;
  };
  constexpr Bad kBad[] = {{ElementKind::f16, 0x8400, "-6.1035156e-05"},
                          {ElementKind::f16, 0x7C00, "inf"},
                          {ElementKind::bf16, 0x0000, "0"},
                          {ElementKind::e8m0, 255, "nan"},
                          {ElementKind::e4m3, 0x7F, "nan"},
                          {ElementKind::e4m3, 0x80, "-0"}};
  for (const QuantizeKind op : kElementwiseKinds)
    for (const Bad& bad : kBad) {
      Problem p(op);
      p.args.scale = AnyParameter(AnyRef{&bad.bits, bad.kind, {}, 0});
      if (bad.kind == ElementKind::e4m3) p.args.global_scale = AnyParameter(4.0f);
      EXPECT_TRUE(p.invalid("scale " + std::string(bad.text) + " must be finite and positive")) << name(op);
    }
}

// ---- can_implement() and run(): the global scale ----

// With scales of e4m3, which need one.
void expect_global_refused(const AnyParameter& global, StatusCode code, const std::string& part) {
  const std::uint8_t scales[3] = {0x38, 0x38, 0x38};
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op, PerToken{});
    p.args.scale = AnyParameter(AnyRef{scales, ElementKind::e4m3, {3}, 0});
    p.args.global_scale = AnyParameter(2.0f);
    EXPECT_TRUE(p.runs()) << name(op);
    p.args.global_scale = global;
    EXPECT_TRUE(p.refuses(code, part)) << name(op);
  }
}

TEST(GlobalScale, MissingOrBad) {
  expect_global_refused({}, StatusCode::InvalidProblem, "scales of e4m3 need a global_scale");
  expect_global_refused(AnyParameter(2.0), StatusCode::Unsupported, "global_scale has element f64, must be f32");
  const float four[4] = {1, 1, 1, 1};
  expect_global_refused(AnyParameter(AnyRef{four, ElementKind::f32, {4}, 0}), StatusCode::InvalidProblem,
                        "global_scale has shape [4], must be one number");
  for (const auto& [value, text] : {std::pair{0.0f, "0"}, {-2.5f, "-2.5"}, {kInf, "inf"}, {kNan, "nan"}}) {
    const std::string part = "global_scale " + std::string(text) + " must be finite and positive";
    expect_global_refused(AnyParameter(value), StatusCode::InvalidProblem, part);
    expect_global_refused(AnyParameter(AnyRef{&value, ElementKind::f32, {}, 0}), StatusCode::InvalidProblem, part);
  }
}

TEST(GlobalScale, Superfluous) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op);
    p.args.global_scale = AnyParameter(2.0f);
    EXPECT_TRUE(p.invalid("global_scale is for scales of e4m3, these are f32")) << name(op);
  }
}

TEST(GlobalScale, MayNotBeWrittenOver) {
  const std::uint8_t scales[3] = {0x38, 0x38, 0x38};
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op, PerToken{});
    const float two = 2.0f;
    std::memcpy(p.output.data(), &two, 4);
    p.args.scale = AnyParameter(AnyRef{scales, ElementKind::e4m3, {3}, 0});
    p.args.global_scale = AnyParameter(AnyRef{p.output.data(), ElementKind::f32, {}, 0});
    EXPECT_TRUE(p.invalid(is_backward(op) ? "grad_input overlaps global_scale" : "output overlaps global_scale"))
        << name(op);
  }
}

TEST(Scale, OneNumberMustBeFiniteAndPositive) {
  const std::pair<float, std::string> bad[] = {{0.0f, "0"},   {-0.0f, "-0"}, {-1.5f, "-1.5"},
                                               {kNan, "nan"}, {kInf, "inf"}, {-kInf, "-inf"}};
  for (const QuantizeKind op : kElementwiseKinds)
    for (const auto& [value, text] : bad) {
      const std::string part = "scale " + text + " must be finite and positive";
      Problem single(op);
      single.args.scale = AnyParameter(value);
      EXPECT_TRUE(single.invalid(part)) << name(op);
      Problem twice(op, {}, {3, 4}, ElementKind::f64);
      twice.args.scale = AnyParameter(static_cast<double>(value));
      EXPECT_TRUE(twice.invalid(part)) << name(op);
      // One number behind a pointer is one number.
      Problem pointed(op);
      pointed.scale32[0] = value;
      EXPECT_TRUE(pointed.invalid(part)) << name(op);
    }
}

TEST(Scale, OneNumberMustBeFiniteAndPositiveInTypedPlans) {
  const Stream stream = Stream::cpu(1);
  FakeQuantizeDescriptor descriptor;
  descriptor.shape = {4};
  const auto plan = FakeQuantizeBackwardPlan<double>::select(stream, descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<double> x(4), dy(4), dx(4, 7.0);
  FakeQuantizeBackwardArgs<double> args;
  args.input = {x.data(), {4}};
  args.grad_output = {dy.data(), {4}};
  args.grad_input = {dx.data(), {4}};
  args.scale = -2.0;
  EXPECT_TRUE(refuses(*plan, args, bytes_of(dx), StatusCode::InvalidProblem,
                      {"fake_quantize_per_tensor_backward: scale -2 must be finite and positive"}));
  args.scale = std::numeric_limits<double>::denorm_min();
  EXPECT_TRUE(accepted(plan->can_implement(args)));
}

TEST(Scale, DenormalHasNoReciprocal) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op);
    p.preference.numerics = Numerics::reciprocal;
    p.args.scale = AnyParameter(1e-40f);
    if (is_dequantize(op)) {  // multiplies by the scale itself
      EXPECT_TRUE(p.runs()) << name(op);
    } else {
      EXPECT_TRUE(p.invalid("scale 1e-40 has no finite reciprocal; use Numerics::exact")) << name(op);
    }
    Problem exact(op);
    exact.args.scale = AnyParameter(1e-40f);
    EXPECT_TRUE(exact.runs()) << name(op);
    Problem normal(op);
    normal.preference.numerics = Numerics::reciprocal;
    normal.args.scale = AnyParameter(std::numeric_limits<float>::min());
    EXPECT_TRUE(normal.runs()) << name(op);
  }
  Problem twice(QuantizeKind::quantize, {}, {3, 4}, ElementKind::f64);
  twice.preference.numerics = Numerics::reciprocal;
  twice.args.scale = AnyParameter(1e-310);
  EXPECT_TRUE(twice.invalid("quantize_per_tensor: scale 1e-310 has no finite reciprocal; use Numerics::exact"));
  twice.args.scale = AnyParameter(1e-40);
  EXPECT_TRUE(twice.runs());
}

TEST(Scale, OfAnotherShape) {
  struct Wrong {
    Granularity granularity;
    std::vector<Shape> given;
    std::string wanted;
  };
  // On the shape [3, 4].
  const Wrong wrong[] = {
      {PerTensor{}, {Shape{2}, Shape{0}, Shape{1, 1}, Shape{3, 4}}, "[]"},
      {PerChannel{1}, {Shape{3}, Shape{5}, Shape(), Shape{1, 4}, Shape{4, 1}, Shape{-4}}, "[4]"},
      {PerToken{}, {Shape{4}, Shape{3, 4}, Shape{1, 3}, Shape{3, 1, 1}, Shape()}, "[3]"},
      {PerGroup{1, 3}, {Shape{3}, Shape{2, 3}, Shape{3, 4}, Shape{3, 2, 1}, Shape{12}}, "[3, 2]"},
      {PerGroup{0, 2}, {Shape{4}, Shape{3, 4}, Shape{4, 2}}, "[2, 4]"},
      {PerBlock{2, 3}, {Shape{2}, Shape{3, 2}, Shape{2, 4}, Shape{2, 2, 1}, Shape{12}, Shape()}, "[2, 2]"},
      {PerBlock{9, 3}, {Shape{1}, Shape{2, 1}, Shape{3, 2}}, "[1, 2]"},
      {PerToken{}, {Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}}, "[3]"},
  };
  for (const QuantizeKind op : kElementwiseKinds)
    for (const Wrong& w : wrong)
      for (const Shape& given : w.given) {
        Problem p(op, w.granularity);
        p.args.scale = AnyParameter(AnyRef{p.scale32.data(), ElementKind::f32, given, 0});
        EXPECT_TRUE(p.invalid("scale has shape " + given.to_string() + ", must have " + w.wanted)) << name(op);
      }
}

TEST(Scale, StridedIsRefused) {
  for (const Granularity& granularity : granularities()) {
    Problem p(QuantizeKind::quantize, granularity);
    const Shape shape = p.args.scale.shape();
    for (const std::int64_t stride : {shape.row_length() + 1, shape.row_length() - 1, std::int64_t{-1}}) {
      if (stride == 0) continue;  // means dense
      p.args.scale = AnyParameter(AnyRef{p.scale32.data(), ElementKind::f32, shape, stride});
      EXPECT_TRUE(p.invalid("scale has row stride " + std::to_string(stride) + ", must be dense"));
    }
    p.args.scale = AnyParameter(AnyRef{p.scale32.data(), ElementKind::f32, shape, shape.row_length()});
    EXPECT_TRUE(p.runs());
  }
}

TEST(Scale, Null) {
  for (const Granularity& granularity : granularities()) {
    Problem p(QuantizeKind::quantize, granularity);
    const Shape shape = p.args.scale.shape();
    p.args.scale = AnyParameter(AnyRef{nullptr, ElementKind::f32, shape, 0});
    EXPECT_TRUE(p.invalid("scale is null, must point to " + std::to_string(*shape.element_count()) + " number"));
  }
  // Forgotten altogether.
  Problem p(QuantizeKind::quantize);
  p.args.scale = AnyParameter();
  EXPECT_TRUE(p.invalid("quantize_per_tensor: scale is null, must point to 1 number"));

  DequantizePerTensorDescriptor descriptor;
  descriptor.shape = {4};
  const auto plan = DequantizePerTensorPlan<std::int8_t, float>::select(Stream::cpu(1), descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<std::int8_t> q(4);
  std::vector<float> x(4, 7.0f);
  DequantizePerTensorArgs<std::int8_t, float> args;
  args.input = {q.data(), {4}};
  args.output = {x.data(), {4}};
  EXPECT_TRUE(refuses(*plan, args, bytes_of(x), StatusCode::InvalidProblem,
                      {"dequantize_per_tensor: scale is null, must point to 1 number"}));
}

TEST(Scale, OneNumberForManyParameters) {
  for (const QuantizeKind op : kElementwiseKinds) {
    for (const auto& [granularity, wanted] :
         {std::pair{Granularity::per_channel(0), "[3]"}, std::pair{Granularity::per_token(), "[3]"},
          std::pair{Granularity::per_group(1, 2), "[3, 2]"}, std::pair{Granularity::per_block(2, 9), "[2, 1]"}}) {
      Problem p(op, granularity);
      p.args.scale = AnyParameter(0.5f);
      EXPECT_TRUE(p.invalid("scale is one number, must be a tensor of shape " + std::string(wanted))) << name(op);
    }
  }
  QuantizePerChannelDescriptor descriptor;
  descriptor.shape = {3, 4};
  const auto plan = QuantizePerChannelPlan<float, std::uint8_t>::select(Stream::cpu(1), descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<float> x(12);
  std::vector<std::uint8_t> q(12, 7);
  QuantizePerChannelArgs<float, std::uint8_t> args;
  args.input = {x.data(), {3, 4}};
  args.output = {q.data(), {3, 4}};
  args.scale = 0.5f;
  EXPECT_TRUE(refuses(*plan, args, bytes_of(q), StatusCode::InvalidProblem,
                      {"quantize_per_channel: scale is one number, must be a tensor of shape [3]"}));
}

// Tensors of more than one scale are not scanned.
TEST(Scale, TensorsAreNotScanned) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Problem p(op, PerChannel{1});
    p.preference.numerics = Numerics::reciprocal;
    p.scale32 = {0.0f, -1.0f, kNan, 1e-40f};
    EXPECT_TRUE(p.runs()) << name(op);
  }
}

// ---- can_implement() and run(): zero points ----

TEST(ZeroPoint, OfAnotherKind) {
  for (const QuantizeKind op : kElementwiseKinds) {
    if (op == QuantizeKind::dequantize_backward) continue;
    Problem p(op);
    p.args.zero_point = AnyParameter(1.0f);
    EXPECT_TRUE(p.unsupported("zero_point has element f32, must be s32")) << name(op);
    p.args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s8, {}, 0});
    EXPECT_TRUE(p.unsupported("zero_point has element s8, must be s32")) << name(op);
  }
}

TEST(ZeroPoint, OfAnotherShapeStridedOrNull) {
  for (const QuantizeKind op : kElementwiseKinds) {
    if (op == QuantizeKind::dequantize_backward) continue;
    Problem p(op, PerToken{});
    p.args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s32, {4}, 0});
    EXPECT_TRUE(p.invalid("zero_point has shape [4], must have [3]")) << name(op);
    p.args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s32, {3}, 4});
    EXPECT_TRUE(p.invalid("zero_point has row stride 4, must be dense")) << name(op);
    p.args.zero_point = AnyParameter(AnyRef{nullptr, ElementKind::s32, {3}, 0});
    EXPECT_TRUE(p.invalid("zero_point is null, must point to 3 numbers")) << name(op);
  }
}

TEST(ZeroPoint, OneNumberBeyondExactIntegers) {
  for (const QuantizeKind op : kElementwiseKinds) {
    if (op == QuantizeKind::dequantize_backward) continue;
    for (const std::int32_t zp : {kMagnitude + 1, -kMagnitude - 1, std::numeric_limits<std::int32_t>::max(),
                                  std::numeric_limits<std::int32_t>::min()}) {
      const std::string part = "zero_point " + std::to_string(zp) + " is beyond ±8388608 (2^23)";
      // One number may serve every granularity.
      for (const Granularity& granularity : granularities()) {
        Problem p(op, granularity);
        p.args.zero_point = AnyParameter(zp);
        EXPECT_TRUE(p.invalid(part)) << name(op);
      }
      Problem pointed(op);
      pointed.zero_point[0] = zp;
      EXPECT_TRUE(pointed.invalid(part)) << name(op);
      // A tensor of them is not scanned.
      Problem many(op, PerToken{});
      many.zero_point[1] = zp;
      EXPECT_TRUE(many.runs()) << name(op);
    }
    for (const std::int32_t zp : {kMagnitude, -kMagnitude}) {
      Problem p(op, PerChannel{0});
      p.args.zero_point = AnyParameter(zp);
      EXPECT_TRUE(p.runs()) << name(op);
    }
  }
  FakeQuantizeDescriptor descriptor;
  descriptor.shape = {4};
  const auto plan = FakeQuantizePlan<float>::select(Stream::cpu(1), descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<float> x(4), y(4, 7.0f);
  FakeQuantizeArgs<float> args;
  args.input = {x.data(), {4}};
  args.output = {y.data(), {4}};
  args.scale = 0.5f;
  args.zero_point = kMagnitude + 1;
  EXPECT_TRUE(refuses(*plan, args, bytes_of(y), StatusCode::InvalidProblem,
                      {"fake_quantize_per_tensor: zero_point 8388609 is beyond ±8388608"}));
}

TEST(ZeroPoint, NotReadByDequantizeBackward) {
  Problem p(QuantizeKind::dequantize_backward);
  p.args.zero_point = AnyParameter(AnyRef{nullptr, ElementKind::f64, {7, 7}, 3});
  p.args.input = AnyRef();
  EXPECT_TRUE(p.runs());
}

// ---- can_implement() and run(): overlaps ----

// All buffers of the tests below lie in `memory`, so that it can be watched as a whole.
struct Overlap : Problem {
  std::vector<std::byte> memory = std::vector<std::byte>(4096, std::byte{0});

  using Problem::Problem;
  testing::AssertionResult overlaps(std::string_view part) const {
    return tests::refuses(select(), args, memory, StatusCode::InvalidProblem, {part});
  }
};

TEST(Overlaps, QuantizeOverItsInput) {
  Overlap p(QuantizeKind::quantize);  // 48 bytes to 12
  p.args.input.data = p.memory.data() + 64;
  for (const int at : {53, 64, 80, 111}) {
    p.args.output.data = p.memory.data() + at;
    EXPECT_TRUE(p.overlaps("quantize_per_tensor: output overlaps input")) << at;
  }
  for (const int at : {52, 112}) {  // the neighbours
    p.args.output.data = p.memory.data() + at;
    EXPECT_TRUE(p.runs()) << at;
  }
}

TEST(Overlaps, DequantizeOverItsInput) {
  Overlap p(QuantizeKind::dequantize);  // 12 bytes to 48
  p.args.input.data = p.memory.data() + 64;
  for (const int at : {17, 28, 64, 75}) {
    p.args.output.data = p.memory.data() + at;
    EXPECT_TRUE(p.overlaps("dequantize_per_tensor: output overlaps input")) << at;
  }
  for (const int at : {16, 76}) {
    p.args.output.data = p.memory.data() + at;
    EXPECT_TRUE(p.runs()) << at;
  }
}

TEST(Overlaps, QuantizeOverItsInputInTypedPlans) {
  QuantizePerTensorDescriptor descriptor;
  descriptor.shape = {4};
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(Stream::cpu(1), descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  std::vector<float> x = {1.0f, 2.0f, 3.0f, 4.0f};
  QuantizePerTensorArgs<float, std::int8_t> args;
  args.input = {x.data(), {4}};
  args.output = {reinterpret_cast<std::int8_t*>(x.data()), {4}};
  args.scale = 0.5f;
  EXPECT_TRUE(
      refuses(*plan, args, bytes_of(x), StatusCode::InvalidProblem, {"quantize_per_tensor: output overlaps input"}));
}

TEST(Overlaps, PartlyOverAnOperandOfFakeQuantizeAndBackward) {
  for (const ViewCase& view : view_cases()) {
    const std::string operand = view.name;
    const bool forward_to_codes = view.op == QuantizeKind::quantize || view.op == QuantizeKind::dequantize;
    if (forward_to_codes || operand == "output" || operand == "grad_input") continue;
    const std::string part = (is_backward(view.op) ? "grad_input overlaps " : "output overlaps ") + operand +
                             " without being the same buffer";
    Overlap p(view.op);
    (operand == "input" ? p.args.input : p.args.grad_output).data = p.memory.data() + 64;
    for (const int at : {17, 60, 63, 65, 68, 111}) {
      p.args.output.data = p.memory.data() + at;
      EXPECT_TRUE(p.overlaps(part)) << name(view.op) << " " << at;
    }
    for (const int at : {16, 112}) {
      p.args.output.data = p.memory.data() + at;
      EXPECT_TRUE(p.runs()) << name(view.op) << " " << at;
    }
    // The same start, but the rows walk apart.
    p.args.output.data = p.memory.data() + 64;
    p.args.output.row_stride = 5;
    EXPECT_TRUE(p.overlaps(part)) << name(view.op);
  }
}

TEST(Overlaps, OverTheScale) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Overlap p(op, PerChannel{1});
    const float scales[] = {0.5f, 0.25f, 1.0f, 2.0f};
    std::memcpy(p.memory.data() + 64, scales, sizeof scales);
    p.args.scale = AnyParameter(AnyRef{p.memory.data() + 64, ElementKind::f32, {4}, 0});
    const std::string part = is_backward(op) ? "grad_input overlaps scale" : "output overlaps scale";
    for (const int at : {64, 68, 79}) {
      p.args.output.data = p.memory.data() + at;
      EXPECT_TRUE(p.overlaps(part)) << name(op) << " " << at;
    }
    p.args.output.data = p.memory.data() + 80;
    EXPECT_TRUE(p.runs()) << name(op);
  }
}

TEST(Overlaps, OverTheZeroPoint) {
  for (const QuantizeKind op : kElementwiseKinds) {
    Overlap p(op, PerChannel{1});
    p.args.zero_point = AnyParameter(AnyRef{p.memory.data() + 64, ElementKind::s32, {4}, 0});
    const std::string part = is_backward(op) ? "grad_input overlaps zero_point" : "output overlaps zero_point";
    p.args.output.data = p.memory.data() + 79;
    if (op == QuantizeKind::dequantize_backward)  // has none
      EXPECT_TRUE(p.runs());
    else
      EXPECT_TRUE(p.overlaps(part)) << name(op);
    p.args.output.data = p.memory.data() + 80;
    EXPECT_TRUE(p.runs()) << name(op);
  }
}

// A parameter that is one number behind a pointer, in the middle of the output.
TEST(Overlaps, OverOneParameter) {
  Overlap p(QuantizeKind::fake_quantize);
  const float scale = 0.5f;
  std::memcpy(p.memory.data() + 80, &scale, sizeof scale);
  p.args.output.data = p.memory.data() + 64;
  p.args.scale = AnyParameter(AnyRef{p.memory.data() + 80, ElementKind::f32, {}, 0});
  EXPECT_TRUE(p.overlaps("fake_quantize_per_tensor: output overlaps scale"));
  p.args.scale = AnyParameter(scale);
  p.args.zero_point = AnyParameter(AnyRef{p.memory.data() + 96, ElementKind::s32, {1}, 0});
  EXPECT_TRUE(p.overlaps("fake_quantize_per_tensor: output overlaps zero_point"));
}

// ---- what must not be refused ----

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = 0.3f * static_cast<float>(i) - 1.1f;
  return values;
}

TEST(Legal, FakeQuantizeInPlace) {
  const Stream stream = Stream::cpu(1);
  FakeQuantizeDescriptor descriptor;
  descriptor.shape = {3, 4};
  descriptor.q_min = -2;
  descriptor.q_max = 3;
  const auto plan = FakeQuantizePlan<float>::select(stream, descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  for (const std::int64_t stride : {0, 4, 6}) {
    std::vector<float> x = ramp(18), y(18, 7.0f);
    FakeQuantizeArgs<float> args;
    args.input = {x.data(), {3, 4}, stride};
    args.output = {y.data(), {3, 4}, stride};
    args.scale = 0.5f;
    ASSERT_TRUE(accepted(plan->run(stream, {}, args)));
    std::vector<float> in_place = x;
    args.input = {in_place.data(), {3, 4}, stride};
    args.output = {in_place.data(), {3, 4}, stride};
    EXPECT_TRUE(accepted(plan->can_implement(args)));
    ASSERT_TRUE(accepted(plan->run(stream, {}, args)));
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(in_place[i], y[i] == 7.0f ? x[i] : y[i]) << stride << " " << i;
  }
}

TEST(Legal, BackwardOverEitherOfItsOperands) {
  for (const QuantizeKind op : kElementwiseKinds) {
    if (!is_backward(op)) continue;
    Problem p(op);
    const std::vector<float> x = ramp(12), dy = ramp(12);
    const auto reset = [&] {
      std::memcpy(p.input.data(), x.data(), 48);
      std::memcpy(p.gradient.data(), dy.data(), 48);
    };
    reset();
    ASSERT_TRUE(p.runs());
    const std::vector<std::byte> wanted(p.output.begin(), p.output.begin() + 48);
    p.args.output.data = p.gradient.data();
    EXPECT_TRUE(p.runs()) << name(op);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), p.gradient.begin())) << name(op);
    reset();
    p.args.output.data = p.input.data();
    EXPECT_TRUE(p.runs()) << name(op);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), p.input.begin())) << name(op);
    // One buffer for all three.
    reset();
    p.args.grad_output.data = p.input.data();
    EXPECT_TRUE(p.runs()) << name(op);
  }
}

// Two gradients in one buffer: being the same as one operand does not excuse crossing the other.
TEST(Legal, OnlyForTheOperandThatIsTheSame) {
  Overlap p(QuantizeKind::fake_quantize_backward);
  p.args.input.data = p.memory.data() + 64;
  p.args.grad_output.data = p.memory.data() + 68;
  p.args.output.data = p.memory.data() + 64;
  EXPECT_TRUE(p.overlaps("fake_quantize_per_tensor_backward: grad_input overlaps grad_output without being the same"));
  p.args.output.data = p.memory.data() + 68;
  EXPECT_TRUE(p.overlaps("fake_quantize_per_tensor_backward: grad_input overlaps input without being the same buffer"));
}

// With one row there is no second one that a stride could lead astray.
TEST(Legal, InPlaceWithOneRowAndUnlikeStrides) {
  Problem p(QuantizeKind::fake_quantize, {}, {1, 4});
  p.args.output.data = p.input.data();
  p.args.output.row_stride = 9;
  EXPECT_TRUE(p.runs());
}

TEST(Legal, DisjointColumnsOfOneMatrix) {
  // The left and the right half of a matrix of 3 x 8 floats.
  Overlap p(QuantizeKind::fake_quantize);
  const std::vector<float> before = ramp(24);
  std::memcpy(p.memory.data(), before.data(), 96);
  p.args.input.data = p.memory.data();
  p.args.input.row_stride = 8;
  p.args.output.row_stride = 8;
  for (const bool swapped : {false, true}) {
    p.args.input.data = p.memory.data() + (swapped ? 16 : 0);
    p.args.output.data = p.memory.data() + (swapped ? 0 : 16);
    EXPECT_TRUE(p.runs());
  }
  // Columns 0 to 3 and 3 to 6, from either side.
  p.args.input.data = p.memory.data();
  p.args.output.data = p.memory.data() + 12;
  EXPECT_TRUE(p.overlaps("fake_quantize_per_tensor: output overlaps input without being the same buffer"));
  p.args.input.data = p.memory.data() + 12;
  p.args.output.data = p.memory.data();
  EXPECT_TRUE(p.overlaps("fake_quantize_per_tensor: output overlaps input without being the same buffer"));
}

// Codes in the gaps between rows of floats: other element, the same distance in bytes.
TEST(Legal, CodesBetweenRowsOfFloats) {
  Overlap p(QuantizeKind::quantize);
  p.args.input.data = p.memory.data();
  p.args.input.row_stride = 8;  // 16 bytes of floats, 16 bytes free
  p.args.output.data = p.memory.data() + 16;
  p.args.output.row_stride = 32;
  EXPECT_TRUE(p.runs());
  p.args.output.data = p.memory.data() + 28;
  EXPECT_TRUE(p.runs());
  p.args.output.data = p.memory.data() + 29;  // the last code would be in the next row
  EXPECT_TRUE(p.overlaps("quantize_per_tensor: output overlaps input"));
  p.args.output.data = p.memory.data() + 15;
  EXPECT_TRUE(p.overlaps("quantize_per_tensor: output overlaps input"));
}

TEST(Legal, ParametersGivenFlat) {
  for (const QuantizeKind op : kElementwiseKinds)
    for (const auto& [granularity, count] :
         {std::pair{Granularity::per_tensor(), 1}, std::pair{Granularity::per_token(), 6},
          std::pair{Granularity::per_channel(-1), 4}, std::pair{Granularity::per_group(-1, 3), 12},
          std::pair{Granularity::per_group(0, 2), 12}, std::pair{Granularity::per_block(2, 3), 8}}) {
      Problem p(op, granularity, {2, 3, 4});
      const Shape flat{count};
      p.args.scale = AnyParameter(AnyRef{p.scale32.data(), ElementKind::f32, flat, 0});
      p.args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s32, flat, 0});
      EXPECT_TRUE(p.runs()) << name(op) << " " << count;
    }
}

TEST(Legal, PerTokenParametersWithALastSizeOfOne) {
  for (const Shape& shape : {Shape{6, 4}, Shape{2, 3, 4}, Shape{1, 1, 1, 1, 1, 2, 3, 4}}) {
    Problem p(QuantizeKind::quantize, PerToken{}, shape);
    Shape keep = shape;
    keep[shape.rank() - 1] = 1;
    p.args.scale = AnyParameter(AnyRef{p.scale32.data(), ElementKind::f32, keep, 0});
    p.args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s32, keep, 0});
    EXPECT_TRUE(p.runs()) << shape.to_string();
  }
  // Not for other granularities.
  Problem p(QuantizeKind::quantize, PerChannel{0});
  p.args.scale = AnyParameter(AnyRef{p.scale32.data(), ElementKind::f32, {3, 1}, 0});
  EXPECT_TRUE(p.invalid("quantize_per_channel: scale has shape [3, 1], must have [3]"));
}

TEST(Legal, NoElementsAndNullPointers) {
  for (const QuantizeKind op : kElementwiseKinds)
    for (const Shape& shape : {Shape{0, 4}, Shape{3, 0}, Shape{0, 0}})
      for (const Granularity& granularity : granularities()) {
        Problem p(op, granularity, shape);
        const Shape parameters = p.args.scale.shape();
        p.args.input.data = nullptr;
        p.args.grad_output.data = nullptr;
        p.args.output.data = nullptr;
        p.args.scale = AnyParameter(AnyRef{nullptr, ElementKind::f32, parameters, 0});
        p.args.zero_point = AnyParameter(AnyRef{nullptr, ElementKind::s32, parameters, 0});
        EXPECT_TRUE(p.runs()) << name(op) << " " << shape.to_string();
      }
  // Kinds and shapes are checked all the same.
  Problem p(QuantizeKind::quantize, {}, {0, 4});
  p.args.output.shape = {4, 0};
  EXPECT_TRUE(p.invalid("quantize_per_tensor: output has shape [4, 0], the plan was selected for [0, 4]"));
}

TEST(Legal, NoElementsWriteNothing) {
  Problem p(QuantizeKind::quantize, {}, {3, 0});
  EXPECT_TRUE(p.runs());
  EXPECT_EQ(p.output, std::vector<std::byte>(4096, kPattern));
}

// ---- streams ----

// A stream that is not usable refuses to select and to run, with its own sentence.
void expect_unusable(const Stream& stream, std::string_view message) {
  EXPECT_TRUE(invalid(stream.status(), message));
  EXPECT_EQ(stream.status().message(), message);
  const Problem p(QuantizeKind::quantize);
  EXPECT_EQ(ElementwisePlan::select(stream, p.descriptor).status().message(), message);
  QuantizePerTensorDescriptor typed;
  typed.shape = {3, 4};
  EXPECT_EQ((QuantizePerTensorPlan<float, std::int8_t>::select(stream, typed).status().message()), message);

  const auto plan = ElementwisePlan::select(Stream::cpu(1), p.descriptor);
  ASSERT_TRUE(accepted(plan.status()));
  EXPECT_TRUE(invalid(plan->run(stream, {}, p.args), message));
  EXPECT_EQ(p.output, std::vector<std::byte>(4096, kPattern));

  bool called = false;
  const Task task([](const void* context, std::int64_t) { *static_cast<bool*>(const_cast<void*>(context)) = true; },
                  &called);
  EXPECT_TRUE(invalid(stream.parallel_for(1, task), message));
  EXPECT_FALSE(called);
}

TEST(Streams, ThreadsOutOfRange) {
  expect_unusable(Stream::cpu(0), "stream: 0 threads; give 1 to 1024");
  expect_unusable(Stream::cpu(-1), "stream: -1 threads; give 1 to 1024");
  expect_unusable(Stream::cpu(1025), "stream: 1025 threads; give 1 to 1024");
  EXPECT_TRUE(accepted(Stream::cpu(1).status()));
  EXPECT_TRUE(accepted(Stream::cpu(2).status()));
  EXPECT_TRUE(accepted(Stream::cpu().status()));
}

Executor executor(int threads, std::function<void(std::int64_t, const Task&)> parallel_for) {
  Executor made;
  made.threads = threads;
  made.parallel_for = std::move(parallel_for);
  return made;
}

void run_all(std::int64_t parts, const Task& task) {
  for (std::int64_t part = 0; part < parts; ++part) task(part);
}

TEST(Streams, ExecutorOutOfRange) {
  expect_unusable(Stream::cpu(executor(0, run_all)), "stream: executor with 0 threads; give 1 to 1024");
  expect_unusable(Stream::cpu(executor(-7, run_all)), "stream: executor with -7 threads; give 1 to 1024");
  expect_unusable(Stream::cpu(executor(1025, run_all)), "stream: executor with 1025 threads; give 1 to 1024");
  EXPECT_TRUE(accepted(Stream::cpu(executor(1024, run_all)).status()));
}

TEST(Streams, ExecutorWithoutCallback) {
  expect_unusable(Stream::cpu(Executor()), "stream: executor without parallel_for");
  expect_unusable(Stream::cpu(executor(2, nullptr)), "stream: executor without parallel_for");
}

// A quantization that is big enough to be cut into parts, on the given executor.
struct ParallelRun {
  std::vector<float> x;
  std::vector<std::int8_t> q;
  Status status;

  explicit ParallelRun(Executor with, std::int64_t elements = 64 * 1024)
      : x(static_cast<std::size_t>(elements), 1.0f), q(x.size(), 0x5A) {
    const Stream stream = Stream::cpu(std::move(with));
    QuantizePerTensorDescriptor descriptor;
    descriptor.shape = {elements};
    const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, descriptor);
    status = plan.status();
    if (!plan.ok()) return;
    QuantizePerTensorArgs<float, std::int8_t> args;
    args.input = {x.data(), {elements}};
    args.output = {q.data(), {elements}};
    args.scale = 0.5f;
    status = plan->run(stream, {}, args);
  }

  bool untouched() const { return q == std::vector<std::int8_t>(q.size(), 0x5A); }
  bool complete() const { return q == std::vector<std::int8_t>(q.size(), 2); }
};

TEST(Executors, OneThatWorks) {
  std::int64_t asked = 0;
  const ParallelRun run(executor(2, [&](std::int64_t parts, const Task& task) {
    asked = parts;
    run_all(parts, task);
  }));
  EXPECT_TRUE(accepted(run.status));
  EXPECT_TRUE(run.complete());
  EXPECT_GT(asked, 1);  // or the tests below would test nothing
}

TEST(Executors, OneThatThrows) {
  const ParallelRun run(
      executor(2, [](std::int64_t, const Task&) { throw std::runtime_error("the pool has 3 dead workers"); }));
  EXPECT_TRUE(refused(run.status, StatusCode::Internal, "stream: parallel_for threw: the pool has 3 dead workers"));
  EXPECT_TRUE(run.untouched());
}

TEST(Executors, OneThatThrowsAfterTheWork) {
  const ParallelRun run(executor(2, [](std::int64_t parts, const Task& task) {
    run_all(parts, task);
    throw std::logic_error("cannot join");
  }));
  EXPECT_TRUE(refused(run.status, StatusCode::Internal, "stream: parallel_for threw: cannot join"));
}

TEST(Executors, OneThatThrowsSomethingElse) {
  const ParallelRun run(executor(2, [](std::int64_t, const Task&) { throw 42; }));
  EXPECT_TRUE(
      refused(run.status, StatusCode::Internal, "stream: parallel_for threw something that is not a std::exception"));
  EXPECT_TRUE(run.untouched());
}

TEST(Executors, OneThatRunsTooFewParts) {
  std::int64_t asked = 0;
  const ParallelRun last_missing(executor(2, [&](std::int64_t parts, const Task& task) {
    asked = parts;
    run_all(parts - 1, task);
  }));
  EXPECT_TRUE(
      refused(last_missing.status, StatusCode::Internal,
              "stream: the executor ran " + std::to_string(asked - 1) + " of " + std::to_string(asked) + " parts"));
  EXPECT_FALSE(last_missing.complete());

  const ParallelRun none(executor(2, [](std::int64_t, const Task&) {}));
  EXPECT_TRUE(
      refused(none.status, StatusCode::Internal, "stream: the executor ran 0 of " + std::to_string(asked) + " parts"));
  EXPECT_TRUE(none.untouched());
}

TEST(Executors, OneThatRunsAPartTooMany) {
  std::int64_t asked = 0;
  const ParallelRun run(executor(2, [&](std::int64_t parts, const Task& task) {
    asked = parts;
    run_all(parts, task);
    task(0);
  }));
  EXPECT_TRUE(
      refused(run.status, StatusCode::Internal,
              "stream: the executor ran " + std::to_string(asked + 1) + " of " + std::to_string(asked) + " parts"));
}

// Small problems, and executors of one thread, never get to the callback.
TEST(Executors, NotCalledForWhatOneThreadDoes) {
  const auto fail = [](std::int64_t, const Task&) { throw std::runtime_error("called"); };
  EXPECT_TRUE(ParallelRun(executor(2, fail), 64 * 1024 - 1).complete());
  EXPECT_TRUE(ParallelRun(executor(1, fail)).complete());
}

}  // namespace
}  // namespace kvant::tests
