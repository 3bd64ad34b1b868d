// Dynamic-range quantization on the CUDA backend against the scalar kernels of the CPU: equal codes, scales and zero
// points, for every pair of types and every way to cut a tensor into segments.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/registry.h"
#include "tests/cuda/same_on_device.h"
#include "tests/cuda/segment_paths.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

struct Form {
  std::int64_t input_gap = 0, output_gap = 0;  // elements between rows
  bool zero_point_wanted = true;
};

testing::AssertionResult same(const DynamicRangeCase& c, const DeviceRun& how = {}, const Form& form = {}) {
  const std::int64_t rows = c.rows(), row = c.descriptor.shape.row_length();
  const auto stride = [row](std::int64_t gap) { return gap == 0 ? 0 : row + gap; };
  DynamicRangeResult into = c.room();
  into.codes = with_gaps(std::vector<std::byte>(into.codes.size(), kGap), c.out(), rows, row, stride(form.output_gap));
  const std::vector<std::byte> x = with_gaps(c.input, c.in(), rows, row, stride(form.input_gap));
  AnyDynamicRangeQuantizeArgs args = c.args(into);
  args.input.data = x.data();
  args.input.row_stride = stride(form.input_gap);
  args.output.row_stride = stride(form.output_gap);
  if (!form.zero_point_wanted) args.zero_point_out = {};
  const std::string text = c.text() + " gaps " + std::to_string(form.input_gap) + " and " +
                           std::to_string(form.output_gap) + (form.zero_point_wanted ? "" : " without zero point");
  return same_on_device<AnyDynamicRangeQuantizePlan>(c.descriptor, args, text, how);
}

// Counts the runs of a test, so that what need not meet everything else takes turns.
class Turns {
 public:
  explicit Turns(std::uint32_t seed) : random_(seed) {}

  std::uint32_t any() { return static_cast<std::uint32_t>(random_()); }
  ModeChoice mode() { return kModes[any() % std::size(kModes)]; }
  Data data() { return kAllData[any() % std::size(kAllData)]; }
  DeviceRun run() { return {.turn = next_++, .numerics = any() % 3 == 0 ? Numerics::reciprocal : Numerics::exact}; }

 private:
  std::mt19937 random_;
  std::uint32_t next_ = 0;
};

class EveryCudaDynamicRangeKernel : public testing::TestWithParam<const detail::DynamicRangeKernel*> {
 protected:
  static ElementKind in() { return GetParam()->sku.element; }
  static ElementKind out() { return GetParam()->sku.aux_element; }
  static DynamicRangeQuantizeDescriptor of(const Shape& shape, const Granularity& scope, const ModeChoice& choice) {
    return problem(shape, scope, choice, in(), out());
  }
};

TEST_P(EveryCudaDynamicRangeKernel, EqualsScalarInEveryCombination) {
  Turns turns(1);
  for (const Shape& shape : {Shape(), Shape{1}, Shape{0}, Shape{5, 0}, Shape{0, 5}, Shape{3, 0, 4}, Shape{7}, Shape{33},
                             Shape{3, 129}, Shape{17, 40}, Shape{2, 3, 5, 7}, Shape{2, 1, 150}, Shape{35, 20}})
    for (const Granularity& scope : scopes_of(shape)) {
      DynamicRangeQuantizeDescriptor d = of(shape, scope, turns.mode());
      if (turns.any() % 2 == 0) narrow(d, turns.any());
      if (turns.any() % 2 == 0) write_any_scales(d, turns.any());
      const DynamicRangeCase c(d, turns.data(), turns.any());
      ASSERT_TRUE(same(c, turns.run()));
    }
}

// Every way to write scales, along rows, across them and for a whole tensor; with odd values among the others.
TEST_P(EveryCudaDynamicRangeKernel, EqualsScalarForEveryKindOfScales) {
  Turns turns(9);
  for (const ScaleChoice& choice : scale_choices(in(), out()))
    for (const Granularity& scope :
         std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 16}, PerGroup{0, 2}})
      for (const Data data : {Data::normal, Data::any_bits}) {
        DynamicRangeQuantizeDescriptor d = of({7, 70}, scope, turns.mode());
        write_scales_as(d, choice);
        ASSERT_TRUE(same({d, data, turns.any()}, turns.run()));
      }
}

// Shapes that need each way of finding ranges: by a thread, a warp, a block or many; along rows and across them.
TEST_P(EveryCudaDynamicRangeKernel, EqualsScalarOnEveryPath) {
  Turns turns(2);
  for (const SegmentPath& path : segment_paths())
    for (const Granularity& scope : path.scopes) {
      const DynamicRangeCase c(of(path.shape, scope, turns.mode()), turns.any() % 2 == 0 ? Data::normal : Data::one_odd,
                               turns.any());
      ASSERT_TRUE(same(c, turns.run()));
    }
}

