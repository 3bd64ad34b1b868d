// Ranges against a reference written from the header: equal bits for every type, scope and shape, on every instruction
// set and with any number of threads; for every choice of outputs; and over batches in any order.
#include "kvant/range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/dynamic_range_case.h"
#include "tests/support/granularity_text.h"
#include "tests/support/plan_refusals.h"
#include "tests/support/special_numbers.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::tests {
namespace {

// min, max and max_abs of every segment, in this order.
using Ranges = std::array<std::vector<double>, 3>;

constexpr double kNothing[] = {kInf, -kInf, 0.0};

double positive_zero(double x) { return x == 0 ? 0.0 : x; }

Ranges ranges_of(const std::vector<SegmentRange>& segments) {
  Ranges ranges;
  for (const SegmentRange& segment : segments) {
    ranges[0].push_back(segment.min);
    ranges[1].push_back(segment.max);
    ranges[2].push_back(segment.max_abs());
  }
  return ranges;
}

// What accumulating makes of old ranges and new ones. An old NaN counts as nothing.
Ranges extended(const Ranges& old, const Ranges& by) {
  Ranges both = by;
  for (std::size_t which = 0; which < 3; ++which)
    for (std::size_t i = 0; i < both[which].size(); ++i) {
      const double before = std::isnan(old[which][i]) ? kNothing[which] : old[which][i];
      const double now = both[which][i];
      both[which][i] = positive_zero(which == 0 ? std::min(before, now) : std::max(before, now));
    }
  return both;
}

// Every bit counts, that of a zero's sign included; one NaN is like another.
bool same_bits(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

struct RangeCase {
  RangeDescriptor descriptor;
  std::vector<std::byte> input;  // dense

  RangeCase(const RangeDescriptor& d, std::vector<std::byte> values) : descriptor(d), input(std::move(values)) {}
  RangeCase(const RangeDescriptor& d, Data data, std::uint32_t seed)
      : descriptor(d), input(draw(data, d.input.value(), element_total(d.shape), seed)) {}

  ElementKind in() const { return *descriptor.input; }
  ElementKind kind() const { return scale_kind(in()); }
  std::size_t segments() const { return static_cast<std::size_t>(segment_total(descriptor.shape, descriptor.scope)); }
  Shape parameters() const { return parameter_shape(descriptor.shape, descriptor.scope).value(); }
  Ranges wanted() const {
    return ranges_of(reference_ranges(descriptor.shape, descriptor.scope, values_of(input, in())));
  }

  std::string text() const {
    const RangeDescriptor& d = descriptor;
    return std::string(name(in())) + (d.accumulate ? " accumulating" : "") + " " + granularity_text(d.scope) +
           " shape " + d.shape.to_string();
  }

  // Which outputs to ask for, as bits: 1 min, 2 max, 4 max_abs. What is not asked for comes back empty.
  Ranges run(const Stream& stream, ArchSku isa, unsigned outputs = 7, const Ranges* old = nullptr) const {
    Ranges got;
    const auto plan = AnyRangePlan::select(stream, descriptor, {.isa = isa});
    EXPECT_TRUE(plan.ok()) << plan.status().message() << " in " << text();
    if (!plan.ok()) return got;
    const std::size_t width = width_of(kind());
    std::array<std::vector<std::byte>, 3> buffers;
    for (std::size_t which = 0; which < 3; ++which) {
      buffers[which].assign(segments() * width, std::byte{0xA5});
      for (std::size_t i = 0; old != nullptr && i < segments(); ++i)
        put_float(&buffers[which][i * width], kind(), (*old)[which][i]);
    }
    const auto view = [&](std::size_t which) -> AnyMut {
      if ((outputs >> which & 1) == 0) return {};
      return {buffers[which].data(), kind(), parameters(), 0};
    };
    std::vector<std::byte> scratch(plan->workspace_size(), std::byte{0xFF});
    const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = {input.data(), in(), descriptor.shape, 0},
                                   .min_out = view(0),
                                   .max_out = view(1),
                                   .max_abs_out = view(2)});
    EXPECT_TRUE(done.ok()) << done.message() << " in " << text();
    note_kernel(plan->sku());
    for (std::size_t which = 0; which < 3; ++which)
      if ((outputs >> which & 1) != 0) got[which] = values_of(buffers[which], kind());
    return got;
  }

  testing::AssertionResult equal(const Ranges& got, const Ranges& want, unsigned outputs = 7) const {
    constexpr std::string_view kNames[] = {"min", "max", "max_abs"};
    for (std::size_t which = 0; which < 3; ++which) {
      if ((outputs >> which & 1) == 0) continue;
      if (got[which].size() != want[which].size())
        return testing::AssertionFailure() << kNames[which] << " has " << got[which].size() << " segments, wanted "
                                           << want[which].size() << " in " << text();
      for (std::size_t i = 0; i < want[which].size(); ++i)
        if (!same_bits(got[which][i], want[which][i]))
          return testing::AssertionFailure() << kNames[which] << " of segment " << i << " is " << got[which][i]
                                             << ", wanted " << want[which][i] << " in " << text();
    }
    return testing::AssertionSuccess();
  }
};

