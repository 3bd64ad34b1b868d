// Every kernel in the registry, every pair of types, every granularity, against the scalar reference: equal bits, for
// sizes from 0 to 200 and a few large odd ones, buffers that end at a guard page, misaligned starts, and 1 to 8
// threads.
#include <gtest/gtest.h>

#include <memory>

#include "core/type_lists.h"
#include "ops/registry.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/isas.h"
#include "tests/support/sanitized.h"

namespace kvant::tests {
namespace {

class EveryKernel : public testing::TestWithParam<const detail::ElementwiseKernel*> {
 protected:
  void SetUp() override {
    if (!cpu::can_run(GetParam()->sku.arch)) GTEST_SKIP() << "this machine cannot run " << name(GetParam()->sku.arch);
  }

  // Enough for an output of 8 MiB, from where on it is written around the caches.
  static std::int64_t streamed_elements() {
    const QuantizeKind op = GetParam()->sku.op;
    const ElementKind write = is_backward(op) ? GetParam()->sku.element : GetParam()->sku.aux_element;
    return (std::int64_t{8} << 20) * 8 / bits_per_element(write);
  }

  static void expect_equal(const ElementwiseCase& c, const Stream& stream, Numerics numerics) {
    const KernelSku sku = GetParam()->sku;
    const auto want = c.run(Stream::cpu(1), ArchSku::scalar, numerics);
    const auto got = c.run(stream, sku.arch, numerics);
    const std::int64_t at = first_difference(got, want, c.write_kind);
    ASSERT_EQ(at, -1) << sku.name() << " " << name(numerics) << " " << c.describe_case() << " differs at element "
                      << at;
  }
};

TEST_P(EveryKernel, EqualsScalarForEverySizeTo200) {
  const Stream stream = Stream::cpu(1);
  for (std::int64_t n = 0; n <= 200; ++n) {
    const Numerics numerics = n % 2 == 0 ? Numerics::exact : Numerics::reciprocal;
    expect_equal(
        {descriptor_for(GetParam()->sku, {n}, Granularity::per_tensor()), static_cast<std::uint32_t>(n), n % 3 == 0},
        stream, numerics);
    for (const Granularity& g : kGranularities2d)
      expect_equal({descriptor_for(GetParam()->sku, {3, n}, g), static_cast<std::uint32_t>(n), n % 3 == 0}, stream,
                   numerics);
    if (HasFatalFailure()) return;
  }
}

TEST_P(EveryKernel, EqualsScalarInBothNumericsAndEveryGranularityOfRank4) {
  const Stream stream = Stream::cpu(1);
  std::uint32_t seed = 1000;
  for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal})
    for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{1, 6, 1, 64}, Shape{4, 1, 9, 1}, Shape{2, 2, 2, 33}}) {
      for (int axis = -4; axis < 4; ++axis) {
        expect_equal({descriptor_for(GetParam()->sku, shape, Granularity::per_channel(axis)), seed++, true}, stream,
                     numerics);
        for (const std::int64_t size : {1, 2, 3, 4, 32, 1000})
          expect_equal({descriptor_for(GetParam()->sku, shape, Granularity::per_group(axis, size)), seed++, true},
                       stream, numerics);
      }
      expect_equal({descriptor_for(GetParam()->sku, shape, Granularity::per_token()), seed++, true}, stream, numerics);
      if (HasFatalFailure()) return;
    }
}

TEST_P(EveryKernel, EqualsScalarOnLargeOddSizesWithAnyNumberOfThreads) {
  const std::int64_t kRows = 37, kColumns = 2501;
  std::uint32_t seed = 50;
  for (const Granularity& g : kGranularities2d)
    for (const bool wild : {false, true}) {
      const ElementwiseCase c(descriptor_for(GetParam()->sku, {kRows, kColumns}, g), ++seed, wild);
      const auto want = c.run(Stream::cpu(1), ArchSku::scalar, Numerics::exact);
      for (int threads = 1; threads <= (kSanitized ? 2 : 8); ++threads) {
        const auto got = c.run(Stream::cpu(threads), GetParam()->sku.arch, Numerics::exact);
        ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case() << " threads " << threads;
      }
    }
  // One line long enough to be cut into pieces, and to be streamed past the caches.
  const std::int64_t large = GetParam()->sku.arch == ArchSku::scalar || kSanitized ? 300001 : streamed_elements() + 77;
  const ElementwiseCase c(descriptor_for(GetParam()->sku, {large}, Granularity::per_tensor()), 7, false);
  const auto want = c.run(Stream::cpu(2), ArchSku::scalar, Numerics::exact);
  for (const int threads : {1, 2, 5}) {
    const auto got = c.run(Stream::cpu(threads), GetParam()->sku.arch, Numerics::exact);
    ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << "threads " << threads;
  }
}

