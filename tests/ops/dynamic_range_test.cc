// Dynamic-range quantization against a reference written from its header: equal codes, scales and zero points for every
// mode, scope and pair of types, on every instruction set and with any number of threads; and what the header promises
// besides.
#include "kvant/dynamic_range.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/dynamic_range_case.h"
#include "tests/support/sanitized.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::tests {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class OnEachIsa : public testing::TestWithParam<ArchSku> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }

  static void expect_right(const DynamicRangeCase& c, std::initializer_list<int> threads) {
    const DynamicRangeResult want = c.wanted();
    for (const int count : threads) {
      const DynamicRangeResult got = c.run(Stream::cpu(count), GetParam());
      ASSERT_TRUE(c.equal(got, want)) << "with " << count << " threads on " << name(GetParam());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(DynamicRange, OnEachIsa, testing::Values(ArchSku::scalar, ArchSku::avx2),
                         [](const auto& one) { return std::string(name(one.param)); });

// ---- every combination against the reference ----

TEST_P(OnEachIsa, EqualsTheReferenceInEveryCombination) {
  constexpr Data kPlain[] = {Data::normal, Data::positive, Data::negative};
  constexpr Data kOdd[] = {Data::specials, Data::one_odd, Data::any_bits};
  std::mt19937 random(1);  // for what need not meet everything else
  for (const Shape& shape : {Shape(), Shape{1}, Shape{0}, Shape{5, 0}, Shape{0, 5}, Shape{3, 0, 4}, Shape{7}, Shape{33},
                             Shape{3, 129}, Shape{64, 96}, Shape{2, 3, 5, 7}, Shape{5, 1, 300}, Shape{130, 70}})
    for (const Granularity& scope : scopes_of(shape))
      for (const ModeChoice& choice : kModes)
        for (const ElementKind in : kFloatKinds)
          for (const ElementKind out : kCodeKinds)
            for (const bool plain : {true, false}) {
              DynamicRangeQuantizeDescriptor d = problem(shape, scope, choice, in, out);
              if (random() % 2 == 0) narrow(d, static_cast<std::uint32_t>(random()));
              if (random() % 2 == 0) write_any_scales(d, static_cast<std::uint32_t>(random()));
              const Data data = plain ? kPlain[random() % 3] : kOdd[random() % 3];
              const DynamicRangeCase c(d, data, static_cast<std::uint32_t>(random()));
              if (random() % 8 == 0)
                expect_right(c, {1, 2, 3});
              else
                expect_right(c, {1});
              if (HasFatalFailure()) return;
            }
}

// Large enough to be cut into parts, lengthwise and crosswise.
TEST_P(OnEachIsa, EqualsTheReferenceOnLargeTensorsWithAnyNumberOfThreads) {
  struct Large {
    Shape shape;
    std::vector<Granularity> scopes;
  };
  const std::vector<Large> all = {
      {{300, 4096},
       {PerToken{}, PerTensor{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 32}, PerGroup{1, 128}, PerGroup{0, 32},
        PerBlock{128, 128}, PerBlock{16, 100}, PerBlock{1, 128}, PerBlock{7, 5000}}},
      {{4096, 300},
       {PerToken{}, PerTensor{}, PerChannel{1}, PerGroup{0, 128}, PerGroup{1, 32}, PerBlock{1000, 7},
        PerBlock{1500, 300}}},
      {{70000}, {PerTensor{}, PerToken{}, PerChannel{0}, PerGroup{0, 128}, PerGroup{0, 1000000}}},
      {{3, 100000}, {PerToken{}, PerTensor{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 32}, PerGroup{0, 2}}},
      {{64, 3, 40, 40},
       {PerChannel{1}, PerChannel{0}, PerToken{}, PerTensor{}, PerGroup{1, 2}, PerGroup{0, 32}, PerBlock{7, 16},
        PerBlock{64, 64}}},
      {{1000, 2048},
       {PerGroup{0, 32}, PerGroup{0, 500}, PerGroup{0, 7}, PerChannel{1}, PerBlock{500, 1}, PerBlock{600, 700}}},
      {{64, 50, 101}, {PerGroup{0, 48}, PerGroup{1, 20}, PerChannel{1}, PerChannel{0}, PerToken{}}},
      // Rows of more than half a million.
      {{(1 << 20) + 77}, {PerTensor{}, PerGroup{0, 600000}, PerGroup{0, 32}, PerChannel{0}}},
      {{3, 700001}, {PerToken{}, PerTensor{}, PerChannel{1}, PerGroup{1, 300000}, PerBlock{2, 300001}, PerGroup{0, 2}}},
      {{2, 3, 300000}, {PerChannel{1}, PerChannel{0}, PerGroup{1, 2}}},
      // Rows shorter than a block, many of them.
      {{50000, 3}, {PerChannel{1}, PerToken{}, PerGroup{0, 20000}, PerBlock{20000, 2}}},
      {{9001, 31}, {PerChannel{1}}}};
  struct Types {
    ElementKind in, out;
    ModeChoice choice;
  };
  const Types types[] = {
      {ElementKind::f32, ElementKind::s8, kModes[0]},   {ElementKind::f32, ElementKind::u8, kModes[2]},
      {ElementKind::f16, ElementKind::s4, kModes[1]},   {ElementKind::bf16, ElementKind::u4, kModes[1]},
      {ElementKind::f64, ElementKind::s8, kModes[1]},   {ElementKind::bf16, ElementKind::e4m3, kModes[0]},
      {ElementKind::f32, ElementKind::e2m1, kModes[0]}, {ElementKind::f16, ElementKind::e5m2, kModes[0]},
      {ElementKind::f32, ElementKind::s16, kModes[1]},  {ElementKind::f32, ElementKind::u2, kModes[2]},
      {ElementKind::bf16, ElementKind::e2m1, kModes[0]}};
  std::size_t next = 0;
  for (const Large& large : all)
    for (const Granularity& scope : large.scopes)
      for (const Data data : {Data::normal, Data::one_odd}) {
        const Types& t = types[next++ % std::size(types)];
        if (kSanitized && data == Data::one_odd) continue;
        DynamicRangeQuantizeDescriptor d = problem(large.shape, scope, t.choice, t.in, t.out);
        write_any_scales(d, static_cast<std::uint32_t>(next / 2));
        const DynamicRangeCase c(d, data, static_cast<std::uint32_t>(next));
        if (kSanitized)
          expect_right(c, {2});
        else
          expect_right(c, {1, 2, 5});
        if (HasFatalFailure()) return;
      }
}

// Codes of 8 MiB and more are written around the caches.
TEST_P(OnEachIsa, EqualsTheReferenceWhenCodesAreStreamed) {
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerBlock{128, 128}}) {
    const DynamicRangeCase c(problem({2200, 4099}, scope, kModes[1], ElementKind::f32, ElementKind::s8), Data::normal,
                             21);
    expect_right(c, {1, 2});
    if (HasFatalFailure()) return;
  }
}

// What is found without looking at each value twice must not lose the one that matters, in any type.
TEST_P(OnEachIsa, OneOddValueAnywhereIsNoticed) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Shape shape{70, 1000};
  std::size_t next = 0;
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32}, PerBlock{32, 128}})
    for (const ElementKind in : kFloatKinds)
      for (const std::size_t place : {0u, 15u, 999u, 4095u, 35003u, 65535u, 69999u})
        for (const double value : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(), 1e4, -1e4}) {
          ++next;
          DynamicRangeCase c(problem(shape, scope, kModes[next % 3], in, kCodeKinds[next % kCodeKinds.size()]),
                             Data::normal, 5);
          put_float(&c.input[place * width_of(in)], in, value);
          expect_right(c, {static_cast<int>(1 + next % 2)});
          ASSERT_FALSE(HasFatalFailure()) << value << " at " << place;
        }
}

