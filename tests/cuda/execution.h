// How the tests of the CUDA kernels have them executed. This is the only place that knows of the executor in
// tests/simt; on a GPU (KVANT_TESTS_ON_GPU) there is one way, the GPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "kvant/stream.h"
#include "tests/simt/device_memory.h"

#if !defined(KVANT_TESTS_ON_GPU)
#include "tests/simt/simt.h"
#endif

namespace kvant::tests {

using simt::DeviceBuffer;  // the same face for the executor and for a GPU

#if defined(KVANT_TESTS_ON_GPU)

inline constexpr std::int64_t kMoreLinesThanAGrid = 300000;

// Calls f(stream, how) once.
template <class F>
void for_each_execution(std::optional<std::uint32_t> /*turn*/, bool /*checked*/, const F& f) {
  f(Stream::cuda(nullptr), std::string("on the GPU"));
}

#else

// The executions below have grids of few blocks.
inline constexpr std::int64_t kMoreLinesThanAGrid = 700;

// Calls f(stream, how) for every order of threads, or for one of them, chosen by `turn`. `checked`: races between
// threads are looked for as well, which takes its time. A stream serves while f runs.
template <class F>
void for_each_execution(std::optional<std::uint32_t> turn, bool checked, const F& f) {
  struct Way {
    simt::Order order;
    std::uint64_t seed;
    bool warp_operations_order;  // one way takes CUDA at its word: only sync_warp() orders what a warp's threads do
    std::int64_t max_blocks;
    const char* about;
  };
  constexpr Way kWays[] = {{simt::Order::forward, 1, true, 6, "threads in order"},
                           {simt::Order::reverse, 1, true, 3, "threads in reverse order, 3 blocks"},
                           {simt::Order::random, 20240229, false, 5, "threads in random order"}};
  for (std::size_t i = 0; i < std::size(kWays); ++i) {
    if (turn && *turn % std::size(kWays) != i) continue;
    const simt::ScopedSettings settings({.order = kWays[i].order,
                                         .seed = kWays[i].seed,
                                         .check = checked,
                                         .warp_operations_order = kWays[i].warp_operations_order,
                                         .max_blocks = kWays[i].max_blocks});
    f(Stream::cuda(nullptr), std::string(kWays[i].about) + (checked ? ", checked" : ""));
  }
}

#endif

}  // namespace kvant::tests