RangeDescriptor problem(const Shape& shape, const Granularity& scope, ElementKind in, bool accumulate = false) {
  return {.shape = shape, .scope = scope, .accumulate = accumulate, .input = in};
}

class RangeOnEachIsa : public testing::TestWithParam<ArchSku> {
 protected:
  void SetUp() override {
    const auto plan =
        AnyRangePlan::select(Stream::cpu(1), problem({1}, PerTensor{}, ElementKind::f32), {.isa = GetParam()});
    if (!plan.ok()) GTEST_SKIP() << plan.status().message();
  }

  static void expect_right(const RangeCase& c, std::initializer_list<int> threads) {
    const Ranges want = c.wanted();
    for (const int count : threads)
      ASSERT_TRUE(c.equal(c.run(Stream::cpu(count), GetParam()), want)) << "with " << count << " threads";
  }
};

INSTANTIATE_TEST_SUITE_P(Range, RangeOnEachIsa, testing::Values(ArchSku::scalar, ArchSku::avx2),
                         [](const auto& one) { return std::string(name(one.param)); });

// ---- against the reference ----

TEST_P(RangeOnEachIsa, EqualsTheReferenceInEveryCombination) {
  std::uint32_t seed = 0;
  for (const Shape& shape :
       {Shape(), Shape{1}, Shape{0}, Shape{5, 0}, Shape{0, 5}, Shape{3, 0, 4}, Shape{7}, Shape{33}, Shape{3, 129},
        Shape{64, 96}, Shape{2, 3, 5, 7}, Shape{5, 1, 300}, Shape{130, 70}, Shape{1, 1, 2, 1, 3, 1, 4, 5}})
    for (const Granularity& scope : scopes_of(shape))
      for (const ElementKind in : kFloatKinds)
        for (const Data data :
             {Data::normal, Data::positive, Data::negative, Data::specials, Data::one_odd, Data::any_bits}) {
          const RangeCase c(problem(shape, scope, in), data, ++seed);
          if (seed % 8 == 0)
            expect_right(c, {1, 2, 3});
          else
            expect_right(c, {1});
          if (HasFatalFailure()) return;
        }
}

TEST_P(RangeOnEachIsa, EqualsTheReferenceOnLargeTensorsWithAnyNumberOfThreads) {
  struct Large {
    Shape shape;
    std::vector<Granularity> scopes;
  };
  const std::vector<Large> all = {
      {{300, 4096},
       {PerToken{}, PerTensor{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 32}, PerGroup{0, 32}, PerBlock{128, 128},
        PerBlock{16, 100}, PerBlock{1, 128}, PerBlock{7, 5000}}},
      {{4096, 300},
       {PerToken{}, PerTensor{}, PerChannel{1}, PerGroup{0, 128}, PerGroup{1, 32}, PerBlock{1000, 7},
        PerBlock{1500, 300}}},
      {{70000}, {PerTensor{}, PerToken{}, PerChannel{0}, PerGroup{0, 128}, PerGroup{0, 1000000}}},
      {{3, 100000}, {PerToken{}, PerTensor{}, PerChannel{0}, PerChannel{1}, PerGroup{1, 32}, PerGroup{0, 2}}},
      {{64, 3, 40, 40},
       {PerChannel{1}, PerChannel{0}, PerToken{}, PerTensor{}, PerGroup{1, 2}, PerGroup{0, 32}, PerBlock{7, 16},
        PerBlock{64, 64}}},
      {{1000, 2048}, {PerGroup{0, 32}, PerGroup{0, 500}, PerChannel{1}, PerBlock{500, 1}, PerBlock{600, 700}}},
      {{64, 50, 101}, {PerGroup{0, 48}, PerGroup{1, 20}, PerChannel{1}, PerToken{}}},
      // Rows of more than half a million.
      {{(1 << 20) + 77}, {PerTensor{}, PerGroup{0, 600000}, PerGroup{0, 32}}},
      {{3, 700001}, {PerToken{}, PerTensor{}, PerChannel{1}, PerGroup{1, 300000}, PerBlock{2, 300001}}},
      {{2, 3, 300000}, {PerChannel{1}, PerChannel{0}}},
      {{200000, 3}, {PerToken{}, PerChannel{1}}},
      // Rows shorter than a block, many of them.
      {{50000, 3}, {PerChannel{1}, PerToken{}, PerGroup{0, 20000}, PerBlock{20000, 2}}},
      {{9001, 31}, {PerChannel{1}}}};
  std::size_t next = 0;
  for (const Large& large : all)
    for (const Granularity& scope : large.scopes)
      for (const Data data : {Data::normal, Data::one_odd}) {
        expect_right({problem(large.shape, scope, kFloatKinds[next % 4]), data, static_cast<std::uint32_t>(next)},
                     {1, 2, 5});
        ++next;
        if (HasFatalFailure()) return;
      }
}

