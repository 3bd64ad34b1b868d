// A host program with the CUDA backend linked in, where there is no device: every plan says so in CUDA's own words, and
// nothing else happens.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kvant/kvant.h"

namespace kvant {
namespace {

class WithoutDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (stream_.status().ok()) GTEST_SKIP() << "there is a CUDA device here";
  }

  void expect_unavailable(const Status& status) const {
    EXPECT_EQ(status.code(), StatusCode::DeviceUnavailable) << status.message();
    EXPECT_EQ(status.message(), stream_.status().message());
  }

  const Stream stream_ = Stream::cuda(nullptr);
};

TEST_F(WithoutDevice, TheStreamKnowsTheReason) {
  EXPECT_EQ(stream_.backend(), BackendKind::cuda);
  expect_unavailable(stream_.status());
  const std::string message(stream_.status().message());
  // "cuda: no CUDA-capable device is detected (cudaErrorNoDevice)" or what the driver has to say
  EXPECT_EQ(message.substr(0, 6), "cuda: ");
  EXPECT_NE(message.find("(cudaError"), std::string::npos) << message;
}

TEST_F(WithoutDevice, EveryPlanSaysIt) {
  expect_unavailable(QuantizePerTensorPlan<float, std::int8_t>::select(stream_, {.shape = {4}}).status());
  expect_unavailable(DequantizePerTensorPlan<std::int8_t, float>::select(stream_, {.shape = {4}}).status());
  expect_unavailable(FakeQuantizePerTensorPlan<Half>::select(stream_, {.shape = {4}}).status());
  expect_unavailable(RangePlan<float>::select(stream_, {.shape = {4, 4}, .scope = PerToken{}}).status());
  expect_unavailable(
      DynamicRangeQuantizePlan<float, Int4>::select(stream_, {.shape = {4, 4}, .scope = PerTensor{}}).status());
  expect_unavailable(
      W8A8LinearPlan<BFloat16>::select(stream_, {.max_rows = 1, .in_features = 4, .out_features = 4}).status());
  expect_unavailable(
      QuantizedLinearPlan<float>::select(stream_, {.max_rows = 1, .in_features = 4, .out_features = 4}).status());
}

TEST_F(WithoutDevice, APlanOfTheCpuRefusesTheStreamAndStillRuns) {
  std::vector<float> x = {1.0f, 2.0f};
  std::vector<std::int8_t> q(2);
  const Stream cpu = Stream::cpu(1);
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(cpu, {.shape = {2}});
  ASSERT_TRUE(plan.ok());
  const QuantizePerTensorPlan<float, std::int8_t>::Args args{
      .input = {x.data(), {2}}, .output = {q.data(), {2}}, .scale = 1.0f};
  expect_unavailable(plan->run(stream_, {}, args));
  EXPECT_TRUE(plan->run(cpu, {}, args).ok());
  EXPECT_EQ(q[1], 2);
}

TEST_F(WithoutDevice, ThreadsAreRefusedToo) {
  const auto nothing = [](const void*, std::int64_t) {};
  expect_unavailable(stream_.parallel_for(1, Task(nothing, nullptr)));
}

}  // namespace
}  // namespace kvant
