// F32 linear layers, bit for bit: every kernel against one chain of std::fma for each output, whatever the size, the
// layout, the threads and the company of other rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/f32_linear_case.h"

namespace kvant::tests {
namespace {

// Every kind of weight, raw and packed, on every instruction set; the bias comes and goes.
void expect_right(std::int64_t m, std::int64_t k, std::int64_t n, Data data = Data::normal) {
  static std::uint32_t seed = 0;
  for (const ElementKind weight : kF32WeightKinds) {
    ++seed;
    const F32LinearCase c(m, k, n, weight, seed % 2 == 0, seed, data);
    const std::vector<std::byte> want = c.wanted();
    for (const ArchSku isa : runnable_isas())
      for (const bool packed : {false, true}) ASSERT_TRUE(is_right(c, want, isa, {.packed = packed}));
  }
}

TEST(F32Linear, EveryInstructionSetOfThisMachineIsTested) {
  EXPECT_NE(std::find(runnable_isas().begin(), runnable_isas().end(), ArchSku::scalar), runnable_isas().end());
}

// ---- Worked out by hand, which the reference must get right too ----

struct Worked {
  const char* about;
  std::vector<float> x, w;
  std::vector<float> bias;  // empty: none
  float y;
};

TEST(F32Linear, WorkedOutByHand) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const Worked cases[] = {
      {"two products", {2, 3}, {5, 7}, {}, 31},
      {"and a bias", {2, 3}, {5, 7}, {0.5f}, 31.5f},
      {"a product is not rounded before it is added", {1, 1 + 0x1p-12f}, {-1, 1 + 0x1p-12f}, {}, 0x1p-11f + 0x1p-24f},
      {"in order of k: 2^24 swallows the 1", {0x1p24f, 1, -0x1p24f}, {1, 1, 1}, {}, 0},
      {"in another order it stays", {0x1p24f, -0x1p24f, 1}, {1, 1, 1}, {}, 1},
      {"the bias comes last", {0x1p24f, -0x1p24f}, {1, 1}, {1}, 1},
      {"and is not where the chain begins", {0x1p24f, 1}, {1, 1}, {-0x1p24f}, 0},
      {"denormals stay", {0x1p-75f, 0x1p-74f}, {0x1p-74f, 0x1p-74f}, {}, 0x1p-149f + 0x1p-148f},
      {"an overflow", {3e38f, 3e38f}, {2, 1}, {}, kInf},
      {"infinities of both signs", {kInf, -kInf}, {1, 1}, {}, kNan},
      {"infinity times nothing", {kInf}, {0}, {}, kNan},
      {"a product beyond f32 that the sum brings back", {-3e38f, 3e38f}, {1, 1.5f}, {}, 1.5e38f},
  };
  for (const Worked& worked : cases)
    for (const ArchSku isa : runnable_isas())
      for (const bool packed : {false, true}) {
        const auto k = static_cast<std::int64_t>(worked.x.size());
        F32LinearCase c(1, k, 1, ElementKind::f32, !worked.bias.empty(), 1);
        const auto put = [](std::vector<std::byte>& to, std::span<const float> from) {
          const auto bytes = std::as_bytes(from);
          to.assign(bytes.begin(), bytes.end());
        };
        put(c.x, worked.x);
        put(c.w, worked.w);
        if (c.has_bias) put(c.bias, worked.bias);
        std::vector<std::byte> want;
        put(want, std::span(&worked.y, 1));
        EXPECT_TRUE(c.equal(c.wanted(), want)) << worked.about << " (reference)";
        EXPECT_TRUE(is_right(c, want, isa, {.packed = packed})) << worked.about;
      }
}

// ---- Sizes ----

TEST(F32Linear, EveryM) {
  for (std::int64_t m = 0; m <= 40; ++m) ASSERT_NO_FATAL_FAILURE(expect_right(m, 37, 29));
}
TEST(F32Linear, EveryK) {
  for (std::int64_t k = 0; k <= 40; ++k) ASSERT_NO_FATAL_FAILURE(expect_right(7, k, 29));
}
TEST(F32Linear, EveryN) {
  for (std::int64_t n = 0; n <= 100; ++n) ASSERT_NO_FATAL_FAILURE(expect_right(7, 19, n));
}

TEST(F32Linear, SizesAtRandom) {
  std::mt19937 random(1);
  const auto size = [&random] { return static_cast<std::int64_t>(random() % 40 + 1); };
  for (int i = 0; i < 200; ++i) ASSERT_NO_FATAL_FAILURE(expect_right(size(), size(), size()));
}

// Around the ends of blocks of K, of groups of panels and of blocks of rows.
TEST(F32Linear, SizesAroundEveryBlock) {
  for (const std::int64_t k : {255, 256, 257, 259, 511, 512, 513, 770}) {
    ASSERT_NO_FATAL_FAILURE(expect_right(5, k, 31));
    ASSERT_NO_FATAL_FAILURE(expect_right(1, k, 24));
    ASSERT_NO_FATAL_FAILURE(expect_right(13, k, 51));
  }
  for (const std::int64_t n : {167, 168, 191, 192, 193, 215, 216, 217, 384, 385, 401})
    ASSERT_NO_FATAL_FAILURE(expect_right(6, 260, n));
  for (const std::int64_t m : {127, 128, 129, 255, 256, 257, 260, 511, 512, 513, 515})
    ASSERT_NO_FATAL_FAILURE(expect_right(m, 9, 26));
  ASSERT_NO_FATAL_FAILURE(expect_right(259, 515, 29));
}

TEST(F32Linear, OrdinaryAndSpecialNumbers) {
  for (const Data data : {Data::specials, Data::one_odd, Data::any_bits}) {
    ASSERT_NO_FATAL_FAILURE(expect_right(9, 31, 53, data));
    ASSERT_NO_FATAL_FAILURE(expect_right(6, 300, 50, data));
  }
}

// One special number in an input or a weight reaches its row or its column, and no other.
TEST(F32Linear, SpecialNumbersStayInTheirRowOrColumn) {
  constexpr std::int64_t kM = 11, kK = 270, kN = 61;
  for (const float special : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const ArchSku isa : runnable_isas())
      for (const bool packed : {false, true})
        for (const bool in_weight : {false, true}) {
          F32LinearCase c(kM, kK, kN, ElementKind::f32, true, 5);
          const std::vector<std::byte> before = c.wanted();
          const std::int64_t line = in_weight ? 37 : 6;
          std::memcpy(&(in_weight ? c.w : c.x)[static_cast<std::size_t>(line * kK + 259) * 4], &special, 4);
          const std::vector<std::byte> want = c.wanted();
          for (std::int64_t i = 0; i < kM * kN; ++i) {
            const bool touched = (in_weight ? i % kN : i / kN) == line;
            ASSERT_EQ(std::isfinite(F32LinearCase::float_at(want, i)), !touched);
            if (!touched) {
              ASSERT_EQ(F32LinearCase::float_at(want, i), F32LinearCase::float_at(before, i));
            }
          }
          ASSERT_TRUE(is_right(c, want, isa, {.packed = packed}));
        }
}

// Every 16-bit pattern as a weight, widened: with an input of 1 and nothing else, it comes out.
TEST(F32Linear, WidensEveryWeight) {
  for (const ElementKind weight : {ElementKind::f16, ElementKind::bf16})
    for (const std::int64_t m : {1, 9}) {  // few rows widen as they go, more of them beforehand
      F32LinearCase c(m, 1, 65536, weight, false, 3);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        std::memcpy(&c.w[2 * i], &bits, 2);
      }
      const float one = 1;
      std::memcpy(c.x.data(), &one, sizeof one);
      const std::vector<std::byte> want = c.wanted();
      for (std::int64_t i = 0; i < 65536; ++i) {
        const auto exact = static_cast<float>(get_float(&c.w[static_cast<std::size_t>(2 * i)], weight));
        const float y = F32LinearCase::float_at(want, i);
        ASSERT_TRUE(y == exact || (std::isnan(y) && std::isnan(exact)));
      }
      for (const ArchSku isa : runnable_isas())
        for (const bool packed : {false, true}) ASSERT_TRUE(is_right(c, want, isa, {.packed = packed}));
    }
}

