#include "quantize/tensor_ranges.h"

#include <algorithm>

#include "base/for_each_part.h"

namespace kvant::quantize {

Result<std::vector<double>> find_tensor_ranges(const io::Checkpoint& checkpoint, const CheckpointPlan& plan,
                                               const SmoothingVectors& vectors, const Stream& stream,
                                               std::span<TileWorker> workers, std::uint64_t tile_bytes,
                                               base::Progress& progress) {
  std::vector<double> largest(plan.scale_groups, 0.0);
  std::uint64_t bytes = 0;
  for (const TensorPlan& tensor : plan.tensors)
    if (tensor.scale_group) bytes += tensor.bytes_before;
  if (bytes == 0) return largest;
  progress.begin("finding ranges", bytes);
  std::vector<double> of_worker(workers.size());
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.scale_group) continue;
    const TensorStream weights(checkpoint, tensor, plan.scheme_of(tensor), smoothing_of(tensor, vectors), {},
                               tile_bytes);
    std::fill(of_worker.begin(), of_worker.end(), 0.0);
    Status done =
        base::for_each_part(stream, 0, weights.tiles(), [&](std::size_t worker, std::uint64_t tile) -> Status {
          const auto seen = weights.largest(tile, workers[worker]);
          if (!seen.ok()) return seen.status();
          of_worker[worker] = std::max(of_worker[worker], *seen);
          progress.advance(weights.bytes_of(tile));
          return {};
        });
    if (!done.ok()) return done;
    for (const double seen : of_worker) largest[*tensor.scale_group] = std::max(largest[*tensor.scale_group], seen);
  }
  return largest;
}

}  // namespace kvant::quantize
