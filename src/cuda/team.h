// The threads that find one range together: 1 to 32 neighbouring lanes of a warp (a power of two), or a block.
#pragma once

#include <cstdint>

#include "cuda/device.h"
#include "cuda/grid.h"
#include "semantics/dynamic_range.h"

namespace kvant::cuda {

struct Team {
  unsigned size;  // 1, 2, 4 … 32, or kThreads

  KVANT_DEVICE unsigned rank() const { return device::linear_thread() % size; }
  KVANT_DEVICE unsigned index_in_block() const { return device::linear_thread() / size; }
  KVANT_DEVICE unsigned teams_in_block() const { return kThreads / size; }

  // Bytes of shared memory that merge() needs.
  static constexpr unsigned shared_bytes(std::size_t number_bytes) {
    return static_cast<unsigned>(2 * (kThreads / kWarp) * number_bytes);
  }

  // The range of all of the team's; every thread of the block calls it. The order of merging does not matter to the
  // result, since least and greatest are order-free.
  template <class L>
  KVANT_DEVICE semantics::Range<L> merge(semantics::Range<L> r) const {
    using C = typename L::C;
    const unsigned lanes = size < kWarp ? size : kWarp;
    for (unsigned step = lanes / 2; step != 0; step /= 2)
      r = r.with(semantics::Range<L>{device::shuffle_xor(r.lo, step), device::shuffle_xor(r.hi, step)});
    if (size <= kWarp) return r;
    constexpr unsigned kPair = 2 * sizeof(C);
    const unsigned warp = device::linear_thread() / kWarp;
    if (device::linear_thread() % kWarp == 0) {
      device::shared_store<C>(warp * kPair, r.lo);
      device::shared_store<C>(warp * kPair + sizeof(C), r.hi);
    }
    device::sync_block();
    for (unsigned w = 0; w < kThreads / kWarp; ++w)
      r = r.with(semantics::Range<L>{device::shared_load<C>(w * kPair), device::shared_load<C>(w * kPair + sizeof(C))});
    device::sync_block();  // before somebody writes again
    return r;
  }
};

}  // namespace kvant::cuda
