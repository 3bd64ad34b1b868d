// Every kernel in the registry, every pair of types, every granularity and kind of scales, against the scalar
// reference: equal bits, for sizes from 0 to 200 and a few large odd ones, buffers that end at a guard page, misaligned
// starts, and 1 to 8 threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>

#include "core/type_lists.h"
#include "ops/registry.h"
#include "tests/support/dynamic_range_reference.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/float_grid_reference.h"
#include "tests/support/isas.h"
#include "tests/support/sanitized.h"

namespace kvant::tests {
namespace {

using Tested = KernelOnGrid<detail::ElementwiseKernel>;

// The kinds of scales in turn: nothing stands for the type that is computed in.
std::optional<ElementKind> scales_in_turn(std::int64_t turn) {
  const auto which = static_cast<std::size_t>(turn) % (kScaleCodes.size() + 1);
  return which == 0 ? std::nullopt : std::optional(kScaleCodes[which - 1]);
}

class EveryKernel : public testing::TestWithParam<Tested> {
 protected:
  void SetUp() override {
    if (!cpu::can_run(sku().arch)) GTEST_SKIP() << "this machine cannot run " << name(sku().arch);
    // A sanitizer looks at addresses, which types of a width share.
    if (kSanitized)
      for (const ElementKind twin :
           {ElementKind::u8, ElementKind::u4, ElementKind::s2, ElementKind::s16, ElementKind::e5m2})
        if (sku().element == twin || sku().aux_element == twin) GTEST_SKIP() << name(twin) << " has a twin";
  }

  // `count` of some granularities, others for each kernel.
  static std::vector<Granularity> some_of(const std::vector<Granularity>& all, std::size_t count) {
    const std::size_t first = static_cast<std::size_t>(sku().op) + 3 * static_cast<std::size_t>(sku().element) +
                              5 * static_cast<std::size_t>(sku().aux_element);
    std::vector<Granularity> some;
    for (std::size_t i = 0; i < count; ++i) some.push_back(all[(first + i) % all.size()]);
    return some;
  }

  static const KernelSku& sku() { return GetParam().kernel->sku; }
  static ElementwiseDescriptor descriptor(const Shape& shape, const Granularity& granularity) {
    return GetParam().descriptor(shape, granularity);
  }

  // Enough for an output of 8 MiB, from where on it is written around the caches.
  static std::int64_t streamed_elements() {
    const QuantizeKind op = sku().op;
    const ElementKind write = is_backward(op) ? sku().element : sku().aux_element;
    return (std::int64_t{8} << 20) * 8 / bits_per_element(write);
  }

  static void expect_equal(const ElementwiseCase& c, const Stream& stream, Numerics numerics) {
    const auto want = c.run(Stream::cpu(1), ArchSku::scalar, numerics);
    const auto got = c.run(stream, sku().arch, numerics);
    const std::int64_t at = first_difference(got, want, c.write_kind);
    ASSERT_EQ(at, -1) << sku().name() << " " << name(numerics) << " " << c.describe_case() << " differs at element "
                      << at;
  }
};

TEST_P(EveryKernel, EqualsScalarForEverySizeTo200) {
  const Stream stream = Stream::cpu(1);
  for (std::int64_t n = 0; n <= 200; n += kSanitized ? 3 : 1) {
    const Numerics numerics = n % 2 == 0 ? Numerics::exact : Numerics::reciprocal;
    const auto of = [&](const Shape& shape, const Granularity& g) {
      const ElementwiseDescriptor d = descriptor(shape, g);
      return n % 4 == 1 ? unsaturated(d) : d;
    };
    const auto seed = static_cast<std::uint32_t>(n);
    expect_equal({of({n}, Granularity::per_tensor()), seed, n % 3 == 0}, stream, numerics);
    for (const Granularity& g : kGranularities2d) expect_equal({of({3, n}, g), seed, n % 3 == 0}, stream, numerics);
    if (HasFatalFailure()) return;
  }
}

TEST_P(EveryKernel, EqualsScalarInBothNumericsAndEveryGranularityOfRank4) {
  const Stream stream = Stream::cpu(1);
  std::uint32_t seed = 1000;
  for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal})
    for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{1, 6, 1, 64}, Shape{4, 1, 9, 1}, Shape{2, 2, 2, 33}}) {
      for (int axis = -4; axis < 4; ++axis) {
        expect_equal({descriptor(shape, Granularity::per_channel(axis)), seed++, true}, stream, numerics);
        for (const std::int64_t size : {1, 2, 3, 4, 32, 1000})
          expect_equal({descriptor(shape, Granularity::per_group(axis, size)), seed++, true}, stream, numerics);
      }
      for (const PerBlock& block :
           {PerBlock{2, 3}, PerBlock{3, 1}, PerBlock{1, 4}, PerBlock{2, 1000}, PerBlock{1000, 4}, PerBlock{1000, 1000}})
        expect_equal({descriptor(shape, block), seed++, true}, stream, numerics);
      expect_equal({descriptor(shape, Granularity::per_token()), seed++, true}, stream, numerics);
      if (HasFatalFailure()) return;
    }
}

