// The vectors s of SmoothQuant for a whole checkpoint: made from the columns of the weights, folded into norms, kept
// beside the output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "format/activation_stats.h"
#include "io/checkpoint.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "quantize/checkpoint_plan.h"

namespace kvant::quantize {

using SmoothingVectors = std::vector<std::vector<float>>;  // one for each of CheckpointPlan::smoothed

// Of a tensor's columns; empty where it is not smoothed.
inline std::span<const float> smoothing_of(const TensorPlan& tensor, const SmoothingVectors& vectors) {
  return tensor.smooth_group ? std::span<const float>(vectors[*tensor.smooth_group]) : std::span<const float>();
}

// Reads every reader of every group once, in tiles of up to `tile_bytes` for each thread. max|X_j| is the largest that
// the statistics have for any of a group's readers: they read the same, and an expert sees only some tokens. Refuses a
// fold in which a finite number of a norm or of a weight would overflow its type, naming it.
Result<SmoothingVectors> make_smoothing_vectors(const io::Checkpoint& checkpoint, const CheckpointPlan& plan,
                                                const format::ActivationStats& stats, const Stream& stream,
                                                std::uint64_t tile_bytes, base::Progress& progress);

// Divides a norm's weight or bias (its bytes, of `dtype`) by s in place.
Status fold_norm(std::span<const float> s, io::DType dtype, std::span<std::byte> norm);

// As a file beside the checkpoint (format/smoothing_file.h).
Status write_smoothing_vectors(const std::filesystem::path& path, const CheckpointPlan& plan,
                               const SmoothingVectors& vectors);
// Refuses a file that is not of this plan and checkpoint.
Result<SmoothingVectors> read_smoothing_vectors(const std::filesystem::path& path, const io::Checkpoint& checkpoint,
                                                const CheckpointPlan& plan);

}  // namespace kvant::quantize
