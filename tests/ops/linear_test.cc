// W8A8 linear layers against a reference written from their header: equal bits for every size, pair of types, layout
// and value, on every instruction set, with any number of threads, the weight packed or raw; and what the headers
// promise besides.
#include "kvant/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/isas.h"
#include "tests/support/linear_case.h"
#include "tests/support/sanitized.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

const std::vector<ArchSku>& isas() {
  static const std::vector<ArchSku> all = linear_isas();
  return all;
}

const Stream& stream_of(int threads) {
  static const std::vector<Stream> all = [] {
    std::vector<Stream> streams;
    for (int count = 1; count <= 8; ++count) streams.push_back(Stream::cpu(count));
    return streams;
  }();
  return all[static_cast<std::size_t>(threads) - 1];
}

// On every instruction set, raw and packed.
void expect_right(const LinearCase& c, LinearLayout layout = {}, std::initializer_list<int> threads = {1}) {
  const std::vector<std::byte> want = c.wanted();
  for (const ArchSku isa : isas())
    for (const bool packed : {false, true})
      for (const int count : threads) {
        layout.packed = packed;
        ASSERT_TRUE(is_right(c, want, isa, layout, stream_of(count)));
      }
}

// The four pairs of code types, with ordinary parameters and the kinds of outputs in turn.
class EachPair {
 public:
  void expect_right_for(std::int64_t m, std::int64_t k, std::int64_t n, std::initializer_list<int> threads = {1}) {
    for (const ElementKind activation : kByteKinds)
      for (const ElementKind weight : kByteKinds) {
        const LinearKinds kinds{activation, weight, kLinearOutputs[next_++ % kLinearOutputs.size()]};
        LinearCase c(m, k, n, kinds, CodeData::uniform, CodeData::uniform, next_);
        expect_right(c.draw_parameters(next_), {}, threads);
        if (testing::Test::HasFatalFailure()) return;
      }
    ++next_;  // or each pair would always meet the same kind of output
  }

 private:
  std::uint32_t next_ = 0;
};

TEST(Linear, EveryInstructionSetOfThisMachineIsTested) {
  for (const ArchSku isa : compiled_isas())
    if (cpu::can_run(isa)) {
      EXPECT_NE(std::find(isas().begin(), isas().end(), isa), isas().end()) << name(isa);
    }
  EXPECT_NE(std::find(isas().begin(), isas().end(), ArchSku::scalar), isas().end());
}

// ---- worked out by hand, which the reference must get right too ----

struct Worked {
  const char* about;
  std::vector<std::int8_t> a, w;  // one row each
  double act_scale, weight_scale;
  std::int32_t act_zero_point, weight_zero_point;
  std::optional<double> bias;
  ElementKind output;
  double y;
};

TEST(Linear, WorkedOutByHand) {
  using enum ElementKind;
  const std::vector<Worked> all = {
      {"a sum", {1, 2, 3}, {4, 5, 6}, 1, 1, 0, 0, {}, f32, 32},
      {"scales and bias", {1, 2, 3}, {4, 5, 6}, 0.5, 0.25, 0, 0, -1, f32, 3},
      // (1 - 2) * (4 - 1) + (2 - 2) * (5 - 1) + (3 - 2) * (6 - 1)
      {"zero points", {1, 2, 3}, {4, 5, 6}, 1, 1, 2, 1, {}, f32, 2},
      {"the least codes", {-128, -128}, {-128, -128}, 1, 1, 0, 0, {}, f64, 32768},
      {"the least codes against zero points", {-128, -128}, {-128, -128}, 1, 1, 127, 127, {}, f64, 130050},
      // 4097 * (1 + 2^-12) = 4098 + 2^-12 is halfway between two floats; a fused multiply-add would leave 2^-12.
      {"the product is rounded", {1, 64}, {1, 64}, 1, 1 + 0x1p-12, 0, 0, -4098, f32, 0},
      {"in f64 it is exact", {1, 64}, {1, 64}, 1, 1 + 0x1p-12, 0, 0, -4098, f64, 0x1p-12},
      // The scales meet first: 2^-160 is nothing in f32, though 2^-80 * (2^-80 * 4096) would be a denormal.
      {"the scales come first", {64}, {64}, 0x1p-80, 0x1p-80, 0, 0, {}, f32, 0},
      {"in f64 nothing is lost", {64}, {64}, 0x1p-80, 0x1p-80, 0, 0, {}, f64, 0x1p-148},
      {"a denormal", {64}, {1}, 0x1p-100, 0x1p-49, 0, 0, {}, f32, 0x1p-143},
      // 2049 is halfway between 2048 and 2050 in f16; with a little more it is not.
      {"f16 ties to even", {32, 1}, {64, 1}, 1, 1, 0, 0, {}, f16, 2048},
      {"f16 after the bias, once", {32, 1}, {64, 1}, 1, 1, 0, 0, 0x1p-12, f16, 2050},
      {"f16 overflows", {127, 127, 127, 127, 127}, {127, 127, 127, 127, 127}, 1, 1, 0, 0, {}, f16, kInf},
      {"bf16 ties to even", {16, 1}, {16, 1}, 1, 1, 0, 0, {}, bf16, 256},
      {"bf16 after the bias, once", {16, 1}, {16, 1}, 1, 1, 0, 0, 0x1p-14, bf16, 258},
      {"the scales overflow", {1}, {1}, 3e38, 3e38, 0, 0, {}, f32, kInf},
      {"no sum", {1, -1}, {1, 1}, 1, 1, 0, 0, 0.5, f32, 0.5},
  };
  for (const Worked& worked : all) {
    const LinearKinds kinds{s8, s8, worked.output};
    LinearCase c(1, static_cast<std::int64_t>(worked.a.size()), 1, kinds, CodeData::least, CodeData::least, 0);
    std::memcpy(c.a.data(), worked.a.data(), worked.a.size());
    std::memcpy(c.w.data(), worked.w.data(), worked.w.size());
    c.act_scale.values = {held(worked.act_scale, c.scale_type())};
    c.weight_scale.values = {held(worked.weight_scale, c.scale_type())};
    c.act_zero_point.values = {worked.act_zero_point};
    c.weight_zero_point.values = {worked.weight_zero_point};
    if (worked.bias) {
      c.bias_kind = c.scale_type();
      c.bias = {*worked.bias};
    }
    const std::vector<std::byte> want = stored(std::vector<double>{worked.y}, worked.output);
    EXPECT_TRUE(c.equal(c.wanted(), want)) << "the reference on: " << worked.about;
    for (const ArchSku isa : isas())
      for (const bool packed : {false, true}) EXPECT_TRUE(is_right(c, want, isa, {.packed = packed})) << worked.about;
  }
}

// ---- every size ----

TEST(Linear, EveryK) {
  EachPair pairs;
  for (std::int64_t k = 0; k <= 70; ++k)
    for (const auto& [m, n] : {std::pair{1, 1}, {1, 9}, {2, 16}, {3, 33}, {4, 8}, {5, 5}, {6, 17}, {9, 12}})
      ASSERT_NO_FATAL_FAILURE(pairs.expect_right_for(m, k, n));
}

TEST(Linear, EveryN) {
  EachPair pairs;
  for (std::int64_t n = 0; n <= 70; ++n)
    for (const auto& [m, k] : {std::pair{1, 1}, {1, 64}, {2, 31}, {3, 5}, {4, 32}, {7, 48}, {0, 7}, {2, 0}})
      ASSERT_NO_FATAL_FAILURE(pairs.expect_right_for(m, k, n));
}

TEST(Linear, EveryM) {
  EachPair pairs;
  for (std::int64_t m = 0; m <= 70; ++m)
    for (const auto& [k, n] : {std::pair{1, 1}, {16, 8}, {33, 5}, {64, 17}, {31, 24}, {0, 3}, {9, 0}})
      ASSERT_NO_FATAL_FAILURE(pairs.expect_right_for(m, k, n));
}

TEST(Linear, SizesAtRandom) {
  EachPair pairs;
  std::mt19937 random(1);
  const auto up_to = [&random](std::uint32_t most) { return static_cast<std::int64_t>(random() % (most + 1)); };
  for (int i = 0; i < 150; ++i) {
    const std::int64_t m = up_to(70), k = up_to(70), n = up_to(70);
    ASSERT_NO_FATAL_FAILURE(pairs.expect_right_for(m, k, n));
  }
  for (int i = 0; i < 30; ++i) {
    const std::int64_t m = up_to(90), k = up_to(400), n = up_to(150);
    ASSERT_NO_FATAL_FAILURE(pairs.expect_right_for(m, k, n, {1, 2}));
  }
}

// Every pair of code types, each with another kind of output.
TEST(Linear, LargeOddSizes) {
  struct Size {
    std::int64_t m, n, k;
  };
  std::uint32_t next = 0;
  for (const Size& size : {Size{131, 257, 1031}, Size{5, 1009, 4099}, Size{1, 333, 2049}, Size{37, 65, 16391}})
    for (const ElementKind activation : kByteKinds)
      for (const ElementKind weight : kByteKinds) {
        ++next;
        const LinearKinds kinds{activation, weight, kLinearOutputs[(next + next / 4) % kLinearOutputs.size()]};
        LinearCase c(size.m, size.k, size.n, kinds, CodeData::uniform,
                     next % 2 == 0 ? CodeData::uniform : CodeData::bell, next);
        expect_right(c.draw_parameters(next), {.spare_rows = next % 3}, {static_cast<int>(1 + next % 3)});
        if (HasFatalFailure()) return;
      }
}

// ---- every value ----

// The sum itself comes out in f64, so that one lost unit shows.
TEST(Linear, SumsAreExactForEveryKindOfData) {
  std::uint32_t next = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const CodeData activations : kAllCodeData)
        for (const CodeData weights : kAllCodeData) {
          ++next;
          const std::int64_t k = next % 2 == 0 ? 515 : 96;
          LinearCase c(next % 3 == 0 ? 1 : 5, k, 19, {activation, weight, ElementKind::f64}, activations, weights,
                       next);
          expect_right(c);
          c.kinds.output = kFloatKinds[next % 4];
          expect_right(c.draw_parameters(next));
          ASSERT_FALSE(HasFatalFailure())
              << "activations " << static_cast<int>(activations) << " weights " << static_cast<int>(weights);
        }
}

// Enough rows of weights for several panels, some of them with rows that need care beside rows that do not.
TEST(Linear, SumsAreExactInMixedPanels) {
  std::uint32_t next = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const CodeData weights : {CodeData::mixed_rows, CodeData::outliers, CodeData::bell, CodeData::period_1})
        for (const CodeData activations : {CodeData::extreme, CodeData::most, CodeData::uniform, CodeData::period_1})
          for (const std::int64_t m : {1, 9}) {
            const LinearCase c(m, 517, 70, {activation, weight, ElementKind::f64}, activations, weights, ++next);
            expect_right(c);
            if (HasFatalFailure()) return;
          }
}

// Two neighbours that a 16-bit sum cannot hold, anywhere among weights that it can.
TEST(Linear, OnePairOfExtremesAnywhere) {
  constexpr std::int64_t kColumns = 67, kRows = 19;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const bool greatest : {false, true})
        for (std::int64_t at = 0; at + 1 < kColumns; ++at) {
          LinearCase c(3, kColumns, kRows, {activation, weight, ElementKind::f64},
                       activation == ElementKind::s8 && greatest ? CodeData::least : CodeData::most,
                       weight == ElementKind::s8 ? CodeData::outliers : CodeData::least, 3);
          const CodeRange range = code_range(weight);
          const auto code = static_cast<std::byte>((greatest ? range.max : range.min) & 0xFF);
          const auto first = static_cast<std::size_t>(at * 5 % kRows * kColumns + at);
          c.w[first] = c.w[first + 1] = code;
          expect_right(c);
          ASSERT_FALSE(HasFatalFailure()) << "at " << at;
        }
}

// Every product of two codes, each in a sum of its own.
TEST(Linear, EveryProduct) {
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const std::int64_t k : {1, 2, 5}) {
        LinearCase c(256, k, 256, {activation, weight, ElementKind::f64}, CodeData::least, CodeData::least, 0);
        for (std::size_t i = 0; i < c.a.size(); ++i)
          c.a[i] = c.w[i] = static_cast<std::byte>(i / static_cast<std::size_t>(k));
        expect_right(c);
        if (HasFatalFailure()) return;
      }
}

// Sums that just fit 32 bits and sums that just do not, and the blocks that a kernel may cut K into.
TEST(Linear, SumsBeyond32Bits) {
  constexpr std::int64_t kSizes[] = {16383, 16384, 16385, 33025,  33026,  65535, 65536,
                                     65537, 65793, 65794, 131071, 131072, 200000};
  constexpr std::pair<std::int64_t, std::int64_t> kRows[] = {{1, 1}, {2, 3}, {1, 16}, {5, 19}, {4, 8}};
  std::uint32_t next = 0;
  for (const std::int64_t k : std::span(kSizes).first(kSanitized ? 5 : std::size(kSizes)))
    for (const ElementKind activation : kByteKinds)
      for (const ElementKind weight : kByteKinds)
        for (const CodeData weights : {CodeData::extreme, CodeData::most, CodeData::period_1}) {
          const auto& [m, n] = kRows[next++ % std::size(kRows)];
          const std::uint32_t round = next / 3;  // turns at another pace than the loops
          LinearCase c(m, k, n, {activation, weight, (next + round) % 4 == 0 ? ElementKind::f32 : ElementKind::f64},
                       CodeData::extreme, weights, next);
          // Far from the codes: differences of 255 and 510, and sums that are that much larger.
          if (round % 3 == 1) c.act_zero_point.values = {activation == ElementKind::s8 ? 127 : -255};
          if (round % 5 == 1 && weight == ElementKind::s8) c.weight_zero_point.values = {127};
          expect_right(c, {}, {static_cast<int>(1 + next % 2)});
          if (HasFatalFailure()) return;
        }
}

// Exactly at the limits, without anything that makes the sums smaller or larger.
TEST(Linear, SumsAtTheLimitsOf32Bits) {
  struct Limit {
    ElementKind activation, weight;
    std::int64_t k;
  };
  for (const Limit& limit :
       {Limit{ElementKind::s8, ElementKind::s8, 131071}, Limit{ElementKind::u8, ElementKind::s8, 65793},
        Limit{ElementKind::s8, ElementKind::u8, 65793}, Limit{ElementKind::u8, ElementKind::u8, 33025}})
    for (const std::int64_t more : {0, 1, 2})
      for (const ElementKind output : {ElementKind::f64, ElementKind::f32}) {
        const LinearCase c(3, limit.k + more, 9, {limit.activation, limit.weight, output}, CodeData::extreme,
                           CodeData::extreme, 0);
        expect_right(c);
        if (HasFatalFailure()) return;
      }
}

// One large column among small ones has a list of what it exceeds 16-bit sums by; the sum before the zero point is
// taken off wraps in 32 bits, the one after does not.
TEST(Linear, ExcessAcrossTheLimitOf32Bits) {
  for (const std::int64_t m : {1, 2, 9, 17}) {
    LinearCase c(m, 131071, 17, {ElementKind::s8, ElementKind::s8, ElementKind::f64}, CodeData::extreme,
                 CodeData::extreme, 0);
    for (std::byte& code : c.a) code = std::byte{127};
    for (std::size_t i = 0; i < c.w.size(); ++i) c.w[i] = i / 131071 % 16 == 3 ? std::byte{127} : std::byte{0};
    expect_right(c);
    if (HasFatalFailure()) return;
  }
}

// ---- zero points ----

TEST(Linear, HugeActivationZeroPoints) {
  constexpr std::int32_t kMax = 1 << 23;
  const std::vector<std::int32_t> mixed = huge_zero_points();
  const auto rows = static_cast<std::int64_t>(mixed.size());
  std::uint32_t next = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const ElementKind output : {ElementKind::f64, ElementKind::f32})
        for (const CodeData weights : {CodeData::uniform, CodeData::extreme}) {
          ++next;
          LinearCase c(rows, 4096, 37, {activation, weight, output}, CodeData::uniform, weights, next);
          c.act_zero_point = {mixed, true};
          if (next % 2 == 0) {
            const CodeRange range = code_range(weight);
            c.weight_zero_point.tensor = true;
            c.weight_zero_point.values.clear();
            for (std::int32_t i = 0; i < 37; ++i) c.weight_zero_point.values.push_back(range.min + i * 7);
          }
          expect_right(c, {}, {1, 2});
          for (const std::int32_t one : {kMax, -kMax}) {
            c.act_zero_point = {{one}};
            expect_right(c);
          }
          if (HasFatalFailure()) return;
        }
}

TEST(Linear, WeightZeroPointsBeyondTheirTypeCountAsItsEnds) {
  for (const ElementKind weight : kByteKinds)
    for (const ElementKind activation : kByteKinds) {
      LinearCase c(4, 130, 9, {activation, weight, ElementKind::f64}, CodeData::uniform, CodeData::uniform, 4);
      c.weight_zero_point = {{-129, 128, 256, -1, std::numeric_limits<std::int32_t>::max(),
                              std::numeric_limits<std::int32_t>::min(), 0, 127, -128},
                             true};
      expect_right(c);
      if (HasFatalFailure()) return;
    }
}

// ---- the same bits however it is run ----

TEST(Linear, ThreadsAndSpareRowsDoNotMatter) {
  struct Size {
    std::int64_t m, k, n;
  };
  std::uint32_t next = 0;
  for (const Size& size : {Size{67, 517, 129}, Size{1, 1024, 2049}, Size{300, 33, 70}, Size{2, 100000, 3},
                           Size{16, 256, 640}, Size{1000, 64, 1}}) {
    ++next;
    const LinearKinds kinds{kByteKinds[next % 2], kByteKinds[next / 2 % 2],
                            kLinearOutputs[next % kLinearOutputs.size()]};
    LinearCase c(size.m, size.k, size.n, kinds, CodeData::uniform, CodeData::uniform, next);
    c.draw_parameters(next);
    if (kSanitized)
      expect_right(c, {}, {1, 3});
    else
      expect_right(c, {}, {1, 2, 3, 4, 5, 6, 7, 8});
    for (const std::int64_t spare_rows : {1, 1000}) expect_right(c, {.spare_rows = spare_rows}, {1, 4});
    if (HasFatalFailure()) return;
  }
}

TEST(Linear, RunsMayBeRepeatedAndTheStreamOfSelectIsNotBinding) {
  LinearCase c(61, 300, 130, {ElementKind::u8, ElementKind::s8, ElementKind::f16}, CodeData::uniform, CodeData::bell,
               8);
  c.draw_parameters(8);
  const std::vector<std::byte> want = c.wanted();
  for (const ArchSku isa : isas())
    for (const bool packed : {false, true})
      for (const int selected : {1, 3}) {
        const PreparedLinear linear(c, {.isa = isa}, {.packed = packed, .spare_rows = 3}, stream_of(selected));
        ASSERT_TRUE(linear.status().ok()) << linear.status().message();
        for (const int ran : {1, 2, 8, 1}) {
          linear.forget_output();
          const Status done = linear.run(stream_of(ran));
          ASSERT_TRUE(done.ok()) << done.message();
          ASSERT_TRUE(c.equal(linear.output(), want)) << name(isa) << " " << ran << " threads";
          ASSERT_TRUE(linear.kept_to_its_rows());
        }
      }
}

