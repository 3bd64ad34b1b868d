#include "measure/layer_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "format/widen.h"
#include "io/tiling.h"
#include "measure/block_sums.h"
#include "measure/median.h"
#include "measure/sqnr.h"

namespace kvant::measure {
namespace {

using base::invalid_problem;
using io::printable;

constexpr std::uint64_t kMinTileBytes = std::uint64_t{1} << 16;  // less is not worth a task
constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 20;

// Everything of a tile but its sums, which are kept block by block.
struct TileLoss {
  double largest = -1;
  std::uint64_t row = 0;
  std::uint64_t column = 0;
  std::uint64_t at_ends = 0;
  std::uint64_t non_finite = 0;
  // What the sums of a row do not tell.
  struct OddRow {
    std::uint64_t row;
    bool alive = false;  // squares add up to 0 although not all is 0: NaN or infinite, or so small that they vanish
    std::uint64_t non_finite = 0;
  };
  std::vector<OddRow> odd_rows;
  bool clipped = false;  // a weight is more than a step away from its code
};

// Of one block.
struct LayerSums {
  ErrorSums::Sums weights;
  ErrorSums::OutputLoss outputs;

  LayerSums& operator+=(const LayerSums& other) {
    weights += other.weights;
    outputs += other.outputs;
    return *this;
  }
};

class LayerComparison {
 public:
  explicit LayerComparison(const ComparedLayer& compared)
      : original_(compared.original),
        quantized_(compared.quantized),
        smoothing_(compared.smoothing),
        layer_(compared.layer),
        weight_(compared.weight),
        kind_(weight_.kind),
        width_(static_cast<std::uint64_t>(bits_per_element(kind_)) / 8),
        s_(compared.s),
        inputs_(compared.inputs) {}

  // `details`: null without.
  Result<LayerLoss> run(CompareResources& resources, DetailCollector* details, base::Progress& progress) {
    const std::uint64_t max_memory = resources.max_memory;
    std::vector<ThreadBuffers>& thread_buffers = resources.thread_buffers;
    sums_of_errors_ = &resources.sums;
    const auto threads = static_cast<std::uint64_t>(resources.stream.threads());
    details_ = details;
    if (details_ != nullptr) details_->begin(layer_.rows, layer_.columns, layer_.code());
    const std::uint64_t element_bytes = width_ + 2 + (s_ != nullptr ? 12 : 0);
    const std::uint64_t row_bytes = 12 * layer_.groups() + sizeof(LayerSums);
    // A layer of the size of a few tiles is taken apart for all threads: one would wait for the other.
    const std::uint64_t layer_bytes = layer_.rows * (layer_.columns * element_bytes + row_bytes);
    const std::uint64_t for_all_threads = std::max(layer_bytes / (4 * threads), kMinTileBytes);
    const io::Tiling tiling = tiling_in_blocks(layer_.rows, layer_.columns, element_bytes, row_bytes,
                                               std::min({kMaxTileBytes, max_memory / (4 * threads), for_all_threads}));
    const bool by_column = resources.fits_columns(layer_.columns);
    for (ThreadBuffers& buffers : thread_buffers) {
      buffers.s_columns.reset();
      buffers.magnitudes.assign(by_column ? static_cast<std::size_t>(layer_.columns) : 0, 0);
    }
    const auto read = [&](std::size_t worker, const io::Tile& tile, std::span<LayerSums> blocks, TileLoss& tile_loss) {
      Status s = work(tile, worker, thread_buffers[worker], blocks, tile_loss);
      progress.advance(tile.rows * tile.columns * width_);
      return s;
    };
    const auto add_tile = [&](const io::Tile& tile, std::span<const LayerSums> blocks, const TileLoss& tile_loss) {
      add(tile, blocks, tile_loss);
    };
    const std::uint64_t kept = std::min(kMaxBlocks, max_memory / (8 * sizeof(LayerSums)));
    if (Status s = sum_in_order<LayerSums, TileLoss>(resources.stream, tiling, kept, read, add_tile); !s.ok()) return s;
    LayerLoss layer = loss();
    if (by_column) layer.outlier_channels = outliers(thread_buffers);
    return layer;
  }

 private:
  Status work(const io::Tile& tile, std::size_t worker, ThreadBuffers& buffers, std::span<LayerSums> blocks,
              TileLoss& loss) const {
    const base::DefaultFloatEnvironment environment;
    const std::uint64_t row_bytes = tile.columns * width_;
    if (Status s = format::read_tile(original_, weight_, tile, buffers.scratch, buffers.weights); !s.ok()) return s;
    if (s_ != nullptr)
      if (Status s = smooth(tile, buffers); !s.ok()) return s;
    if (Status s = format::read_rows(quantized_, layer_, tile.row, tile.rows, tile.column, tile.columns, buffers.rows);
        !s.ok())
      return s;
    if (Status s = check_scales(tile, buffers.rows); !s.ok()) return s;
    buffers.wide.resize(kBlock);
    std::size_t block = 0;
    for_each_block(tile, [&](std::uint64_t r, std::uint64_t c, std::size_t count) {
      const std::byte* from = buffers.weights.data() + r * row_bytes + c * width_;
      LayerSums& sums = blocks[block++];
      if (kind_ == ElementKind::f64) {
        add_block(reinterpret_cast<const double*>(from), tile, r, c, count, worker, buffers, sums, loss);
      } else {
        format::widen(kind_, from, count, buffers.wide.data());
        add_block(buffers.wide.data(), tile, r, c, count, worker, buffers, sums, loss);
      }
    });
    return {};
  }

