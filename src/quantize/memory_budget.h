// How much memory a run takes, counted before it begins: --max-memory is a promise, whatever the size of the
// checkpoint.
#pragma once

#include <cstdint>

#include "io/checkpoint.h"
#include "kvant/status.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

struct MemoryBudget {
  std::uint64_t tile_bytes = 0;  // of weights that a thread holds at a time
  std::uint64_t expected = 0;    // the peak, in bytes; at most max_memory
};

// Names alone can take too much; refused before there is a plan.
Status check_names_fit(const io::Checkpoint& checkpoint, const QuantizeOptions& options);

// Tiles as large as they may be. Refuses where even small ones do not fit.
Result<MemoryBudget> memory_budget(const io::Checkpoint& checkpoint, const CheckpointPlan& plan,
                                   const QuantizeOptions& options, int thread_count);

}  // namespace kvant::quantize
