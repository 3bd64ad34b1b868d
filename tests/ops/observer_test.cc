// Observers: what they see does not depend on how it was cut into batches, what they conclude follows from the values
// alone, and min_max agrees with dynamic-range quantization bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/dynamic_range_reference.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/failing_memory.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitized.h"
#include "tests/support/special_numbers.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::tests {
namespace {

constexpr ObserverKind kKinds[] = {ObserverKind::min_max, ObserverKind::percentile, ObserverKind::mse};
constexpr DynamicRangeMode kModes[] = {DynamicRangeMode::symmetric, DynamicRangeMode::asymmetric};

// A dense tensor of any floating-point kind, and batches that are parts of it.
struct Tensor {
  ElementKind kind;
  Shape shape;
  std::vector<std::byte> bytes;

  Tensor(ElementKind k, const Shape& s) : kind(k), shape(s), bytes(count() * width_of(k)) {}
  Tensor(ElementKind k, const Shape& s, const std::vector<double>& values) : Tensor(k, s) {
    for (std::size_t i = 0; i < values.size(); ++i) put_float(&bytes[i * width_of(k)], k, values[i]);
  }

  std::size_t count() const { return static_cast<std::size_t>(shape.element_count().value()); }
  std::vector<double> values() const { return values_of(bytes, kind); }
  AnyRef all() const { return {bytes.data(), kind, shape, 0}; }
  // Indices [begin, end) of the first axis.
  AnyRef rows(std::int64_t begin, std::int64_t end) const {
    Shape part = shape;
    part[0] = end - begin;
    const std::size_t step = bytes.size() / static_cast<std::size_t>(shape[0]);
    return {bytes.data() + static_cast<std::size_t>(begin) * step, kind, part, 0};
  }
  // Indices [begin, end) of the last axis: rows with gaps.
  AnyRef columns(std::int64_t begin, std::int64_t end) const {
    Shape part = shape;
    part[shape.rank() - 1] = end - begin;
    return {bytes.data() + static_cast<std::size_t>(begin) * width_of(kind), kind, part, shape.row_length()};
  }
};

// Normal numbers with specials among them: NaN, infinities, denormals, ±3e38.
Tensor random_tensor(ElementKind kind, const Shape& shape, std::uint32_t seed) {
  Tensor t(kind, shape);
  std::mt19937 random(seed);
  fill_random(t.bytes, kind, random);
  return t;
}

// Normal numbers, one scale for all.
std::vector<double> normal_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& x : values) x = normal(random);
  return values;
}

Observer observer(const ObserverDescriptor& d) {
  auto result = Observer::create(d);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *std::move(result);
}

Observer observing(const ObserverDescriptor& d, const std::vector<AnyRef>& batches,
                   const Stream& stream = Stream::cpu(1)) {
  Observer o = observer(d);
  for (const AnyRef& batch : batches) {
    const Status status = o.observe(stream, batch);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return o;
}

QuantizationParameters parameters(const Observer& o) {
  auto result = o.parameters();
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *std::move(result) : QuantizationParameters{};
}

testing::AssertionResult same(const QuantizationParameters& a, const QuantizationParameters& b) {
  if (a.scale.size() != b.scale.size() || a.zero_point.size() != b.zero_point.size())
    return testing::AssertionFailure() << a.scale.size() << " and " << b.scale.size() << " segments";
  for (std::size_t i = 0; i < a.scale.size(); ++i)
    if (a.scale[i] != b.scale[i] || a.zero_point[i] != b.zero_point[i])
      return testing::AssertionFailure() << "segment " << i << ": scale " << std::hexfloat << a.scale[i] << " and "
                                         << b.scale[i] << ", zero point " << a.zero_point[i] << " and "
                                         << b.zero_point[i];
  return testing::AssertionSuccess();
}

// Everything that can be seen of them.
testing::AssertionResult same(const Observer& a, const Observer& b) {
  if (a.min() != b.min() || a.max() != b.max()) return testing::AssertionFailure() << "ranges differ";
  if (a.observed() != b.observed() || a.ignored() != b.ignored())
    return testing::AssertionFailure() << a.observed() << " + " << a.ignored() << " values and " << b.observed()
                                       << " + " << b.ignored();
  return same(parameters(a), parameters(b));
}

std::string text(const ObserverDescriptor& d) {
  return std::string(name(d.kind)) + " " + std::string(name(d.mode)) + (d.include_zero ? " with zero " : " ") +
         std::string(name(d.input)) + ">" + std::string(name(d.output)) + " per " + std::string(name(d.scope.kind())) +
         " " + std::to_string(d.scope.axis());
}

QuantizationRules rules_of(const ObserverDescriptor& d) {
  const CodeRange limits = code_range(d.output);
  return {.mode = d.mode,
          .include_zero = d.include_zero,
          .q_min = d.q_min.value_or(limits.min),
          .q_max = d.q_max.value_or(limits.max),
          .grid = has_float_grid(d.output) ? std::optional(d.output) : std::nullopt};
}

// Floating-point grids have no zero point.
bool has_mode(ElementKind out, DynamicRangeMode mode) {
  return mode == DynamicRangeMode::symmetric || !has_float_grid(out);
}

// ---- min_max ----

// Scales and zero points of dynamic-range quantization over the whole tensor.
QuantizationParameters dynamic_range_parameters(const ObserverDescriptor& d, const Tensor& t) {
  const Stream stream = Stream::cpu(1);
  const auto plan = AnyDynamicRangeQuantizePlan::select(stream, {.shape = t.shape,
                                                                 .scope = d.scope,
                                                                 .mode = d.mode,
                                                                 .include_zero = d.include_zero,
                                                                 .q_min = d.q_min,
                                                                 .q_max = d.q_max,
                                                                 .input = d.input,
                                                                 .output = d.output});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return {};
  const Shape segments = parameter_shape(t.shape, d.scope).value();
  const auto count = static_cast<std::size_t>(segments.element_count().value());
  std::vector<std::byte> codes(t.count() * unit_bytes(d.output)), scratch(plan->workspace_size()),
      scale(count * width_of(scale_kind(d.input)));
  QuantizationParameters result;
  result.zero_point.resize(count);
  const Status status = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = t.all(),
                                   .output = {codes.data(), d.output, t.shape, 0},
                                   .scale_out = {scale.data(), scale_kind(d.input), segments, 0},
                                   .zero_point_out = {result.zero_point.data(), ElementKind::s32, segments, 0}});
  EXPECT_TRUE(status.ok()) << status.message();
  note_kernel(plan->sku());
  for (std::size_t i = 0; i < count; ++i)
    result.scale.push_back(get_float(&scale[i * width_of(scale_kind(d.input))], scale_kind(d.input)));
  return result;
}

TEST(MinMax, IsDynamicRangeQuantizationOfAllBatches) {
  for (const ElementKind in : kFloatKinds) {
    const Tensor t = random_tensor(in, {6, 5, 7}, 11);
    for (const ElementKind out : kCodeKinds)
      for (const DynamicRangeMode mode : kModes)
        for (const bool include_zero : {false, true})
          for (const Granularity& scope : {Granularity::per_tensor(), Granularity::per_channel(0),
                                           Granularity::per_channel(1), Granularity::per_channel(-1)}) {
            if (!has_mode(out, mode)) continue;
            const ObserverDescriptor d{
                .scope = scope, .mode = mode, .include_zero = include_zero, .input = in, .output = out};
            const bool first_axis = scope.kind() == GranularityKind::channel && scope.axis() == 0;
            const std::vector<AnyRef> batches = first_axis
                                                    ? std::vector<AnyRef>{t.columns(0, 3), t.columns(3, 7)}
                                                    : std::vector<AnyRef>{t.rows(0, 1), t.rows(1, 4), t.rows(4, 6)};
            const Observer o = observing(d, batches);
            EXPECT_TRUE(same(parameters(o), dynamic_range_parameters(d, t))) << text(d);
          }
  }
}