TEST_P(EveryKernel, EqualsScalarOnLargeOddSizesWithAnyNumberOfThreads) {
  const std::int64_t kRows = 37, kColumns = 2501;
  std::uint32_t seed = 50;
  for (const Granularity& g : kGranularities2d)
    for (const bool wild : {false, true}) {
      const ElementwiseCase c(descriptor({kRows, kColumns}, g), ++seed, wild);
      const auto want = c.run(Stream::cpu(1), ArchSku::scalar, Numerics::exact);
      for (const int threads : {1, 2, 3, 8}) {
        if (kSanitized && threads > 2) break;
        const auto got = c.run(Stream::cpu(threads), sku().arch, Numerics::exact);
        ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case() << " threads " << threads;
      }
    }
  // One line long enough to be cut into pieces, and to be streamed past the caches.
  const std::int64_t large = sku().arch == ArchSku::scalar || kSanitized ? 300001 : streamed_elements() + 77;
  const ElementwiseCase c(descriptor({large}, Granularity::per_tensor()), 7, false);
  const auto want = c.run(Stream::cpu(2), ArchSku::scalar, Numerics::exact);
  for (const int threads : {1, 2, 5}) {
    const auto got = c.run(Stream::cpu(threads), sku().arch, Numerics::exact);
    ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << "threads " << threads;
  }
}

// Streamed columns and groups take other paths than streamed tensors.
TEST_P(EveryKernel, EqualsScalarWhenItIsStreamed) {
  if (sku().arch == ArchSku::scalar) GTEST_SKIP() << "is the reference";
  const std::int64_t columns = 4096 + 40, rows = streamed_elements() / columns + 2;
  for (const Granularity& g :
       some_of({Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_group(1, 32),
                Granularity::per_group(0, 64), Granularity::per_block(128, 128)},
               kSanitized ? 1 : 2)) {
    const ElementwiseCase c(descriptor({rows, columns}, g), 3, false);
    const auto want = c.run(Stream::cpu(2), ArchSku::scalar, Numerics::exact);
    const auto got = c.run(Stream::cpu(2), sku().arch, Numerics::exact);
    ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case();
  }
}

// Scales that are codes are decoded for a run, for a tile of columns, or one for each element; by every thread alike.
TEST_P(EveryKernel, EqualsScalarWithScalesThatAreCodes) {
  std::uint32_t seed = 300;
  for (const ElementKind scales : kScaleCodes)
    for (const Granularity& g : kGranularities2d)
      for (const Shape& shape : {Shape{3, 37}, Shape{9, 133}, Shape{21, 1100}}) {
        ++seed;
        const Numerics numerics = seed % 2 == 0 ? Numerics::exact : Numerics::reciprocal;
        const ElementwiseDescriptor d = seed % 3 == 0 ? unsaturated(descriptor(shape, g)) : descriptor(shape, g);
        const ElementwiseCase c(d, seed, seed % 4 != 0, scales);
        const auto want = c.run(Stream::cpu(1), ArchSku::scalar, numerics);
        for (const int threads : {1, 3}) {
          if (threads > 1 && shape[0] < 20) continue;  // too small to be cut
          const auto got = c.run(Stream::cpu(threads), sku().arch, numerics);
          ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case() << " threads " << threads;
        }
      }
}