// 16 bits can be tried in full: alone in a row, in a row shorter and longer than a vector, and in a column.
TEST_P(RangeOnEachIsa, EveryPatternOf16Bits) {
  for (const ElementKind in : {ElementKind::f16, ElementKind::bf16})
    for (const std::int64_t row : {1, 3, 35}) {
      const std::vector<std::byte> input = every_pattern(in, row);
      expect_right({problem({65536, row}, PerToken{}, in), input}, {1});
      expect_right({problem({row, 65536}, PerChannel{1}, in), input}, {1});
      if (HasFatalFailure()) return;
    }
}

// Every segment's values are few here, so that each place in a vector, its tail and its end decides a result.
TEST_P(RangeOnEachIsa, TheExtremeMayBeAnywhere) {
  for (const ElementKind in : kFloatKinds)
    for (const std::int64_t length : {1, 2, 5, 8, 15, 16, 17, 31, 33, 64, 67, 129})
      for (std::int64_t place = 0; place < length; ++place)
        for (const double value : {100.0, -100.0}) {
          RangeCase row(problem({2, length}, PerToken{}, in), Data::normal, 3);
          put_float(&row.input[static_cast<std::size_t>(length + place) * width_of(in)], in, value);
          expect_right(row, {1});
          RangeCase column(problem({length, 9}, PerChannel{1}, in), Data::normal, 3);
          put_float(&column.input[static_cast<std::size_t>(9 * place + place % 9) * width_of(in)], in, value);
          expect_right(column, {1});
          ASSERT_FALSE(HasFatalFailure()) << value << " at " << place << " of " << length;
        }
}

// ---- worked out by hand ----

TEST_P(RangeOnEachIsa, WorkedOutByHand) {
  struct Worked {
    std::vector<double> x;
    double min, max, max_abs;
  };
  const double most = static_cast<double>(std::numeric_limits<float>::max());
  const std::vector<Worked> all = {{{3, -5, 4}, -5, 4, 5},
                                   {{7}, 7, 7, 7},
                                   {{-7}, -7, -7, 7},
                                   {{kNan, 1, kInf, -kInf, 2}, 1, 2, 2},
                                   {{kNan, kNan, kNan}, kInf, -kInf, 0},
                                   {{kInf, kInf}, kInf, -kInf, 0},
                                   {{-kInf}, kInf, -kInf, 0},
                                   {{kInf, kNan, -kInf}, kInf, -kInf, 0},
                                   {{-0.0}, 0, 0, 0},
                                   {{-0.0, 0.0, -0.0}, 0, 0, 0},
                                   {{-0.0, 3}, 0, 3, 3},
                                   {{-3, -0.0}, -3, 0, 3},
                                   {{0x1p-149, -0x1p-140}, -0x1p-140, 0x1p-149, 0x1p-140},
                                   {{most, -most}, -most, most, most}};
  for (const Worked& w : all) {
    std::vector<std::byte> input(w.x.size() * 4);
    for (std::size_t i = 0; i < w.x.size(); ++i) put_float(&input[4 * i], ElementKind::f32, w.x[i]);
    const RangeCase c(problem({static_cast<std::int64_t>(w.x.size())}, PerTensor{}, ElementKind::f32), input);
    const Ranges want = {{{w.min}, {w.max}, {w.max_abs}}};
    EXPECT_TRUE(c.equal(c.wanted(), want)) << "the reference";
    EXPECT_TRUE(c.equal(c.run(Stream::cpu(1), GetParam()), want));
  }
}

TEST_P(RangeOnEachIsa, NoElements) {
  struct Empty {
    Shape shape;
    Granularity scope;
    std::size_t parameters;
  };
  const Stream stream = Stream::cpu(2);
  for (const Empty& e : std::vector<Empty>{{{0}, PerTensor{}, 1},
                                           {{5, 0}, PerToken{}, 5},
                                           {{0, 5}, PerChannel{1}, 5},
                                           {{3000, 0}, PerChannel{0}, 3000},
                                           {{5, 0}, PerChannel{1}, 0},
                                           {{0, 5}, PerToken{}, 0},
                                           {{0, 5}, PerGroup{1, 2}, 0},
                                           {{0, 5}, PerBlock{2, 2}, 0}})
    for (const ElementKind in : kFloatKinds) {
      const RangeCase written(problem(e.shape, e.scope, in), std::vector<std::byte>());
      const std::vector<double> none(e.parameters, kInf), minus(e.parameters, -kInf), zero(e.parameters, 0.0);
      EXPECT_TRUE(written.equal(written.run(stream, GetParam()), {none, minus, zero}));
      // Accumulating nothing keeps what was there.
      const RangeCase kept(problem(e.shape, e.scope, in, true), std::vector<std::byte>());
      const Ranges old = {std::vector<double>(e.parameters, -2.5), std::vector<double>(e.parameters, 7.0),
                          std::vector<double>(e.parameters, 9.0)};
      EXPECT_TRUE(kept.equal(kept.run(stream, GetParam(), 7, &old), old));
      const Ranges fresh = {none, minus, zero};
      EXPECT_TRUE(kept.equal(kept.run(stream, GetParam(), 7, &fresh), fresh));
    }
}

// ---- outputs ----