TEST(Linear, OnePlanServesAnyNumberOfRows) {
  constexpr std::int64_t kMax = 50, kIn = 70, kOut = 33;
  for (const ArchSku isa : isas())
    for (const bool packed : {false, true}) {
      const Stream& stream = stream_of(2);
      const auto plan = W8A8LinearPlan<float>::select(
          stream, {.max_rows = kMax, .in_features = kIn, .out_features = kOut}, {.isa = isa});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      std::vector<std::byte> scratch(plan->workspace_size());
      for (const std::int64_t m : {7, 50, 0, 1, 49, 13}) {
        LinearCase c(m, kIn, kOut, {}, CodeData::uniform, CodeData::uniform, 5);
        const auto* w = reinterpret_cast<const std::int8_t*>(c.w.data());
        const auto packed_weight = PackedWeight::pack(stream, TensorRef<std::int8_t>(w, {kOut, kIn}), {.isa = isa});
        ASSERT_TRUE(packed_weight.ok()) << packed_weight.status().message();
        std::vector<float> y(static_cast<std::size_t>(m * kOut));
        W8A8LinearArgs<float, std::int8_t> args{.activation = {c.a.data(), ElementKind::s8, {m, kIn}, 0},
                                                .act_scale = 1.0f,
                                                .weight_scale = 1.0f,
                                                .output = {y.data(), {m, kOut}}};
        if (packed)
          args.packed_weight = &*packed_weight;
        else
          args.weight = {w, {kOut, kIn}};
        const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
        ASSERT_TRUE(done.ok()) << done.message();
        EXPECT_TRUE(c.equal(std::as_bytes(std::span(y)), c.wanted())) << m << " rows";
      }
    }
}

// ---- types ----

template <class Out, class W, class A>
void expect_typed_plan_right() {
  LinearCase c(9, 75, 21, {kind_of<A>, kind_of<W>, kind_of<Out>}, CodeData::uniform, CodeData::uniform, 6);
  std::mt19937 random(6);
  using Scale = scale_t<Out>;
  std::vector<Scale> act_scale, weight_scale;
  std::vector<std::int32_t> act_zero_point, weight_zero_point;
  std::uniform_real_distribution<double> around(0.001, 0.02);
  for (std::int64_t i = 0; i < c.m; ++i) {
    act_scale.push_back(static_cast<Scale>(around(random)));
    act_zero_point.push_back(static_cast<std::int32_t>(random() % 1000) - 500);
  }
  for (std::int64_t i = 0; i < c.n; ++i) {
    weight_scale.push_back(static_cast<Scale>(around(random)));
    weight_zero_point.push_back(code_range(kind_of<W>).min + static_cast<std::int32_t>(random() % 256));
  }
  c.act_scale = {std::vector<double>(act_scale.begin(), act_scale.end()), true};
  c.weight_scale = {std::vector<double>(weight_scale.begin(), weight_scale.end()), true};
  c.act_zero_point = {act_zero_point, true};
  c.weight_zero_point = {weight_zero_point, true};
  c.draw_bias(kind_of<Out>, random);
  const std::vector<std::byte> bias = stored(c.bias, kind_of<Out>), want = c.wanted();

  const Stream& stream = stream_of(1);
  const auto* w = reinterpret_cast<const W*>(c.w.data());
  for (const ArchSku isa : isas()) {
    const auto plan = W8A8LinearPlan<Out, W>::select(
        stream, {.max_rows = c.m, .in_features = c.k, .out_features = c.n, .activation = kind_of<A>}, {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const auto packed = PackedWeight::pack(stream, TensorRef<W>(w, {c.n, c.k}), {.isa = isa});
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    std::vector<std::byte> scratch(plan->workspace_size());
    std::vector<Out> y(static_cast<std::size_t>(c.m * c.n));
    W8A8LinearArgs<Out, W> args{.activation = TensorRef<A>(reinterpret_cast<const A*>(c.a.data()), {c.m, c.k}),
                                .act_scale = TensorRef<Scale>(act_scale.data(), {c.m}),
                                .act_zero_point = TensorRef<std::int32_t>(act_zero_point.data(), {c.m}),
                                .weight = {w, {c.n, c.k}},
                                .weight_scale = TensorRef<Scale>(weight_scale.data(), {c.n}),
                                .weight_zero_point = TensorRef<std::int32_t>(weight_zero_point.data(), {c.n}),
                                .bias = {bias.data(), kind_of<Out>, {c.n}, 0},
                                .output = {y.data(), {c.m, c.n}}};
    ASSERT_TRUE(plan->can_implement(args).ok());
    Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
    ASSERT_TRUE(done.ok()) << done.message();
    note_kernel(plan->sku());
    EXPECT_TRUE(c.equal(std::as_bytes(std::span(y)), want)) << "raw";
    std::memset(static_cast<void*>(y.data()), 0xA5, y.size() * sizeof(Out));
    args.weight = {};
    args.packed_weight = &*packed;
    done = plan->run(stream, {scratch.data(), scratch.size()}, args);
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_TRUE(c.equal(std::as_bytes(std::span(y)), want)) << "packed";
  }
}

template <class Out>
void expect_typed_plans_right() {
  expect_typed_plan_right<Out, std::int8_t, std::int8_t>();
  expect_typed_plan_right<Out, std::int8_t, std::uint8_t>();
  expect_typed_plan_right<Out, std::uint8_t, std::int8_t>();
  expect_typed_plan_right<Out, std::uint8_t, std::uint8_t>();
}

TEST(Linear, TypedPlansOfEveryType) {
  expect_typed_plans_right<float>();
  expect_typed_plans_right<double>();
  expect_typed_plans_right<Half>();
  expect_typed_plans_right<BFloat16>();
}

// Every combination of types and of the forms of parameters.
TEST(Linear, EveryFormOfParameters) {
  std::uint32_t next = 0;
  for (const ElementKind activation : kByteKinds)
    for (const ElementKind weight : kByteKinds)
      for (const ElementKind output : kLinearOutputs)
        for (std::uint32_t tensors = 0; tensors < 16; ++tensors)
          for (const int bias : {0, 1, 2}) {
            LinearCase c(6, 39, 11, {activation, weight, output}, CodeData::uniform, CodeData::uniform, ++next);
            std::mt19937 random(next);
            const auto scales = [&](std::int64_t rows, bool tensor) {
              std::vector<double> values;
              for (std::int64_t i = 0; i < (tensor ? rows : 1); ++i)
                values.push_back(held(0.01 + static_cast<double>(random() % 1000) / 3000.0, c.scale_type()));
              return Numbers<double>{values, tensor};
            };
            const auto zero_points = [&](std::int64_t rows, bool tensor, const CodeRange& range) {
              std::vector<std::int32_t> values;
              for (std::int64_t i = 0; i < (tensor ? rows : 1); ++i)
                values.push_back(range.min + static_cast<std::int32_t>(random() % 256));
              return Numbers<std::int32_t>{values, tensor};
            };
            c.act_scale = scales(c.m, (tensors & 1) != 0);
            c.weight_scale = scales(c.n, (tensors & 2) != 0);
            c.act_zero_point = zero_points(c.m, (tensors & 4) != 0, code_range(activation));
            c.weight_zero_point = zero_points(c.n, (tensors & 8) != 0, code_range(weight));
            c.output_scale = 0.5f;
            if (bias != 0) c.draw_bias(bias == 1 ? c.other_bias_type() : c.scale_type(), random);
            expect_right(c);
            if (HasFatalFailure()) return;
          }
}

// ---- shapes and layouts ----

TEST(Linear, ActivationsOfEveryRank) {
  const std::vector<std::vector<std::int64_t>> leadings = {
      {}, {1}, {12}, {3, 4}, {1, 12}, {2, 3, 2}, {0, 4}, {4, 0}, {1, 2, 1, 3, 1, 2, 1}};
  std::uint32_t next = 0;
  for (const std::vector<std::int64_t>& leading : leadings)
    for (const TokenForm form : {TokenForm::flat, TokenForm::leading, TokenForm::leading_and_one})
      for (const bool strided : {false, true}) {
        ++next;
        std::int64_t m = 1;
        for (const std::int64_t size : leading) m *= size;
        LinearCase c(m, 20, 7, {kByteKinds[next % 2], ElementKind::s8, kFloatKinds[next % 4]}, CodeData::uniform,
                     CodeData::uniform, next);
        c.draw_parameters(next);
        c.act_scale.tensor = c.act_zero_point.tensor = true;
        c.act_scale.values.assign(static_cast<std::size_t>(m), 0.0);
        c.act_zero_point.values.assign(static_cast<std::size_t>(m), 0);
        for (std::size_t i = 0; i < static_cast<std::size_t>(m); ++i) {
          c.act_scale.values[i] = held(0.01 * static_cast<double>(i + 1), c.scale_type());
          c.act_zero_point.values[i] = static_cast<std::int32_t>(i) * 3 - 7;
        }
        expect_right(
            c,
            {.leading = leading, .token_form = form, .activation_gap = strided ? 5 : 0, .output_gap = strided ? 3 : 0});
        ASSERT_FALSE(HasFatalFailure()) << "rank " << leading.size() + 1;
      }
}

// Strides, addresses that no element of the type could have, and buffers that end where the page does. What lies
// between and behind the rows must stay as it was.
TEST(Linear, KeepsToItsRows) {
  struct Size {
    std::int64_t m, k, n;
  };
  std::uint32_t next = 0;
  for (const Size& size : {Size{6, 64, 24}, Size{5, 75, 19}, Size{1, 9, 3}, Size{7, 1, 1}, Size{13, 33, 8},
                           Size{3, 130, 40}, Size{4, 31, 65}})
    for (const ElementKind activation : kByteKinds)
      for (const ElementKind weight : kByteKinds)
        for (const ElementKind output : kLinearOutputs) {
          ++next;
          LinearCase c(size.m, size.k, size.n, {activation, weight, output}, CodeData::uniform, CodeData::uniform,
                       next);
          c.draw_parameters(next);
          for (const bool at_page_end : {false, true})
            for (std::uint32_t gaps = 0; gaps < 8; gaps += at_page_end ? 1 : 7)
              expect_right(c, {.spare_rows = next % 2,
                               .activation_gap = (gaps & 1) != 0 ? 11 : 0,
                               .weight_gap = (gaps & 2) != 0 ? 3 : 0,
                               .output_gap = (gaps & 4) != 0 ? 5 : 0,
                               .at_page_end = at_page_end});
          for (const std::size_t shift : {1u, 3u, 17u, 31u})
            expect_right(c, {.activation_gap = static_cast<std::int64_t>(shift % 2),
                             .weight_gap = static_cast<std::int64_t>(shift % 4),
                             .output_gap = static_cast<std::int64_t>(shift % 2),
                             .shift = shift});
          if (HasFatalFailure()) return;
        }
}

TEST(Linear, KeepsToItsRowsInPartsOfALargeLayer) {
  std::uint32_t next = 0;
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{67, 261}, {2, 1999}, {301, 18}})
    for (const bool at_page_end : {false, true})
      for (const std::int64_t gap : {0, 7}) {
        ++next;
        LinearCase c(m, 259, n,
                     {kByteKinds[next % 2], kByteKinds[next / 2 % 2], kLinearOutputs[next % kLinearOutputs.size()]},
                     CodeData::uniform, CodeData::outliers, next);
        c.draw_parameters(next);
        expect_right(c, {.activation_gap = gap, .weight_gap = gap, .output_gap = gap, .at_page_end = at_page_end},
                     {1, 3});
        if (HasFatalFailure()) return;
      }
}

