// The SIMT executor: CUDA kernels (the text of src/cuda, through cuda/device.h) on the CPU, thread by thread. What
// tests set and ask; a launch() that breaks a rule of cuda/device.h fails with a sentence for error_text().
//
// One launch at a time: launches from several host threads wait for each other. Kernels that spin on memory never end
// here, since a thread runs until it waits in a barrier or a warp operation. Not for TSan.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvant/export.h"

namespace kvant::simt {

// Who runs first among the threads that can, and among blocks, which run one after another. Warps that wait for nothing
// overtake others as far as the next sync_block(), so that a missing barrier shows as another result.
enum class Order : std::uint8_t { forward, reverse, random };

struct Settings {
  Order order = Order::forward;
  std::uint64_t seed = 1;  // of Order::random, which each launch starts anew
  // Races, and shared memory that nobody wrote. Takes 32 bytes for each byte of the regions that kernels touch.
  bool check = false;
  // Whether a shuffle, ballot, load_matrices or mma_s8 orders the accesses of its warp as sync_warp() does. Hardware
  // that runs a warp in step does so; CUDA promises it of sync_warp() only, and false checks for that.
  bool warp_operations_order = true;
  std::int64_t max_blocks = 6;  // of the streams that cuda::open_stream() gives; few, so that grids stride
  int device = 0;               // the current one
};
KVANT_API Settings& settings();

// Sets for a scope.
class ScopedSettings {
 public:
  explicit ScopedSettings(const Settings& wanted) : before_(settings()) { settings() = wanted; }
  ~ScopedSettings() { settings() = before_; }
  ScopedSettings(const ScopedSettings&) = delete;
  ScopedSettings& operator=(const ScopedSettings&) = delete;

 private:
  Settings before_;
};

struct Statistics {
  std::int64_t launches = 0;
  std::int64_t blocks = 0;
  std::int64_t threads = 0;
  std::int64_t block_barriers = 0;   // counted once for the block
  std::int64_t warp_operations = 0;  // once for the warp
};
KVANT_API Statistics& statistics();

// Global memory: kernels may touch registered bytes only. Regions do not overlap.
KVANT_API void register_region(const void* begin, std::size_t bytes);
KVANT_API void unregister_region(const void* begin);

}  // namespace kvant::simt
