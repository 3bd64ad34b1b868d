// The typed plans: every public name exists, selects, runs and reports; and the choice of kernels can be forced.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/isas.h"
#include "tests/support/kernel_log.h"

namespace kvant::tests {
namespace {

template <class T>
std::vector<storage_t<T>> zeros(std::int64_t rows, std::int64_t columns) {
  return std::vector<storage_t<T>>(static_cast<std::size_t>(rows * row_bytes(kind_of<T>, columns)));
}

// One typed trip: quantize, dequantize, and the three gradients, for one granularity.
template <class F, class Code, class G>
void round_trip(const G& granularity) {
  const Stream stream = Stream::cpu(1);
  const Shape shape = {4, 6};
  const Shape parameters = *parameter_shape(shape, granularity);
  const auto count = static_cast<std::size_t>(*parameters.element_count());
  auto x = zeros<F>(4, 6), y = zeros<F>(4, 6), dy = zeros<F>(4, 6), dx = zeros<F>(4, 6);
  auto q = zeros<Code>(4, 6);
  std::vector<scale_t<F>> scale(count, scale_t<F>(0.5));
  std::vector<std::int32_t> zp(count, 1);
  const TensorRef<scale_t<F>> scales(scale.data(), parameters);
  const TensorRef<std::int32_t> zero_points(zp.data(), parameters);
  const auto check = [&](const auto& plan, const auto& args) {
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->workspace_size(), 0u);
    EXPECT_TRUE(plan->can_implement(args).ok());
    EXPECT_EQ(plan->precision_guarantee(), plan->sku().precision_guarantee);
    const Status status = plan->run(stream, {}, args);
    ASSERT_TRUE(status.ok()) << status.message();
    note_kernel(plan->sku());
  };
  check(QuantizePlanOf<F, Code, G>::select(stream, {.shape = shape, .granularity = granularity}),
        QuantizeArgs<F, Code>{
            .input = {x.data(), shape}, .output = {q.data(), shape}, .scale = scales, .zero_point = zero_points});
  check(DequantizePlanOf<Code, F, G>::select(stream, {.shape = shape, .granularity = granularity}),
        DequantizeArgs<Code, F>{
            .input = {q.data(), shape}, .output = {y.data(), shape}, .scale = scales, .zero_point = zero_points});
  check(FakeQuantizePlanOf<F, G>::select(stream, {.shape = shape, .granularity = granularity}),
        FakeQuantizeArgs<F>{
            .input = {x.data(), shape}, .output = {y.data(), shape}, .scale = scales, .zero_point = zero_points});
  check(QuantizeBackwardPlanOf<F, Code, G>::select(stream, {.shape = shape, .granularity = granularity}),
        QuantizeBackwardArgs<F>{.grad_output = {dy.data(), shape},
                                .input = {x.data(), shape},
                                .grad_input = {dx.data(), shape},
                                .scale = scales,
                                .zero_point = zero_points});
  check(FakeQuantizeBackwardPlanOf<F, G>::select(stream, {.shape = shape, .granularity = granularity}),
        FakeQuantizeBackwardArgs<F>{.grad_output = {dy.data(), shape},
                                    .input = {x.data(), shape},
                                    .grad_input = {dx.data(), shape},
                                    .scale = scales,
                                    .zero_point = zero_points});
  check(
      DequantizeBackwardPlanOf<Code, F, G>::select(stream, {.shape = shape, .granularity = granularity}),
      DequantizeBackwardArgs<F>{.grad_output = {dy.data(), shape}, .grad_input = {dx.data(), shape}, .scale = scales});
}

template <class F>
void every_code() {
  round_trip<F, std::int8_t>(PerGroup{.axis = 1, .group_size = 4});
  round_trip<F, std::uint8_t>(PerGroup{.axis = 1, .group_size = 4});
  round_trip<F, Int4>(PerGroup{.axis = 1, .group_size = 4});
  round_trip<F, UInt4>(PerGroup{.axis = 1, .group_size = 4});
}

TEST(TypedPlans, RunForEveryPairOfTypes) {
  every_code<float>();
  every_code<double>();
  every_code<Half>();
  every_code<BFloat16>();
}

TEST(TypedPlans, RunForEveryGranularity) {
  round_trip<float, std::int8_t>(PerTensor{});
  round_trip<float, std::int8_t>(PerChannel{.axis = 1});
  round_trip<float, std::int8_t>(PerToken{});
  round_trip<float, std::int8_t>(Granularity::per_group(0, 3));
  round_trip<float, std::int8_t>(PerBlock{.rows = 2, .columns = 3});
}

TEST(TypedPlans, HaveTheirFamiliarNames) {
  const Stream stream = Stream::cpu(1);
  EXPECT_TRUE(
      (QuantizePerTensorPlan<float, std::int8_t>::select(stream, QuantizePerTensorDescriptor{.shape = {4}})).ok());
  EXPECT_TRUE(
      (QuantizePerChannelPlan<float, Int4>::select(stream, QuantizePerChannelDescriptor{.shape = {4, 2}})).ok());
  EXPECT_TRUE((QuantizePerTokenPlan<double, UInt4>::select(stream, QuantizePerTokenDescriptor{.shape = {4, 2}})).ok());
  EXPECT_TRUE((QuantizePerGroupPlan<Half, std::uint8_t>::select(
                   stream, QuantizePerGroupDescriptor{.shape = {4}, .granularity = {.group_size = 2}}))
                  .ok());
  EXPECT_TRUE((QuantizePerBlockPlan<float, std::int8_t>::select(
                   stream, QuantizePerBlockDescriptor{.shape = {4, 6}, .granularity = {.rows = 2, .columns = 4}}))
                  .ok());
  EXPECT_TRUE(
      (DequantizePerTensorPlan<std::int8_t, float>::select(stream, DequantizePerTensorDescriptor{.shape = {4}})).ok());
  EXPECT_TRUE((DequantizePerChannelBackwardPlan<std::int8_t, float>::select(
                   stream, DequantizePerChannelDescriptor{.shape = {4}}))
                  .ok());
  EXPECT_TRUE(
      (DequantizePerTokenPlan<std::int8_t, float>::select(stream, DequantizePerTokenDescriptor{.shape = {4}})).ok());
  EXPECT_TRUE((DequantizePerGroupPlan<UInt4, BFloat16>::select(
                   stream, DequantizePerGroupDescriptor{.shape = {4}, .granularity = {.group_size = 3}}))
                  .ok());
  EXPECT_TRUE((DequantizePerBlockPlan<std::int8_t, BFloat16>::select(
                   stream, DequantizePerBlockDescriptor{.shape = {4, 6}, .granularity = {.rows = 2, .columns = 4}}))
                  .ok());
  EXPECT_TRUE(FakeQuantizePlan<float>::select(stream, FakeQuantizeDescriptor{.shape = {4}}).ok());
  EXPECT_TRUE(FakeQuantizePerChannelPlan<float>::select(stream, FakeQuantizePerChannelDescriptor{.shape = {4}}).ok());
  EXPECT_TRUE(
      FakeQuantizePerTokenBackwardPlan<float>::select(stream, FakeQuantizePerTokenDescriptor{.shape = {4}}).ok());
  EXPECT_TRUE(FakeQuantizePerGroupPlan<double>::select(
                  stream, FakeQuantizePerGroupDescriptor{.shape = {4}, .granularity = {.group_size = 1}})
                  .ok());
  EXPECT_TRUE(FakeQuantizePerBlockPlan<float>::select(
                  stream, FakeQuantizePerBlockDescriptor{.shape = {4, 6}, .granularity = {.rows = 2, .columns = 4}})
                  .ok());
}

TEST(TypedPlans, NameTheirKernels) {
  const Stream stream = Stream::cpu(1);
  const auto quantize =
      QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = {4}}, {.isa = ArchSku::scalar});
  EXPECT_EQ(quantize->sku().name(), "quantize_f32_s8__scalar");
  const auto fake = FakeQuantizePlan<BFloat16>::select(stream, {.shape = {4}}, {.isa = ArchSku::scalar});
  EXPECT_EQ(fake->sku().name(), "fake_quantize_bf16__scalar");
  const auto dequantize =
      DequantizePerTensorPlan<Int4, double>::select(stream, {.shape = {4}}, {.isa = ArchSku::scalar});
  EXPECT_EQ(dequantize->sku().name(), "dequantize_s4_f64__scalar");
  EXPECT_EQ(dequantize->precision_guarantee().math_precision, MathPrecision::f64);
}