  // As the quantizer did.
  Status smooth(const io::Tile& tile, ThreadBuffers& buffers) const {
    const std::pair columns(tile.column, tile.columns);
    if (buffers.s_columns != columns) {
      buffers.s_columns.reset();
      buffers.s.resize(static_cast<std::size_t>(tile.columns));
      if (Status s = smoothing_->read(*s_, tile.column, buffers.s); !s.ok()) return s;
      buffers.s_columns = columns;
    }
    return buffers.tile.smooth(buffers.weights, kind_, buffers.s);
  }

  Status check_scales(const io::Tile& tile, const format::LayerRows& rows) const {
    for (std::uint64_t i = 0; i < tile.rows * rows.groups; ++i)
      if (!(rows.scales[i] > 0) || !std::isfinite(rows.scales[i]))
        return invalid_problem(
            "{}: the scale of row {}, group {} of layer '{}' is {}, must be finite and positive; quantize again",
            printable(quantized_.shard_name(layer_.scales.shard)), tile.row + i / rows.groups,
            rows.first_group + i % rows.groups, printable(layer_.module), rows.scales[i]);
    return {};
  }

  // A block in stretches that share a scale.
  template <class T>
  void add_block(const T* weights, const io::Tile& tile, std::uint64_t r, std::uint64_t c, std::size_t count,
                 std::size_t worker, ThreadBuffers& buffers, LayerSums& sums, TileLoss& tile_loss) const {
    const format::LayerRows& rows = buffers.rows;
    const std::int8_t* codes = rows.codes.data() + r * tile.columns + c;
    const std::uint64_t column = tile.column + c;
    sums = {};
    for (std::size_t i = 0; i < count;) {
      const std::uint64_t group = (column + i) / layer_.group_size - rows.first_group;
      const auto length = static_cast<std::size_t>(
          std::min<std::uint64_t>(count - i, layer_.group_size - (column + i) % layer_.group_size));
      const ErrorSums::Codes stretch{.codes = codes + i,
                                     .count = length,
                                     .scale = rows.scales[r * rows.groups + group],
                                     .zero_point = rows.zero_points[r * rows.groups + group],
                                     .code = layer_.code()};
      const ErrorSums::Loss loss = sums_of_errors_->loss(weights + i, stretch);
      sums.weights += loss.sums;
      if (inputs_ != nullptr)
        sums.outputs += sums_of_errors_->output_loss(weights + i, stretch, inputs_->squares.data() + column + i,
                                                     inputs_->errors.data() + column + i);
      if (details_ != nullptr) details_->add<T>(worker, {weights + i, stretch, tile.row + r, column + i}, loss);
      if (!buffers.magnitudes.empty())
        raise_magnitudes(weights + i, length, loss.non_finite, &buffers.magnitudes[column + i]);
      const bool alive =
          loss.sums.weights == 0 && std::any_of(weights + i, weights + i + length, [](T w) { return w != 0; });
      if (alive || loss.non_finite > 0) {
        if (tile_loss.odd_rows.empty() || tile_loss.odd_rows.back().row != tile.row + r)
          tile_loss.odd_rows.push_back({tile.row + r});
        TileLoss::OddRow& row = tile_loss.odd_rows.back();
        row.alive = row.alive || alive;
        row.non_finite += loss.non_finite;
      }
      tile_loss.clipped =
          tile_loss.clipped || (loss.largest > step_ * static_cast<double>(stretch.scale) && loss.non_finite < length);
      tile_loss.at_ends += loss.at_ends;
      tile_loss.non_finite += loss.non_finite;
      if (loss.largest > tile_loss.largest && loss.non_finite < length) {
        tile_loss.largest = loss.largest;
        tile_loss.row = tile.row + r;
        const std::size_t place = ErrorSums::place_of_error(weights + i, stretch, loss.largest);
        tile_loss.column = column + i + (place < length ? place : 0);
      }
      i += length;
    }
  }

  template <class T>
  void raise_magnitudes(const T* weights, std::size_t count, std::uint64_t non_finite, float* largest) const {
    if (non_finite == 0) return sums_of_errors_->raise_to_magnitudes(weights, count, largest);
    for (std::size_t i = 0; i < count; ++i)
      if (std::isfinite(weights[i])) sums_of_errors_->raise_to_magnitudes(weights + i, 1, largest + i);
  }

  // Columns whose largest magnitude stands out.
  static std::uint64_t outliers(std::vector<ThreadBuffers>& thread_buffers) {
    std::vector<float>& all = thread_buffers.front().magnitudes;
    for (const ThreadBuffers& buffers : thread_buffers)
      for (std::size_t j = 0; j < all.size(); ++j) all[j] = std::max(all[j], buffers.magnitudes[j]);
    const double bound = kOutlierFactor * median(all);
    return static_cast<std::uint64_t>(
        std::ranges::count_if(all, [&](float m) { return static_cast<double>(m) > bound; }));
  }

  // Tiles come in order: blocks are added to their row, and whole rows to the layer.
  void add(const io::Tile& tile, std::span<const LayerSums> blocks, const TileLoss& loss) {
    const std::uint64_t per_row = blocks_in_row(tile);
    auto odd = loss.odd_rows.begin();
    for (std::uint64_t r = 0; r < tile.rows; ++r) {
      if (odd != loss.odd_rows.end() && odd->row == tile.row + r) {
        row_alive_ = row_alive_ || odd->alive;
        row_non_finite_ += odd->non_finite;
        ++odd;
      }
      for (std::uint64_t b = 0; b < per_row; ++b) row_ += blocks[r * per_row + b];
      if (tile.column + tile.columns < layer_.columns) continue;
      sums_ += row_;
      if (row_.weights.weights == 0 && !row_alive_) ++dead_;
      if (details_ != nullptr) details_->add_row(row_.weights, layer_.columns - row_non_finite_);
      row_ = {};
      row_alive_ = false;
      row_non_finite_ = 0;
    }
    if (loss.largest > all_.largest) {
      all_.largest = loss.largest;
      all_.row = loss.row;
      all_.column = loss.column;
    }
    all_.clipped = all_.clipped || loss.clipped;
    all_.at_ends += loss.at_ends;
    all_.non_finite += loss.non_finite;
  }

  LayerLoss loss() const {
    LayerLoss loss;
    loss.module = layer_.module;
    loss.kind = model::kind_of(layer_.module);
    loss.block = model::block_of(layer_.module);
    loss.dead_channels = dead_;
    loss.rows = layer_.rows;
    loss.columns = layer_.columns;
    loss.non_finite = all_.non_finite;
    loss.smoothed = s_ != nullptr;
    loss.weights = layer_.scheme.weights;
    const std::uint64_t finite = layer_.rows * layer_.columns - all_.non_finite;
    const auto count = static_cast<double>(finite);
    const ErrorSums::Sums& sums = sums_.weights;
    loss.sqnr_db = measure::sqnr_db(sums.weights, sums.errors);
    const double norms = std::sqrt(sums.weights) * std::sqrt(sums.values);
    if (sums.weights == 0 && sums.values == 0)
      loss.cosine = 1;
    else
      loss.cosine = norms == 0 ? 0 : std::clamp(sums.products / norms, -1.0, 1.0);
    if (inputs_ != nullptr && all_.non_finite == 0)
      loss.estimated_output_sqnr_db =
          measure::sqnr_db(sums_.outputs.outputs, sums_.outputs.weight_errors + sums_.outputs.input_errors);
    if (finite == 0) {
      if (layer_.rows * layer_.columns > 0) loss.sqnr_db = loss.cosine = std::numeric_limits<double>::quiet_NaN();
      return loss;
    }
    loss.mse = sums.errors / count;
    loss.largest_error = std::max(all_.largest, 0.0);
    loss.largest_row = all_.row;
    loss.largest_column = all_.column;
    loss.at_ends = static_cast<double>(all_.at_ends) / count;
    const auto scales = static_cast<double>(layer_.scale_count());
    loss.saturated =
        all_.clipped && static_cast<double>(all_.at_ends) - scales > 2 * count / format::coarse_levels(layer_.code());
    return loss;
  }

  const io::Checkpoint& original_;
  const io::Checkpoint& quantized_;
  const format::SmoothingFile* smoothing_;
  const format::QuantizedLayer& layer_;
  const format::WeightSource& weight_;
  ElementKind kind_;
  std::uint64_t width_;
  const io::TensorInfo* s_;    // null: not smoothed
  const InputErrors* inputs_;  // null: not known
  double step_ = format::coarsest_step(layer_.code());

  LayerSums row_;
  LayerSums sums_;
  TileLoss all_;
  bool row_alive_ = false;
  std::uint64_t row_non_finite_ = 0;
  std::uint64_t dead_ = 0;
  const ErrorSums* sums_of_errors_ = nullptr;
  DetailCollector* details_ = nullptr;
};

}  // namespace

Result<LayerLoss> compare_layer(const ComparedLayer& compared, CompareResources& resources, DetailCollector* details,
                                base::Progress& progress) {
  return LayerComparison(compared).run(resources, details, progress);
}

}  // namespace kvant::measure