// ---- What must not matter ----

TEST(F32Linear, ThreadsAndSpareRowsDoNotMatter) {
  struct Sizes {
    std::int64_t m, k, n;
  };
  for (const Sizes& sizes : {Sizes{1, 515, 1300}, Sizes{6, 300, 700}, Sizes{300, 270, 80}, Sizes{530, 130, 10}})
    for (const ElementKind weight : kF32WeightKinds) {
      const F32LinearCase c(sizes.m, sizes.k, sizes.n, weight, true, 8);
      const std::vector<std::byte> want = c.wanted();
      for (const ArchSku isa : runnable_isas())
        for (const bool packed : {false, true})
          for (const int threads : {1, 2, 3, 8})
            ASSERT_TRUE(is_right(c, want, isa, {.packed = packed, .spare_rows = threads * 100}, Stream::cpu(threads)));
    }
}

// Row m alone is row m of a batch.
TEST(F32Linear, TheRestOfTheBatchDoesNotMatter) {
  constexpr std::int64_t kM = 270, kK = 300, kN = 75;
  for (const ElementKind weight : kF32WeightKinds)
    for (const ArchSku isa : runnable_isas()) {
      const F32LinearCase c(kM, kK, kN, weight, true, 4);
      const PreparedF32Linear batch(c, {.isa = isa}, {.packed = true}, Stream::cpu(2));
      ASSERT_TRUE(batch.status().ok()) << batch.status().message();
      ASSERT_TRUE(batch.run(Stream::cpu(2)).ok());
      const std::vector<std::byte> all = batch.output();
      std::vector<std::byte> scratch(batch.plan().workspace_size());
      for (std::int64_t first = 0; first < kM; first += 7)
        for (const std::int64_t rows : {1, 2, 3, 5, 9}) {
          if (first + rows > kM) continue;
          std::vector<float> y(static_cast<std::size_t>(rows * kN), -1.0f);
          AnyF32LinearArgs args = batch.args();
          args.input.data = static_cast<const float*>(args.input.data) + first * kK;
          args.input.shape = {rows, kK};
          args.output = {y.data(), ElementKind::f32, {rows, kN}, 0};
          const Status done = batch.plan().run(Stream::cpu(1), {scratch.data(), scratch.size()}, args);
          ASSERT_TRUE(done.ok()) << done.message();
          ASSERT_EQ(std::memcmp(y.data(), &all[static_cast<std::size_t>(first * kN * 4)], y.size() * 4), 0)
              << rows << " rows from " << first << " on, " << name(weight) << " on " << name(isa);
        }
    }
}