// Inputs may share memory: q @ q^T, and one tensor of scales for both sides.
TEST(Linear, InputsMayBeOneAnother) {
  LinearCase c(9, 40, 9, {}, CodeData::uniform, CodeData::uniform, 2);
  c.w = c.a;
  c.act_scale.tensor = true;
  c.act_scale.values.clear();
  for (int i = 0; i < 9; ++i) c.act_scale.values.push_back(held(0.01 * (i + 1), ElementKind::f32));
  c.weight_scale = c.act_scale;
  const std::vector<std::byte> want = c.wanted();
  for (const ArchSku isa : isas()) {
    const PreparedLinear linear(c, {.isa = isa}, {});
    ASSERT_TRUE(linear.status().ok()) << linear.status().message();
    AnyLinearArgs args = linear.args();
    args.weight = args.activation;
    args.weight_scale = args.act_scale;
    std::vector<std::byte> scratch(linear.plan().workspace_size());
    const Status done = linear.plan().run(stream_of(1), {scratch.data(), scratch.size()}, args);
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_TRUE(c.equal(linear.output(), want));
  }
}

// ---- bias, scales ----

TEST(Linear, WithoutInFeaturesTheBiasIsWritten) {
  for (const ElementKind output : kFloatKinds)
    for (const ElementKind activation : kByteKinds)
      for (const int bias : {0, 1, 2}) {
        LinearCase c(3, 0, 6, {activation, ElementKind::s8, output}, CodeData::uniform, CodeData::uniform, 1);
        c.act_scale.values = c.weight_scale.values = {0.5};
        std::vector<double> want(18, 0.0);
        if (bias != 0) {
          c.bias_kind = bias == 1 ? output : c.scale_type();
          // What f16 and bf16 have to round, and what f16 cannot hold.
          for (const double value : {0.1, -3.0, 1e-3, 70000.0, 0x1.004p0, 0.0})
            c.bias.push_back(held(value, *c.bias_kind));
          for (std::size_t i = 0; i < want.size(); ++i) want[i] = c.bias[i % 6];
        }
        EXPECT_TRUE(c.equal(c.wanted(), stored(want, output))) << "the reference";
        expect_right(c);
        if (HasFatalFailure()) return;
      }
}

// Scales and biases that IEEE arithmetic turns into anything; each in its own row or column and nowhere else.
TEST(Linear, SpecialValuesStayInTheirRowOrColumn) {
  const std::vector<double> special = {1.0,  0.0,  -0.5, kNan,     kInf,   -kInf, 1e-40,    3e38,
                                       0.25, -0.0, 1e38, 0x1p-149, -1e-42, 1e-20, 0x1p-126, 0.125};
  const auto count = static_cast<std::int64_t>(special.size());
  std::uint32_t next = 0;
  for (const ElementKind output : kLinearOutputs)
    for (const ElementKind activation : kByteKinds)
      for (const bool in_rows : {true, false})
        for (const bool in_columns : {true, false})
          for (const int bias : {0, 1, 2}) {
            ++next;
            LinearCase c(count, 70, count, {activation, kByteKinds[next % 2], output}, CodeData::uniform,
                         CodeData::uniform, next);
            const auto values = [&](bool wild, ElementKind kind) {
              std::vector<double> all;
              for (std::size_t i = 0; i < special.size(); ++i)
                all.push_back(held(wild ? special[(i + next) % special.size()] : 0.5, kind));
              if (wild && kind == ElementKind::f64) all[next % special.size()] = 1e-310;
              return all;
            };
            c.act_scale = {values(in_rows, c.scale_type()), true};
            c.weight_scale = {values(in_columns, c.scale_type()), true};
            if (bias != 0) {
              c.bias_kind = bias == 1 ? c.other_bias_type() : c.scale_type();
              c.bias = values(next % 2 == 0, *c.bias_kind);
            }
            // A row of zero sums: zero times infinity.
            std::fill_n(c.a.begin(), 70, std::byte{0});
            expect_right(c, {}, {1});
            if (HasFatalFailure()) return;
            if (in_columns || bias != 0) continue;
            // The reference might be wrong in the same way: rows of ordinary scales are what they would be alone.
            const std::vector<std::byte> wild = c.wanted();
            for (double& scale : c.act_scale.values) scale = scale == 0.25 ? scale : 1.0;
            const std::vector<std::byte> tame = c.wanted();
            const auto row = static_cast<std::size_t>(count) * width_of(output);
            for (std::size_t m = 0; m < special.size(); ++m)
              if (c.act_scale.values[m] == 0.25) {
                EXPECT_EQ(std::memcmp(&wild[m * row], &tame[m * row], row), 0) << "row " << m;
              }
          }
}

// ---- the plan of a static scale ----

template <class Out>
void expect_static_scale_right(ElementKind activation) {
  using Scale = scale_t<Out>;
  const Stream& stream = stream_of(2);
  LinearCase c(17, 130, 23, {activation, ElementKind::s8, kind_of<Out>}, CodeData::uniform, CodeData::bell, 3);
  std::mt19937 random(3);
  const auto* w = reinterpret_cast<const std::int8_t*>(c.w.data());
  std::vector<Scale> weight_scale(static_cast<std::size_t>(c.n));
  for (Scale& scale : weight_scale) scale = static_cast<Scale>(0.001 + static_cast<double>(random() % 97) * 0.001);
  c.draw_bias(kind_of<Scale>, random);
  const std::vector<std::byte> bias = stored(c.bias, kind_of<Scale>);
  // 0.1 and 1/3 are not floats: they must be rounded, and in f64 they must not.
  for (const double act_scale : {0.1, 1.0 / 3.0, 0x1.000001p0, 7.0})
    for (const std::int32_t act_zero_point : {0, -5, 200, 1 << 23, -(1 << 23)}) {
      c.act_scale = {{static_cast<double>(static_cast<Scale>(act_scale))}};
      c.act_zero_point = {{act_zero_point}};
      c.weight_scale = {std::vector<double>(weight_scale.begin(), weight_scale.end()), true};
      const std::vector<std::byte> want = c.wanted();
      for (const ArchSku isa : isas())
        for (const bool use_packed : {false, true}) {
          const auto plan = SmoothQuantLinearPlan<Out>::select(stream,
                                                               {.max_rows = c.m + 2,
                                                                .in_features = c.k,
                                                                .out_features = c.n,
                                                                .act_scale = act_scale,
                                                                .act_zero_point = act_zero_point,
                                                                .activation = activation},
                                                               {.isa = isa});
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          const auto w8a8 = W8A8LinearPlan<Out>::select(
              stream, {.max_rows = c.m, .in_features = c.k, .out_features = c.n, .activation = activation},
              {.isa = isa});
          ASSERT_TRUE(w8a8.ok()) << w8a8.status().message();
          const auto packed = PackedWeight::pack(stream, TensorRef<std::int8_t>(w, {c.n, c.k}), {.isa = isa});
          ASSERT_TRUE(packed.ok()) << packed.status().message();
          std::vector<std::byte> scratch(std::max(plan->workspace_size(), w8a8->workspace_size()));
          std::vector<Out> y(static_cast<std::size_t>(c.m * c.n)), same(y.size());
          SmoothQuantLinearArgs<Out, std::int8_t> args{.activation = {c.a.data(), activation, {c.m, c.k}, 0},
                                                       .weight_scale = TensorRef<Scale>(weight_scale.data(), {c.n}),
                                                       .bias = {bias.data(), kind_of<Scale>, {c.n}, 0},
                                                       .output = {y.data(), {c.m, c.n}}};
          W8A8LinearArgs<Out, std::int8_t> same_args{.activation = args.activation,
                                                     .act_scale = static_cast<Scale>(act_scale),
                                                     .act_zero_point = act_zero_point,
                                                     .weight_scale = args.weight_scale,
                                                     .bias = args.bias,
                                                     .output = {same.data(), {c.m, c.n}}};
          if (use_packed) {
            args.packed_weight = same_args.packed_weight = &*packed;
          } else {
            args.weight = same_args.weight = TensorRef<std::int8_t>(w, {c.n, c.k});
          }
          Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
          ASSERT_TRUE(done.ok()) << done.message();
          note_kernel(plan->sku());
          done = w8a8->run(stream, {scratch.data(), scratch.size()}, same_args);
          ASSERT_TRUE(done.ok()) << done.message();
          ASSERT_TRUE(c.equal(std::as_bytes(std::span(y)), std::as_bytes(std::span(same)))) << "unlike w8a8_linear";
          ASSERT_TRUE(c.equal(std::as_bytes(std::span(y)), want));
        }
    }
}

