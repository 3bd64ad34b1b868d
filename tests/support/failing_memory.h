// An allocator that can be told which requests to refuse, for the whole process: one file of a test includes it.
// Sanitizers have their own, and keep it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>

#include "kvant/export.h"

namespace kvant::tests {

inline std::atomic<std::size_t> g_largest_allocation{std::numeric_limits<std::size_t>::max()};
inline std::atomic<std::int64_t> g_allocations_left{-1};  // negative: as many as there is memory for

}  // namespace kvant::tests

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Not inlined, or GCC sees malloc() on one side and operator delete on the other and warns.
[[gnu::noinline]] KVANT_API void* operator new(std::size_t size) {
  using namespace kvant::tests;
  const bool refuse = size > g_largest_allocation || (g_allocations_left >= 0 && g_allocations_left-- == 0);
  void* p = refuse ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] KVANT_API void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] KVANT_API void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif
