#include "recipes/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "core/refuse.h"
#include "cpu/float_environment.h"
#include "io/checkpoint.h"
#include "kvant/stream.h"
#include "recipes/json_values.h"
#include "recipes/output_folder.h"
#include "recipes/quantized_layers.h"
#include "recipes/roles.h"
#include "recipes/row_sums.h"
#include "recipes/stored_scale.h"
#include "recipes/tiles.h"
#include "recipes/weight_tile.h"

namespace kvant::recipes {
namespace {

namespace fs = std::filesystem;
using core::invalid_problem;
using io::printable;

// A tile stays in a core's cache between reading it and adding it up.
constexpr std::uint64_t kMostTileBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 20;

// The vectors s of the norms that were folded, and which module was multiplied by which.
class Smoothing {
 public:
  static Result<std::optional<Smoothing>> open(const io::Checkpoint& quantized) {
    if (!quantized.is_folder()) return std::optional<Smoothing>();
    const fs::path path = quantized.path() / kOwnFolder / kSmoothingName;
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
  LayerRows rows;
  std::vector<float> s;
  WeightTile tile{Stream::cpu(1)};
  std::optional<std::pair<std::uint64_t, std::uint64_t>> s_columns;
};

// Everything of a tile but its sums, which are kept block by block.
struct TileLoss {
  double largest = -1;
  std::uint64_t row = 0;
  std::uint64_t column = 0;
  std::uint64_t at_ends = 0;
  std::uint64_t non_finite = 0;
};

class LayerComparison {
 public:
  LayerComparison(const io::Checkpoint& original, const io::Checkpoint& quantized, const Smoothing* smoothing,
                  const QuantizedLayer& layer, io::TensorPlace weight, ElementKind kind, const io::TensorInfo* s)
      : original_(original),
        quantized_(quantized),
        smoothing_(smoothing),
        layer_(layer),
        weight_(weight),
        kind_(kind),
        width_(static_cast<std::uint64_t>(bits_per_element(kind)) / 8),
        s_(s) {}

  Result<LayerLoss> run(const Stream& stream, std::uint64_t max_memory, std::vector<Bench>& benches,
                        Progress& progress) {
    const auto threads = static_cast<std::uint64_t>(stream.threads());
    const std::uint64_t element_bytes = width_ + 2 + (s_ != nullptr ? 12 : 0);
    const std::uint64_t row_bytes = 12 * layer_.groups() + sizeof(LossSums);
    const Tiling tiling(layer_.rows, layer_.columns, element_bytes, row_bytes,
                        std::min(kMostTileBytes, max_memory / (4 * threads)));
    for (Bench& bench : benches) bench.s_columns.reset();
    const std::uint64_t most_blocks = std::min(kMostBlocks, max_memory / (8 * sizeof(LossSums)));
    const std::uint64_t wave = std::max(most_blocks / std::max(tiling.most_blocks(), std::uint64_t{1}), threads);
    for (std::uint64_t first = 0; first < tiling.count(); first += wave) {
      const std::uint64_t last = first + std::min(wave, tiling.count() - first);
      blocks_.resize(static_cast<std::size_t>((last - first) * tiling.most_blocks()));
      tiles_.assign(static_cast<std::size_t>(last - first), {});
      Status done = for_each_tile(stream, first, last, [&](std::size_t worker, std::uint64_t i) {
        const Tile tile = tiling[i];
        const auto at = static_cast<std::size_t>(i - first);
        Status s = work(tile, benches[worker], std::span(blocks_).subspan(at * tiling.most_blocks(), tile.blocks()),
                        tiles_[at]);
        progress.advance(tile.rows * tile.columns * width_);
        return s;
      });
      if (!done.ok()) return done;
      for (std::uint64_t i = first; i < last; ++i) {
        const auto at = static_cast<std::size_t>(i - first);
        add(tiling[i], std::span(blocks_).subspan(at * tiling.most_blocks()), tiles_[at]);
      }
    }
    return loss();
  }