// Scales that are codes give what the numbers they stand for give.
TEST_P(EveryKernel, GivesScalesThatAreCodesWhatTheirNumbersGet) {
  const bool f64 = sku().element == ElementKind::f64 || sku().aux_element == ElementKind::f64;
  const GridReference e4m3(ElementKind::e4m3);
  for (const ElementKind scales : kScaleCodes)
    for (const Granularity& g : kGranularities2d) {
      const ElementwiseCase coded(descriptor({5, 75}, g), 17, true, scales);
      ElementwiseCase plain = coded;
      plain.scale_type = f64 ? ElementKind::f64 : ElementKind::f32;
      plain.scale.resize(coded.zero_point.size() * unit_bytes(plain.scale_type));
      for (std::size_t i = 0; i < coded.zero_point.size(); ++i) {
        const std::byte* code = &coded.scale[i * unit_bytes(scales)];
        std::uint16_t wide = 0;
        std::memcpy(&wide, code, unit_bytes(scales));
        const auto byte = static_cast<std::uint8_t>(wide);
        double number = scales == ElementKind::f16    ? static_cast<double>(to_float(Half{wide}))
                        : scales == ElementKind::bf16 ? static_cast<double>(to_float(BFloat16{wide}))
                        : byte == 255                 ? std::numeric_limits<double>::quiet_NaN()
                                                      : std::ldexp(1.0, byte - 127);
        if (scales == ElementKind::e4m3)
          number = f64 ? e4m3.number_of(byte) / static_cast<double>(coded.global_scale)
                       : static_cast<double>(static_cast<float>(e4m3.number_of(byte)) / coded.global_scale);
        put_float(&plain.scale[i * unit_bytes(plain.scale_type)], plain.scale_type, number);
      }
      const auto want = plain.run(Stream::cpu(1), sku().arch, Numerics::exact);
      const auto got = coded.run(Stream::cpu(1), sku().arch, Numerics::exact);
      ASSERT_EQ(first_difference(got, want, coded.write_kind), -1) << coded.describe_case();
    }
}

