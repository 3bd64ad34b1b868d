// run() allocates nothing: every allocation of the process goes through here and is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kvant/export.h"
#include "kvant/weight_rounding.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/f32_linear_case.h"
#include "tests/support/linear_case.h"

namespace {
std::atomic<std::int64_t> g_allocations{0};
}

// The allocator's entry points, replaced for the whole process, libraries included; glibc exports its own under these
// names. Exported in spite of hidden visibility, or libraries would go on calling glibc's. Sanitizers replace them too,
// and then theirs stay.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVANT_COUNTS_MALLOC 0
#else
#define KVANT_COUNTS_MALLOC 1
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* p, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
KVANT_API void* malloc(std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
KVANT_API void* calloc(std::size_t count, std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
KVANT_API void* realloc(void* p, std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(p, size);
}
KVANT_API void* aligned_alloc(std::size_t alignment, std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}
#endif

namespace kvant::tests {
namespace {

TEST(Allocation, IsCounted) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  const std::int64_t before = g_allocations;
  std::vector<int> v(1000);
  __asm__ volatile("" ::"g"(v.data()) : "memory");  // or the compiler would spare itself the allocation
  EXPECT_GT(g_allocations, before);
}

// Runs something many times; it says whether it succeeded.
template <class Run>
void expect_no_allocation(const Stream& stream, const std::string& about, const Run& run) {
  // oneTBB keeps the tasks it once made: after a few runs none is new.
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(run()) << about;
  // A worker that wakes late may still make its first task; two quiet runs out of many are proof enough that run()
  // itself does not allocate.
  int quiet = 0;
  for (int i = 0; i < 50 && quiet < 2; ++i) {
    const std::int64_t before = g_allocations;
    const bool ok = run();
    quiet += g_allocations == before ? 1 : 0;
    ASSERT_TRUE(ok) << about;
    if (stream.threads() == 1) {
      ASSERT_EQ(quiet, i + 1) << "one thread, nothing else that could allocate: " << about;
    }
  }
  ASSERT_EQ(quiet, 2) << about << " threads " << stream.threads();
}

std::vector<Stream> streams() {
  const Executor host{.threads = 4, .parallel_for = [](std::int64_t parts, const Task& task) {
                        for (std::int64_t i = 0; i < parts; ++i) task(i);
                      }};
  return {Stream::cpu(1), Stream::cpu(2), Stream::cpu(host)};
}

TEST(Allocation, DoesNotHappenInRun) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  for (const Stream& stream : streams())
    for (const Shape& shape : {Shape{3, 77}, Shape{512, 1024}})
      for (const QuantizeKind op : kElementwiseKinds)
        for (const ElementKind code : {ElementKind::s8, ElementKind::u4})
          for (const Granularity& g :
               {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_token(),
                Granularity::per_group(1, 32), Granularity::per_group(0, 2), Granularity::per_block(2, 32)}) {
            const ElementwiseCase c(describe(op, ElementKind::f16, code, shape, g), 1, false);
            std::vector<std::byte> out(c.output_bytes());
            const auto plan = ElementwisePlan::select(stream, c.descriptor);
            ASSERT_TRUE(plan.ok());
            const ElementwiseArgs args = c.args(c.input.data(), c.gradient.data(), out.data());
            expect_no_allocation(stream, c.describe_case(), [&] { return plan->run(stream, {}, args).ok(); });
            if (HasFatalFailure()) return;
          }
}

// Shapes whose segments fit the caches, and shapes whose ranges are found in parts.
TEST(Allocation, DoesNotHappenInRunOfDynamicRanges) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  for (const Stream& stream : streams())
    for (const Shape& shape : {Shape{3, 77}, Shape{512, 1024}, Shape{1, 600000}})
      for (const Granularity& g :
           {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_token(),
            Granularity::per_group(1, 32), Granularity::per_group(0, 2), Granularity::per_block(2, 32)}) {
        const DynamicRangeCase c({.shape = shape,
                                  .scope = g,
                                  .mode = DynamicRangeMode::asymmetric,
                                  .input = ElementKind::f16,
                                  .output = ElementKind::u4},
                                 Data::one_odd, 1);
        const auto quantize = AnyDynamicRangeQuantizePlan::select(stream, c.descriptor);
        ASSERT_TRUE(quantize.ok()) << quantize.status().message();
        DynamicRangeResult result = c.room();
        const AnyDynamicRangeQuantizeArgs args = c.args(result);
        std::vector<std::byte> scratch(quantize->workspace_size());
        expect_no_allocation(stream, c.text(), [&] {
          return quantize->run(stream, {scratch.data(), scratch.size()}, args).ok();
        });

        const auto range = AnyRangePlan::select(stream, {.shape = shape, .scope = g, .input = ElementKind::f16});
        ASSERT_TRUE(range.ok()) << range.status().message();
        std::vector<float> max_abs(c.segments());
        scratch.resize(range->workspace_size());
        const AnyRangeArgs range_args{.input = args.input,
                                      .max_abs_out = {max_abs.data(), ElementKind::f32, c.parameters(), 0}};
        expect_no_allocation(stream, "range of " + c.text(), [&] {
          return range->run(stream, {scratch.data(), scratch.size()}, range_args).ok();
        });
        if (HasFatalFailure()) return;
      }
}

template <class Case>
void expect_no_allocation(const Stream& stream, const Case& c, bool packed) {
  const typename Case::Prepared linear(c, {}, {.packed = packed, .spare_rows = 2}, stream);
  ASSERT_TRUE(linear.status().ok()) << linear.status().message();
  expect_no_allocation(stream, c.text(), [&] { return linear.run(stream).ok(); });
}

// Small layers that one thread runs alone, and ones that are cut into parts; the scratch is the caller's.
TEST(Allocation, DoesNotHappenInRunOfLinears) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  for (const Stream& stream : streams())
    for (const auto& [m, k, n] : {std::tuple{3, 77, 9}, {1, 1024, 1500}, {200, 300, 250}})
      for (const ElementKind activation : kByteKinds)
        for (const bool packed : {false, true}) {
          LinearCase c(m, k, n, {activation, ElementKind::s8, ElementKind::f16}, CodeData::uniform, CodeData::outliers,
                       1);
          c.draw_parameters(3);
          ASSERT_NO_FATAL_FAILURE(expect_no_allocation(stream, c, packed));
        }
}