 private:
  Status work(const Tile& tile, Bench& bench, std::span<LossSums> blocks, TileLoss& loss) const {
    const cpu::DefaultFloatEnvironment environment;
    const std::uint64_t row_bytes = tile.columns * width_;
    bench.weights.resize(static_cast<std::size_t>(tile.rows * row_bytes));
    if (Status s = original_.read(weight_, (tile.row * layer_.columns + tile.column) * width_, bench.weights); !s.ok())
      return s;
    if (s_ != nullptr)
      if (Status s = smooth(tile, bench); !s.ok()) return s;
    if (Status s = read_rows(quantized_, layer_, tile.row, tile.rows, tile.column, tile.columns, bench.rows); !s.ok())
      return s;
    if (Status s = check_scales(tile, bench.rows); !s.ok()) return s;
    bench.wide.resize(kBlock);
    std::size_t block = 0;
    for (std::uint64_t r = 0; r < tile.rows; ++r)
      for (std::uint64_t c = 0; c < tile.columns; c += kBlock) {
        const auto count = static_cast<std::size_t>(std::min(kBlock, tile.columns - c));
        const std::byte* from = bench.weights.data() + r * row_bytes + c * width_;
        LossSums& sums = blocks[block++];
        if (kind_ == ElementKind::f64) {
          add_block(reinterpret_cast<const double*>(from), tile, r, c, count, bench.rows, sums, loss);
        } else {
          widen(kind_, from, count, bench.wide.data());
          add_block(bench.wide.data(), tile, r, c, count, bench.rows, sums, loss);
        }
      }
    return {};
  }

  // As the quantizer did.
  Status smooth(const Tile& tile, Bench& bench) const {
    const std::pair columns(tile.column, tile.columns);
    if (bench.s_columns != columns) {
      bench.s_columns.reset();
      bench.s.resize(static_cast<std::size_t>(tile.columns));
      if (Status s = smoothing_->read(*s_, tile.column, bench.s); !s.ok()) return s;
      bench.s_columns = columns;
    }
    return bench.tile.smooth(bench.weights, kind_, bench.s);
  }