// 16 bits can be tried in full: alone in a row, in a row shorter and longer than a vector, and in a column.
TEST_P(OnEachIsa, EveryPatternOf16Bits) {
  for (const ElementKind in : {ElementKind::f16, ElementKind::bf16})
    for (const ModeChoice& choice : kModes)
      for (const std::int64_t row : {1, 3, 35}) {
        const std::vector<std::byte> input = every_pattern(in, row);
        expect_right({problem({65536, row}, PerToken{}, choice, in, ElementKind::s8), input}, {1});
        expect_right({problem({row, 65536}, PerChannel{1}, choice, in, ElementKind::u8), input}, {1});
        if (HasFatalFailure()) return;
      }
}

TEST_P(OnEachIsa, TwoHundredThousandTokens) {
  for (const std::int64_t row : {3, 1, 8})
    for (const ElementKind out : {ElementKind::s8, ElementKind::u4}) {
      const ElementKind in = row == 8 ? ElementKind::f16 : ElementKind::f32;
      for (const ModeChoice& choice : kModes) {
        const DynamicRangeCase c(problem({200000, row}, PerToken{}, choice, in, out), Data::one_odd, 17);
        expect_right(c, {1, 2});
        if (HasFatalFailure()) return;
      }
    }
}

// ---- worked out by hand ----

struct Worked {
  const char* about;
  std::vector<float> x;
  ModeChoice choice;
  ElementKind out;
  std::optional<CodeRange> q;
  float scale;
  std::int32_t zero_point;
  std::vector<std::int32_t> codes;
};

const std::vector<Worked>& worked_cases() {
  constexpr ModeChoice kSymmetric = kModes[0], kAsymmetric = kModes[1], kWithZero = kModes[2];
  using enum ElementKind;
  constexpr float kMin = 0x1p-126f, kMax = std::numeric_limits<float>::max();
  static const std::vector<Worked> all = {
      {"all zero", {0, 0, 0}, kSymmetric, s8, {}, 1, 0, {0, 0, 0}},
      {"all zero", {0, 0, 0}, kAsymmetric, s8, {}, 1, 0, {0, 0, 0}},
      {"all zero", {0, 0, 0}, kWithZero, u8, {}, 1, 0, {0, 0, 0}},
      {"all zero, codes above 0", {0, 0}, kAsymmetric, u8, CodeRange{10, 200}, 1, 10, {10, 10}},
      {"all zero, codes below 0", {0, 0}, kWithZero, s8, CodeRange{-128, -1}, 1, -1, {-1, -1}},
      {"all zero, symmetric codes above 0", {0, 0}, kSymmetric, s8, CodeRange{5, 17}, 1, 0, {5, 5}},
      {"negative zero", {-0.0f, -0.0f}, kSymmetric, s8, {}, 1, 0, {0, 0}},
      {"negative zero", {-0.0f, 0.0f}, kAsymmetric, s8, {}, 1, 0, {0, 0}},
      {"negative zero", {-0.0f}, kWithZero, u8, {}, 1, 0, {0}},

      {"constant", {5, 5}, kSymmetric, s8, {}, 5.0f / 127.0f, 0, {127, 127}},
      {"constant", {-5, -5}, kSymmetric, s8, {}, 5.0f / 127.0f, 0, {-127, -127}},
      {"constant", {-5, -5}, kSymmetric, u8, {}, 5.0f / 255.0f, 0, {0, 0}},
      // c / |c| = ±1, so the zero point is one step beside q_min, outside of the code type if need be.
      {"constant", {5, 5}, kAsymmetric, s8, {}, 5, -129, {-128, -128}},
      {"constant", {-5, -5}, kAsymmetric, s8, {}, 5, -127, {-128, -128}},
      {"constant", {5, 5}, kAsymmetric, u4, CodeRange{3, 12}, 5, 2, {3, 3}},
      // [0, 5] and [-5, 0]: no longer constant.
      {"constant", {5, 5}, kWithZero, u8, {}, 5.0f / 255.0f, 0, {255, 255}},
      {"constant", {-5, -5}, kWithZero, u8, {}, 5.0f / 255.0f, 255, {0, 0}},
      {"single element", {-7}, kSymmetric, s4, {}, 1, 0, {-7}},
      {"single element", {9}, kAsymmetric, s8, {}, 9, -129, {-128}},
      {"single element", {510}, kWithZero, u8, {}, 2, 0, {255}},

      {"one NaN", {kNan, 2, -2}, kSymmetric, s8, {}, 2.0f / 127.0f, 0, {0, 127, -127}},
      {"one NaN", {0, kNan, 255}, kAsymmetric, s8, {}, 1, -128, {-128, -128, 127}},
      {"one NaN, zero point outside", {300, kNan, 555}, kAsymmetric, u8, {}, 1, -300, {0, 0, 255}},
      {"one NaN, zero point beyond", {-555, kNan, -300}, kAsymmetric, u8, {}, 1, 555, {0, 255, 255}},
      {"all NaN", {kNan, kNan}, kSymmetric, s8, {}, 1, 0, {0, 0}},
      {"all NaN", {kNan, kNan}, kAsymmetric, s8, {}, 1, 0, {0, 0}},
      {"all NaN", {kNan, kNan}, kWithZero, u8, CodeRange{3, 7}, 1, 3, {3, 3}},

      {"infinities", {kInf, -kInf, 4, 1}, kSymmetric, s8, {}, 4.0f / 127.0f, 0, {127, -128, 127, 32}},
      {"infinities", {kInf, -kInf, -51, 204}, kAsymmetric, s8, {}, 1, -77, {127, -128, -128, 127}},
      {"infinities", {kInf, 51, 255}, kWithZero, u8, {}, 1, 0, {255, 51, 255}},
      {"infinity and NaN", {-kInf, kNan, 14}, kSymmetric, s4, {}, 2, 0, {-8, 0, 7}},
      {"only infinities", {kInf, -kInf}, kSymmetric, s8, {}, 1, 0, {127, -128}},
      {"only infinities", {kInf, -kInf}, kAsymmetric, s8, {}, 1, 0, {127, -128}},
      {"only infinities", {kInf, kInf}, kWithZero, u8, {}, 1, 0, {255, 255}},

      // 2^-130 / 127 is not normal; 2^-130 / 2^-126 = 1/16.
      {"denormals", {0x1p-130f, -0x1p-149f}, kSymmetric, s8, {}, kMin, 0, {0, 0}},
      {"denormals", {0, 255 * 0x1p-149f}, kAsymmetric, s8, {}, kMin, -128, {-128, -128}},
      {"denormals", {0x1p-149f, 0x1p-149f}, kAsymmetric, s8, {}, kMin, -128, {-128, -128}},
      {"denormals", {-0x1.8p-127f, 0}, kWithZero, u8, {}, kMin, 1, {0, 1}},
      // A normal number whose 127th part is none.
      {"almost denormal", {0x1p-125f, -0x1p-126f}, kSymmetric, s8, {}, kMin, 0, {2, -1}},

      {"huge", {3e38f, -3e38f}, kSymmetric, s8, {}, 3e38f / 127.0f, 0, {127, -127}},
      {"huge", {3e38f, -3e38f, 0}, kAsymmetric, s8, CodeRange{-127, 127}, 2 * (3e38f / 254), 0, {127, -127, 0}},
      {"huge", {3e38f, -3e38f, 0}, kWithZero, u8, CodeRange{0, 254}, 2 * (3e38f / 254), 127, {254, 0, 127}},
      // Two codes for twice the largest number: the scale stops there, and the upper end clips.
      {"huge in two codes", {kMax, -kMax, 0}, kAsymmetric, u8, CodeRange{0, 1}, kMax, 1, {1, 0, 1}},

      // The range of 1 would make a scale of 1/255; (2^22 + 1) / 2^22 is more. 2^22 / (1 + 2^-22) = 2^22 - 1 + 2^-22.
      {"far offset", {0x1p22f, 0x1p22f + 1}, kAsymmetric, s8, {}, 1 + 0x1p-22f, -128 - 4194303, {-128, -127}},
      {"far offset", {-0x1p22f - 1, -0x1p22f}, kAsymmetric, s8, {}, 1 + 0x1p-22f, -128 + 4194304, {-128, -127}},
      {"far offset", {0x1p22f, 0x1p22f + 1}, kWithZero, u8, CodeRange{0, 1}, 0x1p22f + 1, 0, {1, 1}},

      {"ties", {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f}, kSymmetric, s8, {}, 1, 0, {127, 0, 2, 2, 0, -2}},
      {"ties", {0, 255, 0.5f, 1.5f, 2.5f}, kWithZero, u8, {}, 1, 0, {0, 255, 0, 2, 2}},
      {"zero point after rounding", {-1, 254, 0.5f, 1.5f}, kAsymmetric, u8, {}, 1, 1, {0, 255, 1, 3}},
      {"narrow codes clip", {2, -2}, kSymmetric, s8, CodeRange{-1, 4}, 0.5f, 0, {4, -1}},
  };
  return all;
}