TEST(MinMax, KnowsItsRangesAndCounts) {
  const std::vector<double> values = {1, -2, 0.5, kNan, 4, kInf, -0.0, -kInf};
  for (const ElementKind kind : kFloatKinds)
    for (const ObserverKind k : kKinds) {
      const Tensor t(kind, {2, 4}, values);
      const Observer o = observing({.kind = k, .scope = PerChannel{1}, .input = kind}, {t.all()});
      EXPECT_EQ(o.min(), (std::vector<double>{1, -2, 0, kInf}));
      EXPECT_EQ(o.max(), (std::vector<double>{4, -2, 0.5, -kInf}));
      EXPECT_EQ(o.max_abs(), (std::vector<double>{4, 2, 0.5, 0}));
      EXPECT_EQ(o.observed(), 5);
      EXPECT_EQ(o.ignored(), 3);
      EXPECT_EQ(parameters(o).scale[3], 1.0);
    }
}

// The greatest finite numbers are not infinities. Long enough for the vector code and its tail.
TEST(MinMax, CountsWhatItIgnores) {
  for (const ElementKind in : kFloatKinds) {
    const double greatest = in == ElementKind::f64   ? std::numeric_limits<double>::max()
                            : in == ElementKind::f32 ? static_cast<double>(std::numeric_limits<float>::max())
                            : in == ElementKind::f16 ? 65504.0
                                                     : 0x1.FEp127;
    std::vector<double> values(2500, greatest);
    for (std::size_t i = 0; i < 2500; i += 100) values[i] = -greatest;
    for (std::size_t i = 3; i < 2500; i += 7) values[i] = i % 2 == 0 ? kNan : i % 3 == 0 ? kInf : -kInf;
    const Tensor t(in, {2500}, values);
    for (const ObserverKind kind : kKinds) {
      const Observer o = observing({.kind = kind, .input = in}, {t.all()});
      EXPECT_EQ(o.ignored(), 357) << name(in);
      EXPECT_EQ(o.observed(), 2500 - 357) << name(in);
      EXPECT_EQ(o.max()[0], greatest);
      EXPECT_EQ(o.min()[0], -greatest);
    }
  }
}

TEST(MinMax, TakesTheCodeRangeOfTheDescriptor) {
  const Tensor t(ElementKind::f32, {3}, {-6, 1, 3});
  const ObserverDescriptor narrow{.q_min = -3, .q_max = 3};
  EXPECT_TRUE(same(parameters(observing(narrow, {t.all()})), {{2.0}, {0}}));
  const ObserverDescriptor shifted{.mode = DynamicRangeMode::asymmetric, .q_min = -3, .q_max = 6};
  EXPECT_TRUE(same(parameters(observing(shifted, {t.all()})), {{1.0}, {3}}));
}

// ---- Batches, order, threads ----

struct Problem {
  Shape shape;
  Granularity scope;
};

// Sizes that are counted on several threads, in channels or in copies of the counters: see cut() in the observer.
std::vector<Problem> large_problems() {
  return {{{331, 607}, PerTensor{}},         {{331, 607}, PerChannel{0}}, {{331, 607}, PerChannel{1}},
          {{40000, 3}, PerChannel{1}},       {{3, 70001}, PerChannel{0}}, {{9, 4, 5003}, PerChannel{1}},
          {{1500, 130, 1}, PerChannel{-2}},  {{200001}, PerTensor{}},     {{200001}, PerChannel{0}},
          {{2, 3, 211, 151}, PerChannel{1}}, {{1, 200000}, PerChannel{0}}};
}

TEST(Batches, ThreadsDoNotMatter) {
  const Executor host{.threads = 3, .parallel_for = [](std::int64_t parts, const Task& task) {
                        for (std::int64_t i = parts; i-- > 0;) task(i);
                      }};
  for (const Problem& p : large_problems())
    for (const ObserverKind kind : kKinds) {
      const ElementKind in = kFloatKinds[static_cast<std::size_t>(p.shape[0]) % 4];
      const Tensor t = random_tensor(in, p.shape, 5);
      const bool few_bins = p.shape[0] == 200001 && p.scope.kind() == GranularityKind::channel;
      const ObserverDescriptor d{.kind = kind, .scope = p.scope, .input = in, .bins = few_bins ? 16 : 256};
      const Observer one = observing(d, {t.all()});
      for (const int threads : {2, 3, 4})
        EXPECT_TRUE(same(one, observing(d, {t.all()}, Stream::cpu(threads)))) << text(d) << " threads " << threads;
      EXPECT_TRUE(same(one, observing(d, {t.all()}, Stream::cpu(host)))) << text(d);
    }
}

TEST(Batches, SplitAndOrderDoNotMatter) {
  for (const Problem& p : large_problems()) {
    if (p.shape[0] == 200001 && p.scope.kind() == GranularityKind::channel) continue;  // there is no axis to split
    const bool by_columns = p.scope.kind() == GranularityKind::channel && p.scope.axis() == 0;
    const std::int64_t length = by_columns ? p.shape.row_length() : p.shape[0];
    for (const ObserverKind kind : kKinds)
      for (const DynamicRangeMode mode : kModes) {
        const Tensor t = random_tensor(ElementKind::f32, p.shape, 6);
        const ObserverDescriptor d{.kind = kind, .scope = p.scope, .mode = mode, .bins = 128};
        const Observer whole = observing(d, {t.all()});
        std::mt19937 random(7);
        for (const std::int64_t pieces : {2, 5}) {
          std::vector<AnyRef> batches;
          for (std::int64_t i = 0; i < pieces; ++i) {
            const std::int64_t begin = length * i / pieces, end = length * (i + 1) / pieces;
            batches.push_back(by_columns ? t.columns(begin, end) : t.rows(begin, end));
          }
          for (int shuffle = 0; shuffle < 3; ++shuffle) {
            EXPECT_TRUE(same(whole, observing(d, batches, Stream::cpu(1 + shuffle)))) << text(d);
            std::shuffle(batches.begin(), batches.end(), random);
          }
        }
      }
  }
}

// k grows, and every order of growing ends at the same histogram.
TEST(Batches, GrowingRangesDoNotMatter) {
  for (const ElementKind in : kFloatKinds)
    for (const ObserverKind kind : kKinds)
      for (const DynamicRangeMode mode : kModes)
        for (const int bins : {16, 4096}) {
          std::vector<double> scales = {1e-6, 1, 1e6, 0, 3e-8, 1e-40};
          if (in == ElementKind::f16) scales = {1e-6, 1, 6e4, 0, 3e-8, 1e-3};
          if (in == ElementKind::f64) scales = {1e-310, 1, 1e300, 0, 1e-30, -5e-324};
          std::vector<double> values;
          for (const double scale : scales)
            for (int i = -100; i <= 100; ++i) values.push_back(scale * i / 100);
          const std::int64_t rows = static_cast<std::int64_t>(scales.size());
          const Tensor t(in, {rows, 201}, values);
          const ObserverDescriptor d{
              .kind = kind, .mode = mode, .include_zero = false, .input = in, .percentile = 70, .bins = bins};
          const Observer whole = observing(d, {t.all()});
          std::vector<std::int64_t> order(scales.size());
          std::iota(order.begin(), order.end(), 0);
          do {
            Observer o = observer(d);
            for (const std::int64_t row : order) ASSERT_TRUE(o.observe(Stream::cpu(1), t.rows(row, row + 1)).ok());
            ASSERT_TRUE(same(whole, o)) << text(d) << " bins " << bins;
          } while (std::next_permutation(order.begin(), order.end()));
        }
}