// More rows than one block too.
TEST(Allocation, DoesNotHappenInRunOfF32Linears) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  for (const Stream& stream : streams())
    for (const auto& [m, k, n] : {std::tuple{3, 77, 9}, {1, 1024, 1500}, {300, 300, 250}})
      for (const ElementKind weight : kF32WeightKinds)
        for (const bool packed : {false, true}) {
          const F32LinearCase c(m, k, n, weight, true, 1);
          ASSERT_NO_FATAL_FAILURE(expect_no_allocation(stream, c, packed));
        }
}

TEST(Allocation, DoesNotHappenInRunOfLinearsThatQuantize) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  for (const Stream& stream : streams())
    for (const auto& [m, k, n] : {std::tuple{3, 77, 9}, {1, 1024, 1500}, {200, 300, 250}, {2, 100000, 3}})
      for (const bool packed : {false, true})
        for (const bool smooth : {false, true})
          for (const std::optional<double>& act_scale : {std::optional<double>(), std::optional(0.05)}) {
            const auto size = [](int rows, int columns) { return static_cast<std::size_t>(rows * columns); };
            std::vector<float> x(size(m, k)), smoothing(size(1, k), 2.0f), weight_scale(size(1, n), 0.01f);
            std::vector<float> y(size(m, n));
            for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 1009) - 500.0f;
            const std::vector<std::int8_t> w(size(n, k), 3);
            const TensorRef<std::int8_t> raw(w.data(), {n, k});
            const auto packed_weight = PackedWeight::pack(stream, raw);
            ASSERT_TRUE(packed_weight.ok()) << packed_weight.status().message();
            const auto plan = QuantizedLinearPlan<float>::select(stream, {.max_rows = m,
                                                                          .in_features = k,
                                                                          .out_features = n,
                                                                          .mode = DynamicRangeMode::asymmetric,
                                                                          .act_scale = act_scale,
                                                                          .smooth = smooth});
            ASSERT_TRUE(plan.ok()) << plan.status().message();
            std::vector<std::byte> scratch(plan->workspace_size());
            QuantizedLinearArgs<float, std::int8_t> args{.input = {x.data(), {m, k}},
                                                         .weight_scale = TensorRef<float>(weight_scale.data(), {n}),
                                                         .output = {y.data(), {m, n}}};
            if (smooth) args.smooth = {smoothing.data(), {k}};
            if (packed)
              args.packed_weight = &*packed_weight;
            else
              args.weight = raw;
            expect_no_allocation(stream, "quantized_linear", [&] {
              return plan->run(stream, {scratch.data(), scratch.size()}, args).ok();
            });
            if (HasFatalFailure()) return;
          }
}

// All of it is for one thread.
TEST(Allocation, DoesNotHappenInWeightRounding) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  const Stream stream = Stream::cpu(1);
  const auto rounding = WeightRounding::select(stream);
  ASSERT_TRUE(rounding.ok()) << rounding.status().message();
  constexpr std::size_t kColumns = 8, kRows = 37, kCount = kColumns * kRows;
  std::vector<float> weights(kCount), targets, errors(kCount), numbers(kCount), factors(kColumns * kColumns, 0.1f);
  for (std::size_t i = 0; i < kCount; ++i) weights[i] = static_cast<float>(i * 37 % 1009) - 500.0f;
  targets = weights;
  const std::vector<float> scales(kCount, 70.0f), zero_points(kRows, 1.0f);
  const std::vector<const float*> scale_rows(kColumns, scales.data()), zero_rows(kColumns, zero_points.data());
  std::vector<WeightRounding::Scale> found(kColumns);
  const WeightRounding::Form forms[] = {{},
                                        {.code = ElementKind::s4, .scale = ElementKind::f16, .asymmetric = true},
                                        {.code = ElementKind::e4m3, .scale = ElementKind::bf16},
                                        {.code = ElementKind::e2m1, .scale = ElementKind::e8m0},
                                        {.code = ElementKind::e2m1, .scale = ElementKind::e4m3, .global = 100}};
  for (const WeightRounding::Form& form : forms)
    for (const float* const importance : {static_cast<const float*>(nullptr), scales.data()})
      ASSERT_NO_FATAL_FAILURE(expect_no_allocation(stream, "weight_rounding", [&] {
        rounding->best_scales(weights.data(), importance, kRows, kColumns, form, found.data());
        found[0] = rounding->best_scale(weights.data(), importance, kCount, form);
        rounding->fit(weights.data(), importance, kCount, form.code, found[0]);
        rounding->settle({.targets = targets.data(),
                          .weights = weights.data(),
                          .errors = errors.data(),
                          .numbers = numbers.data(),
                          .columns = kColumns,
                          .rows = kRows,
                          .stride = kRows,
                          .factors = factors.data(),
                          .factor_stride = kColumns,
                          .scales = scale_rows.data(),
                          .zero_points = form.asymmetric ? zero_rows.data() : nullptr},
                         form.code);
        return rounding->squared_error(weights.data(), importance, kCount, form.code, found[0]) > 0;
      }));
}

}  // namespace
}  // namespace kvant::tests