DynamicRangeCase worked_problem(const Worked& w, ElementKind in) {
  const Shape shape{static_cast<std::int64_t>(w.x.size())};
  DynamicRangeQuantizeDescriptor d = problem(shape, PerTensor{}, w.choice, in, w.out);
  if (w.q) {
    d.q_min = w.q->min;
    d.q_max = w.q->max;
  }
  std::vector<std::byte> input(w.x.size() * width_of(in));
  for (std::size_t i = 0; i < w.x.size(); ++i) put_float(&input[i * width_of(in)], in, static_cast<double>(w.x[i]));
  return {d, input};
}

TEST_P(OnEachIsa, WorkedOutByHand) {
  for (const Worked& w : worked_cases()) {
    const DynamicRangeCase c = worked_problem(w, ElementKind::f32);
    DynamicRangeResult want;
    want.scale.resize(4);
    std::memcpy(want.scale.data(), &w.scale, 4);
    want.zero_point = {w.zero_point};
    want.codes = stored_codes(w.codes, w.out, c.descriptor.shape);
    EXPECT_TRUE(c.equal(c.wanted(), want)) << "the reference on " << w.about;
    EXPECT_TRUE(c.equal(c.run(Stream::cpu(1), GetParam()), want)) << w.about;
  }
}

// The same in every type, and beside ordinary segments that must not notice: as a row, as a column, as a group.
TEST_P(OnEachIsa, WorkedOutByHandAmongOthers) {
  for (const Worked& w : worked_cases())
    for (const ElementKind in : kFloatKinds) {
      const DynamicRangeCase alone = worked_problem(w, in);
      expect_right(alone, {1});
      const auto count = static_cast<std::int64_t>(w.x.size());
      const std::size_t width = width_of(in);
      DynamicRangeQuantizeDescriptor d = alone.descriptor;
      d.shape = {3, count};
      d.scope = PerToken{};
      DynamicRangeCase row(d, Data::normal, 8);
      std::copy(alone.input.begin(), alone.input.end(),
                row.input.begin() + static_cast<std::ptrdiff_t>(alone.input.size()));
      expect_right(row, {1});
      // 19 columns: whole vectors and a tail; one of either.
      d.shape = {count, 19};
      for (const Granularity& scope : std::vector<Granularity>{PerChannel{1}, PerGroup{0, count}}) {
        d.scope = scope;
        DynamicRangeCase column(d, Data::normal, 9);
        for (std::size_t i = 0; i < w.x.size(); ++i)
          for (const std::size_t at : {std::size_t{2}, std::size_t{17}})
            std::memcpy(&column.input[(i * 19 + at) * width], &alone.input[i * width], width);
        expect_right(column, {1});
      }
      ASSERT_FALSE(HasFatalFailure()) << w.about << " as " << name(in);
    }
}

// What overflows and underflows in f64.
TEST_P(OnEachIsa, ExtremesOfF64) {
  constexpr double kMax = std::numeric_limits<double>::max(), kMin = std::numeric_limits<double>::denorm_min();
  for (const std::vector<double>& x : std::vector<std::vector<double>>{{kMax, -kMax},
                                                                       {1.7e308, -1e308, 0},
                                                                       {kMin, -kMin},
                                                                       {kMin, kMin},
                                                                       {2e-308, 1e-310},
                                                                       {1, 1 + 0x1p-52},
                                                                       {0x1p60, 0x1p60 + 0x1p10}})
    for (const ModeChoice& choice : kModes)
      for (const ElementKind out : kCodeKinds)
        for (const bool two_codes : {false, true}) {
          DynamicRangeQuantizeDescriptor d =
              problem({static_cast<std::int64_t>(x.size())}, PerTensor{}, choice, ElementKind::f64, out);
          if (two_codes && !has_float_grid(out)) {
            d.q_min = 0;
            d.q_max = 1;
          }
          std::vector<std::byte> input(x.size() * 8);
          std::memcpy(input.data(), x.data(), input.size());
          expect_right({d, input}, {1});
          if (HasFatalFailure()) return;
        }
}

// ---- no elements ----

TEST_P(OnEachIsa, NoElementsStillHaveParameters) {
  const Stream stream = Stream::cpu(1);
  struct Empty {
    Shape shape;
    Granularity scope;
    std::size_t parameters;
  };
  const std::vector<Empty> all = {
      {{0}, PerTensor{}, 1},       {{0}, PerToken{}, 1},        {{5, 0}, PerToken{}, 5},
      {{5, 0}, PerChannel{0}, 5},  {{5, 0}, PerChannel{1}, 0},  {{0, 5}, PerChannel{1}, 5},
      {{0, 5}, PerToken{}, 0},     {{0, 5}, PerGroup{1, 2}, 0}, {{5, 0}, PerGroup{1, 2}, 0},
      {{5, 0}, PerBlock{2, 2}, 0}, {{0, 5}, PerBlock{2, 2}, 0}, {{0, 4, 5}, PerBlock{2, 2}, 0}};
  for (const Empty& e : all)
    for (const ModeChoice& choice : kModes) {
      DynamicRangeQuantizeDescriptor d = problem(e.shape, e.scope, choice, ElementKind::f32, ElementKind::s8);
      d.q_min = 3;
      d.q_max = 7;
      const auto plan = AnyDynamicRangeQuantizePlan::select(stream, d, {.isa = GetParam()});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      std::vector<float> scale(e.parameters, -1.0f);
      std::vector<std::int32_t> zero_point(e.parameters, -1);
      std::vector<std::byte> scratch(plan->workspace_size());
      const Shape flat{static_cast<std::int64_t>(e.parameters)};
      const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                    {.input = {nullptr, ElementKind::f32, e.shape, 0},
                                     .output = {nullptr, ElementKind::s8, e.shape, 0},
                                     .scale_out = {scale.data(), ElementKind::f32, flat, 0},
                                     .zero_point_out = {zero_point.data(), ElementKind::s32, flat, 0}});
      ASSERT_TRUE(done.ok()) << done.message();
      const std::int32_t zero = choice.mode == DynamicRangeMode::symmetric ? 0 : 3;
      EXPECT_EQ(scale, std::vector<float>(e.parameters, 1.0f)) << e.shape.to_string();
      EXPECT_EQ(zero_point, std::vector<std::int32_t>(e.parameters, zero)) << e.shape.to_string();
    }
}

// ---- views ----

// Runs on buffers that end at a forbidden page, scratch and parameters included: a byte read or written too far ends
// the test. The gaps of the output must stay as they were.
void expect_right_in_guarded_buffers(const DynamicRangeCase& c, const Stream& stream, ArchSku isa,
                                     std::int64_t input_stride, std::int64_t output_stride) {
  const std::int64_t rows = c.rows(), row = c.descriptor.shape.row_length();
  const DynamicRangeResult want = c.wanted();
  const std::vector<std::byte> spread = with_gaps(c.input, c.in(), rows, row, input_stride);
  const std::vector<std::byte> want_codes = with_gaps(want.codes, c.out(), rows, row, output_stride);
  const auto plan = AnyDynamicRangeQuantizePlan::select(stream, c.descriptor, {.isa = isa});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto size = [](const auto& bytes) { return static_cast<std::int64_t>(bytes.size()); };
  GuardedBuffer x(size(spread)), codes(size(want_codes)), scale(size(want.scale)),
      zero_point(4 * size(want.zero_point)), scratch(static_cast<std::int64_t>(plan->workspace_size()));
  std::copy(spread.begin(), spread.end(), x.data());
  std::fill(codes.bytes().begin(), codes.bytes().end(), std::byte{0x7A});
  DynamicRangeResult got = c.room();
  AnyDynamicRangeQuantizeArgs args = c.args(got);
  args.input = {x.data(), c.in(), c.descriptor.shape, input_stride};
  args.output = {codes.data(), c.out(), c.descriptor.shape, output_stride};
  args.scale_out.data = scale.data();
  args.zero_point_out.data = zero_point.data();
  const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
  ASSERT_TRUE(done.ok()) << done.message() << " in " << c.text();
  note_kernel(plan->sku());
  std::copy(scale.bytes().begin(), scale.bytes().end(), got.scale.begin());
  if (zero_point.size() != 0) std::memcpy(got.zero_point.data(), zero_point.data(), zero_point.size());
  got.codes = want.codes;  // looked at below, gaps and all
  ASSERT_TRUE(c.equal(got, want)) << "strides " << input_stride << " and " << output_stride;
  ASSERT_EQ(first_difference(codes.bytes(), want_codes, c.out()), -1)
      << "codes, strides " << input_stride << " and " << output_stride << " in " << c.text();
}

TEST_P(OnEachIsa, KeepsToItsRows) {
  const Stream stream = Stream::cpu(1);
  std::mt19937 random(2);
  for (const Shape& shape : {Shape{6, 64}, Shape{6, 75}, Shape{2, 3, 37}, Shape{1, 9}, Shape{5}, Shape{7, 1}})
    for (const Granularity& scope : scopes_of(shape))
      for (const ElementKind in : kFloatKinds)
        for (const ElementKind out : kCodeKinds) {
          DynamicRangeQuantizeDescriptor d = problem(shape, scope, kModes[random() % 3], in, out);
          write_any_scales(d, static_cast<std::uint32_t>(random()));
          const DynamicRangeCase c(d, random() % 2 == 0 ? Data::normal : Data::specials,
                                   static_cast<std::uint32_t>(random()));
          const std::int64_t row = shape.row_length();
          const std::int64_t even = (row + 15) / 4 * 4;  // packed rows begin at whole bytes
          for (const auto& [input_stride, output_stride] :
               {std::pair<std::int64_t, std::int64_t>{0, 0}, {row + 11, 0}, {0, even}, {row + 3, even}})
            expect_right_in_guarded_buffers(c, stream, GetParam(), input_stride, output_stride);
          if (HasFatalFailure()) return;
        }
}

TEST_P(OnEachIsa, KeepsToItsRowsInPartsOfALargeTensor) {
  std::size_t next = 0;
  for (const Shape& shape : {Shape{300, 1001}, Shape{24, 30, 301}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1},
                                                             PerChannel{-1}, PerGroup{-1, 32}, PerGroup{0, 16},
                                                             PerBlock{16, 32}, PerBlock{1, 32}, PerBlock{7, 2000}})
      for (const auto& [input_gap, output_gap] :
           {std::pair<std::int64_t, std::int64_t>{0, 0}, {29, 0}, {0, 11}, {7, 23}}) {
        const ElementKind in = kFloatKinds[next % 4], out = kCodeKinds[next / 2 % kCodeKinds.size()];
        DynamicRangeQuantizeDescriptor d = problem(shape, scope, kModes[next % 3], in, out);
        write_any_scales(d, static_cast<std::uint32_t>(next / 3));
        const DynamicRangeCase c(d, next % 2 == 0 ? Data::normal : Data::one_odd, 3);
        ++next;
        const std::int64_t row = shape.row_length();
        const std::int64_t input_stride = input_gap == 0 ? 0 : row + input_gap;
        const std::int64_t output_stride = output_gap == 0 ? 0 : row + output_gap;
        expect_right_in_guarded_buffers(c, Stream::cpu(1), GetParam(), input_stride, output_stride);
        expect_right_in_guarded_buffers(c, Stream::cpu(3), GetParam(), input_stride, output_stride);
        if (HasFatalFailure()) return;
      }
}

// Every address works, also one that no element of the type could have.
TEST_P(OnEachIsa, WorksAtMisalignedAddresses) {
  const Stream stream = Stream::cpu(2);
  std::size_t next = 0;
  for (const Shape& shape : {Shape{5, 131}, Shape{300, 300}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1},
                                                             PerGroup{1, 32}, PerGroup{0, 2}, PerBlock{2, 3}})
      for (const ElementKind in : kFloatKinds)
        for (const std::size_t shift : {1u, 3u, 17u, 31u}) {
          ++next;
          DynamicRangeQuantizeDescriptor d =
              problem(shape, scope, kModes[next % 3], in, kCodeKinds[next / 4 % kCodeKinds.size()]);
          write_any_scales(d, static_cast<std::uint32_t>(next / 5));
          const DynamicRangeCase c(d, Data::one_odd, static_cast<std::uint32_t>(next));
          const DynamicRangeResult want = c.wanted();
          const auto plan = AnyDynamicRangeQuantizePlan::select(stream, c.descriptor, {.isa = GetParam()});
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          std::vector<std::byte> x(c.input.size() + 64), codes(want.codes.size() + 64), scale(want.scale.size() + 64),
              zero_point(4 * want.zero_point.size() + 64), scratch(plan->workspace_size() + 64);
          std::copy(c.input.begin(), c.input.end(), x.begin() + static_cast<std::ptrdiff_t>(shift));
          DynamicRangeResult got = c.room();
          AnyDynamicRangeQuantizeArgs args = c.args(got);
          args.input.data = x.data() + shift;
          args.output.data = codes.data() + shift;
          args.scale_out.data = scale.data() + shift;
          args.zero_point_out.data = zero_point.data() + shift;
          const Status done = plan->run(stream, {scratch.data() + shift, plan->workspace_size()}, args);
          ASSERT_TRUE(done.ok()) << done.message() << " in " << c.text();
          std::memcpy(got.codes.data(), codes.data() + shift, got.codes.size());
          std::memcpy(got.scale.data(), scale.data() + shift, got.scale.size());
          std::memcpy(got.zero_point.data(), zero_point.data() + shift, 4 * got.zero_point.size());
          ASSERT_TRUE(c.equal(got, want)) << "shifted by " << shift;
        }
}

// A flat shape, and per token one with a last size of 1, as granularity.h says of parameters.
TEST_P(OnEachIsa, ParametersInOtherShapes) {
  const Stream stream = Stream::cpu(1);
  const Shape shape{2, 3, 20};
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{2, 8}, PerBlock{2, 8}}) {
    const DynamicRangeCase c(problem(shape, scope, kModes[1], ElementKind::f32, ElementKind::s8), Data::normal, 4);
    const DynamicRangeResult want = c.wanted();
    std::vector<Shape> shapes = {c.parameters(), {static_cast<std::int64_t>(c.segments())}};
    if (scope.kind() == GranularityKind::token) shapes.push_back({2, 3, 1});
    for (const Shape& given : shapes) {
      const auto plan = AnyDynamicRangeQuantizePlan::select(stream, c.descriptor, {.isa = GetParam()});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      DynamicRangeResult got = c.room();
      AnyDynamicRangeQuantizeArgs args = c.args(got);
      args.scale_out.shape = args.zero_point_out.shape = given;
      std::vector<std::byte> scratch(plan->workspace_size());
      const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
      ASSERT_TRUE(done.ok()) << done.message();
      EXPECT_TRUE(c.equal(got, want)) << given.to_string();
    }
  }
}

