// One tensor of a checkpoint on its way through memory, tile by tile: read, smoothed, quantized, written to its places
// in the new shard. Tiles are independent of each other; threads take them in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/activation_stats.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/tiling.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "quantize/checkpoint_plan.h"
#include "quantize/feedback_factors.h"
#include "quantize/feedback_rounding.h"
#include "quantize/weight_tile.h"

namespace kvant::quantize {

// What one thread needs.
struct TileWorker {
  WeightTile tile{Stream::cpu(1)};
  std::vector<std::byte> weights;
  std::vector<std::byte> codes;
  std::vector<std::uint32_t> words;  // packed zero points
  std::vector<std::int32_t> zero_points;
  std::vector<float> importance;              // of the columns of a weight
  const TensorPlan* importance_of = nullptr;  // which one
  std::optional<FeedbackRounding> feedback;
  std::vector<float> values;  // of rows that are rounded with it
  format::SourceScratch scratch;
  std::uint64_t non_finite = 0;
  std::uint64_t rounded = 0;
};

// Bytes that a worker takes for tiles of `tile_bytes` of weights, of which `span` at least share a scale.
std::uint64_t worker_memory(std::uint64_t tile_bytes, std::uint64_t span);
// The least that a tile of the weight must hold: one block, where it has blocks; all that shares a scale which is
// searched for.
std::uint64_t least_tile_bytes(const WeightForm& form, std::uint64_t columns);

class TensorStream {
 public:
  // Positions in the new file. A tensor that is not quantized has `codes` only.
  struct Places {
    std::uint64_t codes = 0;
    std::uint64_t scales = 0;
    std::uint64_t zero_points = 0;
  };
  // `scheme` is null unless the tensor is quantized. `s` is empty, or the smoothing of the tensor's columns (of its
  // elements for a norm).
  TensorStream(const io::Checkpoint& checkpoint, const TensorPlan& plan, const format::Scheme* scheme,
               std::span<const float> s, const Places& places, std::uint64_t tile_bytes);
  // Columns count by E[x²] where these know it and a search of scales asks. They must outlive it.
  void set_statistics(const format::ActivationStats& stats) { stats_ = &stats; }

  // For a weight that is rounded with feedback, before run(). They must outlive it.
  void set_feedback(const FeedbackFactors& factors) { feedback_ = &factors; }

  // The largest magnitude of a tile's finite weights, for schemes with a scale for the whole tensor.
  Result<double> largest(std::uint64_t tile, TileWorker& worker) const;
  // What largest() found in all tiles, and in those of other weights that share the scale. Before run().
  void set_largest(double largest);
  // After that: what X.weight_scale, or X.weight_global_scale, holds.
  float tensor_scale() const { return tensor_scale_; }

  std::uint64_t tiles() const { return tiles_; }
  // Bytes that the tile reads of the input (twice, where a scale spans more than a tile).
  std::uint64_t bytes_of(std::uint64_t tile) const;
  Status run(std::uint64_t tile, TileWorker& worker, io::AtomicFile& file) const;

 private:
  Status copy(std::uint64_t tile, TileWorker& worker, io::AtomicFile& file) const;
  Status fold(TileWorker& worker, io::AtomicFile& file) const;
  Status write_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const;
  Status recode_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const;
  Status quantize_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const;
  Status quantize_spans(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const;
  Status quantize_with_feedback(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const;
  // Of weights of `form`, into worker.tile.
  Status find_scales(const io::Tile& tile, std::span<const std::byte> weights, const WeightForm& form,
                     TileWorker& worker) const;
  Status load(const io::Tile& tile, TileWorker& worker) const;
  // Into worker.importance; empty where nothing is known.
  Status load_importance(TileWorker& worker) const;
  // `unit`: columns that share a scale, or are a piece of those that do.
  TileSegments segments_of(const io::Tile& tile, std::uint64_t unit) const;
  Status write_codes(const io::Tile& tile, std::span<const std::byte> weights, const WeightForm& form,
                     const TileSegments& segments, TileWorker& worker, io::AtomicFile& file) const;
  // As they are stored, and zero points where the scheme has them.
  Status write_scales(const io::Tile& tile, std::span<const std::byte> scales,
                      std::span<const std::int32_t> zero_points, TileWorker& worker, io::AtomicFile& file) const;
  Status write_scales(const io::Tile& tile, TileWorker& worker, io::AtomicFile& file) const {
    return write_scales(tile, worker.tile.stored_scales(), worker.tile.zero_points(), worker, file);
  }
  Status write_matrix(const io::Tile& tile, std::uint64_t at, std::uint64_t columns, std::uint64_t first,
                      std::uint64_t count, std::uint64_t bits, std::span<const std::byte> bytes,
                      io::AtomicFile& file) const;

  const io::Checkpoint& checkpoint_;
  const TensorPlan& plan_;
  io::TensorPlace place_ = {};                    // of what is copied or folded
  const format::WeightSource* source_ = nullptr;  // of a matrix
  std::span<const float> s_;
  const format::ActivationStats* stats_ = nullptr;
  const FeedbackFactors* feedback_ = nullptr;
  Places places_;
  std::uint64_t tile_bytes_;
  WeightForm form_;
  format::ScaleSpan span_;  // what shares a scale
  float tensor_scale_ = 1;
  std::uint64_t width_ = 0;  // bytes of a weight
  io::Tiling tiling_;
  std::uint64_t tiles_ = 0;
};

}  // namespace kvant::quantize