TEST(SmoothQuantLinear, IsTheLayerWithThatScale) {
  for (const ElementKind activation : kByteKinds) {
    expect_static_scale_right<float>(activation);
    expect_static_scale_right<double>(activation);
    expect_static_scale_right<Half>(activation);
    expect_static_scale_right<BFloat16>(activation);
  }
}

// ---- the plan that quantizes inside ----

// The activation as codes, with what they mean.
template <class Scale>
struct QuantizedRows {
  std::vector<std::int8_t> codes;
  std::vector<Scale> scale;
  std::vector<std::int32_t> zero_point;
};

// Quantized by the plans that the header names, on one thread without vectors.
template <class X>
QuantizedRows<scale_t<X>> quantized_rows(const std::vector<X>& x, std::int64_t m, std::int64_t k,
                                         const QuantizedLinearDescriptor& d, Numerics numerics) {
  const Stream& stream = stream_of(1);
  const auto rows = static_cast<std::size_t>(m);
  QuantizedRows<scale_t<X>> q{std::vector<std::int8_t>(x.size()), std::vector<scale_t<X>>(rows),
                              std::vector<std::int32_t>(rows, d.act_zero_point)};
  q.codes.reserve(1);
  q.scale.reserve(1);
  q.zero_point.reserve(1);
  const PlanPreference preference{.isa = ArchSku::scalar, .numerics = numerics};
  if (d.act_scale) {
    const auto scale = static_cast<scale_t<X>>(*d.act_scale);
    std::fill(q.scale.begin(), q.scale.end(), scale);
    const auto plan = QuantizePerTensorPlan<X, std::int8_t>::select(stream, {.shape = {m, k}}, preference);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    const Status done = plan->run(stream, {},
                                  {.input = {x.data(), {m, k}},
                                   .output = {q.codes.data(), {m, k}},
                                   .scale = scale,
                                   .zero_point = d.act_zero_point});
    EXPECT_TRUE(done.ok()) << done.message();
    return q;
  }
  const auto plan = DynamicRangeQuantizePlan<X, std::int8_t>::select(
      stream, {.shape = {m, k}, .scope = PerToken{}, .mode = d.mode, .include_zero = d.include_zero}, preference);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> scratch(plan->workspace_size());
  const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                {.input = {x.data(), {m, k}},
                                 .output = {q.codes.data(), {m, k}},
                                 .scale_out = {q.scale.data(), {m}},
                                 .zero_point_out = {q.zero_point.data(), {m}}});
  EXPECT_TRUE(done.ok()) << done.message();
  return q;
}

// quantized_linear in two steps: its input as codes, and those through w8a8_linear.
template <class In, class W>
std::vector<In> composed(const FloatLayer<In, W>& layer, const QuantizedLinearDescriptor& d, Numerics numerics,
                         BiasForm bias) {
  using Scale = scale_t<In>;
  const std::int64_t m = layer.m, k = layer.k, n = layer.n;
  const QuantizedRows<Scale> q =
      d.smooth ? quantized_rows(layer.smoothed(), m, k, d, numerics) : quantized_rows(layer.x, m, k, d, numerics);
  const Stream& stream = stream_of(1);
  const auto plan = W8A8LinearPlan<In, W>::select(stream, {.max_rows = m, .in_features = k, .out_features = n},
                                                  {.isa = ArchSku::scalar});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> scratch(plan->workspace_size());
  std::vector<In> y(static_cast<std::size_t>(m * n));
  y.reserve(1);
  W8A8LinearArgs<In, W> args{.activation = TensorRef<std::int8_t>(q.codes.data(), {m, k}),
                             .act_scale = TensorRef<Scale>(q.scale.data(), {m}),
                             .act_zero_point = TensorRef<std::int32_t>(q.zero_point.data(), {m}),
                             .weight = {layer.w.data(), {n, k}},
                             .weight_scale = TensorRef<Scale>(layer.weight_scale.data(), {n}),
                             .weight_zero_point = TensorRef<std::int32_t>(layer.weight_zero_point.data(), {n}),
                             .output = {y.data(), {m, n}}};
  args.bias = layer.bias(bias);
  const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
  EXPECT_TRUE(done.ok()) << done.message();
  return y;
}

struct QuantizedRun {
  Numerics numerics = Numerics::exact;
  BiasForm bias = BiasForm::none;
  std::int64_t input_gap = 0, output_gap = 0;
  std::optional<std::vector<std::int64_t>> leading = std::nullopt;
  int threads = 1;
};

template <class In, class W>
void expect_quantized_right(const FloatLayer<In, W>& layer, QuantizedLinearDescriptor d, const QuantizedRun& how) {
  using Scale = scale_t<In>;
  const std::int64_t m = layer.m, k = layer.k, n = layer.n;
  d.in_features = k;
  d.out_features = n;
  const std::vector<In> want = composed(layer, d, how.numerics, how.bias);
  std::vector<std::int64_t> sizes = how.leading.value_or(std::vector<std::int64_t>{m});
  sizes.push_back(k);
  const Shape input_shape{std::span<const std::int64_t>(sizes)};
  sizes.back() = n;
  const Shape output_shape{std::span<const std::int64_t>(sizes)};
  const LinearLayout plain;
  const auto width = static_cast<std::int64_t>(sizeof(In));
  const Place input(std::as_bytes(std::span(layer.x)), m, k * width, (k + how.input_gap) * width, plain);
  const Place weight(std::as_bytes(std::span(layer.w)), plain);
  const Stream& stream = stream_of(how.threads);

  for (const ArchSku isa : isas())
    for (const bool use_packed : {false, true}) {
      d.max_rows = m + (use_packed ? 3 : 0);
      const PlanPreference preference{.isa = isa, .numerics = how.numerics};
      const auto plan = QuantizedLinearPlan<In, W>::select(stream, d, preference);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const auto* w = reinterpret_cast<const W*>(weight.data());
      const auto packed = PackedWeight::pack(stream, TensorRef<W>(w, {n, k}), preference);
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      const Place scratch(plan->workspace_size(), plain);
      std::fill_n(scratch.data(), scratch.size(), std::byte{0xFF});
      const std::int64_t stride = (n + how.output_gap) * width;
      const Place output(m == 0 ? 0 : static_cast<std::size_t>((m - 1) * stride + n * width), plain);
      QuantizedLinearArgs<In, W> args{
          .input = {reinterpret_cast<const In*>(input.data()), input_shape, how.input_gap == 0 ? 0 : k + how.input_gap},
          .weight_scale = TensorRef<Scale>(layer.weight_scale.data(), {n}),
          .weight_zero_point = TensorRef<std::int32_t>(layer.weight_zero_point.data(), {n}),
          .output = {reinterpret_cast<In*>(output.data()), output_shape, how.output_gap == 0 ? 0 : n + how.output_gap}};
      if (d.smooth) args.smooth = {layer.smooth.data(), {k}};
      args.bias = layer.bias(how.bias);
      if (use_packed)
        args.packed_weight = &*packed;
      else
        args.weight = {w, {n, k}};
      const Status can = plan->can_implement(args);
      ASSERT_TRUE(can.ok()) << can.message();
      const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
      ASSERT_TRUE(done.ok()) << done.message();
      note_kernel(plan->sku());
      const auto want_bytes = std::as_bytes(std::span(want));
      for (std::int64_t row = 0; row < m; ++row) {
        const std::span<const std::byte> got(output.data() + row * stride, static_cast<std::size_t>(n * width));
        const auto begin = static_cast<std::size_t>(row * n * width);
        const std::int64_t at = first_difference(got, want_bytes.subspan(begin, got.size()), kind_of<In>);
        ASSERT_EQ(at, -1) << "y[" << row << ", " << at << "] of " << m << "x" << k << "x" << n << " "
                          << name(kind_of<In>) << " " << (d.act_scale ? "static" : name(d.mode))
                          << (d.include_zero ? " with zero" : "") << (d.smooth ? " smooth" : "") << " "
                          << name(how.numerics) << " on " << name(isa) << (use_packed ? " packed" : " raw");
        if (row + 1 < m) {
          ASSERT_TRUE(std::all_of(got.data() + got.size(), got.data() + stride, Place::is_mark))
              << "behind row " << row;
        }
      }
      ASSERT_TRUE(output.margins_are_untouched() && scratch.margins_are_untouched());
    }
}