TEST(Selection, TakesTheBestInstructionSetUnlessForced) {
  const Stream stream = Stream::cpu(1);
  const auto arch = [&] {
    return QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = {4}})->sku().arch;
  };
  const auto isas = compiled_isas();
  const ArchSku best = *std::find_if(isas.begin(), isas.end(), cpu::can_run);
  unsetenv("KVANT_FORCE_ISA");
  EXPECT_EQ(arch(), best);
  setenv("KVANT_FORCE_ISA", "scalar", 1);
  EXPECT_EQ(arch(), ArchSku::scalar);
  // A preference in the code is more specific than the environment.
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = {4}}, {.isa = best});
  EXPECT_EQ(plan->sku().arch, best);
  unsetenv("KVANT_FORCE_ISA");
}

// Two to a byte, the first in the low nibble, rows on byte boundaries, the last high nibble zero.
TEST(PackedCodes, AreLaidOutAsPromised) {
  const Stream stream = Stream::cpu(1);
  const std::vector<float> x = {-8, 7, -1, 2, 3, -4};
  std::vector<std::uint8_t> q(4, 0xFF);
  const auto plan = QuantizePerTensorPlan<float, Int4>::select(stream, {.shape = {2, 3}});
  ASSERT_TRUE(plan->run(stream, {}, {.input = {x.data(), {2, 3}}, .output = {q.data(), {2, 3}}, .scale = 1.0f}).ok());
  EXPECT_EQ(q, (std::vector<std::uint8_t>{0x78, 0x0F, 0x32, 0x0C}));
}

// An output of a few elements touches nothing around it, and none touches nothing at all.
TEST(ZeroElements, AreASuccess) {
  const Stream stream = Stream::cpu();
  for (const Shape& shape : {Shape{0}, Shape{0, 5}, Shape{5, 0}, Shape{2, 0, 3}}) {
    const auto plan = QuantizePerTokenPlan<float, std::int8_t>::select(stream, {.shape = shape});
    ASSERT_TRUE(plan.ok());
    const Shape parameters = *parameter_shape(shape, PerToken{});
    EXPECT_TRUE(
        plan->run(
                stream, {},
                {.input = {nullptr, shape}, .output = {nullptr, shape}, .scale = TensorRef<float>(nullptr, parameters)})
            .ok())
        << shape.to_string();
  }
}

}  // namespace
}  // namespace kvant::tests