// A little at a time, so that bins are added to their neighbours and not all to the innermost.
TEST(Batches, SmallGrowthDoesNotMatter) {
  const std::vector<double> scales = {1, 1.9, 3.7, 9, 20};
  std::vector<double> values = normal_values(5 * 200, 9);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 4 == 0 ? 0.0 : values[i] * scales[i / 200];
  const Tensor t(ElementKind::f32, {5, 200}, values);
  for (const ObserverKind kind : kKinds)
    for (const DynamicRangeMode mode : kModes)
      for (const double percentile : {60.0, 80.0, 95.0}) {
        const ObserverDescriptor d{.kind = kind, .mode = mode, .percentile = percentile, .bins = 512};
        const Observer whole = observing(d, {t.all()});
        std::vector<std::int64_t> order = {0, 1, 2, 3, 4};
        do {
          Observer o = observer(d), merged = observer(d);
          for (const std::int64_t row : order) {
            ASSERT_TRUE(o.observe(Stream::cpu(1), t.rows(row, row + 1)).ok());
            ASSERT_TRUE(merged.merge(observing(d, {t.rows(row, row + 1)})).ok());
          }
          ASSERT_TRUE(same(whole, o)) << text(d);
          ASSERT_TRUE(same(whole, merged)) << text(d);
        } while (std::next_permutation(order.begin(), order.end()));
      }
}

TEST(Batches, OtherSizesMayChange) {
  const Tensor a = random_tensor(ElementKind::f32, {4, 5, 6}, 1), b = random_tensor(ElementKind::f32, {2, 5}, 2);
  const Tensor c = random_tensor(ElementKind::f32, {7, 5, 1, 3}, 3);
  Observer o = observing({.scope = PerChannel{1}}, {a.all(), b.all(), c.all()});
  EXPECT_EQ(o.min().size(), 5u);
  EXPECT_EQ(o.observed() + o.ignored(), 4 * 5 * 6 + 2 * 5 + 7 * 5 * 3);
}

// One element too many faults; addresses are odd.
TEST(Batches, NeedNoAlignmentAndReadNothingElse) {
  for (const ElementKind in : kFloatKinds)
    for (const ObserverKind kind : kKinds)
      for (const Problem& p : {Problem{{7, 33}, PerTensor{}}, Problem{{7, 33}, PerChannel{1}},
                               Problem{{7, 33}, PerChannel{0}}, Problem{{}, PerTensor{}}}) {
        const Tensor t = random_tensor(in, p.shape, 8);
        GuardedBuffer at_the_end(static_cast<std::int64_t>(t.bytes.size()));
        std::memcpy(at_the_end.data(), t.bytes.data(), t.bytes.size());
        std::vector<std::byte> odd(t.bytes.size() + 1);
        std::memcpy(odd.data() + 1, t.bytes.data(), t.bytes.size());
        const ObserverDescriptor d{.kind = kind, .scope = p.scope, .input = in};
        const Observer plain = observing(d, {t.all()});
        EXPECT_TRUE(same(plain, observing(d, {{at_the_end.data(), in, p.shape, 0}}))) << text(d);
        EXPECT_TRUE(same(plain, observing(d, {{odd.data() + 1, in, p.shape, 0}}))) << text(d);
      }
}

TEST(Batches, RowStridesLeaveTheGapsOut) {
  for (const ObserverKind kind : kKinds)
    for (const Granularity& scope : {Granularity::per_tensor(), Granularity::per_channel(0),
                                     Granularity::per_channel(1), Granularity::per_channel(2)}) {
      Tensor wide = random_tensor(ElementKind::f32, {3, 4, 9}, 12);
      const Tensor dense = random_tensor(ElementKind::f32, {3, 4, 5}, 13);
      for (std::size_t row = 0; row < 12; ++row) std::memcpy(&wide.bytes[row * 36], &dense.bytes[row * 20], 20);
      const ObserverDescriptor d{.kind = kind, .scope = scope};
      EXPECT_TRUE(same(observing(d, {dense.all()}), observing(d, {wide.columns(0, 5)}))) << text(d);
    }
}

TEST(Batches, WithoutElementsChangeNothing) {
  const Tensor t = random_tensor(ElementKind::f32, {4, 5}, 14);
  for (const ObserverKind kind : kKinds) {
    const ObserverDescriptor d{.kind = kind, .scope = PerChannel{1}};
    const AnyRef empty{nullptr, ElementKind::f32, {0, 5}, 0};
    EXPECT_TRUE(same(observing(d, {t.all()}), observing(d, {empty, t.all(), empty})));
    const Observer nothing = observing(d, {empty, {nullptr, ElementKind::f32, {0, 77}, 0}});
    EXPECT_TRUE(nothing.min().empty());
    EXPECT_EQ(nothing.observed() + nothing.ignored(), 0);
    EXPECT_FALSE(nothing.parameters().ok());
  }
}

// ---- merge, copies ----

TEST(Merge, EqualsObservingEverything) {
  for (const ObserverKind kind : kKinds)
    for (const DynamicRangeMode mode : kModes)
      for (const Granularity& scope : {Granularity::per_tensor(), Granularity::per_channel(1)}) {
        const ObserverDescriptor d{.kind = kind, .scope = scope, .mode = mode, .percentile = 90, .bins = 64};
        std::vector<double> values = normal_values(6 * 50, 15);
        for (std::size_t i = 0; i < 100; ++i) values[i] *= 1e-3;
        for (std::size_t i = 200; i < 300; ++i) values[i] *= 1e4;
        values[17] = kNan;
        const Tensor t(ElementKind::f32, {6, 50}, values);
        const Observer whole = observing(d, {t.all()});
        const std::vector<AnyRef> parts = {t.rows(0, 2), t.rows(2, 4), t.rows(4, 6)};
        for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
          Observer merged = observer(d);
          for (const int i : order) ASSERT_TRUE(merged.merge(observing(d, {parts[static_cast<std::size_t>(i)]})).ok());
          ASSERT_TRUE(merged.merge(observer(d)).ok());
          EXPECT_TRUE(same(whole, merged)) << text(d);
        }
      }
}

TEST(Merge, WithItselfCountsTwice) {
  const Tensor t(ElementKind::f32, {1000}, normal_values(1000, 16));
  for (const ObserverKind kind : kKinds) {
    const ObserverDescriptor d{.kind = kind, .percentile = 99};
    Observer o = observing(d, {t.all()});
    ASSERT_TRUE(o.merge(o).ok());
    EXPECT_TRUE(same(o, observing(d, {t.all(), t.all()})));
  }
}

TEST(Merge, KeepsItsOwnDescriptor) {
  const Tensor t(ElementKind::f32, {1000}, normal_values(1000, 16));
  Observer o = observer({});
  ASSERT_TRUE(o.merge(observing({.q_min = -128, .bins = 64}, {t.all()})).ok());  // both are what o has anyway
  EXPECT_FALSE(o.descriptor().q_min.has_value());
  EXPECT_EQ(o.observed(), 1000);
}

TEST(Copies, AreIndependent) {
  const Tensor t(ElementKind::f32, {2, 500}, normal_values(1000, 17));
  for (const ObserverKind kind : kKinds) {
    const ObserverDescriptor d{.kind = kind};
    const Observer half = observing(d, {t.rows(0, 1)}), whole = observing(d, {t.all()});
    Observer original = half;
    const Observer copy = original;
    ASSERT_TRUE(original.observe(Stream::cpu(1), t.rows(1, 2)).ok());
    EXPECT_TRUE(same(copy, half));
    EXPECT_TRUE(same(original, whole));
    Observer moved = std::move(original);
    EXPECT_TRUE(same(moved, whole));
    original = copy;
    EXPECT_TRUE(same(original, half));
    moved = std::move(original);
    EXPECT_TRUE(same(moved, half));
  }
}

TEST(Reset, ForgetsEverything) {
  const Tensor t(ElementKind::f32, {2, 500}, normal_values(1000, 17));
  const Tensor other(ElementKind::f32, {3, 100}, normal_values(300, 18));
  for (const ObserverKind kind : kKinds) {
    const ObserverDescriptor d{.kind = kind, .scope = PerChannel{0}};
    Observer o = observing(d, {t.all()});
    o.reset();
    EXPECT_EQ(o.observed() + o.ignored(), 0);
    EXPECT_TRUE(o.min().empty() && o.max().empty() && o.max_abs().empty());
    EXPECT_FALSE(o.parameters().ok());
    ASSERT_TRUE(o.observe(Stream::cpu(1), other.all()).ok());
    EXPECT_TRUE(same(o, observing(d, {other.all()})));
  }
}

// ---- percentile ----

// The definition, on the sorted values. floor(x / width) is exact in long double for these widths.
SegmentRange percentile_reference(const ObserverDescriptor& d, const std::vector<double>& values) {
  SegmentRange range;
  for (const double x : values) range.add(x);
  if (range.empty() || range.max_abs() == 0) return range;
  int k = 0;
  std::frexp(range.max_abs(), &k);
  const int width_exponent = std::max(k, -1000) + 1 - static_cast<int>(std::log2(d.bins));
  std::vector<std::int64_t> bins, magnitudes;
  for (const double x : values) {
    if (!std::isfinite(x)) continue;
    const long double in_widths = std::ldexp(static_cast<long double>(x), -width_exponent);
    bins.push_back(static_cast<std::int64_t>(std::floor(in_widths)));
    magnitudes.push_back(bins.back() < 0 ? -1 - bins.back() : bins.back());
  }
  const auto edge = [&](std::int64_t bin) {  // the outermost may be 2^1024
    return static_cast<double>(std::ldexp(static_cast<long double>(bin), width_exponent));
  };
  const double outside = static_cast<double>(bins.size()) * (100 - d.percentile) / 100;
  const auto skipped = [](double n) { return static_cast<std::size_t>(std::floor(n + 1e-9)); };
  if (d.mode == DynamicRangeMode::symmetric) {
    std::sort(magnitudes.rbegin(), magnitudes.rend());
    const double t = std::min(range.max_abs(), edge(magnitudes[skipped(outside)] + 1));
    return {-t, t};
  }
  std::sort(bins.begin(), bins.end());
  return {std::max(range.min, edge(bins[skipped(outside / 2)])),
          std::min(range.max, edge(bins[bins.size() - 1 - skipped(outside / 2)] + 1))};
}

void expect_percentile(const ObserverDescriptor& d, const Tensor& t) {
  const SegmentParameters want = reference_parameters(percentile_reference(d, t.values()), rules_of(d), d.input);
  EXPECT_TRUE(same(parameters(observing(d, {t.all()})), {{want.scale}, {want.zero_point}}))
      << text(d) << " percentile " << d.percentile << " bins " << d.bins;
}

TEST(Percentile, IsWhatTheSortedValuesSay) {
  for (const ElementKind in : kFloatKinds) {
    std::vector<Tensor> tensors;
    tensors.push_back(Tensor(in, {1000}, normal_values(1000, 20)));
    tensors.push_back(random_tensor(in, {1013}, 21));  // with specials
    std::vector<double> tiny, edges, spread;
    for (int i = -500; i < 500; ++i) tiny.push_back(i * (in == ElementKind::f64 ? 5e-324 : 1.5e-45));
    for (int i = -500; i < 500; ++i) edges.push_back(i / 64.0);
    for (int i = -500; i < 500; ++i)  // in f64 a tiny value times the reciprocal of a huge width underflows
      spread.push_back(std::copysign(std::ldexp(1.7, in == ElementKind::f64 ? std::abs(2 * i) + 24 : std::abs(i) / 5),
                                     i % 2 == 0 ? 1.0 : -1.0));
    if (in == ElementKind::f64)
      for (int i = 0; i < 400; ++i) spread.push_back(i % 3 == 0 ? -5e-324 : 5e-324);
    tensors.push_back(Tensor(in, {1000}, tiny));
    tensors.push_back(Tensor(in, {1000}, edges));
    tensors.push_back(Tensor(in, {static_cast<std::int64_t>(spread.size())}, spread));
    for (const Tensor& t : tensors)
      for (const DynamicRangeMode mode : kModes)
        for (const bool include_zero : {false, true})
          for (const int bins : {16, 64, 4096, 1 << 20})
            for (const double percentile : {50.5, 60.0, 75.0, 90.0, 99.0, 99.8, 99.9, 100.0})
              expect_percentile({.kind = ObserverKind::percentile,
                                 .mode = mode,
                                 .include_zero = include_zero,
                                 .input = in,
                                 .percentile = percentile,
                                 .bins = bins},
                                t);
  }
}

TEST(Percentile, OfOneHundredIsMinMax) {
  for (const ElementKind in : kFloatKinds)
    for (const DynamicRangeMode mode : kModes)
      for (const Granularity& scope : {Granularity::per_tensor(), Granularity::per_channel(1)}) {
        const Tensor t = random_tensor(in, {50, 30}, 22);
        ObserverDescriptor d{.scope = scope, .mode = mode, .input = in, .percentile = 100};
        const QuantizationParameters min_max = parameters(observing(d, {t.all()}));
        d.kind = ObserverKind::percentile;
        EXPECT_TRUE(same(min_max, parameters(observing(d, {t.all()})))) << text(d);
      }
}

TEST(Percentile, CutsOutliers) {
  std::vector<double> values(10000);
  std::iota(values.begin(), values.end(), 0.0);
  values.insert(values.end(), 5, 1e6);
  const Tensor t(ElementKind::f32, {10005}, values);
  const double width = 0x1p21 / 4096;
  const ObserverDescriptor d{.kind = ObserverKind::percentile, .output = ElementKind::u8, .percentile = 99.9};
  const double kept = parameters(observing(d, {t.all()})).scale[0] * 255;  // 10 of 10005 values are cut
  EXPECT_GE(kept, 9994);
  EXPECT_LE(kept, 9994 + width);
  ObserverDescriptor both = d;
  both.mode = DynamicRangeMode::asymmetric;
  both.percentile = 99.8;  // 10 at each end
  both.include_zero = false;
  const QuantizationParameters p = parameters(observing(both, {t.all()}));
  const double lo = -p.scale[0] * p.zero_point[0], hi = lo + p.scale[0] * 255;
  EXPECT_LE(lo, 10);
  EXPECT_GE(lo, 10 - width - p.scale[0]);
  EXPECT_GE(hi, 9994 - p.scale[0]);
  EXPECT_LE(hi, 9994 + width + p.scale[0]);
}

// 99.9 is not a binary number, and 0.1 % of 1000 values is one value all the same.
TEST(Percentile, CountsDecimals) {
  for (const double percentile : {99.9, 99.8, 99.7, 99.6, 99.5, 99.4, 99.3, 99.2, 99.1, 98.9, 97.3, 90.1, 70.7, 50.1}) {
    std::vector<double> values(1000);
    std::iota(values.begin(), values.end(), 0.0);
    const Tensor t(ElementKind::f32, {1000}, values);
    const ObserverDescriptor d{
        .kind = ObserverKind::percentile, .output = ElementKind::u8, .percentile = percentile, .bins = 2048};
    // Bins have width 1, so the greatest value that stays is known.
    const double greatest = std::round(1000 * percentile / 100) - 1;
    EXPECT_EQ(parameters(observing(d, {t.all()})).scale[0],
              static_cast<double>(static_cast<float>(std::min(greatest + 1, 999.0)) / 255.0f))
        << percentile;
  }
}

// ---- mse ----

double squared_error(const Tensor& t, const ObserverDescriptor& d, const QuantizationParameters& p) {
  const Stream stream = Stream::cpu(1);
  const QuantizationRules rules = rules_of(d);
  ElementwiseDescriptor fake = describe(QuantizeKind::fake_quantize, d.input, d.output, t.shape, d.scope);
  fake.q_min = rules.q_min;
  fake.q_max = rules.q_max;
  const auto plan = ElementwisePlan::select(stream, fake);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return kNan;
  Tensor y(t.kind, t.shape);
  const Shape segments = parameter_shape(t.shape, d.scope).value();
  const std::vector<float> scale32(p.scale.begin(), p.scale.end());
  const AnyRef scale = d.input == ElementKind::f64 ? AnyRef{p.scale.data(), ElementKind::f64, segments, 0}
                                                   : AnyRef{scale32.data(), ElementKind::f32, segments, 0};
  ElementwiseArgs args;
  args.input = t.all();
  args.output = {y.bytes.data(), y.kind, y.shape, 0};
  args.scale = AnyParameter(scale);
  args.zero_point = AnyParameter(AnyRef{p.zero_point.data(), ElementKind::s32, segments, 0});
  const Status status = plan->run(stream, {}, args);
  EXPECT_TRUE(status.ok()) << status.message();
  note_kernel(plan->sku());
  const std::vector<double> before = t.values(), after = y.values();
  double sum = 0;
  for (std::size_t i = 0; i < before.size(); ++i) sum += (before[i] - after[i]) * (before[i] - after[i]);
  return sum;
}

// How much of min_max's squared error is left.
double error_left(const Tensor& t, ObserverDescriptor d) {
  d.kind = ObserverKind::min_max;
  const double whole = squared_error(t, d, parameters(observing(d, {t.all()})));
  d.kind = ObserverKind::mse;
  return squared_error(t, d, parameters(observing(d, {t.all()}))) / whole;
}

constexpr std::int64_t kMany = 50000;

TEST(Mse, OnNormalData) {
  const Tensor t(ElementKind::f32, {kMany}, normal_values(kMany, 30));
  // Measured: 0.37 and 0.46 for 4 bits, 0.87 and 0.92 for 8.
  EXPECT_LT(error_left(t, {.output = ElementKind::s4}), 0.45);
  EXPECT_LT(error_left(t, {.mode = DynamicRangeMode::asymmetric, .output = ElementKind::u4}), 0.55);
  EXPECT_LT(error_left(t, {.output = ElementKind::s8}), 0.95);
  EXPECT_LT(error_left(t, {.mode = DynamicRangeMode::asymmetric, .output = ElementKind::u8}), 0.98);
}

TEST(Mse, CutsOutliersWhereThatPays) {
  std::vector<double> values = normal_values(kMany, 31);
  values[100] = 25;
  const Tensor t(ElementKind::f32, {kMany}, values);
  for (const ElementKind in : kFloatKinds) {
    const Tensor u(in, {kMany}, values);
    EXPECT_LT(error_left(u, {.input = in, .output = ElementKind::s8}), 0.8) << name(in);
    EXPECT_LT(error_left(u, {.input = in, .output = ElementKind::s4}), 0.1) << name(in);
  }
  // On one side only: the ends move apart from each other. Measured 0.07, and 0.22 where they keep step.
  EXPECT_LT(error_left(t, {.mode = DynamicRangeMode::asymmetric, .output = ElementKind::u4}), 0.1);
  // One outlier in one channel: that channel clips it, the others stay as they are.
  const Tensor channels(ElementKind::f32, {50, kMany / 50}, values);
  const ObserverDescriptor d{.kind = ObserverKind::mse, .scope = PerChannel{0}, .output = ElementKind::s4};
  const QuantizationParameters p = parameters(observing(d, {channels.all()}));
  EXPECT_LT(p.scale[0], 2.5);
  for (std::size_t c = 0; c < p.scale.size(); ++c) {
    const Tensor one(ElementKind::f32, {kMany / 50},
                     std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(c) * (kMany / 50),
                                         values.begin() + static_cast<std::ptrdiff_t>(c + 1) * (kMany / 50)));
    const QuantizationParameters alone =
        parameters(observing({.kind = ObserverKind::mse, .output = ElementKind::s4}, {one.all()}));
    EXPECT_EQ(p.scale[c], alone.scale[0]) << c;
  }
}

// A symmetric search has one number to find: no scale on a fine grid is noticeably better.
TEST(Mse, FindsTheLeastError) {
  std::mt19937 random(32);
  std::exponential_distribution<double> exponential;
  std::vector<double> laplace, sparse;
  for (std::int64_t i = 0; i < kMany; ++i) {
    laplace.push_back(exponential(random) * (random() % 2 == 0 ? 1 : -1));
    sparse.push_back(random() % 10 == 0 ? exponential(random) * (random() % 50 == 0 ? 8 : 1) : 0.0);  // after a ReLU
  }
  for (const std::vector<double>& values : {normal_values(kMany, 33), laplace, sparse})
    for (const ElementKind out : {ElementKind::s8, ElementKind::s4, ElementKind::u8}) {
      const Tensor t(ElementKind::f32, {kMany}, values);
      const ObserverDescriptor d{.kind = ObserverKind::mse, .output = out};
      const Observer o = observing(d, {t.all()});
      const double found = squared_error(t, d, parameters(o));
      double least = found;
      for (int i = 1; i <= 100; ++i) {
        const float scale = static_cast<float>(o.max_abs()[0]) * static_cast<float>(i) / 100.0f /
                            static_cast<float>(code_range(out).max);
        least = std::min(least, squared_error(t, d, {{static_cast<double>(scale)}, {0}}));
      }
      EXPECT_LE(found, least * 1.005) << text(d);
    }
}

// Zeros have no error wherever zero has a code. Spread over their bin they would ask for a scale that is too fine: with
// so few bins its squared error was 15 times the least one.
TEST(Mse, KnowsThatZerosAreExact) {
  std::mt19937 random(36);
  std::exponential_distribution<double> exponential;
  std::vector<double> values(kMany);
  for (double& x : values) x = random() % 100 == 0 ? exponential(random) * (random() % 50 == 0 ? 8 : 1) : 0.0;
  const Tensor sparse(ElementKind::f32, {kMany}, values);
  const ObserverDescriptor d{.kind = ObserverKind::mse, .bins = 64};
  const Observer o = observing(d, {sparse.all()});
  double least = kInf;
  for (int i = 1; i <= 100; ++i)
    least = std::min(
        least, squared_error(sparse, d, {{static_cast<double>(static_cast<float>(o.max()[0] * i / 12700))}, {0}}));
  EXPECT_LE(squared_error(sparse, d, parameters(o)), least * 1.2);

  // And where zero has no code, their error counts.
  std::vector<double> far = normal_values(kMany, 37);
  for (double& x : far) x = random() % 10 == 0 ? 0.0 : x + 10;
  EXPECT_LT(error_left(Tensor(ElementKind::f32, {kMany}, far),
                       {.mode = DynamicRangeMode::asymmetric, .include_zero = false, .output = ElementKind::u4}),
            0.9);
}

TEST(Mse, KeepsWhatNeedsNoCutting) {
  std::mt19937 random(34);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(kMany);
  for (double& x : values) x = uniform(random);
  for (const ElementKind in : kFloatKinds)
    for (const ElementKind out : kCodeKinds)
      for (const DynamicRangeMode mode : kModes)
        for (const bool include_zero : {false, true}) {
          if (has_float_grid(out)) continue;
          // bf16 has only 8 bits itself: between 0.5 and 1 its values are four bins apart, not spread over them.
          EXPECT_LE(error_left(Tensor(in, {kMany}, values),
                               {.mode = mode, .include_zero = include_zero, .input = in, .output = out}),
                    in == ElementKind::bf16 ? 1.01 : 1.001)
              << name(in) << " " << name(out) << " " << name(mode);
        }
}

// Far from zero, without zero in the range: both ends move towards the data.
TEST(Mse, WorksFarFromZero) {
  std::vector<double> values = normal_values(kMany, 35);
  for (double& x : values) x = 300 + x;
  const Tensor t(ElementKind::f32, {kMany}, values);
  EXPECT_LT(error_left(t, {.mode = DynamicRangeMode::asymmetric, .include_zero = false, .output = ElementKind::u4}),
            0.6);
}

// ---- floating-point grids ----

TEST(FloatingPointGrids, AreSymmetricAndNotSearched) {
  const std::pair<ElementKind, std::string> grids[] = {
      {ElementKind::e4m3, "448"}, {ElementKind::e5m2, "57344"}, {ElementKind::e2m1, "6"}};
  for (const auto& [out, max] : grids) {
    const std::string of(name(out));
    const auto refused = [](const ObserverDescriptor& d) {
      return std::string(Observer::create(d).status().message());
    };
    EXPECT_EQ(refused({.mode = DynamicRangeMode::asymmetric, .output = out}),
              "observer: asymmetric mode needs a zero point, and " + of + " has none; use symmetric mode");
    EXPECT_EQ(refused({.kind = ObserverKind::mse, .output = out}),
              "observer: mse searches for integer codes, and " + of + " is floating-point; use min_max or percentile");
    EXPECT_EQ(refused({.output = out, .q_max = 5}), "observer: q_min and q_max are for integer codes; " + of +
                                                        " has the numbers from -" + max + " to " + max);
    EXPECT_TRUE(Observer::create({.kind = ObserverKind::percentile, .output = out}).ok());
  }
}

