#include "measure/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "format/activation_stats.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "kvant/stream.h"
#include "measure/median.h"
#include "measure/row_sums.h"
#include "measure/sqnr.h"
#include "model/model_facts.h"
#include "model/roles.h"
#include "quantize/output_folder.h"
#include "quantize/tiles.h"
#include "quantize/weight_tile.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;
using io::printable;

// A tile stays in a core's cache between reading it and adding it up.
constexpr std::uint64_t kMostTileBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastTileBytes = std::uint64_t{1} << 16;  // less is not worth a task
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 20;

// The vectors s of the norms that were folded, and which module was multiplied by which.
class Smoothing {
 public:
  static Result<std::optional<Smoothing>> open(const io::Checkpoint& quantized) {
    if (!quantized.is_folder()) return std::optional<Smoothing>();
    const fs::path path = quantized.path() / quantize::kOwnFolder / quantize::kSmoothingName;
    std::error_code error;
    if (!fs::exists(path, error)) return std::optional<Smoothing>();
    auto file = io::SafetensorsFile::open(path);
    if (!file.ok()) return file.status();
    return std::optional(Smoothing(std::move(file).value()));
  }

  // Null: the module was not smoothed.
  Result<const io::TensorInfo*> vector_of(const std::string& module, std::uint64_t columns) const {
    const auto it = file_.metadata().find(module);
    if (it == file_.metadata().end()) return static_cast<const io::TensorInfo*>(nullptr);
    const io::TensorInfo* s = file_.find(it->second);
    if (s == nullptr)
      return invalid_problem("{}: the vector '{}', which smoothed layer '{}', is missing", path(),
                             printable(it->second), printable(module));
    if (s->dtype != io::DType::f32 || s->shape.size() != 1 || s->shape[0] != columns)
      return invalid_problem("{}: tensor '{}' is {} [{}], must be F32 [{}] for layer '{}'", path(), printable(s->name),
                             io::name(s->dtype), fmt::join(s->shape, ", "), columns, printable(module));
    return s;
  }

  Status read(const io::TensorInfo& s, std::uint64_t column, std::span<float> to) const {
    if (Status status = file_.read(s, 4 * column, std::as_writable_bytes(to)); !status.ok()) return status;
    for (std::size_t i = 0; i < to.size(); ++i)
      if (!std::isfinite(to[i]))
        return invalid_problem("{}: element {} of '{}' is {}, must be finite", path(), column + i, printable(s.name),
                               to[i]);
    return {};
  }

 private:
  explicit Smoothing(io::SafetensorsFile file) : file_(std::move(file)) {}
  std::string path() const { return printable(file_.file().path().string()); }
  io::SafetensorsFile file_;
};

// What one thread works with.
struct Bench {
  std::vector<std::byte> weights;
  std::vector<float> wide;
  format::LayerRows rows;
  std::vector<float> s;
  quantize::WeightTile tile{Stream::cpu(1)};
  std::optional<std::pair<std::uint64_t, std::uint64_t>> s_columns;
  std::vector<float> magnitudes;  // the largest of each column; empty where they would not fit
};

// What all layers are compared with.
struct Workshop {
  explicit Workshop(const CompareOptions& options, Stream on)
      : stream(std::move(on)), max_memory(options.max_memory), benches(static_cast<std::size_t>(stream.threads())) {
    if (options.details) details.emplace(stream.threads());
  }

  // Whether what is kept for each column fits: magnitudes of every thread, statistics, s, cells of the strip.
  bool fits_columns(std::uint64_t columns) const { return columns <= max_memory / 8 / (4 * benches.size() + 32); }

  Stream stream;
  std::uint64_t max_memory;
  std::vector<Bench> benches;
  std::optional<DetailCollector> details;
};

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

class LayerComparison {
 public:
  LayerComparison(const io::Checkpoint& original, const io::Checkpoint& quantized, const Smoothing* smoothing,
                  const format::QuantizedLayer& layer, io::TensorPlace weight, ElementKind kind,
                  const io::TensorInfo* s)
      : original_(original),
        quantized_(quantized),
        smoothing_(smoothing),
        layer_(layer),
        weight_(weight),
        kind_(kind),
        width_(static_cast<std::uint64_t>(bits_per_element(kind)) / 8),
        s_(s) {}