// Streamed columns and groups take other paths than streamed tensors.
TEST_P(EveryKernel, EqualsScalarWhenItIsStreamed) {
  if (GetParam()->sku.arch == ArchSku::scalar) GTEST_SKIP() << "is the reference";
  const std::int64_t columns = 4096 + 40, rows = streamed_elements() / columns + 2;
  for (const Granularity& g : {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_group(1, 32),
                               Granularity::per_group(0, 64)}) {
    const ElementwiseCase c(descriptor_for(GetParam()->sku, {rows, columns}, g), 3, false);
    const auto want = c.run(Stream::cpu(2), ArchSku::scalar, Numerics::exact);
    const auto got = c.run(Stream::cpu(2), GetParam()->sku.arch, Numerics::exact);
    ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case();
  }
}

// Short lines with the same parameters are joined into long ones; here against one line at a time.
TEST_P(EveryKernel, GivesShortRowsPerChannelWhatEachGetsAlone) {
  for (const std::int64_t columns : {1, 2, 3, 7, 16, 31})
    for (const std::int64_t rows : {2048 / columns, 2600 / columns + 1}) {
      const ElementwiseCase c(descriptor_for(GetParam()->sku, {rows, columns}, Granularity::per_channel(1)), 11, true);
      const auto got = c.run(Stream::cpu(2), GetParam()->sku.arch, Numerics::exact);
      const auto plan = ElementwisePlan::select(
          Stream::cpu(1), descriptor_for(GetParam()->sku, {1, columns}, Granularity::per_channel(1)),
          {.isa = GetParam()->sku.arch});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      std::vector<std::byte> want(c.output_bytes(), std::byte{0xA5});
      for (std::int64_t row = 0; row < rows; ++row) {
        ElementwiseArgs args = c.args(c.input.data() + row * row_bytes(c.read_kind, columns),
                                      c.gradient.data() + row * row_bytes(c.float_kind, columns),
                                      want.data() + row * row_bytes(c.write_kind, columns));
        args.input.shape = args.grad_output.shape = args.output.shape = Shape{1, columns};
        const Status status = plan->run(Stream::cpu(1), {}, args);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case();
    }
}

// Buffers that end at a forbidden page: a byte read or written too far ends the test.
TEST_P(EveryKernel, TouchesNothingBehindItsBuffers) {
  const Stream stream = Stream::cpu(1);
  for (std::int64_t n = 1; n <= 140; n += n < 70 ? 1 : 7)
    for (const Granularity& g : {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_token(),
                                 Granularity::per_group(1, 8), Granularity::per_group(0, 2)}) {
      const ElementwiseCase c(descriptor_for(GetParam()->sku, {3, n}, g), static_cast<std::uint32_t>(n), false);
      const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
      GuardedBuffer x(static_cast<std::int64_t>(c.input.size())), dy(static_cast<std::int64_t>(c.gradient.size())),
          out(static_cast<std::int64_t>(c.output_bytes()));
      std::memcpy(x.data(), c.input.data(), c.input.size());
      std::memcpy(dy.data(), c.gradient.data(), c.gradient.size());
      const std::size_t scale_width = c.float_kind == ElementKind::f64 ? 8 : 4;
      GuardedBuffer scale(static_cast<std::int64_t>(scale_width * c.scale32.size())),
          zero_point(static_cast<std::int64_t>(4 * c.zero_point.size()));
      std::memcpy(scale.data(),
                  c.float_kind == ElementKind::f64 ? static_cast<const void*>(c.scale64.data())
                                                   : static_cast<const void*>(c.scale32.data()),
                  scale.size());
      std::memcpy(zero_point.data(), c.zero_point.data(), zero_point.size());
      ElementwiseArgs args = c.args(x.data(), dy.data(), out.data());
      args.scale = AnyParameter(AnyRef{
          scale.data(), c.float_kind == ElementKind::f64 ? ElementKind::f64 : ElementKind::f32, c.parameter_shape_, 0});
      args.zero_point = AnyParameter(AnyRef{zero_point.data(), ElementKind::s32, c.parameter_shape_, 0});
      const auto plan =
          ElementwisePlan::select(stream, c.descriptor, {.isa = GetParam()->sku.arch, .numerics = Numerics::exact});
      ASSERT_TRUE(plan.ok());
      ASSERT_TRUE(plan->run(stream, {}, args).ok());
      ASSERT_EQ(first_difference(out.bytes(), want, c.write_kind), -1) << c.describe_case();
    }
}

// Every address works, also one that no element of the type could have.
TEST_P(EveryKernel, WorksAtMisalignedAddresses) {
  const Stream stream = Stream::cpu(1);
  for (const Granularity& g : {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_group(1, 32)}) {
    const ElementwiseCase c(descriptor_for(GetParam()->sku, {5, 131}, g), 11, false);
    const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
    for (std::size_t shift = 1; shift <= 33; shift += 4) {
      std::vector<std::byte> x(c.input.size() + 64), dy(c.gradient.size() + 64), out(c.output_bytes() + 64),
          scale(8 * c.scale64.size() + 64), zp(4 * c.zero_point.size() + 64);
      std::memcpy(x.data() + shift, c.input.data(), c.input.size());
      std::memcpy(dy.data() + shift, c.gradient.data(), c.gradient.size());
      const bool f64 = c.float_kind == ElementKind::f64;
      std::memcpy(scale.data() + shift, f64 ? static_cast<const void*>(c.scale64.data()) : c.scale32.data(),
                  (f64 ? 8 : 4) * c.scale64.size());
      std::memcpy(zp.data() + shift, c.zero_point.data(), 4 * c.zero_point.size());
      ElementwiseArgs args = c.args(x.data() + shift, dy.data() + shift, out.data() + shift);
      args.scale =
          AnyParameter(AnyRef{scale.data() + shift, f64 ? ElementKind::f64 : ElementKind::f32, c.parameter_shape_, 0});
      args.zero_point = AnyParameter(AnyRef{zp.data() + shift, ElementKind::s32, c.parameter_shape_, 0});
      const auto plan =
          ElementwisePlan::select(stream, c.descriptor, {.isa = GetParam()->sku.arch, .numerics = Numerics::exact});
      ASSERT_TRUE(plan.ok());
      ASSERT_TRUE(plan->run(stream, {}, args).ok());
      ASSERT_EQ(first_difference(std::span(out).subspan(shift, c.output_bytes()), want, c.write_kind), -1)
          << c.describe_case() << " shifted by " << shift;
    }
  }
}

// Rows with gaps between them give the dense result, and the gaps stay as they were.
TEST_P(EveryKernel, KeepsToRowsThatHaveStrides) {
  const Stream stream = Stream::cpu(2);
  for (const Granularity& g : kGranularities2d)
    for (const std::int64_t columns : {64, 75}) {
      const ElementwiseCase c(descriptor_for(GetParam()->sku, {6, columns}, g), 21, true);
      const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
      const std::int64_t stride = columns + 11 + (columns + 11) % 2;
      const auto spread = [&](const std::vector<std::byte>& dense, ElementKind kind) {
        std::vector<std::byte> strided(static_cast<std::size_t>(6 * row_bytes(kind, stride)), std::byte{0x5A});
        const auto row = static_cast<std::size_t>(row_bytes(kind, columns));
        for (std::size_t r = 0; r < 6 && !dense.empty(); ++r)
          std::memcpy(&strided[r * static_cast<std::size_t>(row_bytes(kind, stride))], &dense[r * row], row);
        return strided;
      };
      const auto x = spread(c.input, c.read_kind), dy = spread(c.gradient, c.float_kind);
      std::vector<std::byte> out(static_cast<std::size_t>(6 * row_bytes(c.write_kind, stride)), std::byte{0x5A});
      ElementwiseArgs args = c.args(x.data(), dy.data(), out.data());
      args.input.row_stride = args.grad_output.row_stride = args.output.row_stride = stride;
      const auto plan =
          ElementwisePlan::select(stream, c.descriptor, {.isa = GetParam()->sku.arch, .numerics = Numerics::exact});
      ASSERT_TRUE(plan.ok());
      const Status status = plan->run(stream, {}, args);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(first_difference(out, spread(want, c.write_kind), c.write_kind), -1) << c.describe_case();
    }
}

// In place where that is legal: fake_quantize over its input, gradients over dy and over x.
TEST_P(EveryKernel, RunsInPlaceWhereThatIsLegal) {
  const QuantizeKind op = GetParam()->sku.op;
  if (core::has_codes(elementwise_operator(op))) GTEST_SKIP() << "widths differ";
  const Stream stream = Stream::cpu(2);
  for (const Granularity& g : kGranularities2d) {
    const ElementwiseCase c(descriptor_for(GetParam()->sku, {9, 333}, g), 31, false);
    const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
    const auto plan =
        ElementwisePlan::select(stream, c.descriptor, {.isa = GetParam()->sku.arch, .numerics = Numerics::exact});
    ASSERT_TRUE(plan.ok());
    for (const bool over_gradient : {false, true}) {
      if (over_gradient ? !is_backward(op) : !reads_input(op)) continue;
      auto x = c.input, dy = c.gradient;
      auto& target = over_gradient ? dy : x;
      ASSERT_TRUE(plan->run(stream, {}, c.args(x.data(), dy.data(), target.data())).ok());
      ASSERT_EQ(first_difference(target, want, c.write_kind), -1) << c.describe_case();
    }
  }
}

TEST_P(EveryKernel, PromisesWhatTheseTestsShow) {
  const PrecisionGuarantee g = GetParam()->sku.precision_guarantee;
  EXPECT_TRUE(g.bit_stable_on_same_hardware);
  EXPECT_TRUE(g.bit_stable_across_hardware);
  EXPECT_TRUE(g.deterministic);
  const bool f64 = GetParam()->sku.element == ElementKind::f64 || GetParam()->sku.aux_element == ElementKind::f64;
  EXPECT_EQ(g.math_precision, f64 ? MathPrecision::f64 : MathPrecision::f32);
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryKernel,
                         testing::ValuesIn(ops::all_kernels<detail::ElementwiseKernel>(BackendKind::cpu)),
                         [](const auto& test) { return test.param->sku.name(); });

TEST(Registry, HoldsEveryOperatorAndType) {
  EXPECT_EQ(ops::all_kernels<detail::ElementwiseKernel>(BackendKind::cpu).size(),
            compiled_isas().size() * elementwise_kernel_count());
}

}  // namespace
}  // namespace kvant::tests