TEST_P(RangeOnEachIsa, EveryChoiceOfOutputs) {
  for (const Shape& shape : {Shape{6, 75}, Shape{300, 700}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32},
                                                             PerGroup{0, 4}, PerBlock{4, 32}})
      for (const ElementKind in : kFloatKinds)
        for (const bool accumulate : {false, true}) {
          const RangeCase c(problem(shape, scope, in, accumulate), Data::one_odd, 2);
          const Ranges old = {std::vector<double>(c.segments(), -4.0), std::vector<double>(c.segments(), 3.0),
                              std::vector<double>(c.segments(), 4.5)};
          const Ranges want = accumulate ? extended(old, c.wanted()) : c.wanted();
          for (unsigned outputs = 1; outputs <= 7; ++outputs)
            ASSERT_TRUE(c.equal(c.run(Stream::cpu(2), GetParam(), outputs, &old), want, outputs))
                << "outputs " << outputs;
        }
}

// Parameters as one dimension, and per token with a last size of 1.
TEST_P(RangeOnEachIsa, OutputsInOtherShapes) {
  const Stream stream = Stream::cpu(1);
  const RangeCase c(problem({2, 3, 20}, PerToken{}, ElementKind::f32), Data::normal, 4);
  const Ranges want = c.wanted();
  const auto plan = AnyRangePlan::select(stream, c.descriptor, {.isa = GetParam()});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  for (const Shape& shape : {Shape{2, 3}, Shape{6}, Shape{2, 3, 1}}) {
    std::vector<float> min(6), max(6), max_abs(6);
    std::vector<std::byte> scratch(plan->workspace_size());
    const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                  {.input = {c.input.data(), ElementKind::f32, {2, 3, 20}, 0},
                                   .min_out = {min.data(), ElementKind::f32, shape, 0},
                                   .max_out = {max.data(), ElementKind::f32, shape, 0},
                                   .max_abs_out = {max_abs.data(), ElementKind::f32, shape, 0}});
    ASSERT_TRUE(done.ok()) << done.message();
    const auto doubles = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
    EXPECT_TRUE(c.equal({doubles(min), doubles(max), doubles(max_abs)}, want)) << shape.to_string();
  }
}

// Rows apart, with large numbers between them; buffers that end at a forbidden page; addresses that no element has.
TEST_P(RangeOnEachIsa, KeepsToItsRows) {
  std::mt19937 random(7);
  for (const Shape& shape : {Shape{6, 64}, Shape{6, 75}, Shape{2, 3, 37}, Shape{1, 9}, Shape{5}, Shape{24, 30, 301}})
    for (const Granularity& scope : scopes_of(shape))
      for (const ElementKind in : kFloatKinds)
        for (const std::int64_t gap : {0, 1, 11}) {
          if (shape[0] == 24 && random() % 8 != 0) continue;
          const RangeCase c(problem(shape, scope, in), random() % 2 == 0 ? Data::normal : Data::one_odd, 5);
          const auto row = static_cast<std::size_t>(row_bytes(in, shape.row_length()));
          const auto step = static_cast<std::size_t>(row_bytes(in, shape.row_length() + gap));
          const std::size_t rows = c.input.size() / row;
          GuardedBuffer x(static_cast<std::int64_t>((rows - 1) * step + row));
          std::fill(x.bytes().begin(), x.bytes().end(), std::byte{0x7A});
          for (std::size_t r = 0; r < rows; ++r) std::memcpy(x.data() + r * step, &c.input[r * row], row);
          const Stream stream = Stream::cpu(static_cast<int>(1 + random() % 3));
          const auto plan = AnyRangePlan::select(stream, c.descriptor, {.isa = GetParam()});
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          const std::size_t width = width_of(c.kind());
          const auto bytes = static_cast<std::int64_t>(c.segments() * width);
          // One byte more than needed and given up again: a misaligned start, and still the guard close behind.
          GuardedBuffer min(bytes), max(bytes + 1), max_abs(bytes),
              scratch(static_cast<std::int64_t>(plan->workspace_size()));
          const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                        {.input = {x.data(), in, shape, gap == 0 ? 0 : shape.row_length() + gap},
                                         .min_out = {min.data(), c.kind(), c.parameters(), 0},
                                         .max_out = {max.data(), c.kind(), c.parameters(), 0},
                                         .max_abs_out = {max_abs.data(), c.kind(), c.parameters(), 0}});
          ASSERT_TRUE(done.ok()) << done.message() << " in " << c.text();
          const auto read = [&](GuardedBuffer& b) {
            return values_of(b.bytes().first(static_cast<std::size_t>(bytes)), c.kind());
          };
          ASSERT_TRUE(c.equal({read(min), read(max), read(max_abs)}, c.wanted())) << "gap " << gap;
        }
}