// Every mode with and without a smoothing vector, exact and reciprocal; rows of nothing but NaN, infinities, zero and
// a constant among ordinary ones.
template <class In>
void expect_quantized_linear_right() {
  struct Size {
    std::int64_t m, k, n;
  };
  constexpr Size kSizes[] = {{1, 1, 1}, {5, 64, 9}, {13, 129, 35}, {3, 300, 17}, {40, 70, 66},
                             {2, 0, 3}, {0, 5, 4},  {7, 1031, 20}, {4, 7, 0}};
  constexpr Data kData[] = {Data::normal, Data::specials, Data::positive, Data::one_odd, Data::any_bits};
  std::uint32_t next = 0;
  for (const Size& size : kSizes)
    for (const ModeChoice& choice : kModes)
      for (const bool smooth : {false, true})
        for (const bool is_static : {false, true})
          for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal}) {
            if (is_static && choice.include_zero) continue;
            ++next;
            FloatLayer<In> layer(size.m, size.k, size.n, kData[next % std::size(kData)], next);
            if (next % 2 == 0) layer.fill_odd_rows();
            const QuantizedLinearDescriptor d = quantized_problem(choice, smooth, is_static, next);
            expect_quantized_right(layer, d,
                                   {.numerics = numerics,
                                    .bias = static_cast<BiasForm>(next % 3),
                                    .threads = static_cast<int>(1 + next % 2)});
            if (testing::Test::HasFatalFailure()) return;
          }
}

TEST(QuantizedLinear, IsQuantizationAndTheLayerF32) { expect_quantized_linear_right<float>(); }
TEST(QuantizedLinear, IsQuantizationAndTheLayerF64) { expect_quantized_linear_right<double>(); }
TEST(QuantizedLinear, IsQuantizationAndTheLayerF16) { expect_quantized_linear_right<Half>(); }
TEST(QuantizedLinear, IsQuantizationAndTheLayerBF16) { expect_quantized_linear_right<BFloat16>(); }

TEST(QuantizedLinear, UnsignedWeightsAndZeroPoints) {
  for (const ModeChoice& choice : kModes) {
    expect_quantized_right(FloatLayer<float, std::uint8_t>(11, 200, 29, Data::one_odd, 3),
                           {.mode = choice.mode, .include_zero = choice.include_zero}, {.bias = BiasForm::of_input});
    expect_quantized_right(FloatLayer<BFloat16, std::uint8_t>(11, 200, 29, Data::normal, 4),
                           {.mode = choice.mode, .include_zero = choice.include_zero, .smooth = true}, {});
  }
}

// Far offsets with a small range: zero points of millions.
TEST(QuantizedLinear, RowsFarFromZero) {
  const FloatLayer<float> layer = layer_far_from_zero();
  for (const bool include_zero : {false, true})
    for (const bool smooth : {false, true})
      expect_quantized_right(
          layer, {.mode = DynamicRangeMode::asymmetric, .include_zero = include_zero, .smooth = smooth}, {});
}

TEST(QuantizedLinear, StridedRowsOfEveryRank) {
  const std::vector<std::vector<std::int64_t>> leadings = {{}, {1}, {12}, {3, 4}, {2, 1, 3, 2}};
  std::uint32_t next = 0;
  for (const std::vector<std::int64_t>& leading : leadings)
    for (const bool smooth : {false, true})
      for (const bool is_static : {false, true}) {
        ++next;
        const std::int64_t m = leading.empty() || leading[0] == 1 ? 1 : 12;
        const QuantizedRun how{.bias = BiasForm::of_scales,
                               .input_gap = next % 3 == 0 ? 0 : 5,
                               .output_gap = next % 4 == 0 ? 0 : 3,
                               .leading = leading};
        QuantizedLinearDescriptor d{.mode = kModes[next % 3].mode, .smooth = smooth};
        if (is_static) d.act_scale = 0.05;
        expect_quantized_right(FloatLayer<float>(m, 77, 18, Data::normal, next), d, how);
        expect_quantized_right(FloatLayer<Half>(m, 64, 13, Data::specials, next), d, how);
        ASSERT_FALSE(HasFatalFailure()) << "rank " << leading.size() + 1;
      }
}

TEST(QuantizedLinear, ThreadsDoNotMatter) {
  const FloatLayer<float> layer(130, 515, 201, Data::one_odd, 9);
  const FloatLayer<Half> long_rows(3, 70001, 5, Data::normal, 10);
  for (const int threads : {1, 2, 3, 5, 8})
    for (const bool smooth : {false, true}) {
      expect_quantized_right(layer, {.mode = DynamicRangeMode::asymmetric, .smooth = smooth}, {.threads = threads});
      expect_quantized_right(long_rows, {.smooth = smooth}, {.bias = BiasForm::of_input, .threads = threads});
      if (HasFatalFailure()) return;
    }
}

// x / 0, 0 / 0 and so on are what IEEE arithmetic makes of them, then codes.
TEST(QuantizedLinear, SmoothingVectorsAreNotScanned) {
  FloatLayer<float> layer(9, 90, 12, Data::normal, 11);
  layer.fill_row(2, 0.0);
  constexpr float kOdd[] = {0.0f, -2.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e-40f};
  for (std::size_t i = 0; i < std::size(kOdd); ++i) layer.smooth[i * 17 + 1] = kOdd[i];
  for (const ModeChoice& choice : kModes)
    expect_quantized_right(layer, {.mode = choice.mode, .include_zero = choice.include_zero, .smooth = true}, {});
  expect_quantized_right(layer, {.act_scale = 0.1, .smooth = true}, {});
}

// The quotient is not rounded to the input's type: 4096/3 - 1365 is a third, where an f16 of 1/3 would leave nothing.
TEST(QuantizedLinear, SmoothedInputsKeepThePrecisionOfTheScales) {
  const Stream& stream = stream_of(1);
  const Half x = to_half(1.0f);
  const float smooth = 3.0f, weight_scale = 4096.0f, bias = -1365.0f;
  const std::int8_t w = 1;
  for (const ArchSku isa : isas()) {
    const auto plan = QuantizedLinearPlan<Half>::select(
        stream, {.max_rows = 1, .in_features = 1, .out_features = 1, .smooth = true}, {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> scratch(plan->workspace_size());
    Half y{};
    const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = {&x, {1, 1}},
                                   .smooth = {&smooth, {1}},
                                   .weight = {&w, {1, 1}},
                                   .weight_scale = weight_scale,
                                   .bias = TensorRef<float>(&bias, {1}),
                                   .output = {&y, {1, 1}}});
    ASSERT_TRUE(done.ok()) << done.message();
    const float scale = (1.0f / 3.0f) / 127.0f;
    const float product = rounded_product(rounded_product(scale, weight_scale), 127.0f);
    EXPECT_EQ(y.bits, to_half(rounded_sum(product, bias)).bits);
    EXPECT_NEAR(to_float(y), 1.0f / 3.0f, 1e-3f);
  }
}

TEST(QuantizedLinear, RoundsItsStaticScale) {
  for (const double act_scale : {0.1, 1.0 / 3.0, 0x1.000001p0}) {
    expect_quantized_right(FloatLayer<float>(4, 33, 5, Data::normal, 12), {.act_scale = act_scale}, {});
    expect_quantized_right(FloatLayer<double>(4, 33, 5, Data::normal, 12), {.act_scale = act_scale}, {});
  }
}

// ---- packed weights ----

struct WeightShape {
  std::int64_t n, k;
};
constexpr WeightShape kWeightShapes[] = {{1, 1},  {0, 0},   {0, 7},    {7, 0},     {5, 3},
                                         {8, 64}, {19, 67}, {64, 256}, {33, 1030}, {257, 31}};

TEST(PackedWeight, SaysWhatItHolds) {
  for (const ArchSku isa : isas())
    for (const ElementKind kind : kByteKinds)
      for (const auto& [n, k] : kWeightShapes) {
        const std::vector<std::byte> w = draw_codes(CodeData::uniform, kind, n, k, 1);
        const Place place(w, {});
        const auto packed = PackedWeight::pack(stream_of(1), {place.data(), kind, {n, k}, 0}, {.isa = isa});
        ASSERT_TRUE(packed.ok()) << packed.status().message();
        EXPECT_EQ(packed->out_features(), n);
        EXPECT_EQ(packed->in_features(), k);
        EXPECT_EQ(packed->element(), kind);
        EXPECT_EQ(packed->isa(), isa);
      }
}

// The size is known beforehand: it does not depend on the element kind or on the values.
TEST(PackedWeight, SizeDependsOnTheShapeAlone) {
  for (const ArchSku isa : isas())
    for (const auto& [n, k] : kWeightShapes) {
      const auto size = PackedWeight::packed_size(stream_of(1), n, k, {.isa = isa});
      ASSERT_TRUE(size.ok()) << size.status().message();
      for (const ElementKind kind : kByteKinds)
        for (const CodeData data : kAllCodeData) {
          const Place place(draw_codes(data, kind, n, k, 1), {});
          const auto packed = PackedWeight::pack(stream_of(1), {place.data(), kind, {n, k}, 0}, {.isa = isa});
          ASSERT_TRUE(packed.ok()) << packed.status().message();
          EXPECT_EQ(packed->bytes().size(), *size) << n << "x" << k << " " << name(kind) << " on " << name(isa);
        }
    }
}

bool same_bytes(const PackedWeight& a, const PackedWeight& b) {
  return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end());
}