  Status check_scales(const Tile& tile, const LayerRows& rows) const {
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
  void add_block(const T* weights, const Tile& tile, std::uint64_t r, std::uint64_t c, std::size_t count,
                 const LayerRows& rows, LossSums& sums, TileLoss& tile_loss) const {
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

  // Tiles come in order: blocks are added to their row, and whole rows to the layer.
  void add(const Tile& tile, std::span<const LossSums> blocks, const TileLoss& loss) {
    const std::uint64_t per_row = tile.blocks_per_row();
    for (std::uint64_t r = 0; r < tile.rows; ++r) {
      for (std::uint64_t b = 0; b < per_row; ++b) row_ += blocks[r * per_row + b];
      if (tile.column + tile.columns < layer_.columns) continue;
      sums_ += row_;
      row_ = {};
    }
    if (loss.largest > all_.largest) {
      all_.largest = loss.largest;
      all_.row = loss.row;
      all_.column = loss.column;
    }
    all_.at_ends += loss.at_ends;
    all_.non_finite += loss.non_finite;
  }

  LayerLoss loss() const {
    LayerLoss loss;
    loss.module = layer_.module;
    loss.rows = layer_.rows;
    loss.columns = layer_.columns;
    loss.non_finite = all_.non_finite;
    loss.smoothed = s_ != nullptr;
    const std::uint64_t finite = layer_.rows * layer_.columns - all_.non_finite;
    const auto count = static_cast<double>(finite);
    loss.sqnr_db =
        sums_.errors == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(sums_.weights / sums_.errors);
    const double norms = std::sqrt(sums_.weights) * std::sqrt(sums_.values);
    if (sums_.weights == 0 && sums_.values == 0)
      loss.cosine = 1;
    else
      loss.cosine = norms == 0 ? 0 : std::clamp(sums_.products / norms, -1.0, 1.0);
    if (finite == 0) return loss;
    loss.mse = sums_.errors / count;
    loss.largest_error = std::max(all_.largest, 0.0);
    loss.largest_row = all_.row;
    loss.largest_column = all_.column;
    loss.at_ends = static_cast<double>(all_.at_ends) / count;
    return loss;
  }

  const io::Checkpoint& original_;
  const io::Checkpoint& quantized_;
  const Smoothing* smoothing_;
  const QuantizedLayer& layer_;
  io::TensorPlace weight_;
  ElementKind kind_;
  std::uint64_t width_;
  const io::TensorInfo* s_;  // null: not smoothed

  std::vector<LossSums> blocks_;
  std::vector<TileLoss> tiles_;
  LossSums row_;
  LossSums sums_;
  TileLoss all_;
};

std::uint64_t bytes_of(const io::Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const io::SafetensorsFile& shard : checkpoint.shards())
    for (const io::TensorInfo& tensor : shard.tensors()) bytes += tensor.bytes();
  return bytes;
}

// The weight that a layer was made of.
Result<io::TensorPlace> original_of(const io::Checkpoint& original, const QuantizedLayer& layer) {
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
  if (!element_of(info.dtype))
    return invalid_problem("{}: tensor '{}' holds {}; the original's weights must be F32, F64, F16 or BF16",
                           printable(original.shard_name(it->second.shard)), printable(tensor), io::name(info.dtype));
  return it->second;
}

}  // namespace

Result<Comparison> compare(const CompareOptions& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  const auto original = io::Checkpoint::open(options.original);
  if (!original.ok()) return original.status();
  const auto quantized = io::Checkpoint::open(options.quantized);
  if (!quantized.ok()) return quantized.status();
  const auto config = read_quantization_config(*quantized);
  if (!config.ok()) return config.status();
  const auto layers = find_quantized_layers(*quantized, *config);
  if (!layers.ok()) return layers.status();
  const auto smoothing = Smoothing::open(*quantized);
  if (!smoothing.ok()) return smoothing.status();

  // All that can be refused without reading weights is, first.
  struct Job {
    const QuantizedLayer* layer;
    io::TensorPlace weight;
    const io::TensorInfo* s;
  };
  std::vector<Job> jobs;
  std::uint64_t bytes = 0;
  for (const QuantizedLayer& layer : *layers) {
    const auto weight = original_of(*original, layer);
    if (!weight.ok()) return weight.status();
    const io::TensorInfo* s = nullptr;
    if (*smoothing) {
      const auto vector = (*smoothing)->vector_of(layer.module, layer.columns);
      if (!vector.ok()) return vector.status();
      s = *vector;
    }
    bytes += original->shards()[weight->shard].tensors()[weight->tensor].bytes();
    jobs.push_back({&layer, *weight, s});
  }

  Comparison comparison;
  comparison.scheme = config->scheme;
  progress.begin("comparing", bytes);
  std::vector<Bench> benches(static_cast<std::size_t>(stream.threads()));
  std::set<std::string_view> compared;
  for (const Job& job : jobs) {
    const io::TensorInfo& info = original->shards()[job.weight.shard].tensors()[job.weight.tensor];
    LayerComparison layer(*original, *quantized, *smoothing ? &**smoothing : nullptr, *job.layer, job.weight,
                          *element_of(info.dtype), job.s);
    auto loss = layer.run(stream, options.max_memory, benches, progress);
    if (!loss.ok()) return loss.status();
    compared.insert(job.layer->module);
    comparison.layers.push_back(std::move(loss).value());
  }
  // A NaN, which only sums that overflow make, is the worst.
  std::sort(comparison.layers.begin(), comparison.layers.end(), [](const LayerLoss& a, const LayerLoss& b) {
    const bool a_nan = std::isnan(a.sqnr_db), b_nan = std::isnan(b.sqnr_db);
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && a.sqnr_db != b.sqnr_db) return a.sqnr_db < b.sqnr_db;
    return a.module < b.module;
  });
  double sum = 0;
  std::uint64_t finite = 0;
  for (const LayerLoss& loss : comparison.layers)
    if (std::isfinite(loss.sqnr_db)) {
      sum += loss.sqnr_db;
      ++finite;
    }
  comparison.mean_sqnr_db = finite == 0 ? 0 : sum / static_cast<double>(finite);
  comparison.bytes_original = bytes_of(*original);
  comparison.bytes_quantized = bytes_of(*quantized);
  const std::string model_type = model_type_of(*original);
  for (const auto& [name, place] : original->tensors()) {
    const Role role = judge(original->shards()[place.shard].tensors()[place.tensor], model_type).role;
    if (role != Role::linear && role != Role::lm_head && role != Role::router) continue;
    if (!compared.contains(module_of(name))) comparison.unquantized.emplace_back(module_of(name));
  }
  comparison.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return comparison;
}

io::Json to_json(const Comparison& comparison) {
  io::Json layers = io::Json::array();
  for (const LayerLoss& loss : comparison.layers)
    layers.push_back({{"module", loss.module},
                      {"rows", loss.rows},
                      {"columns", loss.columns},
                      {"sqnr_db", json_number(loss.sqnr_db)},
                      {"mse", json_number(loss.mse)},
                      {"cosine", json_number(loss.cosine)},
                      {"largest_error", json_number(loss.largest_error)},
                      {"largest_row", loss.largest_row},
                      {"largest_column", loss.largest_column},
                      {"at_ends", json_number(loss.at_ends)},
                      {"non_finite", loss.non_finite},
                      {"smoothed", loss.smoothed}});
  return {{"scheme", describe(comparison.scheme)},         {"layers", std::move(layers)},
          {"unquantized", comparison.unquantized},         {"bytes_original", comparison.bytes_original},
          {"bytes_quantized", comparison.bytes_quantized}, {"mean_sqnr_db", json_number(comparison.mean_sqnr_db)},
          {"seconds", json_number(comparison.seconds)}};
}

}  // namespace kvant::recipes