TEST_P(RangeOnEachIsa, WorksAtMisalignedAddresses) {
  const Stream stream = Stream::cpu(2);
  for (const Shape& shape : {Shape{5, 131}, Shape{300, 300}, Shape{1 << 19}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{-1}, PerGroup{-1, 32}})
      for (const ElementKind in : kFloatKinds) {
        if (shape.rank() == 1 && in != ElementKind::f32) continue;
        const RangeCase c(problem(shape, scope, in), Data::one_odd, 6);
        const Ranges want = c.wanted();
        const auto plan = AnyRangePlan::select(stream, c.descriptor, {.isa = GetParam()});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const std::size_t bytes = c.segments() * width_of(c.kind());
        for (const std::size_t shift : {1u, 3u, 17u, 31u}) {
          std::vector<std::byte> x(c.input.size() + 64), out(3 * bytes + 64), scratch(plan->workspace_size() + 64);
          std::memcpy(x.data() + shift, c.input.data(), c.input.size());
          const auto view = [&](std::size_t which) -> AnyMut {
            return {out.data() + shift + which * bytes, c.kind(), c.parameters(), 0};
          };
          const Status done = plan->run(stream, {scratch.data() + shift, plan->workspace_size()},
                                        {.input = {x.data() + shift, in, shape, 0},
                                         .min_out = view(0),
                                         .max_out = view(1),
                                         .max_abs_out = view(2)});
          ASSERT_TRUE(done.ok()) << done.message();
          const auto read = [&](std::size_t which) {
            return values_of(std::span(out).subspan(shift + which * bytes, bytes), c.kind());
          };
          ASSERT_TRUE(c.equal({read(0), read(1), read(2)}, want)) << "shifted by " << shift;
        }
      }
}

// ---- accumulating ----

// Batches of other sizes along the first axis, in any order, against one run over all of them.
TEST_P(RangeOnEachIsa, BatchesInAnyOrderEqualTheirConcatenation) {
  std::mt19937 random(8);
  const std::int64_t columns = 37;
  const std::vector<std::int64_t> rows = {1, 5, 40, 0, 700, 3};
  for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerChannel{1}})
    for (const ElementKind in : kFloatKinds)
      for (const Data data : {Data::normal, Data::specials, Data::positive, Data::negative, Data::any_bits}) {
        std::vector<std::byte> everything;
        std::vector<RangeCase> batches;
        std::int64_t total = 0;
        for (const std::int64_t count : rows) {
          batches.emplace_back(problem({count, columns}, scope, in, true), data, static_cast<std::uint32_t>(random()));
          everything.insert(everything.end(), batches.back().input.begin(), batches.back().input.end());
          total += count;
        }
        const RangeCase all(problem({total, columns}, scope, in), everything);
        const Ranges want = all.wanted();
        ASSERT_TRUE(all.equal(all.run(Stream::cpu(1), GetParam()), want));
        for (int round = 0; round < 6; ++round) {
          std::shuffle(batches.begin(), batches.end(), random);
          const Stream stream = Stream::cpu(1 + round % 3);
          Ranges so_far;
          for (std::size_t which = 0; which < 3; ++which) so_far[which].assign(all.segments(), kNothing[which]);
          for (std::size_t b = 0; b < batches.size(); ++b) {
            // The first batch may also begin without anything to accumulate on.
            RangeCase batch = batches[b];
            batch.descriptor.accumulate = b != 0 || round % 2 == 0;
            so_far = batch.run(stream, GetParam(), 7, &so_far);
          }
          ASSERT_TRUE(all.equal(so_far, want)) << "round " << round;
        }
      }
}

// Old values of every sort: smaller, larger, empty ones, zeros of either sign, and NaN, which counts as nothing.
TEST_P(RangeOnEachIsa, AccumulatesOnWhateverWasThere) {
  std::mt19937 random(9);
  const auto one_of = [&random](std::initializer_list<double> values) {
    return values.begin()[random() % values.size()];
  };
  for (const Shape& shape : {Shape{50, 7}, Shape{3, 4000}, Shape{9, 65}, Shape{400, 200}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1},
                                                             PerGroup{1, 3}, PerGroup{0, 2}, PerBlock{2, 3}})
      for (const ElementKind in : kFloatKinds) {
        RangeCase c(problem(shape, scope, in, true), Data::specials, static_cast<std::uint32_t>(random()));
        // The first row has nothing finite: there the old value stays.
        for (std::int64_t i = 0; i < shape[1]; ++i)
          put_float(&c.input[static_cast<std::size_t>(i) * width_of(in)], in, i % 2 == 0 ? kNan : kInf);
        Ranges old;
        for (std::size_t i = 0; i < c.segments(); ++i) {
          old[0].push_back(one_of({kNan, kInf, -1000.0, 2.0, -0.0, 0.0, -3.0}));
          old[1].push_back(one_of({kNan, -kInf, 1000.0, -2.0, -0.0, 0.0, 3.0}));
          old[2].push_back(one_of({kNan, 0.0, 1000.0, 2.0, 1e-6}));
        }
        const double rounded = static_cast<double>(1e-6f);  // as f32 holds it
        if (c.kind() == ElementKind::f32) std::replace(old[2].begin(), old[2].end(), 1e-6, rounded);
        ASSERT_TRUE(c.equal(c.run(Stream::cpu(2), GetParam(), 7, &old), extended(old, c.wanted())));
      }
}

// ---- what a plan says about itself, and the typed plan ----