// Bytes can be compared and cached: equal weights give equal bytes, on any number of threads and from strided rows.
TEST(PackedWeight, EqualWeightsGiveEqualBytes) {
  for (const ArchSku isa : isas())
    for (const ElementKind kind : kByteKinds)
      for (const CodeData data : {CodeData::uniform, CodeData::bell, CodeData::outliers, CodeData::extreme})
        for (const auto& [n, k] : kWeightShapes) {
          const std::vector<std::byte> w = draw_codes(data, kind, n, k, 2);
          const Place dense(w, {}), strided(w, n, k, k + 9, {}), shifted(w, {.shift = 3});
          const AnyRef views[] = {{dense.data(), kind, {n, k}, 0},
                                  {dense.data(), kind, {n, k}, 0},
                                  {strided.data(), kind, {n, k}, k + 9},
                                  {shifted.data(), kind, {n, k}, k}};
          std::vector<PackedWeight> all;
          for (const AnyRef& view : views)
            for (const int threads : {1, 3}) {
              const auto packed = PackedWeight::pack(stream_of(threads), view, {.isa = isa});
              ASSERT_TRUE(packed.ok()) << packed.status().message();
              all.push_back(*packed);
            }
          for (const PackedWeight& other : all) ASSERT_TRUE(same_bytes(all[0], other)) << n << "x" << k;
          if (n * k == 0) continue;
          std::vector<std::byte> changed = w;
          changed.back() ^= std::byte{1};
          const Place place(changed, {});
          const auto other = PackedWeight::pack(stream_of(1), {place.data(), kind, {n, k}, 0}, {.isa = isa});
          ASSERT_TRUE(other.ok()) << other.status().message();
          EXPECT_FALSE(same_bytes(all[0], *other)) << "another weight, " << n << "x" << k;
        }
}

TEST(PackedWeight, KeepsToTheRowsOfTheWeight) {
  for (const ArchSku isa : isas())
    for (const ElementKind kind : kByteKinds)
      for (const auto& [n, k] : kWeightShapes)
        for (const std::int64_t gap : {0, 1, 40}) {
          const std::vector<std::byte> w = draw_codes(CodeData::uniform, kind, n, k, 2);
          const Place place(w, n, k, k + gap, {.at_page_end = true});
          const auto packed =
              PackedWeight::pack(stream_of(2), {place.data(), kind, {n, k}, gap == 0 ? 0 : k + gap}, {.isa = isa});
          ASSERT_TRUE(packed.ok()) << packed.status().message();
        }
}

TEST(PackedWeight, CopiesShareTheBytes) {
  const Place place(draw_codes(CodeData::uniform, ElementKind::s8, 9, 40, 3), {});
  auto packed = PackedWeight::pack(stream_of(1), {place.data(), ElementKind::s8, {9, 40}, 0});
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  const PackedWeight copy = *packed;
  EXPECT_EQ(copy.bytes().data(), packed->bytes().data());
  EXPECT_EQ(copy.bytes().size(), packed->bytes().size());
}

// A layer's output with a packed weight that someone else made.
std::vector<std::byte> output_with(const LinearCase& c, const PackedWeight& packed, ArchSku isa) {
  const PreparedLinear linear(c, {.isa = isa}, {});
  EXPECT_TRUE(linear.status().ok()) << linear.status().message();
  if (!linear.status().ok()) return {};
  AnyLinearArgs args = linear.args();
  args.weight = {};
  args.packed_weight = &packed;
  std::vector<std::byte> scratch(linear.plan().workspace_size());
  const Status done = linear.plan().run(stream_of(1), {scratch.data(), scratch.size()}, args);
  EXPECT_TRUE(done.ok()) << done.message();
  return linear.output();
}

TEST(PackedWeight, ComesBackFromItsBytes) {
  std::uint32_t next = 0;
  for (const ArchSku isa : isas())
    for (const ElementKind kind : kByteKinds)
      for (const CodeData data : {CodeData::uniform, CodeData::bell, CodeData::outliers, CodeData::extreme})
        for (const auto& [n, k] : kWeightShapes) {
          ++next;
          LinearCase c(3, k, n, {kByteKinds[next % 2], kind, ElementKind::f64}, CodeData::uniform, data, next);
          const Place place(c.w, {});
          std::vector<std::byte> file;
          {
            const auto packed = PackedWeight::pack(stream_of(1), {place.data(), kind, {n, k}, 0}, {.isa = isa});
            ASSERT_TRUE(packed.ok()) << packed.status().message();
            file.assign(5, std::byte{0});  // at an odd address
            file.insert(file.end(), packed->bytes().begin(), packed->bytes().end());
          }
          const auto back = PackedWeight::from_bytes(stream_of(1), std::span<const std::byte>(file).subspan(5));
          ASSERT_TRUE(back.ok()) << back.status().message();
          EXPECT_TRUE(std::equal(back->bytes().begin(), back->bytes().end(), file.begin() + 5, file.end()));
          std::fill(file.begin(), file.end(), std::byte{0});  // it is a copy
          EXPECT_EQ(back->out_features(), n);
          EXPECT_EQ(back->in_features(), k);
          EXPECT_EQ(back->element(), kind);
          EXPECT_EQ(back->isa(), isa);
          ASSERT_TRUE(c.equal(output_with(c, *back, isa), c.wanted()));
        }
}

TEST(PackedWeight, RefusesDamagedBytes) {
  const auto refused = [](std::span<const std::byte> bytes) {
    const Status status = PackedWeight::from_bytes(stream_of(1), bytes).status();
    const bool coded = status.code() == StatusCode::InvalidProblem || status.code() == StatusCode::Unsupported;
    return !status.ok() && coded && status.message().find("packed_weight") != std::string_view::npos;
  };
  for (const ArchSku isa : isas())
    for (const CodeData data : {CodeData::uniform, CodeData::outliers})
      for (const auto& [n, k] : {WeightShape{19, 67}, WeightShape{0, 3}, WeightShape{64, 128}}) {
        const Place place(draw_codes(data, ElementKind::s8, n, k, 4), {});
        const auto packed = PackedWeight::pack(stream_of(1), {place.data(), ElementKind::s8, {n, k}, 0}, {.isa = isa});
        ASSERT_TRUE(packed.ok()) << packed.status().message();
        const std::vector<std::byte> good(packed->bytes().begin(), packed->bytes().end());
        ASSERT_FALSE(refused(good));
        for (const std::size_t size :
             {std::size_t{0}, std::size_t{1}, std::size_t{7}, good.size() / 2, good.size() - 8, good.size() - 1})
          if (size < good.size()) {
            EXPECT_TRUE(refused(std::span(good).first(size))) << size << " of " << good.size();
          }
        std::vector<std::byte> longer = good;
        longer.push_back(std::byte{0});
        EXPECT_TRUE(refused(longer));
        longer.resize(2 * good.size());
        std::copy(good.begin(), good.end(), longer.begin() + static_cast<std::ptrdiff_t>(good.size()));
        EXPECT_TRUE(refused(longer));

        // One bit anywhere: every one at the beginning and at the end, and then here and there.
        std::vector<std::byte> bad = good;
        const auto expect_noticed = [&](std::size_t at, unsigned bit) {
          bad[at] ^= std::byte{1} << bit;
          EXPECT_TRUE(refused(bad)) << "bit " << bit << " of byte " << at << " of " << good.size();
          bad[at] = good[at];
        };
        for (std::size_t at = 0; at < good.size(); ++at)
          if (at < 128 || at + 16 >= good.size())
            for (unsigned bit = 0; bit < 8; ++bit) expect_noticed(at, bit);
          else if (at % 29 == 0)
            expect_noticed(at, static_cast<unsigned>(at / 29 % 8));
        // Two words that have changed places.
        if (good.size() > 512) {
          std::size_t first = good.size() - 64, second = first - 64;
          while (second >= 64 && std::equal(&bad[first], &bad[first] + 32, &bad[second])) second -= 8;
          if (second >= 64) {
            std::swap_ranges(bad.begin() + static_cast<std::ptrdiff_t>(first),
                             bad.begin() + static_cast<std::ptrdiff_t>(first) + 8,
                             bad.begin() + static_cast<std::ptrdiff_t>(second));
            EXPECT_TRUE(bad == good || refused(bad)) << "words at " << first << " and " << second;
          }
        }
        // Of the right size and nothing else.
        EXPECT_TRUE(refused(std::vector<std::byte>(good.size(), std::byte{0})));
        EXPECT_TRUE(refused(std::vector<std::byte>(good.size(), std::byte{0xFF})));
      }
  EXPECT_TRUE(refused({}));
}

TEST(PackedWeight, BelongsToItsInstructionSet) {
  const LinearCase c(3, 40, 9, {}, CodeData::uniform, CodeData::uniform, 5);
  const Place place(c.w, {});
  for (const ArchSku packed_for : isas())
    for (const ArchSku planned_for : isas()) {
      const auto packed =
          PackedWeight::pack(stream_of(1), {place.data(), ElementKind::s8, {9, 40}, 0}, {.isa = packed_for});
      ASSERT_TRUE(packed.ok()) << packed.status().message();
      if (packed_for == planned_for) {
        EXPECT_TRUE(c.equal(output_with(c, *packed, planned_for), c.wanted()));
        continue;
      }
      const PreparedLinear linear(c, {.isa = planned_for}, {});
      ASSERT_TRUE(linear.status().ok()) << linear.status().message();
      AnyLinearArgs args = linear.args();
      args.weight = {};
      args.packed_weight = &*packed;
      std::vector<std::byte> scratch(linear.plan().workspace_size());
      const Status done = linear.plan().run(stream_of(1), {scratch.data(), scratch.size()}, args);
      EXPECT_EQ(done.code(), StatusCode::Unsupported) << done.message();
      EXPECT_NE(done.message().find(name(packed_for)), std::string_view::npos) << done.message();
      EXPECT_NE(done.message().find(name(planned_for)), std::string_view::npos) << done.message();
    }
}

// One plan and one packed weight, used by several threads at once with scratch of their own.
TEST(PackedWeight, ServesManyThreadsAtOnce) {
  LinearCase c(33, 300, 70, {ElementKind::u8, ElementKind::s8, ElementKind::bf16}, CodeData::uniform, CodeData::uniform,
               6);
  c.draw_parameters(6);
  const std::vector<std::byte> want = c.wanted();
  for (const ArchSku isa : isas())
    for (const int threads : {1, 2}) {
      const PreparedLinear linear(c, {.isa = isa}, {.packed = true}, stream_of(threads));
      ASSERT_TRUE(linear.status().ok()) << linear.status().message();
      std::vector<std::vector<std::byte>> outputs(4, std::vector<std::byte>(want.size()));
      std::atomic<int> failures{0};
      std::vector<std::thread> callers;
      for (std::vector<std::byte>& output : outputs)
        callers.emplace_back([&, threads] {
          AnyLinearArgs args = linear.args();
          args.output.data = output.data();
          std::vector<std::byte> scratch(linear.plan().workspace_size());
          for (int i = 0; i < 5; ++i)
            if (!linear.plan().run(stream_of(threads), {scratch.data(), scratch.size()}, args).ok()) ++failures;
        });
      for (std::thread& caller : callers) caller.join();
      EXPECT_EQ(failures, 0);
      for (const std::vector<std::byte>& output : outputs) EXPECT_TRUE(c.equal(output, want)) << name(isa);
    }
}

// ---- what plans say of themselves ----

void expect_promises(const KernelSku& sku, ElementKind output, ArchSku isa) {
  const PrecisionGuarantee& promise = sku.precision_guarantee;
  const std::string label = sku.name();
  EXPECT_EQ(sku.category, OpCategory::quantization) << label;
  EXPECT_EQ(sku.arch, isa) << label;
  EXPECT_EQ(sku.backend, BackendKind::cpu) << label;
  EXPECT_EQ(sku.aux_element, output) << label;
  EXPECT_TRUE(promise.bit_stable_on_same_hardware) << label;
  EXPECT_TRUE(promise.bit_stable_across_hardware) << label;
  EXPECT_TRUE(promise.deterministic) << label;
  const bool in_f64 = output == ElementKind::f64 || is_code(output);
  EXPECT_EQ(promise.math_precision, in_f64 ? MathPrecision::f64 : MathPrecision::f32) << label;
  EXPECT_EQ(sku.epilogue, is_code(output) ? EpilogueKind::requantize_bias : EpilogueKind::dequantize_bias) << label;
  EXPECT_NE(promise.accumulator, AccumulatorKind::none) << label;
  EXPECT_NE(label.find("linear"), std::string::npos) << label;
  EXPECT_TRUE(label.ends_with("__" + std::string(name(isa)))) << label;
}

TEST(Linear, SaysWhatItPromises) {
  const Stream& stream = stream_of(1);
  for (const ArchSku isa : isas())
    for (const ElementKind weight : kByteKinds)
      for (const ElementKind output : kLinearOutputs) {
        for (const ElementKind activation : kByteKinds) {
          const auto w8a8 = AnyLinearPlan::select(stream,
                                                  W8A8LinearDescriptor{.max_rows = 2,
                                                                       .in_features = 3,
                                                                       .out_features = 4,
                                                                       .activation = activation,
                                                                       .weight = weight,
                                                                       .output = output},
                                                  {.isa = isa});
          ASSERT_TRUE(w8a8.ok()) << w8a8.status().message();
          expect_promises(w8a8->sku(), output, isa);
          EXPECT_EQ(w8a8->sku().element, activation);
          EXPECT_EQ(w8a8->precision_guarantee(), w8a8->sku().precision_guarantee);
          if (is_code(output)) continue;
          const auto smoothquant = AnyLinearPlan::select(stream,
                                                         SmoothQuantLinearDescriptor{.max_rows = 2,
                                                                                     .in_features = 3,
                                                                                     .out_features = 4,
                                                                                     .act_scale = 0.1,
                                                                                     .activation = activation,
                                                                                     .weight = weight,
                                                                                     .output = output},
                                                         {.isa = isa});
          ASSERT_TRUE(smoothquant.ok()) << smoothquant.status().message();
          expect_promises(smoothquant->sku(), output, isa);
        }
        if (is_code(output)) continue;
        const auto quantized = AnyLinearPlan::select(
            stream,
            QuantizedLinearDescriptor{
                .max_rows = 2, .in_features = 3, .out_features = 4, .input = output, .weight = weight},
            {.isa = isa});
        ASSERT_TRUE(quantized.ok()) << quantized.status().message();
        expect_promises(quantized->sku(), output, isa);
      }
  const auto typed =
      W8A8LinearPlan<double>::select(stream, {.max_rows = 2, .in_features = 3, .out_features = 4}, {.isa = isas()[0]});
  ASSERT_TRUE(typed.ok()) << typed.status().message();
  expect_promises(typed->sku(), ElementKind::f64, isas()[0]);
  EXPECT_EQ(typed->precision_guarantee(), typed->sku().precision_guarantee);
}

// ---- what it is for ----

// Weights as codes with a symmetric scale for each row, in plain loops.
struct RowwiseWeight {
  std::vector<std::int8_t> codes;
  std::vector<float> scale;
};
RowwiseWeight rowwise(const std::vector<float>& w, std::size_t n, std::size_t k) {
  RowwiseWeight result;
  for (std::size_t row = 0; row < n; ++row) {
    float most = 0;
    for (std::size_t i = 0; i < k; ++i) most = std::max(most, std::fabs(w[row * k + i]));
    result.scale.push_back(most / 127.0f);
    for (std::size_t i = 0; i < k; ++i)
      result.codes.push_back(static_cast<std::int8_t>(std::nearbyint(w[row * k + i] / result.scale.back())));
  }
  return result;
}

// Four channels of the activations are fifty times as large as the others, which then get few of the 255 codes of one
// static scale. Smoothing shares them out.
TEST(SmoothQuant, SmoothingRescuesOutlierChannels) {
  constexpr std::size_t kRows = 64, kIn = 512, kOut = 96;
  constexpr auto kM = static_cast<std::int64_t>(kRows), kK = static_cast<std::int64_t>(kIn),
                 kN = static_cast<std::int64_t>(kOut);
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0.0, 1.0);
  std::uniform_real_distribution<double> uniform(-0.05, 0.05);
  std::vector<float> x(kRows * kIn), w(kOut * kIn);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(normal(random) * (i % kIn % 128 == 77 ? 50 : 1));
  for (float& value : w) value = static_cast<float>(uniform(random));
  std::vector<double> want(kRows * kOut);
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t out = 0; out < kOut; ++out)
      for (std::size_t i = 0; i < kIn; ++i)
        want[row * kOut + out] += static_cast<double>(x[row * kIn + i]) * static_cast<double>(w[out * kIn + i]);

  std::vector<float> x_most(kIn), w_most(kIn), smooth(kIn), smoothed_w(w.size());
  for (std::size_t i = 0; i < x.size(); ++i) x_most[i % kIn] = std::max(x_most[i % kIn], std::fabs(x[i]));
  for (std::size_t i = 0; i < w.size(); ++i) w_most[i % kIn] = std::max(w_most[i % kIn], std::fabs(w[i]));
  for (std::size_t i = 0; i < kIn; ++i) smooth[i] = std::sqrt(x_most[i]) / std::sqrt(w_most[i]);
  for (std::size_t i = 0; i < w.size(); ++i) smoothed_w[i] = w[i] * smooth[i % kIn];
  float absmax = 0, smoothed_absmax = 0;
  for (std::size_t i = 0; i < kIn; ++i) {
    absmax = std::max(absmax, x_most[i]);
    smoothed_absmax = std::max(smoothed_absmax, x_most[i] / smooth[i]);
  }

  for (const ArchSku isa : isas()) {
    const auto rms_error = [&](const RowwiseWeight& weight, double act_scale, const float* smoothing) {
      const Stream& stream = stream_of(2);
      const auto plan = QuantizedLinearPlan<float>::select(stream,
                                                           {.max_rows = kM,
                                                            .in_features = kK,
                                                            .out_features = kN,
                                                            .act_scale = act_scale,
                                                            .smooth = smoothing != nullptr},
                                                           {.isa = isa});
      EXPECT_TRUE(plan.ok()) << plan.status().message();
      if (!plan.ok()) return kNan;
      std::vector<std::byte> scratch(plan->workspace_size());
      std::vector<float> y(want.size());
      const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                    {.input = {x.data(), {kM, kK}},
                                     .smooth = {smoothing, smoothing == nullptr ? Shape() : Shape{kK}},
                                     .weight = {weight.codes.data(), {kN, kK}},
                                     .weight_scale = TensorRef<float>(weight.scale.data(), {kN}),
                                     .output = {y.data(), {kM, kN}}});
      EXPECT_TRUE(done.ok()) << done.message();
      double squares = 0;
      for (std::size_t i = 0; i < y.size(); ++i) squares += std::pow(static_cast<double>(y[i]) - want[i], 2);
      return std::sqrt(squares / static_cast<double>(y.size()));
    };
    const double naive = rms_error(rowwise(w, kOut, kIn), static_cast<double>(absmax / 127.0f), nullptr);
    const double smoothed =
        rms_error(rowwise(smoothed_w, kOut, kIn), static_cast<double>(smoothed_absmax / 127.0f), smooth.data());
    std::printf("%s: RMS error %.4f without smoothing, %.4f with: %.2f times better\n", std::string(name(isa)).c_str(),
                naive, smoothed, naive / smoothed);
    EXPECT_GE(naive, 4 * smoothed);
  }
}

}  // namespace
}  // namespace kvant::tests