  // `details`: null without.
  Result<LayerLoss> run(Workshop& workshop, DetailCollector* details, base::Progress& progress) {
    const std::uint64_t max_memory = workshop.max_memory;
    std::vector<Bench>& benches = workshop.benches;
    const auto threads = static_cast<std::uint64_t>(workshop.stream.threads());
    details_ = details;
    if (details_ != nullptr) details_->begin(layer_.rows, layer_.columns, layer_.bits);
    const std::uint64_t element_bytes = width_ + 2 + (s_ != nullptr ? 12 : 0);
    const std::uint64_t row_bytes = 12 * layer_.groups() + sizeof(LossSums);
    // A layer of the size of a few tiles is taken apart for all threads: one would wait for the other.
    const std::uint64_t layer_bytes = layer_.rows * (layer_.columns * element_bytes + row_bytes);
    const std::uint64_t for_all_threads = std::max(layer_bytes / (4 * threads), kLeastTileBytes);
    const quantize::Tiling tiling(layer_.rows, layer_.columns, element_bytes, row_bytes,
                                  std::min({kMostTileBytes, max_memory / (4 * threads), for_all_threads}));
    const bool by_column = workshop.fits_columns(layer_.columns);
    for (Bench& bench : benches) {
      bench.s_columns.reset();
      bench.magnitudes.assign(by_column ? static_cast<std::size_t>(layer_.columns) : 0, 0);
    }
    const std::uint64_t most_blocks = std::min(kMostBlocks, max_memory / (8 * sizeof(LossSums)));
    const std::uint64_t wave = std::max(most_blocks / std::max(tiling.most_blocks(), std::uint64_t{1}), threads);
    for (std::uint64_t first = 0; first < tiling.count(); first += wave) {
      const std::uint64_t last = first + std::min(wave, tiling.count() - first);
      blocks_.resize(static_cast<std::size_t>((last - first) * tiling.most_blocks()));
      tiles_.assign(static_cast<std::size_t>(last - first), {});
      Status done = quantize::for_each_tile(workshop.stream, first, last, [&](std::size_t worker, std::uint64_t i) {
        const quantize::Tile tile = tiling[i];
        const auto at = static_cast<std::size_t>(i - first);
        Status s = work(tile, worker, benches[worker],
                        std::span(blocks_).subspan(at * tiling.most_blocks(), tile.blocks()), tiles_[at]);
        progress.advance(tile.rows * tile.columns * width_);
        return s;
      });
      if (!done.ok()) return done;
      for (std::uint64_t i = first; i < last; ++i) {
        const auto at = static_cast<std::size_t>(i - first);
        add(tiling[i], std::span(blocks_).subspan(at * tiling.most_blocks()), tiles_[at]);
      }
    }
    LayerLoss layer = loss();
    if (by_column) layer.outlier_channels = outliers(benches);
    return layer;
  }

 private:
  Status work(const quantize::Tile& tile, std::size_t worker, Bench& bench, std::span<LossSums> blocks,
              TileLoss& loss) const {
    const base::DefaultFloatEnvironment environment;
    const std::uint64_t row_bytes = tile.columns * width_;
    bench.weights.resize(static_cast<std::size_t>(tile.rows * row_bytes));
    if (Status s = original_.read(weight_, (tile.row * layer_.columns + tile.column) * width_, bench.weights); !s.ok())
      return s;
    if (s_ != nullptr)
      if (Status s = smooth(tile, bench); !s.ok()) return s;
    if (Status s = format::read_rows(quantized_, layer_, tile.row, tile.rows, tile.column, tile.columns, bench.rows);
        !s.ok())
      return s;
    if (Status s = check_scales(tile, bench.rows); !s.ok()) return s;
    bench.wide.resize(quantize::kBlock);
    std::size_t block = 0;
    for (std::uint64_t r = 0; r < tile.rows; ++r)
      for (std::uint64_t c = 0; c < tile.columns; c += quantize::kBlock) {
        const auto count = static_cast<std::size_t>(std::min(quantize::kBlock, tile.columns - c));
        const std::byte* from = bench.weights.data() + r * row_bytes + c * width_;
        LossSums& sums = blocks[block++];
        if (kind_ == ElementKind::f64) {
          add_block(reinterpret_cast<const double*>(from), tile, r, c, count, worker, bench, sums, loss);
        } else {
          widen(kind_, from, count, bench.wide.data());
          add_block(bench.wide.data(), tile, r, c, count, worker, bench, sums, loss);
        }
      }
    return {};
  }