TEST(F32Linear, KeepsToItsRows) {
  for (const ElementKind weight : kF32WeightKinds)
    for (const auto& [m, k, n] : {std::tuple{1, 1, 1}, {3, 5, 7}, {9, 261, 50}, {4, 256, 48}, {5, 33, 193}}) {
      const F32LinearCase c(m, k, n, weight, true, 6);
      const std::vector<std::byte> want = c.wanted();
      for (const ArchSku isa : runnable_isas())
        for (const bool packed : {false, true}) {
          ASSERT_TRUE(is_right(c, want, isa, {.packed = packed, .at_page_end = true}));
          for (const std::int64_t gap : {1, 3, 100})
            ASSERT_TRUE(is_right(c, want, isa,
                                 {.packed = packed,
                                  .activation_gap = gap,
                                  .weight_gap = gap + 1,
                                  .output_gap = gap + 2,
                                  .shift = static_cast<std::size_t>(gap)}));
          ASSERT_TRUE(
              is_right(c, want, isa,
                       {.packed = packed, .activation_gap = 5, .weight_gap = 3, .output_gap = 1, .at_page_end = true}));
          for (const std::size_t shift : {1u, 2u, 4u, 31u})
            ASSERT_TRUE(is_right(c, want, isa, {.packed = packed, .shift = shift}));
        }
    }
}