// Every mode with every kind of data and in both numerics, in all orders of threads.
TEST_P(EveryCudaDynamicRangeKernel, EqualsScalarInEveryModeAndOnAllData) {
  std::uint32_t next = 0;
  for (const ModeChoice& choice : kModes)
    for (const Data data : kAllData) {
      DynamicRangeQuantizeDescriptor d = of({4, 45}, next % 2 == 0 ? Granularity(PerToken{}) : PerGroup{1, 9}, choice);
      if (next % 3 == 0) narrow(d, next / 3);
      ASSERT_TRUE(same({d, data, next}, {.numerics = next / 2 % 2 == 0 ? Numerics::exact : Numerics::reciprocal}));
      ++next;
    }
}

// Scales that are small whole numbers, and values half-way between codes: a product with the reciprocal rounds some of
// them to the other side than the quotient.
TEST_P(EveryCudaDynamicRangeKernel, HalvesGoWhereTheNumericsSendThem) {
  constexpr std::size_t kSide = 60;
  const std::int32_t q_max =
      has_float_grid(out()) ? static_cast<std::int32_t>(info(out()).format.max()) : code_range(out()).max;
  std::uint32_t turn = 0;
  for (const Granularity& scope : std::vector<Granularity>{PerGroup{1, 3}, PerToken{}, PerChannel{1}}) {
    DynamicRangeCase c(of({kSide, kSide}, scope, kModes[0]), Data::normal, 1);
    for (std::size_t row = 0; row < kSide; ++row)
      for (std::size_t column = 0; column < kSide; ++column) {
        const bool group = scope.kind() == GranularityKind::group, token = scope.kind() == GranularityKind::token;
        const std::size_t segment = group ? row * kSide / 3 + column / 3 : token ? row : column;
        const std::size_t place = group ? column % 3 : token ? column : row;
        const auto scale = static_cast<double>(2 * (segment % 128) + 1);
        const auto code = static_cast<std::int32_t>((place + segment / 7) % static_cast<std::size_t>(q_max));
        const double value = place == 0 ? q_max * scale : (code + 0.5) * scale;
        put_float(&c.input[(row * kSide + column) * width_of(in())], in(), value);
      }
    for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal})
      ASSERT_TRUE(same(c, {.turn = turn++, .numerics = numerics}));
  }
}

// Segments of nothing but NaN, infinities, zeros, one value, denormals, huge or far values, beside ordinary ones: as
// rows, as columns and all together.
TEST_P(EveryCudaDynamicRangeKernel, OddSegmentsStayAmongThemselves) {
  const double tiny = in() == ElementKind::f64 ? 1e-310 : in() == ElementKind::f16 ? 6e-8 : 1e-40;
  const double huge = in() == ElementKind::f64 ? 1.7e308 : in() == ElementKind::f16 ? 65000.0 : 3e38;
  struct Odd {
    double even, odd;
  };
  const Odd all[] = {{NAN, NAN},     {kInf, -kInf}, {0.0, -0.0},  {5.0, 5.0},  {-5.0, -5.0}, {tiny, -tiny},
                     {tiny, tiny},   {huge, -huge}, {huge, huge}, {kInf, 2.0}, {NAN, -3.0},  {1000.0, 1001.0},
                     {-1e4, -9.9e3}, {huge, 1.0},   {-2.0, kInf}, {0.0, 255.0}};
  constexpr std::int64_t kOdd = std::size(all), kLength = 35;
  const std::size_t width = width_of(in());
  Turns turns(3);
  for (const ModeChoice& choice : kModes) {
    DynamicRangeCase rows(of({2 * kOdd, kLength}, PerToken{}, choice), Data::normal, 1);
    DynamicRangeCase columns(of({kLength, 2 * kOdd}, PerChannel{1}, choice), Data::normal, 2);
    for (std::int64_t which = 0; which < kOdd; ++which)
      for (std::int64_t i = 0; i < kLength; ++i) {
        const Odd& one = all[which];
        const double value = i % 2 == 0 ? one.even : one.odd;
        put_float(&rows.input[static_cast<std::size_t>(2 * which * kLength + i) * width], in(), value);
        put_float(&columns.input[static_cast<std::size_t>(i * 2 * kOdd + 2 * which) * width], in(), value);
      }
    ASSERT_TRUE(same(rows, turns.run()));
    ASSERT_TRUE(same(columns, turns.run()));
    rows.descriptor.scope = PerGroup{1, 12};
    ASSERT_TRUE(same(rows, turns.run()));
    columns.descriptor.scope = PerTensor{};
    ASSERT_TRUE(same(columns, turns.run()));
  }
}

// What is found without looking at each value twice must not lose the one that matters.
TEST_P(EveryCudaDynamicRangeKernel, OneOddValueAnywhereIsNoticed) {
  Turns turns(4);
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32}, PerBlock{4, 32}})
    for (const std::size_t place : {0u, 31u, 299u, 1033u, 2999u})
      for (const double value : {kInf, double{NAN}, 1e4, -1e4}) {
        if (turns.any() % 2 == 0) continue;
        DynamicRangeCase c(of({10, 300}, scope, turns.mode()), Data::normal, 5);
        put_float(&c.input[place * width_of(in())], in(), value);
        ASSERT_TRUE(same(c, turns.run())) << value << " at " << place;
      }
}

// Every pattern of 16 bits once, in rows, in columns and in groups; in wider types the same numbers of random bits.
TEST_P(EveryCudaDynamicRangeKernel, EveryPatternOf16Bits) {
  std::vector<std::byte> input = draw(Data::any_bits, in(), 65536, 6);
  if (width_of(in()) == 2)
    for (std::size_t pattern = 0; pattern < 65536; ++pattern) {
      // A step that is odd goes round all of them, and mixes signs and exponents.
      const auto bits = static_cast<std::uint16_t>(pattern * 40503);
      std::memcpy(&input[2 * pattern], &bits, 2);
    }
  Turns turns(5);
  for (const Granularity& scope :
       std::vector<Granularity>{PerToken{}, PerChannel{1}, PerGroup{1, 128}, PerBlock{16, 64}})
    ASSERT_TRUE(same({of({128, 512}, scope, turns.mode()), input}, turns.run()));
}

TEST_P(EveryCudaDynamicRangeKernel, KeepsToRowsThatHaveStrides) {
  Turns turns(6);
  for (const Shape& shape : {Shape{6, 64}, Shape{6, 75}, Shape{2, 3, 37}, Shape{1, 9}, Shape{7, 1}}) {
    const std::int64_t even = 15 - (shape.row_length() + 3) % 4;  // rows of packed codes are whole bytes apart
    const Form forms[] = {{0, 0}, {11, 0}, {0, even}, {3, even}};
    for (const Granularity& scope : scopes_of(shape)) {
      DynamicRangeQuantizeDescriptor d = of(shape, scope, turns.mode());
      write_any_scales(d, turns.any());
      const DynamicRangeCase c(d, turns.data(), turns.any());
      ASSERT_TRUE(same(c, turns.run(), forms[turns.any() % std::size(forms)]));
    }
  }
  const DynamicRangeCase large(of({90, 301}, PerTensor{}, kModes[1]), Data::one_odd, 8);
  ASSERT_TRUE(same(large, turns.run(), {.input_gap = 7, .output_gap = 23}));
}

TEST_P(EveryCudaDynamicRangeKernel, WorksAtAddressesThatSuitTheElementOnly) {
  Turns turns(7);
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32}, PerGroup{0, 2}, PerGroup{1, 3},
                                PerBlock{2, 3}, PerBlock{3, 32}})
    for (const auto& [inputs, outputs] : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 0}, {0, 1}, {2, 5}, {15, 7}}) {
      DynamicRangeQuantizeDescriptor d = of({5, 131}, scope, turns.mode());
      write_any_scales(d, turns.any());
      const DynamicRangeCase c(d, turns.data(), turns.any());
      DeviceRun how = turns.run();
      how.shifts = {inputs, outputs};
      ASSERT_TRUE(same(c, how));
    }
  // Segments in several parts, whose ranges are in a workspace that begins anywhere.
  for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerChannel{1}})
    for (const Shifts& shifts : {Shifts{0, 1}, Shifts{3, 2}}) {
      DeviceRun how = turns.run();
      how.shifts = shifts;
      ASSERT_TRUE(same({of({601, 29}, scope, turns.mode()), Data::one_odd, turns.any()}, how));
    }
  // Rows with gaps are cut into more parts than the same elements without.
  DeviceRun how = turns.run();
  how.shifts = {0, 1};
  const DynamicRangeCase rows(of({3, 14001}, PerTensor{}, turns.mode()), Data::normal, turns.any());
  ASSERT_TRUE(same(rows, how, {.input_gap = 1, .output_gap = 3}));
}

// The codes are the same whether or not anybody asks for the zero points.
TEST_P(EveryCudaDynamicRangeKernel, ZeroPointsNeedNotBeWanted) {
  Turns turns(8);
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 32}, PerGroup{0, 3}})
    ASSERT_TRUE(
        same({of({9, 70}, scope, kModes[0]), turns.data(), turns.any()}, turns.run(), {.zero_point_wanted = false}));
}

const auto every_kernel = [] { return ops::all_kernels<detail::DynamicRangeKernel>(BackendKind::cuda); };

INSTANTIATE_TEST_SUITE_P(Registry, EveryCudaDynamicRangeKernel, testing::ValuesIn(every_kernel()),
                         [](const auto& test) { return test.param->sku.name(); });

TEST(CudaRegistry, HoldsEveryPairOfTypes) {
  std::set<std::pair<ElementKind, ElementKind>> pairs;
  for (const auto* kernel : every_kernel()) {
    pairs.insert({kernel->sku.element, kernel->sku.aux_element});
    EXPECT_NE(kernel->launch, nullptr) << kernel->sku.name();
    EXPECT_EQ(kernel->sku.backend, BackendKind::cuda) << kernel->sku.name();
    EXPECT_TRUE(kernel->sku.precision_guarantee.bit_stable_across_hardware) << kernel->sku.name();
  }
  EXPECT_EQ(pairs.size(), std::size(kFloatKinds) * std::size(kCodeKinds));
  EXPECT_EQ(every_kernel().size(), pairs.size());
}

}  // namespace
}  // namespace kvant::tests