// ---- Odd data ----

TEST(OddData, ZerosOnly) {
  for (const ElementKind in : kFloatKinds)
    for (const ObserverKind kind : kKinds)
      for (const DynamicRangeMode mode : kModes) {
        const Tensor t(in, {5}, {0, -0.0, 0, -0.0, 0});
        const ObserverDescriptor d{.kind = kind, .mode = mode, .input = in};
        EXPECT_TRUE(same(parameters(observing(d, {t.all()})), {{1.0}, {0}})) << text(d);
      }
}

TEST(OddData, NothingFinite) {
  for (const ElementKind in : kFloatKinds)
    for (const ObserverKind kind : kKinds)
      for (const DynamicRangeMode mode : kModes) {
        const Tensor t(in, {3}, {kNan, kInf, -kInf});
        const Observer o = observing({.kind = kind, .mode = mode, .input = in}, {t.all()});
        EXPECT_TRUE(same(parameters(o), {{1.0}, {0}}));
        EXPECT_EQ(o.observed(), 0);
        EXPECT_EQ(o.ignored(), 3);
      }
}

// A constant comes back as min_max has it, whatever the kind: there is nothing to cut.
TEST(OddData, Constants) {
  for (const ElementKind in : kFloatKinds)
    for (const double c : {1.0, -3.0, 0.1, 6e4, -6e-8, 1e-40, 3e38}) {
      for (const DynamicRangeMode mode : kModes)
        for (const bool include_zero : {false, true}) {
          ObserverDescriptor d{.mode = mode, .include_zero = include_zero, .input = in, .output = ElementKind::s8};
          const Tensor t(in, {4}, {c, c, c, c});
          const QuantizationParameters min_max = parameters(observing(d, {t.all()}));
          d.kind = ObserverKind::percentile;
          EXPECT_TRUE(same(parameters(observing(d, {t.all()})), min_max)) << text(d) << " " << c;
          d.kind = ObserverKind::mse;
          const QuantizationParameters mse = parameters(observing(d, {t.all()}));
          EXPECT_LE(squared_error(t, d, mse), squared_error(t, d, min_max)) << text(d) << " " << c;
          if (mode == DynamicRangeMode::asymmetric && !include_zero) {
            EXPECT_TRUE(same(mse, min_max)) << text(d) << " " << c;
          }
        }
    }
}

// The ends of f64: nothing overflows, and no scale is less than a normal number.
TEST(OddData, EndsOfTheNumberLine) {
  const double kMax = std::numeric_limits<double>::max(), kTiny = 5e-324;
  for (const std::vector<double>& values :
       {std::vector<double>{kMax, -kMax, 1, -1}, {kTiny, -kTiny, 0, 0}, {kMax, kTiny, -kTiny, 0}, {-kMax, kTiny, 1, 1}})
    for (const ObserverKind kind : kKinds)
      for (const DynamicRangeMode mode : kModes)
        for (const bool include_zero : {false, true}) {
          const Tensor t(ElementKind::f64, {4}, values);
          const ObserverDescriptor d{
              .kind = kind, .mode = mode, .include_zero = include_zero, .input = ElementKind::f64, .percentile = 60};
          const QuantizationParameters p = parameters(observing(d, {t.all()}));
          EXPECT_TRUE(std::isfinite(p.scale[0])) << text(d);
          EXPECT_GE(p.scale[0], std::numeric_limits<double>::min()) << text(d);
        }
}

#if defined(__x86_64__)
TEST(FloatEnvironment, ChangesNothingAndIsLeftAlone) {
  constexpr unsigned kDefault = 0x1F80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kUp = 0x4000;
  constexpr unsigned kNothingMasked = 0;
  std::vector<double> values = normal_values(300, 40);
  for (std::size_t i = 0; i < values.size(); i += 3) values[i] *= 1e-40;
  for (const ElementKind in : {ElementKind::f32, ElementKind::f64})
    for (const double scale : {1.0, 1e-39, 1e-310})
      for (const ObserverKind kind : kKinds)
        for (const DynamicRangeMode mode : kModes) {
          std::vector<double> scaled = values;
          for (double& x : scaled) x *= scale;
          const Tensor t(in, {300}, scaled);
          const ObserverDescriptor d{.kind = kind, .mode = mode, .input = in, .percentile = 90.1};
          const Observer want = observing(d, {t.rows(0, 100), t.rows(100, 300)});
          for (const unsigned csr : {kDefault | kFlushToZero | kDenormalsAreZero, kDefault | kUp, kNothingMasked}) {
            _mm_setcsr(csr);
            auto o = Observer::create(d);
            Status status = o->observe(Stream::cpu(1), t.rows(0, 100));
            auto other = Observer::create(d);
            Status more = other->observe(Stream::cpu(1), t.rows(100, 300));
            if (more.ok()) more = o->merge(*other);
            const auto p = o->parameters();
            const unsigned after = _mm_getcsr();
            _mm_setcsr(kDefault);
            ASSERT_TRUE(status.ok() && more.ok()) << status.message() << more.message();
            EXPECT_EQ(after, csr);
            EXPECT_TRUE(same(*o, want)) << text(d) << " " << csr;
            EXPECT_TRUE(p.ok() && same(*p, parameters(want))) << text(d) << " " << csr;
          }
        }
}

TEST(FloatEnvironment, ChangesNoRefusal) {
  constexpr unsigned kDefault = 0x1F80, kUp = 0x4000, kNothingMasked = 0;
  for (const unsigned csr : {kDefault, kDefault | kUp, kNothingMasked})
    for (const double percentile : {kNan, 100.1}) {
      _mm_setcsr(csr);
      const Status status = Observer::create({.kind = ObserverKind::percentile, .percentile = percentile}).status();
      const unsigned after = _mm_getcsr();
      _mm_setcsr(kDefault);
      EXPECT_EQ(after, csr);
      EXPECT_EQ(status.message(), "observer: percentile " + std::string(percentile > 0 ? "100.1" : "nan") +
                                      " must be above 50 and at most 100");
    }
}
#endif

// ---- Refusals ----

testing::AssertionResult invalid(const Status& status, std::string_view sentence) {
  return refused_with(status, StatusCode::InvalidProblem, sentence);
}
testing::AssertionResult unsupported(const Status& status, std::string_view sentence) {
  return refused_with(status, StatusCode::Unsupported, sentence);
}
Status created(const ObserverDescriptor& d) { return Observer::create(d).status(); }

TEST(Refusals, OfScopesAndElements) {
  const std::string reason =
      " has no range that lasts beyond a batch; observe per tensor or per channel, or use a DynamicRangeQuantizePlan";
  EXPECT_TRUE(unsupported(created({.scope = PerToken{}}), "observer: scope token" + reason));
  EXPECT_TRUE(unsupported(created({.scope = PerGroup{-1, 32}}), "observer: scope group" + reason));
  EXPECT_TRUE(unsupported(created({.scope = PerBlock{32, 32}}), "observer: scope block" + reason));
  EXPECT_TRUE(unsupported(created({.input = ElementKind::s8}),
                          "observer: input element s8 must be one of f32, f64, f16, bf16"));
  EXPECT_TRUE(
      unsupported(created({.output = ElementKind::f16}),
                  "observer: output element f16 must be one of s8, u8, s4, u4, s16, u16, s2, u2, e4m3, e5m2, e2m1"));
  EXPECT_TRUE(
      unsupported(created({.output = ElementKind::s32}),
                  "observer: output element s32 must be one of s8, u8, s4, u4, s16, u16, s2, u2, e4m3, e5m2, e2m1"));
}

TEST(Refusals, OfCodeRanges) {
  constexpr auto kAsymmetric = DynamicRangeMode::asymmetric;
  EXPECT_TRUE(invalid(created({.q_min = -129}), "observer: q_min -129 is below -128, the min of s8"));
  EXPECT_TRUE(
      invalid(created({.output = ElementKind::u4, .q_max = 16}), "observer: q_max 16 is above 15, the max of u4"));
  EXPECT_TRUE(invalid(created({.q_min = 5, .q_max = 4}), "observer: q_min 5 is above q_max 4"));
  EXPECT_TRUE(
      invalid(created({.q_max = 0}), "observer: symmetric mode divides by q_max, which is 0 and must be positive"));
  EXPECT_TRUE(
      invalid(created({.q_max = -3}), "observer: symmetric mode divides by q_max, which is -3 and must be positive"));
  EXPECT_TRUE(invalid(created({.mode = kAsymmetric, .q_min = 7, .q_max = 7}),
                      "observer: asymmetric mode needs q_min below q_max, both are 7"));
  EXPECT_TRUE(created({.mode = kAsymmetric, .q_min = -9, .q_max = -3}).ok());
  EXPECT_TRUE(created({.q_min = 1, .q_max = 1}).ok());
}

TEST(Refusals, OfPercentilesAndBins) {
  const auto percentile = [](double p, ObserverKind kind = ObserverKind::percentile) {
    return created({.kind = kind, .percentile = p});
  };
  EXPECT_TRUE(invalid(percentile(120), "observer: percentile 120 must be above 50 and at most 100"));
  EXPECT_TRUE(invalid(percentile(50), "observer: percentile 50 must be above 50 and at most 100"));
  EXPECT_TRUE(invalid(percentile(-1.5), "observer: percentile -1.5 must be above 50 and at most 100"));
  EXPECT_TRUE(invalid(percentile(kNan), "observer: percentile nan must be above 50 and at most 100"));
  EXPECT_TRUE(percentile(50.001).ok());
  EXPECT_TRUE(percentile(100).ok());
  EXPECT_TRUE(percentile(120, ObserverKind::mse).ok());  // not used there

  for (const ObserverKind kind : {ObserverKind::percentile, ObserverKind::mse})
    for (const int bins : {0, -16, 8, 100, 4095, 1 << 21, std::numeric_limits<int>::min()})
      EXPECT_TRUE(invalid(created({.kind = kind, .bins = bins}),
                          "observer: bins " + std::to_string(bins) + " must be a power of two from 16 to 1048576"));
  for (const int bins : {16, 1 << 20}) EXPECT_TRUE(created({.kind = ObserverKind::mse, .bins = bins}).ok());
  EXPECT_TRUE(created({.bins = 100}).ok());  // not used by min_max
}

TEST(Refusals, OfBatchesChangeNothing) {
  for (const ObserverKind kind : kKinds) {
    const Tensor t(ElementKind::f32, {4, 6}, normal_values(24, 50));
    const ObserverDescriptor d{.kind = kind, .scope = PerChannel{1}};
    Observer o = observing(d, {t.all()});
    const Observer before = o;
    const Stream stream = Stream::cpu(1);
    const auto observe = [&](const AnyRef& batch) { return o.observe(stream, batch); };
    const void* x = t.bytes.data();

    EXPECT_TRUE(unsupported(observe({x, ElementKind::bf16, {4, 6}, 0}),
                            "observer: batch has element bf16, the observer was created for f32"));
    EXPECT_TRUE(
        invalid(observe({x, ElementKind::f32, {4, 5}, 0}), "observer: batch has 5 channels, earlier batches had 6"));
    EXPECT_TRUE(
        invalid(observe({x, ElementKind::f32, {0, 7}, 0}), "observer: batch has 7 channels, earlier batches had 6"));
    EXPECT_TRUE(invalid(observe({x, ElementKind::f32, {24}, 0}), "observer: axis 1 is not in shape [24] of rank 1"));
    EXPECT_TRUE(invalid(observe({x, ElementKind::f32, {-4, 6}, 0}),
                        "observer: size -4 of dimension 0 in shape [-4, 6] is negative"));
    EXPECT_TRUE(invalid(observe({x, ElementKind::f32, {4, 6}, 5}),
                        "observer: batch has row stride 5, which is less than its row of 6"));
    EXPECT_TRUE(invalid(observe({nullptr, ElementKind::f32, {4, 6}, 0}), "observer: batch is null for shape [4, 6]"));
    const Status status = o.observe(Stream::cpu(0), t.all());
    EXPECT_TRUE(invalid(status, "stream: 0 threads; give 1 to 1024"));
    EXPECT_TRUE(same(o, before));
  }
}