  // As the quantizer did.
  Status smooth(const quantize::Tile& tile, Bench& bench) const {
    const std::pair columns(tile.column, tile.columns);
    if (bench.s_columns != columns) {
      bench.s_columns.reset();
      bench.s.resize(static_cast<std::size_t>(tile.columns));
      if (Status s = smoothing_->read(*s_, tile.column, bench.s); !s.ok()) return s;
      bench.s_columns = columns;
    }
    return bench.tile.smooth(bench.weights, kind_, bench.s);
  }

  Status check_scales(const quantize::Tile& tile, const format::LayerRows& rows) const {
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
  void add_block(const T* weights, const quantize::Tile& tile, std::uint64_t r, std::uint64_t c, std::size_t count,
                 std::size_t worker, Bench& bench, LossSums& sums, TileLoss& tile_loss) const {
    const format::LayerRows& rows = bench.rows;
    const std::int8_t* codes = rows.codes.data() + r * tile.columns + c;
    const std::uint64_t column = tile.column + c;
    sums = {};
    for (std::size_t i = 0; i < count;) {
      std::uint64_t group = 0;
      std::size_t length = count - i;
      if (layer_.bits != 8) {
        group = (column + i) / layer_.group_size;
        length = static_cast<std::size_t>(
            std::min<std::uint64_t>(length, layer_.group_size - (column + i) % layer_.group_size));
        group -= rows.first_group;
      }
      const float scale = rows.scales[r * rows.groups + group];
      const std::int32_t zero_point = rows.zero_points[r * rows.groups + group];
      const Loss loss = segment_loss(weights + i, codes + i, length, scale, zero_point, layer_.q_max());
      sums += loss.sums;
      if (details_ != nullptr)
        details_->add<T>(worker, {weights + i, codes + i, length, tile.row + r, column + i, scale, zero_point}, loss);
      if (!bench.magnitudes.empty())
        raise_magnitudes(weights + i, length, loss.non_finite, &bench.magnitudes[column + i]);
      const bool alive =
          loss.sums.weights == 0 && std::any_of(weights + i, weights + i + length, [](T w) { return w != 0; });
      if (alive || loss.non_finite > 0) {
        if (tile_loss.odd_rows.empty() || tile_loss.odd_rows.back().row != tile.row + r)
          tile_loss.odd_rows.push_back({tile.row + r});
        TileLoss::OddRow& row = tile_loss.odd_rows.back();
        row.alive = row.alive || alive;
        row.non_finite += loss.non_finite;
      }
      tile_loss.clipped = tile_loss.clipped || (loss.largest > static_cast<double>(scale) && loss.non_finite < length);
      tile_loss.at_ends += loss.at_ends;
      tile_loss.non_finite += loss.non_finite;
      if (loss.largest > tile_loss.largest && loss.non_finite < length) {
        tile_loss.largest = loss.largest;
        tile_loss.row = tile.row + r;
        const std::size_t place = place_of_error(weights + i, codes + i, length, scale, zero_point, loss.largest);
        tile_loss.column = column + i + (place < length ? place : 0);
      }
      i += length;
    }
  }

  template <class T>
  static void raise_magnitudes(const T* weights, std::size_t count, std::uint64_t non_finite, float* largest) {
    if (non_finite == 0) return raise_to_magnitudes(weights, count, largest);
    for (std::size_t i = 0; i < count; ++i)
      if (std::isfinite(weights[i])) raise_to_magnitudes(weights + i, 1, largest + i);
  }

  // Columns whose largest magnitude stands out.
  static std::uint64_t outliers(std::vector<Bench>& benches) {
    std::vector<float>& all = benches.front().magnitudes;
    for (const Bench& bench : benches)
      for (std::size_t j = 0; j < all.size(); ++j) all[j] = std::max(all[j], bench.magnitudes[j]);
    const double bound = kOutlierFactor * median(all);
    return static_cast<std::uint64_t>(
        std::ranges::count_if(all, [&](float m) { return static_cast<double>(m) > bound; }));
  }

  // Tiles come in order: blocks are added to their row, and whole rows to the layer.
  void add(const quantize::Tile& tile, std::span<const LossSums> blocks, const TileLoss& loss) {
    const std::uint64_t per_row = tile.blocks_per_row();
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
      if (row_.weights == 0 && !row_alive_) ++dead_;
      if (details_ != nullptr) details_->add_row(row_, layer_.columns - row_non_finite_);
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
    const std::uint64_t finite = layer_.rows * layer_.columns - all_.non_finite;
    const auto count = static_cast<double>(finite);
    loss.sqnr_db = measure::sqnr_db(sums_.weights, sums_.errors);
    const double norms = std::sqrt(sums_.weights) * std::sqrt(sums_.values);
    if (sums_.weights == 0 && sums_.values == 0)
      loss.cosine = 1;
    else
      loss.cosine = norms == 0 ? 0 : std::clamp(sums_.products / norms, -1.0, 1.0);
    if (finite == 0) {
      if (layer_.rows * layer_.columns > 0) loss.sqnr_db = loss.cosine = std::numeric_limits<double>::quiet_NaN();
      return loss;
    }
    loss.mse = sums_.errors / count;
    loss.largest_error = std::max(all_.largest, 0.0);
    loss.largest_row = all_.row;
    loss.largest_column = all_.column;
    loss.at_ends = static_cast<double>(all_.at_ends) / count;
    const auto scales = static_cast<double>(layer_.rows * layer_.groups());
    loss.saturated = all_.clipped && static_cast<double>(all_.at_ends) - scales > 2 * count / layer_.q_max();
    return loss;
  }

  const io::Checkpoint& original_;
  const io::Checkpoint& quantized_;
  const Smoothing* smoothing_;
  const format::QuantizedLayer& layer_;
  io::TensorPlace weight_;
  ElementKind kind_;
  std::uint64_t width_;
  const io::TensorInfo* s_;  // null: not smoothed

  std::vector<LossSums> blocks_;
  std::vector<TileLoss> tiles_;
  LossSums row_;
  LossSums sums_;
  TileLoss all_;
  bool row_alive_ = false;
  std::uint64_t row_non_finite_ = 0;
  std::uint64_t dead_ = 0;
  DetailCollector* details_ = nullptr;
};

std::uint64_t bytes_of(const io::Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const io::SafetensorsFile& shard : checkpoint.shards())
    for (const io::TensorInfo& tensor : shard.tensors()) bytes += tensor.bytes();
  return bytes;
}

// The weight that a layer was made of.
Result<io::TensorPlace> original_of(const io::Checkpoint& original, const format::QuantizedLayer& layer) {
  const std::string tensor = layer.module + ".weight";
  const auto it = original.tensors().find(tensor);
  if (it == original.tensors().end())
    return invalid_problem("{}: has no tensor '{}', which the quantized checkpoint has: the two do not belong together",
                           printable(original.path().string()), printable(tensor));
  const io::TensorInfo& info = original.shards()[it->second.shard].tensors()[it->second.tensor];
  if (info.shape.size() != 2 || info.shape[0] != layer.rows || info.shape[1] != layer.columns)
    return invalid_problem("{}: tensor '{}' has shape [{}], the quantized one [{}, {}]: the two do not belong together",
                           printable(original.shard_name(it->second.shard)), printable(tensor),
                           fmt::join(info.shape, ", "), layer.rows, layer.columns);
  if (!format::element_of(info.dtype))
    return invalid_problem("{}: tensor '{}' holds {}; the original's weights must be F32, F64, F16 or BF16",
                           printable(original.shard_name(it->second.shard)), printable(tensor), io::name(info.dtype));
  return it->second;
}

// One quantized checkpoint while it is compared.
struct Candidate {
  struct Layer {
    const format::QuantizedLayer* layer;
    io::TensorPlace weight;  // in the original
    const io::TensorInfo* s;
  };
  io::Checkpoint checkpoint;
  format::QuantizationConfig config;
  std::vector<format::QuantizedLayer> layers;
  std::optional<Smoothing> smoothing;
  std::map<std::string_view, Layer> by_name = {};
};

// All that can be refused without reading weights is, here. `bytes` grows by what will be read.
Result<Candidate> open_candidate(const io::Checkpoint& original, const fs::path& path, std::uint64_t& bytes) {
  auto checkpoint = io::Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  auto config = format::read_quantization_config(*checkpoint);
  if (!config.ok()) return config.status();
  auto layers = format::find_quantized_layers(*checkpoint, *config);
  if (!layers.ok()) return layers.status();
  auto smoothing = Smoothing::open(*checkpoint);
  if (!smoothing.ok()) return smoothing.status();
  Candidate candidate{std::move(checkpoint).value(), std::move(config).value(), std::move(layers).value(),
                      std::move(smoothing).value()};
  for (const format::QuantizedLayer& layer : candidate.layers) {
    const auto weight = original_of(original, layer);
    if (!weight.ok()) return weight.status();
    const io::TensorInfo* s = nullptr;
    if (candidate.smoothing) {
      const auto vector = candidate.smoothing->vector_of(layer.module, layer.columns);
      if (!vector.ok()) return vector.status();
      s = *vector;
    }
    bytes += original.shards()[weight->shard].tensors()[weight->tensor].bytes();
    candidate.by_name[layer.module] = {&layer, *weight, s};
  }
  return candidate;
}

// The ranges of a layer's input as far as they are known.
Result<InputChannels> inputs_of(const Candidate& candidate, const Candidate::Layer& layer,
                                const std::optional<format::ActivationStats>& stats) {
  std::vector<float> s, absmax;
  if (layer.s != nullptr) {
    s.resize(static_cast<std::size_t>(layer.layer->columns));
    if (Status status = candidate.smoothing->read(*layer.s, 0, s); !status.ok()) return status;
  }
  if (stats && stats->has_absmax(layer.layer->module)) {
    auto read = stats->absmax(layer.layer->module, layer.layer->columns);
    if (!read.ok()) return read.status();
    absmax = std::move(read).value();
  }
  return input_channels(absmax, s);
}

// Keeps the details of the worst layers.
class WorstDetails {
 public:
  explicit WorstDetails(std::size_t checkpoints)
      : most_(std::max(kDetails / std::max(checkpoints, std::size_t{1}), kLeastDetails)) {}

  bool takes(double sqnr_db) const { return kept_.size() < most_ || is_worse(sqnr_db, kept_.back().sqnr_db); }
  void add(double sqnr_db, LayerDetails details) {
    const auto at = std::upper_bound(kept_.begin(), kept_.end(), sqnr_db,
                                     [](double worse, const Kept& kept) { return is_worse(worse, kept.sqnr_db); });
    kept_.insert(at, {sqnr_db, std::move(details)});
    if (kept_.size() > most_) kept_.pop_back();
  }
  std::vector<LayerDetails> take() {
    std::vector<LayerDetails> all;
    for (Kept& kept : kept_) {
      for (std::optional<LayerDetail>& detail : kept.details.quantized)
        if (detail) round_for_drawing(*detail);
      all.push_back(std::move(kept.details));
    }
    return all;
  }

 private:
  static constexpr std::size_t kLeastDetails = 8;
  struct Kept {
    double sqnr_db;
    LayerDetails details;
  };
  std::size_t most_;
  std::vector<Kept> kept_;  // worst first; of equals, the one that came first
};

// A short name for each path: its last part, and as many before it as tell it from the others; a number for a path that
// is given twice.
std::vector<std::string> labels_of(const std::vector<fs::path>& paths) {
  std::vector<std::vector<std::string>> parts;
  for (const fs::path& path : paths) {
    std::error_code error;
    parts.emplace_back();
    for (const fs::path& part : fs::absolute(path, error).lexically_normal())
      if (!part.empty()) parts.back().push_back(part.string());
  }
  const auto tail = [&](std::size_t path, std::size_t count) {
    fs::path joined;
    for (std::size_t i = parts[path].size() - std::min(count, parts[path].size()); i < parts[path].size(); ++i)
      joined /= parts[path][i];
    return joined.string();
  };
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::size_t count = 1;
    const auto is_shared = [&] {
      for (std::size_t j = 0; j < paths.size(); ++j)
        if (parts[j] != parts[i] && tail(j, count) == tail(i, count)) return true;
      return false;
    };
    while (count < parts[i].size() && is_shared()) ++count;
    const auto before =
        static_cast<std::size_t>(std::count(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), parts[i]));
    labels.push_back(tail(i, count) + (before == 0 ? "" : fmt::format(" ({})", before + 1)));
  }
  return labels;
}

// Worst first; ties by name.
bool is_before(const LayerLoss& a, const LayerLoss& b) {
  if (is_worse(a.sqnr_db, b.sqnr_db)) return true;
  return !is_worse(b.sqnr_db, a.sqnr_db) && a.module < b.module;
}

void add_totals(const io::Checkpoint& original, const Candidate& candidate, ModelLoss& loss) {
  std::ranges::sort(loss.layers, is_before);
  double sum = 0;
  std::uint64_t finite = 0;
  for (const LayerLoss& layer : loss.layers)
    if (std::isfinite(layer.sqnr_db)) {
      sum += layer.sqnr_db;
      ++finite;
    }
  if (finite > 0) loss.mean_sqnr_db = sum / static_cast<double>(finite);
  loss.bytes = bytes_of(candidate.checkpoint);
  const std::string model_type = model::facts_of(original).model_type;
  for (const auto& [name, place] : original.tensors()) {
    const model::Role role = model::judge(original.shards()[place.shard].tensors()[place.tensor], model_type).role;
    if (!model::is_linear_module(role)) continue;
    if (!candidate.by_name.contains(format::module_of(name))) loss.unquantized.emplace_back(format::module_of(name));
  }
}

}  // namespace

Result<Comparison> compare(const CompareOptions& options, base::Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  const auto original = io::Checkpoint::open(options.original);
  if (!original.ok()) return original.status();
  std::optional<format::ActivationStats> stats;
  if (options.stats) {
    auto opened = format::ActivationStats::open(*options.stats);
    if (!opened.ok()) return opened.status();
    stats = std::move(opened).value();
  }

  Comparison comparison;
  comparison.original = options.original;
  comparison.model_type = model::facts_of(*original).model_type;
  comparison.bytes = bytes_of(*original);
  for (const io::SafetensorsFile& shard : original->shards())
    for (const io::TensorInfo& tensor : shard.tensors()) {
      std::uint64_t elements = 1;
      for (const std::uint64_t size : tensor.shape) elements *= size;
      comparison.parameters += elements;
    }

  std::uint64_t bytes = 0;
  std::vector<Candidate> candidates;
  std::set<std::string_view> modules;
  candidates.reserve(options.quantized.size());
  const std::vector<std::string> labels = labels_of(options.quantized);
  for (std::size_t i = 0; i < options.quantized.size(); ++i) {
    auto candidate = open_candidate(*original, options.quantized[i], bytes);
    if (!candidate.ok()) return candidate.status();
    candidates.push_back(std::move(candidate).value());
    for (const auto& [module, layer] : candidates.back().by_name) modules.insert(module);
    ModelLoss& loss = comparison.quantized.emplace_back();
    loss.path = options.quantized[i];
    loss.label = labels[i];
    loss.scheme = candidates.back().config.scheme;
  }

  // Layer by layer, each in all checkpoints: what is kept of the worst can then be chosen on the way.
  progress.begin("comparing", bytes);
  Workshop workshop(options, stream);
  WorstDetails worst(candidates.size());
  const auto with_statistics = static_cast<std::size_t>(
      std::ranges::count_if(modules, [&](std::string_view module) { return stats && stats->has_absmax(module); }));
  for (const std::string_view module : modules) {
    LayerDetails details{std::string(module), std::vector<std::optional<LayerDetail>>(candidates.size())};
    double worst_sqnr = std::numeric_limits<double>::infinity();
    bool has_details = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const Candidate& candidate = candidates[i];
      const auto found = candidate.by_name.find(module);
      if (found == candidate.by_name.end()) continue;
      const auto& [layer, weight, s] = found->second;
      const io::TensorInfo& info = original->shards()[weight.shard].tensors()[weight.tensor];
      LayerComparison work(*original, candidate.checkpoint, candidate.smoothing ? &*candidate.smoothing : nullptr,
                           *layer, weight, *format::element_of(info.dtype), s);
      DetailCollector* const collector =
          workshop.details && workshop.fits_columns(layer->columns) ? &*workshop.details : nullptr;
      auto loss = work.run(workshop, collector, progress);
      if (!loss.ok()) return loss.status();
      if (is_worse(loss->sqnr_db, worst_sqnr)) worst_sqnr = loss->sqnr_db;
      const bool keeps =
          collector != nullptr && (has_details || worst.takes(loss->sqnr_db) || i + 1 < candidates.size());
      if (workshop.fits_columns(layer->columns) && (stats || keeps)) {
        auto inputs = inputs_of(candidate, found->second, stats);
        if (!inputs.ok()) return inputs.status();
        if (!inputs->before.empty()) loss->input_ratio = s != nullptr ? inputs->ratio_after : inputs->ratio_before;
        if (keeps) {
          details.quantized[i] = collector->finish();
          details.quantized[i]->inputs = std::move(inputs).value();
          has_details = true;
        }
      }
      comparison.quantized[i].layers.push_back(std::move(loss).value());
    }
    if (has_details && worst.takes(worst_sqnr)) worst.add(worst_sqnr, std::move(details));
  }
  comparison.details = worst.take();
  if (stats && with_statistics < modules.size())
    comparison.warnings.push_back(
        fmt::format("{}: has statistics for {} of the {} quantized layers", printable(options.stats->string()),
                    with_statistics == 0 ? "none" : std::to_string(with_statistics), modules.size()));
  for (std::size_t i = 0; i < candidates.size(); ++i) add_totals(*original, candidates[i], comparison.quantized[i]);
  comparison.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comparison;
}

