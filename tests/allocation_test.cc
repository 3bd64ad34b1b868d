// run() allocates nothing: every allocation of the process goes through here and is counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "kvant/export.h"
#include "tests/elementwise_case.h"

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

TEST(Allocation, DoesNotHappenInRun) {
  if (!KVANT_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns the allocator";
  const Executor host{.threads = 4, .parallel_for = [](std::int64_t parts, const Task& task) {
                        for (std::int64_t i = 0; i < parts; ++i) task(i);
                      }};
  for (const Stream& stream : {Stream::cpu(1), Stream::cpu(2), Stream::cpu(host)})
    for (const Shape& shape : {Shape{3, 77}, Shape{512, 1024}})
      for (const QuantizeKind op :
           {QuantizeKind::quantize, QuantizeKind::dequantize, QuantizeKind::fake_quantize,
            QuantizeKind::quantize_backward, QuantizeKind::dequantize_backward, QuantizeKind::fake_quantize_backward})
        for (const ElementKind code : {ElementKind::s8, ElementKind::u4})
          for (const Granularity& g : {Granularity::per_tensor(), Granularity::per_channel(1), Granularity::per_token(),
                                       Granularity::per_group(1, 32), Granularity::per_group(0, 2)}) {
            const ElementwiseCase c(describe(op, ElementKind::f16, code, shape, g), 1, false);
            std::vector<std::byte> out(c.output_bytes());
            const auto plan = ElementwisePlan::select(stream, c.descriptor);
            ASSERT_TRUE(plan.ok());
            const ElementwiseArgs args = c.args(c.input.data(), c.gradient.data(), out.data());
            // oneTBB keeps the tasks it once made: after a few runs none is new.
            for (int i = 0; i < 20; ++i) ASSERT_TRUE(plan->run(stream, {}, args).ok());
            // A worker that wakes late may still make its first task; two quiet runs out of many are proof enough that
            // run() itself does not allocate.
            int quiet = 0;
            for (int i = 0; i < 50 && quiet < 2; ++i) {
              const std::int64_t before = g_allocations;
              const bool ok = plan->run(stream, {}, args).ok();
              quiet += g_allocations == before ? 1 : 0;
              ASSERT_TRUE(ok);
              if (stream.threads() == 1) {
                ASSERT_EQ(quiet, i + 1) << "one thread, nothing else that could allocate: " << c.describe_case();
              }
            }
            ASSERT_EQ(quiet, 2) << c.describe_case() << " threads " << stream.threads();
          }
}

}  // namespace
}  // namespace kvant::tests
