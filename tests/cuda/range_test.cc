// Ranges on the CUDA backend against the scalar kernels of the CPU: equal bits for every type, scope and choice of
// outputs, fresh and accumulated.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/registry.h"
#include "tests/cuda/same_on_device.h"
#include "tests/cuda/segment_paths.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/granularity_text.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

struct Form {
  unsigned outputs = 7;        // as bits: 1 min, 2 max, 4 max_abs
  std::int64_t input_gap = 0;  // elements between rows
  std::uint32_t seed = 1;      // of the ranges that are accumulated on
};

// What a run may find in the outputs that it is to extend: nothing yet, something, or what no range is.
std::vector<std::byte> old_ranges(std::size_t which, std::size_t count, ElementKind kind, std::uint32_t seed) {
  constexpr std::array<std::array<double, 7>, 3> kOld = {{{NAN, kInf, -1000.0, 2.0, -0.0, 0.0, -3.0},
                                                          {NAN, -kInf, 1000.0, -2.0, -0.0, 0.0, 3.0},
                                                          {NAN, 0.0, 1000.0, 2.0, 1e-6, 4.5, kInf}}};
  std::mt19937 random(seed + static_cast<std::uint32_t>(which));
  std::vector<std::byte> bytes(count * width_of(kind));
  for (std::size_t i = 0; i < count; ++i) put_float(&bytes[i * width_of(kind)], kind, kOld[which][random() % 7]);
  return bytes;
}

testing::AssertionResult same(const RangeDescriptor& d, const std::vector<std::byte>& input, const DeviceRun& how = {},
                              const Form& form = {}) {
  const ElementKind in = *d.input, kind = scale_kind(in);
  const std::int64_t elements = element_total(d.shape), row = d.shape.row_length();
  const std::int64_t stride = form.input_gap == 0 ? 0 : row + form.input_gap;
  const std::vector<std::byte> x = with_gaps(input, in, elements == 0 ? 0 : elements / row, row, stride);
  const auto segments = static_cast<std::size_t>(segment_total(d.shape, d.scope));
  std::array<std::vector<std::byte>, 3> buffers;
  std::array<AnyMut, 3> views;
  for (std::size_t which = 0; which < 3; ++which) {
    if ((form.outputs >> which & 1) == 0) continue;
    buffers[which] = d.accumulate ? old_ranges(which, segments, kind, form.seed)
                                  : std::vector<std::byte>(segments * width_of(kind), kGap);
    views[which] = {buffers[which].data(), kind, parameter_shape(d.shape, d.scope).value(), 0};
  }
  const AnyRangeArgs args{
      .input = {x.data(), in, d.shape, stride}, .min_out = views[0], .max_out = views[1], .max_abs_out = views[2]};
  const std::string text = "range of " + std::string(name(in)) + (d.accumulate ? " accumulating" : "") + " outputs " +
                           std::to_string(form.outputs) + " gap " + std::to_string(form.input_gap) + " " +
                           granularity_text(d.scope) + " shape " + d.shape.to_string();
  return same_on_device<AnyRangePlan>(d, args, text, how);
}

class EveryCudaRangeKernel : public testing::TestWithParam<const detail::RangeKernel*> {
 protected:
  static ElementKind in() { return GetParam()->sku.element; }
  static RangeDescriptor of(const Shape& shape, const Granularity& scope, bool accumulate = false) {
    return {.shape = shape, .scope = scope, .accumulate = accumulate, .input = in()};
  }
  static std::vector<std::byte> drawn(Data data, const Shape& shape, std::uint32_t seed) {
    return draw(data, in(), element_total(shape), seed);
  }
};

TEST_P(EveryCudaRangeKernel, EqualsScalarInEveryCombination) {
  std::uint32_t turn = 0;
  for (const Shape& shape :
       {Shape(), Shape{1}, Shape{0}, Shape{5, 0}, Shape{0, 5}, Shape{3, 0, 4}, Shape{7}, Shape{33}, Shape{3, 129},
        Shape{17, 40}, Shape{2, 3, 5, 7}, Shape{2, 1, 150}, Shape{35, 20}, Shape{1, 1, 2, 1, 3, 1, 4, 5}})
    for (const Granularity& scope : scopes_of(shape))
      for (const bool accumulate : {false, true}) {
        // 3 orders of threads, 6 kinds of data, 7 choices of outputs: in step with nothing.
        const Data data = kAllData[(turn / 3 + turn / 18) % std::size(kAllData)];
        ASSERT_TRUE(same(of(shape, scope, accumulate), drawn(data, shape, turn), {.turn = turn},
                         {.outputs = 1 + turn % 7, .seed = turn}));
        ++turn;
      }
}

TEST_P(EveryCudaRangeKernel, EqualsScalarOnEveryPath) {
  std::uint32_t turn = 0;
  for (const SegmentPath& path : segment_paths())
    for (const Granularity& scope : path.scopes)
      for (const Data data : {Data::normal, Data::one_odd}) {
        const bool accumulate = turn / 2 % 2 == 1;
        ASSERT_TRUE(same(of(path.shape, scope, accumulate), drawn(data, path.shape, turn), {.turn = turn}));
        ++turn;
      }
}

TEST_P(EveryCudaRangeKernel, EveryChoiceOfOutputs) {
  std::uint32_t turn = 0;
  for (const Shape& shape : {Shape{6, 75}, Shape{60, 333}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{1}, PerGroup{1, 32},
                                                             PerGroup{0, 4}, PerBlock{4, 32}})
      for (const bool accumulate : {false, true}) {
        const std::vector<std::byte> input = drawn(Data::one_odd, shape, turn);
        for (unsigned outputs = 1; outputs <= 7; ++outputs)
          ASSERT_TRUE(same(of(shape, scope, accumulate), input, {.turn = turn++}, {.outputs = outputs}));
      }
}

// Rows with nothing finite keep the old range, and an old NaN counts as nothing.
TEST_P(EveryCudaRangeKernel, AccumulatesOnWhateverWasThere) {
  for (const Granularity& scope : std::vector<Granularity>{PerToken{}, PerChannel{1}, PerGroup{1, 8}, PerTensor{}})
    for (std::uint32_t seed = 0; seed < 6; ++seed) {
      std::vector<std::byte> input = drawn(Data::specials, {40, 21}, seed);
      const double nothing[] = {NAN, kInf, -kInf};
      for (std::size_t i = 0; i < 10 * 21; ++i)
        put_float(&input[i * width_of(in())], in(), nothing[(i + seed) % std::size(nothing)]);
      ASSERT_TRUE(same(of({40, 21}, scope, true), input, {}, {.seed = seed}));
    }
}

// Each place in a vector, a warp, a block and their ends decides a result.
TEST_P(EveryCudaRangeKernel, TheExtremeMayBeAnywhere) {
  std::uint32_t turn = 0;
  for (const std::int64_t length : {1, 2, 5, 16, 31, 33, 67, 129, 515})
    for (std::int64_t place = 0; place < length; place += 1 + length / 12)
      for (const double value : {100.0, -100.0}) {
        std::vector<std::byte> row = drawn(Data::normal, {2, length}, 3);
        put_float(&row[static_cast<std::size_t>(length + place) * width_of(in())], in(), value);
        ASSERT_TRUE(same(of({2, length}, PerToken{}), row, {.turn = turn++})) << value << " at " << place;
        std::vector<std::byte> column = drawn(Data::normal, {length, 9}, 3);
        put_float(&column[static_cast<std::size_t>(9 * place + place % 9) * width_of(in())], in(), value);
        ASSERT_TRUE(same(of({length, 9}, PerChannel{1}), column, {.turn = turn++})) << value << " at " << place;
      }
}

TEST_P(EveryCudaRangeKernel, KeepsToRowsThatHaveStridesAtAnyAddressOfItsElements) {
  constexpr std::pair<std::size_t, std::size_t> kShifts[] = {{0, 0}, {1, 1}, {3, 0}, {0, 1}, {2, 5}, {15, 7}};
  std::uint32_t turn = 0;
  for (const Shape& shape : {Shape{6, 64}, Shape{6, 75}, Shape{2, 3, 37}, Shape{1, 9}, Shape{7, 1}, Shape{90, 301}})
    for (const Granularity& scope : std::vector<Granularity>{PerTensor{}, PerToken{}, PerChannel{0}, PerChannel{1},
                                                             PerChannel{-1}, PerGroup{-1, 32}, PerGroup{0, 4}})
      for (const std::int64_t gap : {0, 1, 11}) {
        const auto& [inputs, outputs] = kShifts[(turn + turn / 6) % std::size(kShifts)];
        ASSERT_TRUE(same(of(shape, scope), drawn(Data::one_odd, shape, turn),
                         {.turn = turn, .shifts = {inputs, outputs}}, {.input_gap = gap}));
        ++turn;
      }
}

// Rows with gaps are cut into more parts than the same elements without, and the workspace begins anywhere.
TEST_P(EveryCudaRangeKernel, PartsOfRowsFitAWorkspaceAtAnyAddress) {
  const Shape shape{3, 14001};
  for (const std::int64_t gap : {0, 1})
    ASSERT_TRUE(same(of(shape, PerTensor{}), drawn(Data::normal, shape, 1),
                     {.turn = static_cast<std::uint32_t>(gap), .shifts = {0, 1}}, {.input_gap = gap}));
}

const auto every_kernel = [] { return ops::all_kernels<detail::RangeKernel>(BackendKind::cuda); };

INSTANTIATE_TEST_SUITE_P(Registry, EveryCudaRangeKernel, testing::ValuesIn(every_kernel()),
                         [](const auto& test) { return test.param->sku.name(); });

TEST(CudaRegistry, HoldsRangesOfEveryType) {
  std::set<ElementKind> kinds;
  for (const auto* kernel : every_kernel()) {
    kinds.insert(kernel->sku.element);
    EXPECT_EQ(kernel->sku.backend, BackendKind::cuda) << kernel->sku.name();
    EXPECT_TRUE(kernel->sku.precision_guarantee.bit_stable_across_hardware) << kernel->sku.name();
  }
  EXPECT_EQ(kinds.size(), std::size(kFloatKinds));
  EXPECT_EQ(every_kernel().size(), kinds.size());
}

}  // namespace
}  // namespace kvant::tests
