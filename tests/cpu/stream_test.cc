// Streams: thread counts, a host's own pool, and one plan used by many threads at once (run under TSan too).
#include "kvant/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/support/elementwise_case.h"
#include "tests/support/linear_case.h"

namespace kvant::tests {
namespace {

TEST(Stream, RunsEveryPartOnce) {
  for (int threads = 1; threads <= 8; ++threads) {
    const Stream stream = Stream::cpu(threads);
    EXPECT_EQ(stream.threads(), threads);
    std::vector<std::atomic<int>> count(1000);
    const Task task(
        [](const void* p, std::int64_t part) {
          (*static_cast<std::vector<std::atomic<int>>*>(const_cast<void*>(p)))[static_cast<std::size_t>(part)]++;
        },
        &count);
    ASSERT_TRUE(stream.parallel_for(1000, task).ok());
    for (const auto& c : count) ASSERT_EQ(c, 1);
  }
}

// A build with CUDA has a test of its own for machines without a device; here either answer will do, but it must be
// one.
TEST(Stream, OfCudaSaysWhyItCannotBeHad) {
  const Stream stream = Stream::cuda(nullptr);
  EXPECT_EQ(stream.backend(), BackendKind::cuda);
  EXPECT_EQ(stream.threads(), 1);
  if (stream.status().ok()) GTEST_SKIP() << "there is a CUDA device here";
  const StatusCode code = stream.status().code();
  EXPECT_TRUE(code == StatusCode::Unsupported || code == StatusCode::DeviceUnavailable) << name(code);
  EXPECT_EQ(stream.status().message().substr(0, 6), "cuda: ");
  const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = {4}});
  EXPECT_EQ(plan.status().code(), code);
  EXPECT_EQ(plan.status().message(), stream.status().message());
  EXPECT_EQ(stream.parallel_for(1, Task([](const void*, std::int64_t) {}, nullptr)).code(), code);
}

TEST(Stream, OfTheHostIsUsedForLargeProblemsOnly) {
  std::atomic<int> calls{0};
  const Stream stream = Stream::cpu(Executor{.threads = 3, .parallel_for = [&](std::int64_t parts, const Task& task) {
                                               ++calls;
                                               std::vector<std::thread> pool;
                                               for (std::int64_t t = 0; t < 3; ++t)
                                                 pool.emplace_back([=, &task] {
                                                   for (std::int64_t i = t; i < parts; i += 3) task(i);
                                                 });
                                               for (std::thread& thread : pool) thread.join();
                                             }});
  const ElementwiseCase small(describe(QuantizeKind::quantize, ElementKind::f32, ElementKind::s8, {100}, PerTensor{}),
                              1, false);
  small.run(stream, ArchSku::scalar, Numerics::exact);
  EXPECT_EQ(calls, 0);
  const ElementwiseCase large(
      describe(QuantizeKind::quantize, ElementKind::f32, ElementKind::s4, {501, 1001}, PerTensor{}), 1, false);
  const auto got = large.run(stream, ArchSku::scalar, Numerics::exact);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(first_difference(got, large.run(Stream::cpu(1), ArchSku::scalar, Numerics::exact), large.write_kind), -1);
}

TEST(Stream, NoticesAnExecutorThatSwapsParts) {
  const Stream stream = Stream::cpu(Executor{.threads = 2, .parallel_for = [](std::int64_t parts, const Task& task) {
                                               task(0);
                                               for (std::int64_t i = 0; i + 1 < parts; ++i) task(i);
                                             }});
  const Task nothing([](const void*, std::int64_t) {}, nullptr);
  const Status status = stream.parallel_for(8, nothing);
  EXPECT_EQ(status.code(), StatusCode::Internal);
  EXPECT_EQ(status.message(), "stream: the executor ran some of 8 parts twice and left others out");
}

TEST(Stream, TurnsExceptionsOfTasksIntoAStatus) {
  const Task thrower([](const void*, std::int64_t) { throw std::runtime_error("oops"); }, nullptr);
  for (const Stream& stream : {Stream::cpu(1), Stream::cpu(2)})
    for (const std::int64_t parts : {1, 4}) {
      const Status status = stream.parallel_for(parts, thrower);
      EXPECT_EQ(status.code(), StatusCode::Internal);
      EXPECT_EQ(status.message(), "stream: parallel_for threw: oops");
    }
  EXPECT_TRUE(Stream::cpu(2).parallel_for(0, thrower).ok());
  EXPECT_TRUE(Stream::cpu(2).parallel_for(-1, thrower).ok());
}

TEST(Plan, ServesManyThreadsAtOnce) {
  const Stream stream = Stream::cpu(2);
  const ElementwiseCase c(
      describe(QuantizeKind::fake_quantize, ElementKind::bf16, ElementKind::s8, {257, 513}, PerToken{}), 2, false);
  const auto plan = ElementwisePlan::select(stream, c.descriptor);
  ASSERT_TRUE(plan.ok());
  const auto want = c.run(stream, ArchSku::scalar, Numerics::exact);
  std::vector<std::vector<std::byte>> outputs(4, std::vector<std::byte>(c.output_bytes()));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (auto& out : outputs)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i)
        if (!plan->run(stream, {}, c.args(c.input.data(), c.gradient.data(), out.data())).ok()) ++failures;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  for (const auto& out : outputs) EXPECT_EQ(first_difference(out, want, c.write_kind), -1);
}

// Ranges are merged from parts per tensor and per inner channel, and made run by run per token: each on four threads,
// and used by two callers at once.
TEST(DynamicRangePlan, ServesManyThreadsAtOnce) {
  const Shape shape = {600, 1024};
  std::vector<float> x(600 * 1024);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 1009) - 500.0f;
  const Stream stream = Stream::cpu(4);
  for (const Granularity& scope : {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_token(),
                                   Granularity::per_group(0, 7), Granularity::per_block(7, 100)}) {
    const auto plan = DynamicRangeQuantizePlan<float, std::int8_t>::select(
        stream, {.shape = shape, .scope = scope, .mode = DynamicRangeMode::asymmetric});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const Shape parameters = *parameter_shape(shape, scope);
    struct Outcome {
      std::vector<std::int8_t> q;
      std::vector<float> scale;
      std::vector<std::int32_t> zero_point;
      bool operator==(const Outcome&) const = default;
    };
    const auto count = static_cast<std::size_t>(*parameters.element_count());
    std::vector<Outcome> outcomes(
        3, Outcome{std::vector<std::int8_t>(x.size()), std::vector<float>(count), std::vector<std::int32_t>(count)});
    std::atomic<int> failures{0};
    const auto run = [&](const Stream& on, Outcome& o) {
      std::vector<std::byte> scratch(plan->workspace_size());
      const Status status = plan->run(on, {scratch.data(), scratch.size()},
                                      {.input = {x.data(), shape},
                                       .output = {o.q.data(), shape},
                                       .scale_out = {o.scale.data(), parameters},
                                       .zero_point_out = {o.zero_point.data(), parameters}});
      if (!status.ok()) ++failures;
    };
    run(Stream::cpu(1), outcomes[0]);
    std::thread other([&] { run(stream, outcomes[1]); });
    run(stream, outcomes[2]);
    other.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(outcomes[1], outcomes[0]) << name(scope.kind());
    EXPECT_EQ(outcomes[2], outcomes[0]) << name(scope.kind());
  }
}