// Short lines with the same parameters are joined into long ones; here against one line at a time.
TEST_P(EveryKernel, GivesShortRowsPerChannelWhatEachGetsAlone) {
  for (const std::int64_t columns : {1, 2, 3, 7, 16, 31})
    for (const std::int64_t rows : {2048 / columns, 2600 / columns + 1}) {
      const ElementwiseCase c(descriptor({rows, columns}, Granularity::per_channel(1)), 11, true);
      const auto got = c.run(Stream::cpu(2), sku().arch, Numerics::exact);
      const auto plan = ElementwisePlan::select(Stream::cpu(1), descriptor({1, columns}, Granularity::per_channel(1)),
                                                {.isa = sku().arch});
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

// A block's elements against the same with a parameter for each.
TEST_P(EveryKernel, GivesBlocksWhatTheirElementsGetAlone) {
  std::uint32_t seed = 90;
  for (const Shape& shape : {Shape{5, 7}, Shape{2, 6, 75}, Shape{3, 4, 1}, Shape{2, 3, 1, 9}, Shape{131, 259}})
    for (const PerBlock& block : {PerBlock{1, 3}, PerBlock{2, 1}, PerBlock{2, 3}, PerBlock{3, 32}, PerBlock{128, 128},
                                  PerBlock{4, 1000}, PerBlock{1000, 5}, PerBlock{1000, 1000}}) {
      const ElementwiseCase c(descriptor(shape, block), ++seed, true);
      ElementwiseCase alone(descriptor(shape, PerGroup{-1, 1}), seed, true);
      alone.input = c.input;
      alone.gradient = c.gradient;
      const std::vector<std::int64_t> blocks = segments_of(shape, block);
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const auto of = static_cast<std::size_t>(blocks[i]);
        const std::size_t width = unit_bytes(c.scale_type);
        std::memcpy(&alone.scale[i * width], &c.scale[of * width], width);
        alone.zero_point[i] = c.zero_point[of];
      }
      const auto want = alone.run(Stream::cpu(1), sku().arch, Numerics::exact);
      for (const int threads : {1, 3}) {
        const auto got = c.run(Stream::cpu(threads), sku().arch, Numerics::exact);
        ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case() << " threads " << threads;
      }
    }
}

// Buffers that end at a forbidden page: a byte read or written too far ends the test.
TEST_P(EveryKernel, TouchesNothingBehindItsBuffers) {
  const Stream stream = Stream::cpu(1);
  std::int64_t turn = 0;  // one step more for each size, so that all granularities meet all kinds of scales
  for (std::int64_t n = 1; n <= 140; n += n < 70 ? 1 : 7, ++turn)
    for (const Granularity& g :
         {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_token(),
          Granularity::per_group(1, 8), Granularity::per_group(0, 2), Granularity::per_block(2, 8)}) {
      const ElementwiseCase c(descriptor({3, n}, g), static_cast<std::uint32_t>(n), false, scales_in_turn(turn++));
      const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
      GuardedBuffer x(static_cast<std::int64_t>(c.input.size())), dy(static_cast<std::int64_t>(c.gradient.size())),
          out(static_cast<std::int64_t>(c.output_bytes()));
      std::memcpy(x.data(), c.input.data(), c.input.size());
      std::memcpy(dy.data(), c.gradient.data(), c.gradient.size());
      GuardedBuffer scale(static_cast<std::int64_t>(c.scale.size())),
          zero_point(static_cast<std::int64_t>(4 * c.zero_point.size()));
      std::memcpy(scale.data(), c.scale.data(), scale.size());
      std::memcpy(zero_point.data(), c.zero_point.data(), zero_point.size());
      ElementwiseArgs args = c.args(x.data(), dy.data(), out.data());
      args.scale = c.scale_parameter(scale.data());
      args.zero_point = c.zero_point_parameter(zero_point.data());
      const auto plan = ElementwisePlan::select(stream, c.descriptor, {.isa = sku().arch, .numerics = Numerics::exact});
      ASSERT_TRUE(plan.ok());
      ASSERT_TRUE(plan->run(stream, {}, args).ok());
      ASSERT_EQ(first_difference(out.bytes(), want, c.write_kind), -1) << c.describe_case();
    }
}

// Every address works, also one that no element of the type could have.
TEST_P(EveryKernel, WorksAtMisalignedAddresses) {
  const Stream stream = Stream::cpu(1);
  for (const Granularity& g : {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_group(1, 32)}) {
    for (std::size_t shift = 1; shift <= 33; shift += 4) {
      const ElementwiseCase c(descriptor({5, 131}, g), 11, false, scales_in_turn(static_cast<std::int64_t>(shift / 4)));
      const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
      std::vector<std::byte> x(c.input.size() + 64), dy(c.gradient.size() + 64), out(c.output_bytes() + 64),
          scale(c.scale.size() + 64), zp(4 * c.zero_point.size() + 64);
      std::memcpy(x.data() + shift, c.input.data(), c.input.size());
      std::memcpy(dy.data() + shift, c.gradient.data(), c.gradient.size());
      std::memcpy(scale.data() + shift, c.scale.data(), c.scale.size());
      std::memcpy(zp.data() + shift, c.zero_point.data(), 4 * c.zero_point.size());
      ElementwiseArgs args = c.args(x.data() + shift, dy.data() + shift, out.data() + shift);
      args.scale = c.scale_parameter(scale.data() + shift);
      args.zero_point = c.zero_point_parameter(zp.data() + shift);
      const auto plan = ElementwisePlan::select(stream, c.descriptor, {.isa = sku().arch, .numerics = Numerics::exact});
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
      const ElementwiseCase c(descriptor({6, columns}, g), 21, true);
      const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
      const std::int64_t stride = (columns + 14) / 4 * 4;  // packed rows begin at whole bytes
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
      const auto plan = ElementwisePlan::select(stream, c.descriptor, {.isa = sku().arch, .numerics = Numerics::exact});
      ASSERT_TRUE(plan.ok());
      const Status status = plan->run(stream, {}, args);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(first_difference(out, spread(want, c.write_kind), c.write_kind), -1) << c.describe_case();
    }
}

// In place where that is legal: fake_quantize over its input, gradients over dy and over x.
TEST_P(EveryKernel, RunsInPlaceWhereThatIsLegal) {
  const QuantizeKind op = sku().op;
  if (core::has_codes(elementwise_operator(op))) GTEST_SKIP() << "widths differ";
  const Stream stream = Stream::cpu(2);
  for (const Granularity& g : kGranularities2d) {
    const ElementwiseCase c(descriptor({9, 333}, g), 31, false);
    const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
    const auto plan = ElementwisePlan::select(stream, c.descriptor, {.isa = sku().arch, .numerics = Numerics::exact});
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
  const PrecisionGuarantee g = sku().precision_guarantee;
  EXPECT_TRUE(g.bit_stable_on_same_hardware);
  EXPECT_TRUE(g.bit_stable_across_hardware);
  EXPECT_TRUE(g.deterministic);
  const bool f64 = sku().element == ElementKind::f64 || sku().aux_element == ElementKind::f64;
  EXPECT_EQ(g.math_precision, f64 ? MathPrecision::f64 : MathPrecision::f32);
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryKernel,
                         testing::ValuesIn(on_each_grid(ops::all_kernels<detail::ElementwiseKernel>(BackendKind::cpu))),
                         [](const auto& test) { return test.param.name(); });

TEST(Registry, HoldsEveryOperatorAndType) {
  EXPECT_EQ(ops::all_kernels<detail::ElementwiseKernel>(BackendKind::cpu).size(),
            compiled_isas().size() * elementwise_kernel_count());
}

}  // namespace
}  // namespace kvant::tests
