// The largest magnitudes of weights that have one scale for all of them: found in a pass of their own, before the first
// code is made, because weights that loaders join share that scale wherever they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/progress.h"
#include "io/checkpoint.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "quantize/checkpoint_plan.h"
#include "quantize/smoothing_vectors.h"
#include "quantize/tensor_stream.h"

namespace kvant::quantize {

// One for each of plan.scale_groups, of finite weights, after smoothing. `workers`: one for each thread.
Result<std::vector<double>> find_tensor_ranges(const io::Checkpoint& checkpoint, const CheckpointPlan& plan,
                                               const SmoothingVectors& vectors, const Stream& stream,
                                               std::span<TileWorker> workers, std::uint64_t tile_bytes,
                                               base::Progress& progress);

}  // namespace kvant::quantize