TEST(F32Linear, InputsOfEveryRank) {
  const F32LinearCase c(12, 20, 30, ElementKind::f32, true, 2);
  const F32LinearCase one(1, 20, 30, ElementKind::f32, true, 2);
  for (const ArchSku isa : runnable_isas()) {
    for (const std::vector<std::int64_t>& leading :
         std::vector<std::vector<std::int64_t>>{{12}, {3, 4}, {2, 3, 2}, {1, 1, 2, 1, 3, 1, 2}})
      ASSERT_TRUE(is_right(c, c.wanted(), isa, {.leading = leading, .activation_gap = 2, .output_gap = 1}));
    ASSERT_TRUE(is_right(one, one.wanted(), isa, {.leading = std::vector<std::int64_t>{}}));
  }
}

TEST(F32Linear, OnePlanServesAnyNumberOfRowsAndMayBeRepeated) {
  const Stream streams[] = {Stream::cpu(1), Stream::cpu(3)};
  for (const ArchSku isa : runnable_isas()) {
    const auto plan =
        F32LinearPlan<>::select(streams[0], {.max_rows = 300, .in_features = 260, .out_features = 50}, {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> scratch(plan->workspace_size(), std::byte{0xFF});
    for (const std::int64_t m : {300, 1, 257, 256, 7, 0, 300}) {
      const F32LinearCase c(m, 260, 50, ElementKind::f32, false, static_cast<std::uint32_t>(m));
      std::vector<std::byte> y(static_cast<std::size_t>(m * 50) * 4);
      for (const Stream& stream : streams) {
        std::fill(y.begin(), y.end(), std::byte{0xFF});
        const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                      {.input = {reinterpret_cast<const float*>(c.x.data()), {m, 260}},
                                       .weight = {reinterpret_cast<const float*>(c.w.data()), {50, 260}},
                                       .output = {reinterpret_cast<float*>(y.data()), {m, 50}}});
        ASSERT_TRUE(done.ok()) << done.message();
        ASSERT_TRUE(c.equal(y, c.wanted()));
      }
    }
  }
}

// A bias of -0 is added to the 0 of an empty chain.
TEST(F32Linear, WithoutInFeaturesTheBiasIsWritten) {
  for (const ArchSku isa : runnable_isas())
    for (const bool packed : {false, true})
      for (const bool bias : {false, true}) {
        F32LinearCase c(5, 0, 27, ElementKind::bf16, bias, 3);
        const float nothing = -0.0f;
        std::memcpy(c.bias.data(), &nothing, sizeof nothing);
        const std::vector<std::byte> want = c.wanted();
        for (std::int64_t i = 0; i < 5 * 27; ++i) {
          ASSERT_EQ(F32LinearCase::float_at(want, i), bias ? F32LinearCase::float_at(c.bias, i % 27) : 0.0f);
          ASSERT_EQ(std::signbit(F32LinearCase::float_at(want, 0)), false);
        }
        ASSERT_TRUE(is_right(c, want, isa, {.packed = packed, .output_gap = 3}));
      }
}

// Only the output must be apart: the input may be the weight, and the bias a row of it.
TEST(F32Linear, InputsMayBeOneAnother) {
  F32LinearCase c(29, 29, 29, ElementKind::f32, true, 6);
  c.w = c.x;
  c.bias.assign(c.x.begin(), c.x.begin() + 29 * 4);
  const std::vector<std::byte> want = c.wanted();
  const auto* x = reinterpret_cast<const float*>(c.x.data());
  for (const ArchSku isa : runnable_isas()) {
    const auto plan =
        F32LinearPlan<>::select(Stream::cpu(1), {.max_rows = 29, .in_features = 29, .out_features = 29}, {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> scratch(plan->workspace_size()), y(c.x.size());
    const Status done = plan->run(Stream::cpu(1), {scratch.data(), scratch.size()},
                                  {.input = {x, {29, 29}},
                                   .weight = {x, {29, 29}},
                                   .bias = {x, {29}},
                                   .output = {reinterpret_cast<float*>(y.data()), {29, 29}}});
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_TRUE(c.equal(y, want));
  }
}

template <class W>
void expect_typed_plan_right() {
  const F32LinearCase c(6, 40, 30, kind_of<W>, true, 9);
  const std::vector<std::byte> want = c.wanted();
  const Stream stream = Stream::cpu(1);
  std::vector<W> weight(30 * 40);
  std::memcpy(static_cast<void*>(weight.data()), c.w.data(), c.w.size());
  const auto packed = PackedF32Weight::pack(stream, TensorRef<W>(weight.data(), {30, 40}));
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  const auto plan = F32LinearPlan<W>::select(stream, {.max_rows = 6, .in_features = 40, .out_features = 30});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> scratch(plan->workspace_size()), y(want.size());
  F32LinearArgs<W> args{.input = {reinterpret_cast<const float*>(c.x.data()), {6, 40}},
                        .packed_weight = &*packed,
                        .bias = {reinterpret_cast<const float*>(c.bias.data()), {30}},
                        .output = {reinterpret_cast<float*>(y.data()), {6, 30}}};
  ASSERT_TRUE(plan->can_implement(args).ok());
  ASSERT_TRUE(plan->run(stream, {scratch.data(), scratch.size()}, args).ok());
  EXPECT_TRUE(c.equal(y, want));
  args.packed_weight = nullptr;
  args.weight = {weight.data(), {30, 40}};
  std::fill(y.begin(), y.end(), std::byte{0xFF});
  ASSERT_TRUE(plan->run(stream, {scratch.data(), scratch.size()}, args).ok());
  EXPECT_TRUE(c.equal(y, want));
}

TEST(F32Linear, TypedPlansOfEveryType) {
  expect_typed_plan_right<float>();
  expect_typed_plan_right<Half>();
  expect_typed_plan_right<BFloat16>();
}

TEST(F32Linear, SaysWhatItPromises) {
  const std::pair<ElementKind, std::string> names[] = {{ElementKind::f32, "f32_linear_f32__"},
                                                       {ElementKind::f16, "f32_linear_f16_f32__"},
                                                       {ElementKind::bf16, "f32_linear_bf16_f32__"}};
  for (const ArchSku isa : runnable_isas())
    for (const auto& [weight, begin] : names) {
      const auto plan = AnyF32LinearPlan::select(
          Stream::cpu(1), {.max_rows = 2, .in_features = 3, .out_features = 4, .weight = weight}, {.isa = isa});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_EQ(plan->sku().name(), begin + std::string(name(isa)));
      EXPECT_EQ(plan->sku().epilogue, EpilogueKind::bias);
      const PrecisionGuarantee promised = plan->precision_guarantee();
      EXPECT_EQ(promised.math_precision, MathPrecision::f32);
      EXPECT_EQ(promised.accumulator, AccumulatorKind::f32_chain);
      EXPECT_TRUE(promised.bit_stable_on_same_hardware && promised.bit_stable_across_hardware &&
                  promised.deterministic);
    }
}

// More rows than a block take turns.
TEST(F32Linear, TheWorkspaceDoesNotGrowWithoutEnd) {
  const auto bytes = [](std::int64_t rows) {
    const auto plan =
        F32LinearPlan<>::select(Stream::cpu(1), {.max_rows = rows, .in_features = 100, .out_features = 10});
    return plan->workspace_size();
  };
  EXPECT_EQ(bytes(0), 0u);
  EXPECT_EQ(bytes(3), 3u * 100 * 4 + 64);
  EXPECT_EQ(bytes(1 << 20), bytes(1 << 10));
}

}  // namespace
}  // namespace kvant::tests