TEST_P(OnEachIsa, ZeroPointsNeedNotBeWantedInSymmetricMode) {
  for (const Shape& shape : {Shape{6, 75}, Shape{300, 400}})
    for (const Granularity& scope :
         std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32}, PerGroup{0, 4}})
      for (const ElementKind in : kFloatKinds)
        for (const ElementKind out : kCodeKinds) {
          if (shape[0] == 300 && (in == ElementKind::f64 || is_packed(out))) continue;
          const DynamicRangeCase c(problem(shape, scope, kModes[0], in, out), Data::one_odd, 6);
          const Stream stream = Stream::cpu(2);
          const DynamicRangeResult want = c.run(stream, GetParam());
          EXPECT_EQ(want.zero_point, std::vector<std::int32_t>(c.segments(), 0)) << c.text();
          const auto plan = AnyDynamicRangeQuantizePlan::select(stream, c.descriptor, {.isa = GetParam()});
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          DynamicRangeResult got = c.room();
          AnyDynamicRangeQuantizeArgs args = c.args(got);
          args.zero_point_out = {};
          std::vector<std::byte> scratch(plan->workspace_size());
          const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
          ASSERT_TRUE(done.ok()) << done.message();
          EXPECT_EQ(got.zero_point, c.room().zero_point);
          got.zero_point = want.zero_point;
          ASSERT_TRUE(c.equal(got, want));
        }
}

// A symmetric range contains 0 anyway.
TEST_P(OnEachIsa, IncludeZeroChangesNothingInSymmetricMode) {
  for (const Data data : {Data::normal, Data::positive, Data::negative})
    for (const ElementKind in : kFloatKinds)
      for (const ElementKind out : kCodeKinds) {
        DynamicRangeCase c(problem({6, 75}, PerToken{}, kModes[0], in, out), data, 19);
        const DynamicRangeResult want = c.wanted();
        c.descriptor.include_zero = true;
        ASSERT_TRUE(c.equal(c.run(Stream::cpu(1), GetParam()), want));
      }
}

// ---- there and back ----

struct RealFormat {
  int precision;     // bits of the significand
  int min_exponent;  // of a normal number
  double largest;
};
RealFormat format_of(ElementKind kind) {
  switch (kind) {
    case ElementKind::f64: return {53, -1022, std::numeric_limits<double>::max()};
    case ElementKind::f32: return {24, -126, static_cast<double>(std::numeric_limits<float>::max())};
    case ElementKind::f16: return {11, -14, 65504.0};
    default: return {8, -126, 0x1.FEp127};
  }
}
double half_ulp(ElementKind kind, double y) {
  const RealFormat format = format_of(kind);
  const int exponent = y == 0 ? format.min_exponent : std::max(std::ilogb(y), format.min_exponent);
  return std::ldexp(1.0, exponent - format.precision);
}

// The codes of a case, dequantized with the parameters that came with them.
std::vector<double> dequantized(const DynamicRangeCase& c, const DynamicRangeResult& result, const Stream& stream) {
  std::vector<std::byte> y(c.input.size());
  const auto plan = ElementwisePlan::select(stream, {.op = QuantizeKind::dequantize,
                                                     .shape = c.descriptor.shape,
                                                     .granularity = c.descriptor.scope,
                                                     .input = c.out(),
                                                     .output = c.in()});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return {};
  ElementwiseArgs args;
  args.input = {result.codes.data(), c.out(), c.descriptor.shape, 0};
  args.output = {y.data(), c.in(), c.descriptor.shape, 0};
  args.scale = AnyParameter(AnyRef{result.scale.data(), c.scale_type(), c.parameters(), 0});
  args.global_scale = c.global_scale_of(result);
  args.zero_point = c.zero_point_of(result);
  const Status done = plan->run(stream, {}, args);
  EXPECT_TRUE(done.ok()) << done.message();
  return values_of(y, c.in());
}

void expect_round_trip(const DynamicRangeCase& c) {
  const Stream stream = Stream::cpu(1);
  const DynamicRangeResult result = c.run(stream, PlanPreference{});
  const std::vector<double> x = c.values(), y = dequantized(c, result, stream);
  ASSERT_EQ(x.size(), y.size());
  const DynamicRangeReference reference = c.reference();
  const QuantizationRules rules = c.rules();
  const RealFormat format = format_of(c.in());
  const bool f64 = c.in() == ElementKind::f64;
  const double largest_scale = format_of(scale_kind(c.in())).largest;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) continue;
    const auto segment = static_cast<std::size_t>(reference.segment[i]);
    const SegmentParameters& p = reference.parameters[segment];
    if (rules.grid) {
      // Half a step of the grid: of the quotient's exponent, or of the least one.
      const kvant::FloatFormat& grid = info(*rules.grid).format;
      const double quotient = std::fabs(x[i] / p.scale);
      const int exponent = quotient == 0 ? grid.min_exponent() : std::max(std::ilogb(quotient), grid.min_exponent());
      const double half_step = std::ldexp(p.scale, exponent - grid.mantissa_bits - 1);
      const double rounding = half_ulp(c.in(), y[i]) + 2 * half_ulp(scale_kind(c.in()), y[i]);
      ASSERT_LE(std::fabs(x[i] - y[i]), half_step + rounding) << "element " << i << ": " << x[i] << " comes back as "
                                                              << y[i] << ", scale " << p.scale << " in " << c.text();
      continue;
    }
    const double code = unclamped_code(x[i], p, c.in());
    // Asymmetric codes reach from end to end, give or take the rounding of the scale that the bound allows for; only a
    // scale that would overflow leaves something out.
    const bool clips = code < rules.q_min || code > rules.q_max;
    if (clips && (rules.mode == DynamicRangeMode::symmetric || p.scale == largest_scale)) continue;
    const double bound = p.scale / 2 + std::ldexp(reference.range[segment].max_abs(), f64 ? -53 : -24) +
                         std::ldexp(p.scale * (rules.q_max - rules.q_min), f64 ? -51 : -22);
    if (!std::isfinite(y[i])) {
      ASSERT_GT(std::fabs(x[i]) + bound, format.largest) << "element " << i << " = " << x[i] << " in " << c.text();
      continue;
    }
    // 16-bit results are rounded to f32 and then once more.
    const double rounding = half_ulp(c.in(), y[i]) + half_ulp(scale_kind(c.in()), y[i]);
    const long double error = std::fabs(static_cast<long double>(x[i]) - static_cast<long double>(y[i]));
    ASSERT_LE(error, static_cast<long double>(bound) + static_cast<long double>(rounding))
        << "element " << i << ": " << x[i] << " comes back as " << y[i] << ", scale " << p.scale << " zero point "
        << p.zero_point << " in " << c.text();
  }
}

TEST(DynamicRange, ComesBackWithinTheBound) {
  std::mt19937 random(3);
  for (const Shape& shape : {Shape{33}, Shape{3, 129}, Shape{2, 3, 5, 7}, Shape{5, 1, 300}})
    for (const Granularity& scope : scopes_of(shape))
      for (const ModeChoice& choice : kModes)
        for (const ElementKind in : kFloatKinds)
          for (const ElementKind out : kCodeKinds)
            for (const Data data : {Data::normal, Data::positive, Data::negative, Data::specials, Data::any_bits}) {
              DynamicRangeQuantizeDescriptor d = problem(shape, scope, choice, in, out);
              if (random() % 3 == 0) narrow(d, static_cast<std::uint32_t>(random()));
              expect_round_trip({d, data, static_cast<std::uint32_t>(random())});
              if (HasFatalFailure()) return;
            }
}

// Ranges from nothing to everything beside offsets from nothing to everything, which is where zero points go far.
TEST(DynamicRange, ComesBackWithinTheBoundFromFarOffsets) {
  std::mt19937 random(4);
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind out : kCodeKinds)
      for (int range = -60; range <= 60; range += 6)
        for (int offset = -60; offset <= 60; offset += 6) {
          const DynamicRangeQuantizeDescriptor d = problem({50}, PerTensor{}, kModes[1], in, out);
          std::vector<std::byte> input(50 * width_of(in));
          std::uniform_real_distribution<double> uniform(-1.0, 1.0);
          for (std::size_t i = 0; i < 50; ++i) {
            const double x = std::ldexp(uniform(random), range) + std::ldexp(1.0, offset);
            put_float(&input[i * width_of(in)], in, random() % 2 == 0 ? x : std::ldexp(x, -1));
          }
          expect_round_trip({d, input});
          if (HasFatalFailure()) return;
        }
}

// A constant comes back exactly, in every type.
TEST(DynamicRange, AConstantComesBackExactly) {
  const Stream stream = Stream::cpu(1);
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind out : kCodeKinds)
      for (const double constant : {1.0, -1.0, 0.1, -3.7, 1e-4, 60000.0, -60000.0}) {
        if (has_float_grid(out)) continue;
        std::vector<std::byte> input(9 * width_of(in));
        for (std::size_t i = 0; i < 9; ++i) put_float(&input[i * width_of(in)], in, constant);
        const DynamicRangeCase c(problem({9}, PerTensor{}, kModes[1], in, out), input);
        EXPECT_EQ(dequantized(c, c.run(stream, PlanPreference{}), stream), c.values()) << constant << " " << c.text();
      }
}

// ---- equal bits ----

TEST_P(OnEachIsa, OrderDoesNotMatter) {
  for (const ElementKind in : kFloatKinds)
    for (const ModeChoice& choice : kModes) {
      const DynamicRangeCase c(problem({90001}, PerTensor{}, choice, in, ElementKind::u8), Data::one_odd, 12);
      const DynamicRangeResult want = c.run(Stream::cpu(1), GetParam());
      std::vector<std::size_t> order(90001);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::mt19937 random(5);
      for (int threads = 1; threads <= 4; ++threads) {
        std::shuffle(order.begin(), order.end(), random);
        DynamicRangeCase shuffled = c;
        DynamicRangeResult expected = want;
        const std::size_t width = width_of(in);
        for (std::size_t i = 0; i < order.size(); ++i) {
          std::memcpy(&shuffled.input[i * width], &c.input[order[i] * width], width);
          expected.codes[i] = want.codes[order[i]];
        }
        ASSERT_TRUE(c.equal(shuffled.run(Stream::cpu(threads), GetParam()), expected)) << threads << " threads";
      }
    }
}

TEST_P(OnEachIsa, ThreadsDoNotMatter) {
  std::size_t next = 0;
  for (const Granularity& scope :
       std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 128},
                                PerGroup{0, 32}, PerBlock{128, 128}, PerBlock{1, 128}, PerBlock{200, 900}})
    for (const Data data : {Data::normal, Data::specials}) {
      const DynamicRangeCase c(
          problem({257, 1030}, scope, kModes[next % 3], kFloatKinds[next % 4], kCodeKinds[next % kCodeKinds.size()]),
          data, 13);
      ++next;
      const DynamicRangeResult want = c.run(Stream::cpu(1), GetParam());
      for (int threads = 2; threads <= 4; ++threads)
        ASSERT_TRUE(c.equal(c.run(Stream::cpu(threads), GetParam()), want)) << threads << " threads";
    }
}

// A plan is selected with one stream and may run on another; its scratch must do for both.
TEST_P(OnEachIsa, TheStreamOfSelectIsNotBinding) {
  for (const Shape& shape : {Shape{1 << 20}, Shape{257, 1030}})
    for (const Granularity& scope :
         std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{-1}, PerGroup{0, 64}}) {
      const DynamicRangeCase c(problem(shape, scope, kModes[1], ElementKind::f32, ElementKind::s8), Data::normal, 14);
      const DynamicRangeResult want = c.run(Stream::cpu(1), GetParam());
      for (const int selected : {1, 2, 5}) {
        const auto plan = AnyDynamicRangeQuantizePlan::select(Stream::cpu(selected), c.descriptor, {.isa = GetParam()});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        for (const int ran : {1, 3, 8}) {
          DynamicRangeResult got = c.room();
          GuardedBuffer scratch(static_cast<std::int64_t>(plan->workspace_size()));
          const Status done = plan->run(Stream::cpu(ran), {scratch.data(), scratch.size()}, c.args(got));
          ASSERT_TRUE(done.ok()) << done.message();
          ASSERT_TRUE(c.equal(got, want)) << "selected with " << selected << " threads, ran with " << ran;
        }
      }
    }
}

TEST(DynamicRange, OnePlanServesManyThreadsAtOnce) {
  const Stream stream = Stream::cpu(2);
  for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}}) {
    const DynamicRangeCase c(problem({257, 513}, scope, kModes[1], ElementKind::bf16, ElementKind::u4), Data::one_odd,
                             2);
    const DynamicRangeResult want = c.wanted();
    const auto plan = AnyDynamicRangeQuantizePlan::select(stream, c.descriptor);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<DynamicRangeResult> results(4, c.room());
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (DynamicRangeResult& result : results)
      threads.emplace_back([&] {
        std::vector<std::byte> scratch(plan->workspace_size());
        for (int i = 0; i < 5; ++i)
          if (!plan->run(stream, {scratch.data(), scratch.size()}, c.args(result)).ok()) ++failures;
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
    for (const DynamicRangeResult& result : results) EXPECT_TRUE(c.equal(result, want));
  }
}

// ---- elementwise.h's part in it ----

// Numerics decides about the elements: codes are those of the quantize plan with the same scales, which stay the same.
TEST_P(OnEachIsa, CodesAreThoseOfTheQuantizePlan) {
  std::mt19937 random(6);
  int differences = 0;  // between the two numerics; without any this would show nothing
  for (const Shape& shape : {Shape{6, 75}, Shape{260, 300}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1},
                                                             PerGroup{1, 32}, PerGroup{0, 4}, PerBlock{4, 32}})
      for (const ElementKind in : kFloatKinds)
        for (const ElementKind out : kCodeKinds) {
          if (shape[0] == 260 && random() % 3 != 0) continue;
          DynamicRangeQuantizeDescriptor d = problem(shape, scope, kModes[random() % 3], in, out);
          if (random() % 2 == 0) narrow(d, static_cast<std::uint32_t>(random()));
          write_any_scales(d, static_cast<std::uint32_t>(random()));
          const DynamicRangeCase c(d, random() % 2 == 0 ? Data::normal : Data::specials,
                                   static_cast<std::uint32_t>(random()));
          const Stream stream = Stream::cpu(2);
          const DynamicRangeResult exact = c.run(stream, PlanPreference{.isa = GetParam()});
          for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal}) {
            const DynamicRangeResult got = c.run(stream, PlanPreference{.isa = GetParam(), .numerics = numerics});
            differences += got.codes != exact.codes;
            DynamicRangeResult want = exact;
            const auto plan = ElementwisePlan::select(stream,
                                                      {.op = QuantizeKind::quantize,
                                                       .shape = shape,
                                                       .granularity = scope,
                                                       .input = in,
                                                       .output = out,
                                                       .q_min = d.q_min,
                                                       .q_max = d.q_max},
                                                      {.isa = GetParam(), .numerics = numerics});
            ASSERT_TRUE(plan.ok()) << plan.status().message();
            ElementwiseArgs args;
            args.input = {c.input.data(), in, shape, 0};
            args.output = {want.codes.data(), out, shape, 0};
            args.scale = AnyParameter(AnyRef{exact.scale.data(), c.scale_type(), c.parameters(), 0});
            args.global_scale = c.global_scale_of(exact);
            args.zero_point = c.zero_point_of(exact);
            const Status done = plan->run(stream, {}, args);
            ASSERT_TRUE(done.ok()) << done.message();
            ASSERT_TRUE(c.equal(got, want)) << name(numerics);
          }
        }
  EXPECT_GT(differences, 0);
}

// ---- what a plan says about itself ----

TEST_P(OnEachIsa, PlansSayWhatTheyAre) {
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind out : kCodeKinds) {
      const DynamicRangeQuantizeDescriptor d = problem({4, 6}, PerToken{}, kModes[1], in, out);
      const auto plan = AnyDynamicRangeQuantizePlan::select(Stream::cpu(1), d, {.isa = GetParam()});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const KernelSku sku = plan->sku();
      EXPECT_EQ(sku.category, OpCategory::quantization);
      EXPECT_EQ(sku.op, QuantizeKind::dynamic_range_quantize);
      EXPECT_EQ(sku.element, in);
      EXPECT_EQ(sku.aux_element, out);
      EXPECT_EQ(sku.arch, GetParam());
      EXPECT_EQ(sku.backend, BackendKind::cpu);
      EXPECT_EQ(sku.name(), "dynamic_range_quantize_" + std::string(name(in)) + "_" + std::string(name(out)) + "__" +
                                std::string(name(GetParam())));
      const PrecisionGuarantee guarantee = plan->precision_guarantee();
      EXPECT_EQ(guarantee, sku.precision_guarantee);
      EXPECT_EQ(guarantee.math_precision, in == ElementKind::f64 ? MathPrecision::f64 : MathPrecision::f32);
      EXPECT_TRUE(guarantee.bit_stable_on_same_hardware);
      EXPECT_TRUE(guarantee.bit_stable_across_hardware);
      EXPECT_TRUE(guarantee.deterministic);
      EXPECT_TRUE(plan->descriptor().shape == d.shape);
      EXPECT_EQ(plan->descriptor().mode, d.mode);
    }
  EXPECT_EQ(name(DynamicRangeMode::symmetric), "symmetric");
  EXPECT_EQ(name(DynamicRangeMode::asymmetric), "asymmetric");
}

