// Every element-wise kernel of the CUDA backend, every granularity and form of arguments, against the scalar kernel of
// the CPU: equal bits.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/type_lists.h"
#include "ops/registry.h"
#include "tests/cuda/same_on_device.h"
#include "tests/support/elementwise_case.h"

namespace kvant::tests {
namespace {

// How a case's operands are handed over.
struct Form {
  std::int64_t gap = 0;  // elements between rows
  // So many elements more than that.
  std::int64_t more_in_gradient = 0;
  std::int64_t more_in_output = 0;
  bool scale_is_number = false;
  bool zero_point_is_number = false;
  enum class Target { fresh, input, gradient } target = Target::fresh;
};

testing::AssertionResult same(const KernelSku& sku, const ElementwiseCase& c, DeviceRun how, const Form& form = {}) {
  how.isa = sku.arch;
  const std::int64_t row = c.descriptor.shape.row_length();
  const auto stride = [&](std::int64_t more) { return form.gap + more == 0 ? 0 : row + form.gap + more; };
  const auto spread = [&](const std::vector<std::byte>& dense, ElementKind kind, std::int64_t more) {
    return with_gaps(dense, kind, c.rows, row, stride(more));
  };
  std::vector<std::byte> x = spread(c.input, c.read_kind, 0);
  std::vector<std::byte> dy = spread(c.gradient, c.float_kind, form.more_in_gradient);
  std::vector<std::byte> fresh =
      spread(std::vector<std::byte>(c.output_bytes(), kGap), c.write_kind, form.more_in_output);
  std::byte* const out = form.target == Form::Target::input      ? x.data()
                         : form.target == Form::Target::gradient ? dy.data()
                                                                 : fresh.data();
  ElementwiseArgs args = c.args(x.data(), dy.data(), out);
  args.input.row_stride = stride(0);
  args.grad_output.row_stride = stride(form.more_in_gradient);
  args.output.row_stride = stride(form.more_in_output);
  if (form.scale_is_number)
    args.scale = c.float_kind == ElementKind::f64 ? AnyParameter(c.scale64[0]) : AnyParameter(c.scale32[0]);
  if (form.zero_point_is_number && !c.grid) args.zero_point = AnyParameter(c.zero_point[0]);
  const std::string text = sku.name() + ": " + c.describe_case() + " gap " + std::to_string(form.gap) + " and " +
                           std::to_string(form.more_in_gradient) + " and " + std::to_string(form.more_in_output) +
                           " more" + (form.scale_is_number ? " scale a number" : "") +
                           (form.zero_point_is_number ? " zero point a number" : "") +
                           (form.target == Form::Target::fresh ? "" : " in place");
  return same_on_device<ElementwisePlan>(c.descriptor, args, text, how);
}

class EveryCudaKernel : public testing::TestWithParam<KernelOnGrid<detail::ElementwiseKernel>> {
 protected:
  static const KernelSku& sku() { return GetParam().kernel->sku; }
  static ElementwiseDescriptor descriptor(const Shape& shape, const Granularity& granularity) {
    return GetParam().descriptor(shape, granularity);
  }
  // The same with codes that do not use all of their type, for what clamps; or with what is beyond a grid kept there.
  static ElementwiseDescriptor narrowed(const Shape& shape, const Granularity& granularity, std::uint32_t which) {
    ElementwiseDescriptor d = descriptor(shape, granularity);
    if (!elementwise_operator(d.op).rounds) return d;
    if (float_grid_of(d)) return unsaturated(d);
    const ElementKind code = is_code(d.output) ? d.output : ElementKind::s8;
    const CodeRange range = narrow_range(code, DynamicRangeMode::asymmetric, which);
    d.q_min = range.min;
    d.q_max = range.max;
    return d;
  }
};

Numerics in_turn(std::uint32_t turn) { return turn % 2 == 0 ? Numerics::exact : Numerics::reciprocal; }

// Rows of 3 with any number of columns have odd ones, which begin at every place in a vector; packed ones end in half a
// byte.
TEST_P(EveryCudaKernel, EqualsScalarForEverySizeTo70) {
  const auto& all = kGranularities2d;
  std::uint32_t turn = 0;
  for (std::int64_t n = 0; n <= 70; ++n) {
    const auto i = static_cast<std::uint32_t>(n);
    const bool wild = n % 3 == 0;
    // Two other granularities for each size; 7 and 9 have no common factor, so that all meet all remainders.
    const Granularity &one = all[i % all.size()], &other = all[(i / 7 + i + 4) % all.size()];
    for (const ElementwiseCase& c :
         {ElementwiseCase(descriptor({n}, PerTensor{}), i, wild), ElementwiseCase(descriptor({3, n}, one), i, wild),
          ElementwiseCase(narrowed({3, n}, other, i), i, wild)}) {
      // n, too: the turns of orders and numerics and kinds of cases must not be in step.
      const std::uint32_t numerics = turn / 3 + i / 5;
      ASSERT_TRUE(same(sku(), c, {.turn = turn++ + i, .numerics = in_turn(numerics)}));
    }
  }
}

TEST_P(EveryCudaKernel, EqualsScalarInEveryGranularityOfRank4) {
  constexpr std::int64_t kGroups[] = {1, 2, 3, 4, 32, 1000};
  std::uint32_t turn = 0;
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{1, 6, 1, 64}, Shape{4, 1, 9, 1}, Shape{2, 2, 2, 33}}) {
    std::vector<Granularity> scopes = {PerToken{}, PerTensor{}};
    for (int axis = 0; axis < 4; ++axis) {
      scopes.push_back(PerChannel{axis % 2 == 0 ? axis : axis - 4});
      for (std::size_t i = 0; i < 2; ++i)
        scopes.push_back(PerGroup{axis % 2 == 0 ? axis - 4 : axis, kGroups[(turn + 2 * scopes.size() + i) % 6]});
    }
    for (const PerBlock& block : {PerBlock{2, 3}, PerBlock{1, 4}, PerBlock{3, 1}, PerBlock{2, 1000}, PerBlock{1000, 5}})
      scopes.push_back(block);
    for (const Granularity& scope : scopes) {
      const ElementwiseCase c(descriptor(shape, scope), 1000 + turn, true);
      ASSERT_TRUE(same(sku(), c, {.turn = turn, .numerics = in_turn(turn / 3)}));
      ++turn;
    }
  }
}

TEST_P(EveryCudaKernel, EqualsScalarOnLargerOddSizes) {
  std::uint32_t turn = 0;
  for (const Granularity& scope : kGranularities2d) {
    const ElementwiseCase c(descriptor({37, 301}, scope), 50 + turn, turn % 2 == 0);
    ASSERT_TRUE(same(sku(), c, {.turn = turn, .numerics = in_turn(turn / 3)}));
    ++turn;
  }
  for (const std::int64_t n : {255, 256, 257, 1023, 1025, 4099}) {
    const ElementwiseCase c(descriptor({n}, n % 2 == 0 ? Granularity(PerTensor{}) : PerChannel{0}), 60 + turn, true);
    ASSERT_TRUE(same(sku(), c, {.turn = turn, .numerics = in_turn(turn / 3)}));
    ++turn;
  }
}

// More lines than a grid has blocks, so that each block has several; and one line that many blocks share.
TEST_P(EveryCudaKernel, EqualsScalarOnManyLinesAndOnLongOnes) {
  constexpr std::int64_t kMany = kMoreLinesThanAGrid;
  std::uint32_t turn = 0;
  const auto expect_same = [&turn](const ElementwiseDescriptor& d) {
    const ElementwiseCase c(d, 70 + turn, false);
    ASSERT_TRUE(same(sku(), c, {.turn = turn++}));
  };
  expect_same(descriptor({kMany, 3}, PerToken{}));
  expect_same(descriptor({kMany + 1, 5}, PerChannel{1}));
  expect_same(descriptor({kMany / 7, 7, 4}, PerGroup{1, 2}));
  expect_same(descriptor({kMany / 7, 7, 4}, PerBlock{2, 3}));
  expect_same(descriptor({70001}, PerTensor{}));
  expect_same(descriptor({30011}, PerChannel{0}));
  expect_same(descriptor({2, 20003}, PerGroup{1, 128}));
}

// One number for all stays on the host; it must come to the same as a tensor of one.
TEST_P(EveryCudaKernel, EqualsScalarWithNumbersAsParameters) {
  std::uint32_t turn = 0;
  for (const Shape& shape : {Shape{1}, Shape{100}, Shape{257}, Shape{5, 33}, Shape()})
    for (const bool scale_is_number : {true, false})
      for (const bool zero_point_is_number : {true, false}) {
        const ElementwiseCase c(descriptor(shape, PerTensor{}), 80 + turn, true);
        const Form form{.scale_is_number = scale_is_number, .zero_point_is_number = zero_point_is_number};
        ASSERT_TRUE(same(sku(), c, {.turn = turn, .numerics = in_turn(turn / 3)}, form));
        ++turn;
      }
}

// Rows with gaps between them: what is in the gaps stays there. A stride that is a multiple of four keeps rows of
// packed codes whole bytes apart.
TEST_P(EveryCudaKernel, KeepsToRowsThatHaveStrides) {
  std::uint32_t turn = 0;
  for (const Granularity& scope : kGranularities2d)
    for (const std::int64_t columns : {64, 75}) {
      const ElementwiseCase c(descriptor({6, columns}, scope), 21, true);
      ASSERT_TRUE(same(sku(), c, {.turn = turn++}, {.gap = 16 - columns % 4}));
    }
  const ElementwiseCase c(descriptor({2, 3, 37}, PerChannel{1}), 22, true);
  ASSERT_TRUE(same(sku(), c, {}, {.gap = 3}));
}