TEST_P(RangeOnEachIsa, PlansSayWhatTheyAre) {
  for (const ElementKind in : kFloatKinds) {
    const auto plan = AnyRangePlan::select(Stream::cpu(1), problem({4, 6}, PerToken{}, in, true), {.isa = GetParam()});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const KernelSku sku = plan->sku();
    EXPECT_EQ(sku.category, OpCategory::quantization);
    EXPECT_EQ(sku.op, QuantizeKind::range);
    EXPECT_EQ(sku.element, in);
    EXPECT_EQ(sku.aux_element, scale_kind(in));
    EXPECT_EQ(sku.arch, GetParam());
    EXPECT_EQ(sku.backend, BackendKind::cpu);
    EXPECT_TRUE(sku.name().starts_with("range_" + std::string(name(in)))) << sku.name();
    EXPECT_TRUE(sku.name().ends_with("__" + std::string(name(GetParam())))) << sku.name();
    EXPECT_EQ(plan->precision_guarantee(), sku.precision_guarantee);
    EXPECT_EQ(sku.precision_guarantee.math_precision, in == ElementKind::f64 ? MathPrecision::f64 : MathPrecision::f32);
    EXPECT_TRUE(sku.precision_guarantee.bit_stable_on_same_hardware);
    EXPECT_TRUE(sku.precision_guarantee.bit_stable_across_hardware);
    EXPECT_TRUE(sku.precision_guarantee.deterministic);
    EXPECT_TRUE(plan->descriptor().accumulate);
  }
}

// The program in the header.
TEST(Range, TypedPlan) {
  const Stream stream = Stream::cpu(1);
  const RangeCase c(problem({64, 128}, PerChannel{1}, ElementKind::f32), Data::normal, 10);
  std::vector<float> x(64 * 128), absmax(128);
  std::memcpy(x.data(), c.input.data(), c.input.size());
  const auto plan = RangePlan<float>::select(stream, {.shape = {64, 128}, .scope = PerChannel{1}});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> scratch(plan->workspace_size());
  const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                {.input = {x.data(), {64, 128}}, .max_abs_out = {absmax.data(), {128}}});
  ASSERT_TRUE(done.ok()) << done.message();
  note_kernel(plan->sku());
  EXPECT_EQ(plan->sku().op, QuantizeKind::range);
  EXPECT_TRUE(plan->precision_guarantee().deterministic);
  EXPECT_TRUE(c.equal({{{}, {}, std::vector<double>(absmax.begin(), absmax.end())}}, c.wanted(), 4));
}

TEST_P(RangeOnEachIsa, TheStreamOfSelectIsNotBinding) {
  for (const Shape& shape : {Shape{1 << 20}, Shape{300, 1030}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerChannel{-1}}) {
      const RangeCase c(problem(shape, scope, ElementKind::f32), Data::normal, 11);
      const Ranges want = c.wanted();
      for (const int selected : {1, 5}) {
        const auto plan = AnyRangePlan::select(Stream::cpu(selected), c.descriptor, {.isa = GetParam()});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        for (const int ran : {1, 2, 8}) {
          std::vector<float> max_abs(c.segments());
          GuardedBuffer scratch(static_cast<std::int64_t>(plan->workspace_size()));
          const Status done = plan->run(Stream::cpu(ran), {scratch.data(), scratch.size()},
                                        {.input = {c.input.data(), ElementKind::f32, shape, 0},
                                         .max_abs_out = {max_abs.data(), ElementKind::f32, c.parameters(), 0}});
          ASSERT_TRUE(done.ok()) << done.message();
          ASSERT_TRUE(c.equal({{{}, {}, std::vector<double>(max_abs.begin(), max_abs.end())}}, want, 4));
        }
      }
    }
}

#if defined(__x86_64__)
// Denormals are ranges too, whatever the caller's mode makes of them.
TEST_P(RangeOnEachIsa, FloatEnvironmentChangesNothingAndIsLeftAlone) {
  constexpr unsigned kDefault = 0x1F80, kFlush = 0x8040, kUp = 0x4000, kTruncate = 0x6000;
  for (const ElementKind in : kFloatKinds)
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}}) {
      RangeCase c(problem({200, 401}, scope, in, true), Data::specials, 9);
      const double tiny = in == ElementKind::f64 ? 1e-310 : in == ElementKind::f16 ? 6e-8 : 1e-39;
      for (std::size_t i = 0; i < 401; ++i) put_float(&c.input[i * width_of(in)], in, i % 2 == 0 ? tiny : -2 * tiny);
      Ranges old;
      for (std::size_t which = 0; which < 3; ++which) old[which].assign(c.segments(), kNothing[which]);
      const Ranges want = c.wanted();
      for (const unsigned mode : {kDefault | kFlush, kDefault | kUp, kDefault | kTruncate | kFlush}) {
        const auto plan = AnyRangePlan::select(Stream::cpu(4), c.descriptor, {.isa = GetParam()});
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        std::array<std::vector<std::byte>, 3> buffers;
        for (std::size_t which = 0; which < 3; ++which)
          for (std::size_t i = 0; i < c.segments(); ++i) {
            buffers[which].resize((i + 1) * width_of(c.kind()));
            put_float(&buffers[which][i * width_of(c.kind())], c.kind(), kNothing[which]);
          }
        std::vector<std::byte> scratch(plan->workspace_size());
        const AnyRangeArgs args{.input = {c.input.data(), in, {200, 401}, 0},
                                .min_out = {buffers[0].data(), c.kind(), c.parameters(), 0},
                                .max_out = {buffers[1].data(), c.kind(), c.parameters(), 0},
                                .max_abs_out = {buffers[2].data(), c.kind(), c.parameters(), 0}};
        _mm_setcsr(mode);  // only around run(): reading results must not depend on it
        const Status done = plan->run(Stream::cpu(4), {scratch.data(), scratch.size()}, args);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(kDefault);
        ASSERT_TRUE(done.ok()) << done.message();
        ASSERT_EQ(after, mode);
        Ranges got;
        for (std::size_t which = 0; which < 3; ++which) got[which] = values_of(buffers[which], c.kind());
        ASSERT_TRUE(c.equal(got, want)) << "mode " << mode;
      }
    }
}
#endif