// ---- scales that are codes ----

// Every way to write scales for every pair of types and way to cut a tensor, with segments that are odd in all ways
// beside ordinary ones.
TEST_P(OnEachIsa, EveryKindOfScalesForOddSegments) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  struct Odd {
    double even, odd;
  };
  constexpr Odd kOdd[] = {{0, -0.0},         {kNaN, kNaN}, {kInfinity, -kInfinity},
                          {kInfinity, 3},    {kNaN, -7e4}, {1e-40, -1e-44},
                          {3e38, -3.4e38},   {3e38, 1},    {1e-38, 1e-39},
                          {1e30, -1e25},     {5, 5},       {1.75, -1.5},
                          {0x1.bffffep3, 1}, {0x1.cp3, 1}, {6e-8, 6e-5},
                          {65504, -65504},   {8.4e6, 1},   {1e12, 1.0001e12}};
  constexpr std::size_t kSegments = 2 * std::size(kOdd);
  std::uint32_t turn = 0;
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind out : kCodeKinds)
      for (const ScaleChoice& choice : scale_choices(in, out)) {
        const ModeChoice& mode = kModes[turn % 3];
        const std::int64_t length = 1 + 17 * (turn % 3);
        const Granularity scopes[] = {PerToken{},  PerChannel{0}, PerGroup{1, length / 2 + 1},
                                      PerTensor{}, PerChannel{1}, PerGroup{0, 2}};
        for (const Granularity& scope : scopes) {
          const bool across = scope.kind() == GranularityKind::channel && scope.axis() == 1;
          const std::int64_t segments = kSegments;
          DynamicRangeQuantizeDescriptor d =
              problem(across ? Shape{length, segments} : Shape{segments, length}, scope, mode, in, out);
          write_scales_as(d, choice);
          DynamicRangeCase c(d, Data::normal, turn);
          if (turn % 2 == 0) c.global_scale = turn % 4 == 0 ? 3e-4f : 1e6f;
          for (std::size_t which = 0; which < std::size(kOdd); ++which)
            for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
              const std::size_t at =
                  across ? i * kSegments + 2 * which : 2 * which * static_cast<std::size_t>(length) + i;
              put_float(&c.input[at * width_of(in)], in, i % 2 == 0 ? kOdd[which].even : kOdd[which].odd);
            }
          expect_right(c, {1, 2});
          if (HasFatalFailure()) return;
        }
        ++turn;
      }
}

// The global scale of tensors that are odd as a whole: zeros, next to nothing, everything.
TEST_P(OnEachIsa, FindsTheGlobalScaleOfOddTensors) {
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind out : kFloatGrids)
      for (const double x : {0.0, 1e-45, 1e-40, 1e-300, 1e-30, 1.0, 65504.0, 3e38, 1e45, 1.7e308,
                             std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        DynamicRangeQuantizeDescriptor d = problem({3, 40}, PerGroup{1, 16}, kModes[0], in, out);
        write_scales_as(d, {ElementKind::e4m3, MxRule::floor, true});
        DynamicRangeCase c(d, Data::normal, 1);
        for (std::size_t i = 0; i < 120; ++i) put_float(&c.input[i * width_of(in)], in, i % 3 == 0 ? -x : x / 3);
        expect_right(c, {1, 2});
        ASSERT_GT(c.run(Stream::cpu(1), GetParam()).global_scale, 0.0f) << x << " in " << c.text();
        if (HasFatalFailure()) return;
      }
}

// Found in a tensor that is cut into parts, by any number of threads.
TEST_P(OnEachIsa, FindsTheGlobalScaleOfALargeTensor) {
  for (const Granularity& scope : std::vector<Granularity>{PerGroup{1, 16}, PerToken{}, PerTensor{}, PerChannel{1}}) {
    DynamicRangeQuantizeDescriptor d = problem({300, 1024}, scope, kModes[0], ElementKind::bf16, ElementKind::e2m1);
    write_scales_as(d, {ElementKind::e4m3, MxRule::floor, true});
    expect_right({d, Data::one_odd, 3}, {1, 2, 3, 8});
    if (HasFatalFailure()) return;
  }
}

// ---- the typed plan ----

// The program in the header.
TEST(DynamicRange, TypedPlan) {
  const Stream stream = Stream::cpu(1);
  const DynamicRangeCase c(problem({64, 128}, PerToken{}, kModes[0], ElementKind::f32, ElementKind::s8), Data::normal,
                           15);
  std::vector<float> x(64 * 128), scale(64);
  std::memcpy(x.data(), c.input.data(), c.input.size());
  std::vector<std::int8_t> q(x.size());
  const auto plan = DynamicRangeQuantizePlan<float, std::int8_t>::select(
      stream, {.shape = {64, 128}, .scope = PerToken{}, .mode = DynamicRangeMode::symmetric});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> scratch(plan->workspace_size());
  const Status done =
      plan->run(stream, {scratch.data(), scratch.size()},
                {.input = {x.data(), {64, 128}}, .output = {q.data(), {64, 128}}, .scale_out = {scale.data(), {64}}});
  ASSERT_TRUE(done.ok()) << done.message();
  note_kernel(plan->sku());
  EXPECT_EQ(plan->sku().op, QuantizeKind::dynamic_range_quantize);
  EXPECT_TRUE(plan->precision_guarantee().deterministic);
  DynamicRangeResult got = c.room();
  std::memcpy(got.codes.data(), q.data(), q.size());
  std::memcpy(got.scale.data(), scale.data(), got.scale.size());
  got.zero_point.assign(64, 0);
  EXPECT_TRUE(c.equal(got, c.wanted()));
}

TEST(DynamicRange, TypedPlanOfPackedCodes) {
  const Stream stream = Stream::cpu(1);
  const DynamicRangeCase c(problem({9, 21}, PerGroup{1, 8}, kModes[2], ElementKind::f16, ElementKind::u4),
                           Data::specials, 16);
  std::vector<Half> x(9 * 21);
  std::memcpy(x.data(), c.input.data(), c.input.size());
  std::vector<std::uint8_t> q(9 * 11);
  std::vector<float> scale(27);
  std::vector<std::int32_t> zero_point(27);
  const auto plan = DynamicRangeQuantizePlan<Half, UInt4>::select(
      stream, {.shape = {9, 21}, .scope = PerGroup{1, 8}, .mode = DynamicRangeMode::asymmetric, .include_zero = true});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> scratch(plan->workspace_size());
  const DynamicRangeQuantizeArgs<Half, UInt4> args{.input = {x.data(), {9, 21}},
                                                   .output = {q.data(), {9, 21}},
                                                   .scale_out = {scale.data(), {9, 3}},
                                                   .zero_point_out = {zero_point.data(), {9, 3}}};
  EXPECT_TRUE(plan->can_implement(args).ok());
  const Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
  ASSERT_TRUE(done.ok()) << done.message();
  DynamicRangeResult got = c.room();
  std::memcpy(got.codes.data(), q.data(), q.size());
  std::memcpy(got.scale.data(), scale.data(), got.scale.size());
  got.zero_point = zero_point;
  EXPECT_TRUE(c.equal(got, c.wanted()));
}

// ---- the caller's floating-point mode ----

