// What becomes of every tensor of a checkpoint, and why: decided from names, shapes and dtypes, before a weight is
// read.
#pragma once

#include "format/activation_stats.h"
#include "io/checkpoint.h"
#include "kvant/status.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

// Fills tensors, smoothed, alpha, warnings, ignore and the sizes of the plan. `stats` is null where none were given.
// Refuses: codes of a dialect that kvant does not read, Conv1D weights that nobody excluded, patterns that match
// nothing, layers that loaders join under different schemes, schemes that they do not take for experts, statistics that
// are missing, a model whose norms cannot be folded.
Result<CheckpointPlan> decide(const io::Checkpoint& checkpoint, const QuantizeOptions& options,
                              const format::ActivationStats* stats);

}  // namespace kvant::quantize