// ---- refusals ----

TEST(RangeRefusal, Select) {
  const Stream stream = Stream::cpu(1);
  const auto selects = [&](const RangeDescriptor& d, const PlanPreference& preference = {}) {
    return AnyRangePlan::select(stream, d, preference).status();
  };
  const auto invalid = StatusCode::InvalidProblem, unsupported = StatusCode::Unsupported;
  RangeDescriptor d = problem({3, 4}, PerToken{}, ElementKind::f32);
  EXPECT_TRUE(selects(d).ok());
  d.input.reset();
  EXPECT_TRUE(refused(selects(d), invalid, {"range_per_token: ", "input"}));
  for (const ElementKind kind : {ElementKind::s8, ElementKind::u4, ElementKind::s32}) {
    d.input = kind;
    EXPECT_TRUE(refused(selects(d), unsupported, {"range_per_token: ", "input", name(kind)}));
  }
  d.input = ElementKind::f64;
  EXPECT_TRUE(refused(RangePlan<float>::select(stream, d).status(), unsupported, {"range_per_token: ", "f64", "f32"}));

  EXPECT_TRUE(refused(selects(problem({2, -3}, PerToken{}, ElementKind::f32)), invalid,
                      {"range_per_token: ", "size -3 of dimension 1 in shape [2, -3] is negative"}));
  EXPECT_TRUE(refused(selects(problem({1, 1, 1, 1, 1, 1, 1, 1, 1}, PerTensor{}, ElementKind::f32)), invalid,
                      {"range_per_tensor: ", "rank 9 is above 8"}));
  EXPECT_TRUE(refused(selects(problem({3, 4}, PerChannel{2}, ElementKind::f32)), invalid,
                      {"range_per_channel: ", "axis 2", "[3, 4]"}));
  EXPECT_TRUE(refused(selects(problem({3, 4}, PerGroup{-3, 2}, ElementKind::f32)), invalid,
                      {"range_per_group: ", "axis -3", "[3, 4]"}));
  for (const std::int64_t size : {0, -1})
    EXPECT_TRUE(refused(selects(problem({3, 4}, PerGroup{1, size}, ElementKind::f32)), invalid,
                        {"range_per_group: ", "group_size " + std::to_string(size)}));
  EXPECT_TRUE(refused(selects(problem({4}, PerBlock{2, 2}, ElementKind::f32)), invalid,
                      {"range_per_block: shape [4] has no rows and columns; its rank must be at least 2"}));
  EXPECT_TRUE(refused(selects(problem({3, 4}, PerBlock{2, 0}, ElementKind::f32)), invalid,
                      {"range_per_block: columns 0 of a block must be positive"}));
  EXPECT_TRUE(refused(selects(problem({}, PerToken{}, ElementKind::f32)), invalid, {"range_per_token: ", "[]"}));
  EXPECT_TRUE(refused(selects(problem({std::int64_t{1} << 60}, PerTensor{}, ElementKind::f32)), invalid,
                      {"range_per_tensor: ", "1152921504606846976"}));
  EXPECT_TRUE(refused(selects(problem({3, 4}, PerTensor{}, ElementKind::f32), {.backend = BackendKind::cuda}),
                      unsupported, {"range_per_tensor: ", "cuda"}));
  const auto avx2 =
      AnyRangePlan::select(stream, problem({3, 4}, PerTensor{}, ElementKind::f32), {.isa = ArchSku::avx2});
  if (avx2.ok()) {
    EXPECT_EQ(avx2->sku().arch, ArchSku::avx2);
  } else {
    EXPECT_TRUE(refused(avx2.status(), unsupported, {"range_per_tensor: ", "avx2"}));
  }
}

// A problem in order, [3, 4] per channel of axis 1, in one buffer where every output can be moved over every other.
struct Refusable {
  std::vector<std::byte> memory = std::vector<std::byte>(512, std::byte{0x3C});
  AnyRangeArgs args;
  Result<AnyRangePlan> plan = AnyRangePlan::select(Stream::cpu(1), problem({3, 4}, PerChannel{1}, ElementKind::f32));

