// What one layer lost: its sums, in one pass over its weights and codes. LayerLoss says what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "format/quantized_layers.h"
#include "format/smoothing_file.h"
#include "format/weight_source.h"
#include "io/checkpoint.h"
#include "kvant/error_sums.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "measure/comparison.h"
#include "measure/layer_detail.h"
#include "quantize/weight_tile.h"

namespace kvant::measure {

// What one thread works with.
struct ThreadBuffers {
  std::vector<std::byte> weights;
  std::vector<float> wide;
  format::LayerRows rows;
  format::SourceScratch scratch;
  std::vector<float> s;
  quantize::WeightTile tile{Stream::cpu(1)};
  std::optional<std::pair<std::uint64_t, std::uint64_t>> s_columns;
  std::vector<float> magnitudes;  // the largest of each column; empty where they would not fit
};

// What all layers are compared with.
struct CompareResources {
  CompareResources(Stream on, const ErrorSums& error_sums, std::uint64_t memory, bool with_details)
      : stream(std::move(on)),
        sums(error_sums),
        max_memory(memory),
        thread_buffers(static_cast<std::size_t>(stream.threads())) {
    if (with_details) details.emplace(stream.threads(), sums);
  }

  // Whether what is kept for each column fits: magnitudes of every thread, statistics, s, cells of the strip.
  bool fits_columns(std::uint64_t columns) const {
    return columns <= max_memory / 8 / (4 * thread_buffers.size() + 32);
  }

  Stream stream;
  ErrorSums sums;
  std::uint64_t max_memory;
  std::vector<ThreadBuffers> thread_buffers;
  std::optional<DetailCollector> details;
};

// A quantized layer, and what it was made of.
struct ComparedLayer {
  const io::Checkpoint& original;
  const format::WeightSource& weight;  // in the original, of the layer's shape
  const io::Checkpoint& quantized;
  const format::QuantizedLayer& layer;
  const format::SmoothingFile* smoothing = nullptr;
  const io::TensorInfo* s = nullptr;    // in `smoothing`; null: not smoothed
  const InputErrors* inputs = nullptr;  // null: not known, and neither are outputs
};

// `details` is filled unless it is null.
Result<LayerLoss> compare_layer(const ComparedLayer& compared, CompareResources& resources, DetailCollector* details,
                                base::Progress& progress);

}  // namespace kvant::measure