#if defined(__x86_64__)
TEST_P(OnEachIsa, FloatEnvironmentChangesNothingAndIsLeftAlone) {
  constexpr unsigned kDefault = 0x1F80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kStickyInexact = 0x0020;
  constexpr unsigned kUp = 0x4000, kDown = 0x2000, kTruncate = 0x6000;
  std::size_t next = 0;
  for (const int threads : {1, 4})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32}})
      for (const ElementKind in : kFloatKinds) {
        const Stream stream = Stream::cpu(threads);
        DynamicRangeCase c(problem({200, 401}, scope, kModes[next++ % 3], in, ElementKind::s8), Data::specials, 9);
        // A row of denormals alone, whose scale a flush to zero would change.
        const double tiny = in == ElementKind::f64 ? 1e-310 : in == ElementKind::f16 ? 6e-8 : 1e-39;
        for (std::size_t i = 0; i < 401; ++i) put_float(&c.input[i * width_of(in)], in, i % 2 == 0 ? tiny : -2 * tiny);
        const DynamicRangeResult want = c.wanted();
        for (const unsigned mode : {kDefault | kFlushToZero | kDenormalsAreZero, kDefault | kUp, kDefault | kDown,
                                    kDefault | kTruncate | kFlushToZero, kDefault | kStickyInexact}) {
          _mm_setcsr(mode);
          const DynamicRangeResult got = c.run(stream, GetParam());
          const unsigned after = _mm_getcsr();
          _mm_setcsr(kDefault);
          ASSERT_EQ(after, mode);
          ASSERT_TRUE(c.equal(got, want)) << "mode " << mode;
        }
      }
}
#endif

TEST(DynamicRange, RoundingModeOfTheStandardLibraryIsKept) {
  const DynamicRangeCase c(problem({1000}, PerTensor{}, kModes[1], ElementKind::f32, ElementKind::s8), Data::normal, 4);
  const DynamicRangeResult want = c.wanted();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const DynamicRangeResult got = c.run(Stream::cpu(1), ArchSku::scalar);
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(after, mode);
    EXPECT_TRUE(c.equal(got, want));
  }
}

// ---- beyond 32 bits ----

// What /proc/meminfo says is to be had, in bytes; 0 if it does not say.
std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kibibytes = 0;
  while (file >> key) {
    if (key == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

// Rows of f16 in 4.3 GB of addresses and 8 MiB of memory: a block of 1021 rows is mapped over and over, and only the
// rows behind 2^31 elements are their own. An address that is off by 2^31 or 2^32 elements or bytes finds another row.
class EndlessRows {
 public:
  static constexpr std::int64_t kRow = 4096, kBlockRows = 1021, kOwnRows = 12;
  static constexpr std::int64_t kRepeatedRows = (std::int64_t{1} << 31) / kRow;
  static constexpr std::int64_t kRows = kRepeatedRows + kOwnRows;
  static constexpr std::size_t kRowBytes = kRow * 2;

  // The rows that differ: the block, then the own ones.
  explicit EndlessRows(const std::vector<std::byte>& distinct) {
    void* p = mmap(nullptr, kRows * kRowBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    base_ = static_cast<std::byte*>(p);
    const int file = memfd_create("kvant_rows", 0);
    if (file < 0) return;
    const std::size_t block = kBlockRows * kRowBytes;
    bool ok = ftruncate(file, static_cast<off_t>(block)) == 0;
    for (std::size_t done = 0; ok && done < kRepeatedRows * kRowBytes; done += block)
      ok = mmap(base_ + done, std::min(block, kRepeatedRows * kRowBytes - done), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    close(file);
    std::byte* own = base_ + kRepeatedRows * kRowBytes;
    ok = ok && mmap(own, kOwnRows * kRowBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                    0) != MAP_FAILED;
    if (!ok) return;
    std::memcpy(base_, distinct.data(), block);
    std::memcpy(own, distinct.data() + block, kOwnRows * kRowBytes);
    usable_ = true;
  }
  ~EndlessRows() {
    if (base_ != nullptr) munmap(base_, kRows * kRowBytes);
  }
  EndlessRows(const EndlessRows&) = delete;
  EndlessRows& operator=(const EndlessRows&) = delete;

  bool usable() const { return usable_; }
  const std::byte* data() const { return base_; }
  // Which of the distinct rows is found at `row`.
  static std::int64_t distinct_row(std::int64_t row) {
    return row < kRepeatedRows ? row % kBlockRows : kBlockRows + row - kRepeatedRows;
  }

 private:
  std::byte* base_ = nullptr;
  bool usable_ = false;
};

TEST(DynamicRange, MoreElementsThan32BitsCount) {
  if (kSanitized) GTEST_SKIP() << "4.3 billion reads take minutes under a sanitizer";
  constexpr std::int64_t kRow = EndlessRows::kRow, kRows = EndlessRows::kRows;
  const std::int64_t output_bytes = kRows * kRow / 2;
  const std::int64_t needed = output_bytes + (std::int64_t{1} << 29), available = available_memory();
  if (available < needed)
    GTEST_SKIP() << "needs " << needed << " bytes of memory, /proc/meminfo has " << available << " available";

  // Half floats whose size depends on the row; the largest of all are in the last row.
  const std::int64_t distinct = EndlessRows::kBlockRows + EndlessRows::kOwnRows;
  std::vector<std::byte> rows(static_cast<std::size_t>(distinct) * EndlessRows::kRowBytes);
  std::mt19937 random(18);
  for (std::size_t i = 0; i < rows.size() / 2; ++i) {
    const std::size_t row = i / kRow;
    const std::size_t exponent = row == static_cast<std::size_t>(distinct) - 1 ? 27 : 10 + row % 13;
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    const auto half = static_cast<std::uint16_t>((bits & 0x83FF) | (exponent - (bits >> 16) % 4) << 10);
    std::memcpy(&rows[2 * i], &half, 2);
  }
  const EndlessRows input(rows);
  if (!input.usable()) GTEST_SKIP() << "no " << kRows * kRow * 2 << " bytes of addresses to be had";
  GuardedBuffer output(output_bytes);
  std::byte* const codes = output.data();

  const Stream stream = Stream::cpu(2);
  for (const Granularity& scope : std::vector<Granularity>{PerToken{}, PerTensor{}}) {
    // All rows that occur, once each: the ranges and codes of the large tensor are theirs.
    const DynamicRangeCase small(problem({distinct, kRow}, scope, kModes[1], ElementKind::f16, ElementKind::s4), rows);
    const DynamicRangeResult want = small.wanted();
    DynamicRangeQuantizeDescriptor d = small.descriptor;
    d.shape = {kRows, kRow};
    const auto plan = AnyDynamicRangeQuantizePlan::select(stream, d);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const std::int64_t segments = segment_total(d.shape, scope);
    std::vector<float> scale(static_cast<std::size_t>(segments));
    std::vector<std::int32_t> zero_point(scale.size());
    std::vector<std::byte> scratch(plan->workspace_size());
    const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = {input.data(), ElementKind::f16, d.shape, 0},
                                   .output = {codes, ElementKind::s4, d.shape, 0},
                                   .scale_out = {scale.data(), ElementKind::f32, {segments}, 0},
                                   .zero_point_out = {zero_point.data(), ElementKind::s32, {segments}, 0}});
    ASSERT_TRUE(done.ok()) << done.message();
    note_kernel(plan->sku());
    for (std::int64_t segment = 0; segment < segments; ++segment) {
      const auto at = static_cast<std::size_t>(segment);
      const auto as = static_cast<std::size_t>(segments == 1 ? 0 : EndlessRows::distinct_row(segment));
      ASSERT_EQ(static_cast<double>(scale[at]), get_float(&want.scale[4 * as], ElementKind::f32)) << segment;
      ASSERT_EQ(zero_point[at], want.zero_point[as]) << segment;
    }
    constexpr std::size_t kCodeBytes = kRow / 2;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto as = static_cast<std::size_t>(EndlessRows::distinct_row(row));
      ASSERT_EQ(
          std::memcmp(codes + static_cast<std::size_t>(row) * kCodeBytes, &want.codes[as * kCodeBytes], kCodeBytes), 0)
          << "row " << row << " per " << name(scope.kind());
    }
  }
}

}  // namespace
}  // namespace kvant::tests