  Refusable() {
    args.input = {memory.data() + 64, ElementKind::f32, {3, 4}, 0};  // 48 bytes
    args.min_out = {memory.data() + 192, ElementKind::f32, {4}, 0};  // 16 bytes each
    args.max_out = {memory.data() + 256, ElementKind::f32, {4}, 0};
    args.max_abs_out = {memory.data() + 320, ElementKind::f32, {4}, 0};
  }

  testing::AssertionResult refuses(StatusCode code, Parts parts) const {
    return tests::refuses(plan, args, memory, code, parts, "range_per_channel: ");
  }
  testing::AssertionResult invalid(Parts parts) const { return refuses(StatusCode::InvalidProblem, parts); }
  testing::AssertionResult runs() const { return tests::runs(plan, args); }
};

TEST(RangeRefusal, Views) {
  EXPECT_TRUE(Refusable().runs());
  Refusable none;
  none.args.min_out = none.args.max_out = none.args.max_abs_out = {};
  EXPECT_TRUE(none.invalid({"min_out", "max_out", "max_abs_out", "null"}));

  Refusable kind;
  kind.args.input.kind = ElementKind::bf16;
  EXPECT_TRUE(kind.refuses(StatusCode::Unsupported, {"input", "bf16", "f32"}));
  Refusable shape;
  shape.args.input.shape = {4, 3};
  EXPECT_TRUE(shape.invalid({"input", "[4, 3]", "[3, 4]"}));
  Refusable stride;
  stride.args.input.row_stride = 3;
  EXPECT_TRUE(stride.invalid({"input", "row stride 3", "4"}));
  Refusable null;
  null.args.input.data = nullptr;
  EXPECT_TRUE(null.invalid({"input", "null"}));

  const std::pair<AnyMut AnyRangeArgs::*, std::string_view> outputs[] = {{&AnyRangeArgs::min_out, "min_out"},
                                                                         {&AnyRangeArgs::max_out, "max_out"},
                                                                         {&AnyRangeArgs::max_abs_out, "max_abs_out"}};
  for (const auto& [output, what] : outputs) {
    Refusable other_kind;
    (other_kind.args.*output).kind = ElementKind::f64;
    EXPECT_TRUE(other_kind.refuses(StatusCode::Unsupported, {what, "f64", "f32"}));
    Refusable other_shape;
    (other_shape.args.*output).shape = {3};
    EXPECT_TRUE(other_shape.invalid({what, "[3]", "[4]"}));
    Refusable strided;
    (strided.args.*output).row_stride = 8;
    EXPECT_TRUE(strided.invalid({what, "row stride 8"}));
    Refusable over_input;
    (over_input.args.*output).data = over_input.memory.data() + 64 + 47;
    EXPECT_TRUE(over_input.invalid({what, "overlaps", "input"}));
    (over_input.args.*output).data = over_input.memory.data() + 64 + 48;
    EXPECT_TRUE(over_input.runs());
    for (const auto& [other, other_name] : outputs) {
      if (other == output) continue;
      Refusable over_other;
      (over_other.args.*output).data = static_cast<std::byte*>((over_other.args.*other).data) + 15;
      EXPECT_TRUE(over_other.invalid({what, "overlaps", other_name}));
      (over_other.args.*output).data = static_cast<std::byte*>((over_other.args.*other).data) + 16;
      EXPECT_TRUE(over_other.runs());
    }
  }
}

TEST(RangeRefusal, Workspace) {
  const Stream stream = Stream::cpu(2);
  const Shape shape{1 << 22};
  const auto plan = AnyRangePlan::select(stream, problem(shape, PerTensor{}, ElementKind::f32));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const std::size_t needed = plan->workspace_size();
  if (needed == 0) GTEST_SKIP() << "this plan needs no workspace";
  std::vector<float> x(1 << 22, 1.0f), max(1, 77.0f);
  std::vector<std::byte> scratch(needed);
  const AnyRangeArgs args{.input = {x.data(), ElementKind::f32, shape, 0},
                          .max_out = {max.data(), ElementKind::f32, {}, 0}};
  EXPECT_TRUE(plan->can_implement(args).ok());
  EXPECT_TRUE(refused(plan->run(stream, {scratch.data(), needed - 1}, args), StatusCode::WorkspaceTooSmall,
                      {"range_per_tensor: ", std::to_string(needed - 1), std::to_string(needed)}));
  EXPECT_TRUE(refused(plan->run(stream, {}, args), StatusCode::WorkspaceTooSmall, {" 0 ", std::to_string(needed)}));
  EXPECT_EQ(max[0], 77.0f);
  EXPECT_TRUE(plan->run(stream, {scratch.data(), needed}, args).ok());
  EXPECT_EQ(max[0], 1.0f);
}

TEST(RangeRefusal, UnusableStream) {
  const Stream bad = Stream::cpu(0);
  EXPECT_FALSE(AnyRangePlan::select(bad, problem({4}, PerTensor{}, ElementKind::f32)).ok());
  Refusable p;
  const std::vector<std::byte> before = p.memory;
  EXPECT_TRUE(refused(p.plan->run(bad, {}, p.args), StatusCode::InvalidProblem, {"0 threads"}));
  EXPECT_EQ(p.memory, before);
}

}  // namespace
}  // namespace kvant::tests