std::vector<SideBySide> side_by_side(const Comparison& comparison) {
  const std::size_t count = comparison.quantized.size();
  std::vector<SideBySide> layers;
  std::unordered_map<std::string_view, std::size_t> found;
  for (std::size_t q = 0; q < count; ++q)
    for (const LayerLoss& loss : comparison.quantized[q].layers) {
      const auto [at, is_new] = found.emplace(loss.module, layers.size());
      if (is_new) layers.push_back({&loss, std::vector<const LayerLoss*>(count)});
      SideBySide& layer = layers[at->second];
      layer.losses[q] = &loss;
      if (is_worse(loss.sqnr_db, layer.worst->sqnr_db)) layer.worst = &loss;
    }
  std::ranges::sort(layers, is_before, [](const SideBySide& layer) -> const LayerLoss& { return *layer.worst; });
  return layers;
}

std::optional<double> mean_output_sqnr_db(const ModelLoss& loss) {
  double sum = 0;
  std::uint64_t finite = 0;
  for (const LayerLoss& layer : loss.layers)
    if (layer.output_sqnr_db && std::isfinite(*layer.output_sqnr_db)) {
      sum += *layer.output_sqnr_db;
      ++finite;
    }
  if (finite == 0) return std::nullopt;
  return sum / static_cast<double>(finite);
}

std::vector<std::string> warnings_of(const ModelLoss& loss) {
  std::vector<std::string> sentences;
  // "3 weights in 2 layers (a, b)": `count` of a layer, which may be 0.
  const auto warn = [&](std::string_view one, std::string_view many, std::string_view what, auto count) {
    constexpr std::size_t kNamed = 3;
    std::uint64_t total = 0, layers = 0;
    std::string names;
    for (const LayerLoss& layer : loss.layers) {
      const std::uint64_t n = count(layer);
      if (n == 0) continue;
      total += n;
      if (layers++ < kNamed) names += (names.empty() ? "" : ", ") + printable(layer.module);
    }
    if (total == 0) return;
    if (layers > kNamed) names += fmt::format(" and {} more", layers - kNamed);
    sentences.push_back(fmt::format("{} {} {}: {}", total, total == 1 ? one : many, what, names));
  };
  warn("weight is", "weights are", "NaN or infinite", [](const LayerLoss& l) { return l.non_finite; });
  warn("output channel has", "output channels have", "only zeros as weights",
       [](const LayerLoss& l) { return l.dead_channels; });
  warn("layer is", "layers are", "saturated, with far more codes at the ends of their range than weights need",
       [](const LayerLoss& l) { return std::uint64_t{l.saturated ? 1u : 0u}; });
  return sentences;
}

}  // namespace kvant::measure