// Every operand has a stride of its own, or none.
TEST_P(EveryCudaKernel, StridesOfOperandsMayDiffer) {
  std::uint32_t turn = 0;
  for (const Granularity& scope : {Granularity::per_tensor(), Granularity::per_token(), Granularity::per_channel(1)})
    for (const auto& [gap, gradient, output] :
         {std::array<std::int64_t, 3>{3, 4, 8}, {0, 5, 0}, {0, 0, 7}, {11, -11, -11}}) {
      const ElementwiseCase c(descriptor({5, 37}, scope), 23 + turn, false);
      const Form form{.gap = gap, .more_in_gradient = gradient, .more_in_output = output};
      ASSERT_TRUE(same(sku(), c, {.turn = turn++}, form));
    }
}

// A GPU needs addresses that suit the element, and no more than that. Operands may be off by different amounts.
TEST_P(EveryCudaKernel, WorksAtAddressesThatSuitTheElementOnly) {
  std::uint32_t turn = 0;
  for (const Granularity& scope :
       {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_group(1, 32)})
    for (const auto& [inputs, outputs] : {std::pair<std::size_t, std::size_t>{1, 1}, {3, 0}, {0, 1}, {2, 5}, {15, 7}}) {
      const ElementwiseCase c(descriptor({5, 131}, scope), 11, false);
      ASSERT_TRUE(same(sku(), c, {.turn = turn++, .shifts = {inputs, outputs}}));
    }
}

// Scales that are codes, with one for a run and one for each element, at addresses that suit no wider type.
TEST_P(EveryCudaKernel, EqualsScalarWithScalesThatAreCodes) {
  std::uint32_t turn = 0;
  for (const ElementKind scales : kScaleCodes)
    for (const Granularity& scope : kGranularities2d) {
      const ElementwiseDescriptor d = descriptor({5, turn % 2 == 0 ? 67 : 12}, scope);
      const ElementwiseCase c(turn % 3 == 0 ? unsaturated(d) : d, 90 + turn, turn % 4 != 0, scales);
      ASSERT_TRUE(same(sku(), c, {.turn = turn, .numerics = in_turn(turn / 3), .shifts = {turn % 4, turn % 3}}));
      ++turn;
    }
}

// In place where that is legal: fake_quantize over its input, gradients over dy and over x.
TEST_P(EveryCudaKernel, RunsInPlaceWhereThatIsLegal) {
  const QuantizeKind op = sku().op;
  if (core::has_codes(elementwise_operator(op))) GTEST_SKIP() << "widths differ";
  std::uint32_t turn = 0;
  for (const Granularity& scope : kGranularities2d)
    for (const Form::Target target : {Form::Target::input, Form::Target::gradient}) {
      if (target == Form::Target::gradient ? !is_backward(op) : !reads_input(op)) continue;
      const ElementwiseCase c(descriptor({9, 133}, scope), 31, false);
      const Form form{.gap = turn % 3 == 0 ? 5 : 0, .target = target};
      ASSERT_TRUE(same(sku(), c, {.turn = turn, .shifts = {.outputs = turn % 4}}, form));
      ++turn;
    }
}

TEST_P(EveryCudaKernel, PromisesWhatTheseTestsShow) {
  const PrecisionGuarantee g = sku().precision_guarantee;
  EXPECT_TRUE(g.bit_stable_on_same_hardware);
  EXPECT_TRUE(g.bit_stable_across_hardware);
  EXPECT_TRUE(g.deterministic);
  const bool f64 = sku().element == ElementKind::f64 || sku().aux_element == ElementKind::f64;
  EXPECT_EQ(g.math_precision, f64 ? MathPrecision::f64 : MathPrecision::f32);
  EXPECT_EQ(sku().backend, BackendKind::cuda);
}

const auto every_kernel = [] { return ops::all_kernels<detail::ElementwiseKernel>(BackendKind::cuda); };

INSTANTIATE_TEST_SUITE_P(Registry, EveryCudaKernel, testing::ValuesIn(on_each_grid(every_kernel())),
                         [](const auto& test) { return test.param.name(); });

TEST(CudaRegistry, HoldsEveryElementwiseOperatorAndType) {
  std::set<std::string> names;
  for (const auto* kernel : every_kernel()) names.insert(kernel->sku.name());
  EXPECT_EQ(names.size(), every_kernel().size()) << "a name occurs twice";
  EXPECT_EQ(names.size(), elementwise_kernel_count());
}

}  // namespace
}  // namespace kvant::tests