// One plan and one packed weight on four threads, used by three callers at once; a raw weight is rearranged by each of
// them. Layers that are cut along rows, along outputs, and along neither.
TEST(LinearPlan, ServesManyThreadsAtOnce) {
  const Stream stream = Stream::cpu(4);
  for (const auto& [m, k, n] : {std::tuple{60, 100, 180}, {1, 700, 400}, {2, 2000, 3}})
    for (const bool packed : {false, true}) {
      LinearCase c(m, k, n, {ElementKind::u8, ElementKind::s8, ElementKind::bf16}, CodeData::uniform,
                   CodeData::outliers, 3);
      c.draw_parameters(5);
      const std::vector<std::byte> want = c.wanted();
      const PreparedLinear linear(c, {}, {.packed = packed}, stream);
      ASSERT_TRUE(linear.status().ok()) << linear.status().message();
      std::vector<std::vector<std::byte>> outputs(3, std::vector<std::byte>(want.size()));
      std::atomic<int> failures{0};
      std::vector<std::thread> callers;
      for (std::vector<std::byte>& output : outputs)
        callers.emplace_back([&] {
          AnyLinearArgs args = linear.args();
          args.output.data = output.data();
          std::vector<std::byte> scratch(linear.plan().workspace_size());
          for (int i = 0; i < 2; ++i)
            if (!linear.plan().run(stream, {scratch.data(), scratch.size()}, args).ok()) ++failures;
        });
      for (std::thread& caller : callers) caller.join();
      EXPECT_EQ(failures, 0);
      for (const std::vector<std::byte>& output : outputs) EXPECT_TRUE(c.equal(output, want));
    }
}

// Codes, scales and the rearranged activation lie in each caller's own scratch.
TEST(QuantizedLinearPlan, ServesManyThreadsAtOnce) {
  const Stream stream = Stream::cpu(4);
  constexpr std::int64_t kM = 150, kK = 300, kN = 90;
  std::vector<float> x(kM * kK), smooth(kK), weight_scale(kN, 0.01f);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 1009) - 500.0f;
  for (std::size_t i = 0; i < smooth.size(); ++i) smooth[i] = 0.5f + static_cast<float>(i % 7);
  std::vector<std::int8_t> w(kN * kK);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<std::int8_t>(static_cast<int>(i * 31 % 256) - 128);
  const auto packed = PackedWeight::pack(stream, TensorRef<std::int8_t>(w.data(), {kN, kK}));
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  for (const bool smoothed : {false, true})
    for (const std::optional<double>& act_scale : {std::optional<double>(), std::optional(3.7)}) {
      const auto plan = QuantizedLinearPlan<float>::select(stream, {.max_rows = kM,
                                                                    .in_features = kK,
                                                                    .out_features = kN,
                                                                    .mode = DynamicRangeMode::asymmetric,
                                                                    .act_scale = act_scale,
                                                                    .smooth = smoothed});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      std::atomic<int> failures{0};
      const auto run = [&](const Stream& on, std::vector<float>& y) {
        std::vector<std::byte> scratch(plan->workspace_size());
        QuantizedLinearArgs<float, std::int8_t> args{.input = {x.data(), {kM, kK}},
                                                     .packed_weight = &*packed,
                                                     .weight_scale = TensorRef<float>(weight_scale.data(), {kN}),
                                                     .output = {y.data(), {kM, kN}}};
        if (smoothed) args.smooth = {smooth.data(), {kK}};
        if (!plan->run(on, {scratch.data(), scratch.size()}, args).ok()) ++failures;
      };
      std::vector<std::vector<float>> outputs(3, std::vector<float>(kM * kN));
      run(Stream::cpu(1), outputs[0]);
      std::thread other([&] { run(stream, outputs[1]); });
      run(stream, outputs[2]);
      other.join();
      EXPECT_EQ(failures, 0);
      EXPECT_EQ(outputs[1], outputs[0]);
      EXPECT_EQ(outputs[2], outputs[0]);
    }
}

// Many threads may pack the same weight, and one packing may be cut into parts: the same bytes.
TEST(PackedWeight, IsPackedByManyThreadsAtOnce) {
  const std::vector<std::byte> w = draw_codes(CodeData::outliers, ElementKind::s8, 700, 500, 1);
  const AnyRef weight{w.data(), ElementKind::s8, {700, 500}, 0};
  const auto alone = PackedWeight::pack(Stream::cpu(1), weight);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  const Stream stream = Stream::cpu(4);
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      const auto packed = PackedWeight::pack(stream, weight);
      if (!packed.ok() ||
          !std::equal(packed->bytes().begin(), packed->bytes().end(), alone->bytes().begin(), alone->bytes().end()))
        ++failures;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace kvant::tests