TEST(Histograms, CountEveryValueOnce) {
  Observer o = observer({.kind = ObserverKind::percentile, .scope = PerChannel{1}, .bins = 16});
  const std::vector<float> x = {0.5f, -1, 0, -4, -0.25f, 3.75f, 0, 0, 0.49f, 0};
  ASSERT_TRUE(o.observe(Stream::cpu(1), TensorRef<float>(x.data(), {5, 2})).ok());
  // Values below 1 in steps of 1/8, and below 8 in steps of 1.
  const auto first = o.histogram(0), second = o.histogram(1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->exponent, 0);
  EXPECT_EQ(first->zeros, 2);
  EXPECT_EQ(first->counts, (std::vector<std::int64_t>{0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(second->exponent, 3);
  EXPECT_EQ(second->zeros, 2);
  EXPECT_EQ(second->counts, (std::vector<std::int64_t>{0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_TRUE(invalid(o.histogram(2).status(), "observer: segment 2 is not one of 2 that were observed"));
  EXPECT_TRUE(invalid(o.histogram(-1).status(), "observer: segment -1 is not one of 2 that were observed"));
  EXPECT_TRUE(invalid(observer({.kind = ObserverKind::mse}).histogram().status(),
                      "observer: segment 0 is not one of 0 that were observed"));
  EXPECT_TRUE(invalid(observer({}).histogram().status(), "observer: min_max keeps no histogram"));
}

TEST(Resume, IsWhatWasSeen) {
  std::vector<float> x(3000);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (float& value : x) value = normal(random);
  x[7] = 300;
  x[8] = 0;
  const TensorRef<float> first(x.data(), {2000}), second(x.data() + 2000, {1000});
  for (const ObserverKind kind : {ObserverKind::percentile, ObserverKind::mse})
    for (const DynamicRangeMode mode : {DynamicRangeMode::symmetric, DynamicRangeMode::asymmetric}) {
      Observer one = observer({.kind = kind, .mode = mode});
      ASSERT_TRUE(one.observe(Stream::cpu(1), first).ok());
      auto other = Observer::resume(one.descriptor(), *one.histogram(), one.min()[0], one.max()[0]);
      ASSERT_TRUE(other.ok()) << other.status().message();
      EXPECT_TRUE(same(*other, one));
      EXPECT_EQ(other->observed(), 2000);
      // And goes on so, with bins that grow.
      std::vector<float> large = x;
      large[2500] = -5000;
      for (Observer* each : {&one, &*other})
        ASSERT_TRUE(each->observe(Stream::cpu(1), TensorRef<float>(large.data() + 2000, {1000})).ok());
      EXPECT_TRUE(same(*other, one));
    }
}

TEST(Resume, Refuses) {
  const ObserverDescriptor mse{.kind = ObserverKind::mse, .bins = 16};
  const ObserverHistogram h{.exponent = 1, .counts = std::vector<std::int64_t>(16, 2), .zeros = 3};
  const auto refusal = [](const ObserverDescriptor& d, const ObserverHistogram& histogram, double min, double max) {
    return std::string(Observer::resume(d, histogram, min, max).status().message());
  };
  EXPECT_EQ(refusal(mse, h, -1, 1.5), "");
  EXPECT_EQ(refusal(mse, h, -1, 2), "observer: a histogram over 2^1 does not hold the range from -1 to 2");
  EXPECT_EQ(refusal(mse, h, 1, -1), "observer: a histogram over 2^1 does not hold the range from 1 to -1");
  EXPECT_EQ(refusal(mse, h, 0, std::numeric_limits<double>::quiet_NaN()),
            "observer: a histogram over 2^1 does not hold the range from 0 to nan");
  ObserverHistogram other = h;
  other.counts[3] = -1;
  EXPECT_EQ(refusal(mse, other, -1, 1), "observer: the histogram counts -1 values, must be positive and fit 63 bits");
  other.counts[3] = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(refusal(mse, other, -1, 1),
            "observer: the histogram counts 9223372036854775807 values, must be positive and fit 63 bits");
  other.counts.pop_back();
  EXPECT_EQ(refusal(mse, other, -1, 1), "observer: the histogram has 15 bins, the observer 16");
  EXPECT_EQ(refusal({.kind = ObserverKind::min_max}, h, -1, 1),
            "observer: resume takes scope tensor and a kind that keeps a histogram, not tensor and min_max");
  EXPECT_EQ(refusal({.kind = ObserverKind::mse, .scope = PerChannel{0}, .bins = 16}, h, -1, 1),
            "observer: resume takes scope tensor and a kind that keeps a histogram, not channel and mse");
  EXPECT_EQ(refusal({.kind = ObserverKind::mse, .bins = 3}, h, -1, 1),
            "observer: bins 3 must be a power of two from 16 to 1048576");
}

TEST(Refusals, OfParametersWithoutBatches) {
  for (const ObserverKind kind : kKinds)
    EXPECT_TRUE(invalid(observer({.kind = kind}).parameters().status(),
                        "observer: no elements were observed, so there is no range"));
}

TEST(Refusals, OfMerges) {
  const Tensor t(ElementKind::f32, {4, 6}, normal_values(24, 51));
  const ObserverDescriptor d{.kind = ObserverKind::percentile, .scope = PerChannel{1}};
  Observer o = observing(d, {t.all()});
  const Observer before = o;
  const auto merge = [&](auto change) {
    ObserverDescriptor other = d;
    change(other);
    return o.merge(observer(other));
  };
  const auto differs = [](const std::string& what) { return "observer: " + what; };
  EXPECT_TRUE(invalid(merge([](auto& x) { x.kind = ObserverKind::mse; }),
                      differs("kind mse of the other observer differs from percentile")));
  EXPECT_TRUE(invalid(merge([](auto& x) { x.scope = PerTensor{}; }),
                      differs("scope tensor of the other observer differs from channel")));
  EXPECT_TRUE(invalid(merge([](auto& x) { x.scope = PerChannel{-1}; }),
                      differs("axis -1 of the other observer differs from 1")));
  EXPECT_TRUE(invalid(merge([](auto& x) { x.mode = DynamicRangeMode::asymmetric; }),
                      differs("mode asymmetric of the other observer differs from symmetric")));
  EXPECT_TRUE(invalid(merge([](auto& x) { x.input = ElementKind::f64; }),
                      differs("input element f64 of the other observer differs from f32")));
  EXPECT_TRUE(invalid(merge([](auto& x) { x.output = ElementKind::u8; }),
                      differs("output element u8 of the other observer differs from s8")));
  EXPECT_TRUE(
      invalid(merge([](auto& x) { x.q_min = -127; }), differs("q_min -127 of the other observer differs from -128")));
  EXPECT_TRUE(
      invalid(merge([](auto& x) { x.q_max = 126; }), differs("q_max 126 of the other observer differs from 127")));
  EXPECT_TRUE(invalid(merge([](auto& x) { x.percentile = 99; }),
                      differs("percentile 99 of the other observer differs from 99.99")));
  EXPECT_TRUE(
      invalid(merge([](auto& x) { x.bins = 512; }), differs("bins 512 of the other observer differs from 4096")));
  EXPECT_TRUE(merge([](auto& x) { x.include_zero = false; }).ok());  // symmetric ranges contain 0 anyway
  const Tensor five(ElementKind::f32, {4, 5}, normal_values(20, 52));
  EXPECT_TRUE(invalid(o.merge(observing(d, {five.all()})),
                      differs("the other observer has 5 channels, earlier batches had 6")));
  EXPECT_TRUE(same(o, before));

  Observer asymmetric = observer({.mode = DynamicRangeMode::asymmetric});
  EXPECT_TRUE(invalid(asymmetric.merge(observer({.mode = DynamicRangeMode::asymmetric, .include_zero = false})),
                      differs("include_zero false of the other observer differs from true")));
}

TEST(Refusals, OfAbsurdHistograms) {
  const std::vector<float> x(40000, 1.0f);
  Observer o = observer({.kind = ObserverKind::mse, .scope = PerChannel{0}, .bins = 1 << 20});
  EXPECT_TRUE(invalid(o.observe(Stream::cpu(1), TensorRef<float>(x.data(), {40000})),
                      "observer: histograms of 40000 channels and 1048576 bins take 8388616 bytes each, more than "
                      "17179869184 in total"));
  EXPECT_TRUE(o.min().empty());
}

TEST(Refusals, OfMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns the allocator";
  const Tensor t(ElementKind::f32, {64, 4}, normal_values(256, 53));
  const ObserverDescriptor d{.kind = ObserverKind::percentile, .scope = PerChannel{0}};
  const std::string sentence =
      "observer: out of memory; 64 segments take 32792 bytes each for range and histogram";  // 4097 * 8 + 2 * 8
  Observer o = observer(d);
  const Observer full = observing(d, {t.all()});
  g_largest_allocation = 1 << 20;
  const Status observed = o.observe(Stream::cpu(1), t.all());
  const Status merged = o.merge(full);
  g_largest_allocation = 256;
  const Status scales = full.parameters().status();
  g_largest_allocation = std::numeric_limits<std::size_t>::max();
  EXPECT_TRUE(refused_with(observed, StatusCode::Internal, sentence));
  EXPECT_TRUE(refused_with(merged, StatusCode::Internal, sentence));
  EXPECT_TRUE(refused_with(scales, StatusCode::Internal, sentence));
  EXPECT_TRUE(o.min().empty());
  ASSERT_TRUE(o.observe(Stream::cpu(1), t.all()).ok());
  EXPECT_TRUE(same(o, full));
}

// A thread pool that loses parts while values are counted leaves counters that nobody may trust.
TEST(Refusals, AfterAStreamThatFailed) {
  const Tensor t = random_tensor(ElementKind::f32, {400, 512}, 54);
  for (const ObserverKind kind : kKinds) {
    int calls = 0, fails_at = 0;
    const Stream stream = Stream::cpu(Executor{.threads = 4, .parallel_for = [&](std::int64_t parts, const Task& task) {
                                                 const bool fails = ++calls == fails_at;
                                                 for (std::int64_t i = 0; i < (fails ? 1 : parts); ++i) task(i);
                                               }});
    const ObserverDescriptor d{.kind = kind};
    Observer o = observer(d);
    ASSERT_TRUE(o.observe(stream, t.all()).ok());
    const Observer once = o;
    fails_at = calls * 2;  // the last call of an observe() counts
    const Status status = o.observe(stream, t.all());
    EXPECT_EQ(status.code(), StatusCode::Internal) << status.message();
    EXPECT_NE(status.message().find("the executor ran 1 of "), std::string_view::npos) << status.message();
    const auto repeats = [&](const Status& s) { return refused_with(s, StatusCode::Internal, status.message()); };
    EXPECT_TRUE(repeats(o.observe(Stream::cpu(1), t.all())));
    EXPECT_TRUE(repeats(o.parameters().status()));
    EXPECT_TRUE(repeats(o.merge(once)));
    Observer other = once;
    EXPECT_TRUE(repeats(other.merge(o)));
    EXPECT_TRUE(same(other, once));
    o.reset();
    ASSERT_TRUE(o.observe(stream, t.all()).ok());
    EXPECT_TRUE(same(o, once));
  }
}

TEST(Names, OfKinds) {
  EXPECT_EQ(name(ObserverKind::min_max), "min_max");
  EXPECT_EQ(name(ObserverKind::percentile), "percentile");
  EXPECT_EQ(name(ObserverKind::mse), "mse");
}

}  // namespace
}  // namespace kvant::tests
