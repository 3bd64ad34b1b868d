#include "measure/inspect.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "format/element_dtype.h"
#include "format/quantization_config.h"
#include "format/widen.h"
#include "io/checkpoint.h"
#include "io/tiling.h"
#include "kvant/range.h"
#include "kvant/stream.h"
#include "measure/block_sums.h"
#include "measure/median.h"
#include "model/model_facts.h"

namespace kvant::measure {
namespace {

constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 21;

// What one thread works with.
struct ThreadBuffers {
  std::vector<std::byte> bytes;
  std::vector<float> wide;
  std::vector<std::byte> workspace;
  std::vector<std::byte> columns;  // the largest magnitude of each, in the scale type of the tensor
};

struct TileStats {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zeros = 0;

  void operator+=(const TileStats& other) {
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    nan += other.nan;
    infinite += other.infinite;
    zeros += other.zeros;
  }
};

class TensorStats {
 public:
  TensorStats(const io::SafetensorsFile& file, const io::TensorInfo& info, ElementKind kind, const ErrorSums& sums,
              std::uint64_t max_memory)
      : sums_(sums),
        file_(file),
        info_(info),
        kind_(kind),
        width_(static_cast<std::uint64_t>(bits_per_element(kind)) / 8),
        max_memory_(max_memory) {
    // Only a matrix has channels; of anything else the order of elements matters alone.
    columns_ = info.bytes() / width_;
    rows_ = 1;
    if (info.shape.size() == 2 && columns_ != 0) {
      rows_ = info.shape[0];
      columns_ = info.shape[1];
    }
  }

  Result<ValueStats> run(const Stream& stream, std::vector<ThreadBuffers>& thread_buffers, base::Progress& progress) {
    const auto threads = static_cast<std::uint64_t>(stream.threads());
    // Magnitudes for each thread, and the indices that come out. A matrix so wide that they do not fit (tens of
    // millions of columns) is left without outliers rather than the machine without memory.
    by_column_ = info_.shape.size() == 2 && columns_ <= max_memory_ / 4 / (scale_width() * threads + 16);
    for (ThreadBuffers& buffers : thread_buffers)
      buffers.columns.assign(by_column_ ? columns_ * scale_width() : 0, std::byte{0});
    const io::Tiling tiling =
        tiling_in_blocks(rows_, columns_, width_, sizeof(double), std::min(kMaxTileBytes, max_memory_ / (4 * threads)));
    double squares = 0, row = 0;
    TileStats all;
    const auto read = [&](std::size_t worker, const io::Tile& tile, std::span<double> blocks, TileStats& tile_stats) {
      Status s = work(tile, thread_buffers[worker], blocks, tile_stats);
      progress.advance(tile.rows * tile.columns * width_);
      return s;
    };
    const auto add = [&](const io::Tile& tile, std::span<const double> blocks, const TileStats& tile_stats) {
      const double* sums = blocks.data();
      for (std::uint64_t r = 0; r < tile.rows; ++r) {
        for (std::uint64_t b = 0; b < blocks_in_row(tile); ++b) row += *sums++;
        if (tile.column + tile.columns < columns_) continue;
        squares += row;
        row = 0;
      }
      all += tile_stats;
    };
    const std::uint64_t kept = std::min(kMaxBlocks, max_memory_ / (8 * sizeof(double)));
    if (Status s = sum_in_order<double, TileStats>(stream, tiling, kept, read, add); !s.ok()) return s;
    return stats(all, squares, thread_buffers);
  }

 private:
  std::uint64_t scale_width() const { return kind_ == ElementKind::f64 ? 8 : 4; }

  Status work(const io::Tile& tile, ThreadBuffers& buffers, std::span<double> blocks, TileStats& stats) const {
    const base::DefaultFloatEnvironment environment;
    const std::uint64_t row_bytes = tile.columns * width_;
    if (Status s = io::read_tile(file_, info_, columns_, tile, buffers.bytes); !s.ok()) return s;
    if (Status s = ranges(tile, buffers, stats); !s.ok()) return s;
    buffers.wide.resize(kBlock);
    std::size_t block = 0;
    for_each_block(tile, [&](std::uint64_t r, std::uint64_t c, std::size_t count) {
      const std::byte* from = buffers.bytes.data() + r * row_bytes + c * width_;
      ErrorSums::Values values;
      if (kind_ == ElementKind::f64) {
        values = sums_.values(reinterpret_cast<const double*>(from), count);
      } else {
        format::widen(kind_, from, count, buffers.wide.data());
        values = sums_.values(buffers.wide.data(), count);
      }
      blocks[block++] = values.squares;
      stats.nan += values.nan;
      stats.infinite += values.infinite;
      stats.zeros += values.zeros;
    });
    return {};
  }

  // The min and the max of the tile, and the largest magnitudes of its columns.
  Status ranges(const io::Tile& tile, ThreadBuffers& buffers, TileStats& stats) const {
    const Stream here = Stream::cpu(1);
    const Shape shape = {static_cast<std::int64_t>(tile.rows), static_cast<std::int64_t>(tile.columns)};
    const ElementKind scale = scale_kind(kind_);
    const auto run = [&](const Granularity& scope, bool accumulate, AnyRangeArgs args) -> Status {
      const auto plan =
          AnyRangePlan::select(here, {.shape = shape, .scope = scope, .accumulate = accumulate, .input = kind_});
      if (!plan.ok()) return plan.status();
      buffers.workspace.resize(plan->workspace_size());
      args.input = {buffers.bytes.data(), kind_, shape, 0};
      return plan->run(here, {buffers.workspace.data(), buffers.workspace.size()}, args);
    };
    double min64 = 0, max64 = 0;
    float min32 = 0, max32 = 0;
    const bool f64 = kind_ == ElementKind::f64;
    AnyRangeArgs args;
    args.min_out = {f64 ? static_cast<void*>(&min64) : &min32, scale, {}, 0};
    args.max_out = {f64 ? static_cast<void*>(&max64) : &max32, scale, {}, 0};
    if (Status s = run(PerTensor{}, false, args); !s.ok()) return s;
    stats.min = f64 ? min64 : static_cast<double>(min32);
    stats.max = f64 ? max64 : static_cast<double>(max32);
    if (!by_column_) return {};
    args = {};
    args.max_abs_out = {buffers.columns.data() + tile.column * scale_width(), scale, {shape[1]}, 0};
    return run(PerChannel{1}, true, args);
  }

  ValueStats stats(const TileStats& all, double squares, std::vector<ThreadBuffers>& thread_buffers) const {
    ValueStats stats;
    stats.nan = all.nan;
    stats.infinite = all.infinite;
    stats.zeros = all.zeros;
    const std::uint64_t finite = rows_ * columns_ - all.nan - all.infinite;
    if (finite == 0) return stats;
    stats.min = all.min;
    stats.max = all.max;
    stats.rms = std::sqrt(squares / static_cast<double>(finite));
    if (!by_column_) return stats;
    if (kind_ == ElementKind::f64)
      find_outliers<double>(thread_buffers, stats.outlier_channels);
    else
      find_outliers<float>(thread_buffers, stats.outlier_channels);
    return stats;
  }

  template <class T>
  void find_outliers(std::vector<ThreadBuffers>& thread_buffers, std::vector<std::uint64_t>& outliers) const {
    const auto column = [](ThreadBuffers& buffers) { return reinterpret_cast<T*>(buffers.columns.data()); };
    T* magnitudes = column(thread_buffers[0]);
    const auto count = static_cast<std::size_t>(columns_);
    for (std::size_t b = 1; b < thread_buffers.size(); ++b)
      for (std::size_t j = 0; j < count; ++j) magnitudes[j] = std::max(magnitudes[j], column(thread_buffers[b])[j]);
    std::vector<T> sorted(magnitudes, magnitudes + count);
    const double bound = kOutlierFactor * median(sorted);
    for (std::size_t j = 0; j < count; ++j)
      if (static_cast<double>(magnitudes[j]) > bound) outliers.push_back(j);
  }

  const ErrorSums& sums_;
  const io::SafetensorsFile& file_;
  const io::TensorInfo& info_;
  ElementKind kind_;
  std::uint64_t width_;
  std::uint64_t max_memory_;
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  bool by_column_ = false;
};

std::string scheme_of(const io::Checkpoint& checkpoint) {
  const auto text = format::find_quantization_config(checkpoint);
  if (text.ok() && !*text) return {};
  const auto config = format::read_quantization_config(checkpoint);
  return config.ok() ? format::describe(*config) : fmt::format("unknown ({})", config.status().message());
}

}  // namespace

Result<Inspection> inspect(const InspectOptions& options, base::Progress& progress) {
  const Stream stream = options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads);
  if (!stream.status().ok()) return stream.status();
  const auto checkpoint = io::Checkpoint::open(options.path);
  if (!checkpoint.ok()) return checkpoint.status();
  Inspection inspection;
  inspection.path = options.path;
  inspection.model_type = model::facts_of(*checkpoint).model_type;
  inspection.scheme = scheme_of(*checkpoint);
  std::uint64_t to_read = 0;
  for (std::size_t shard = 0; shard < checkpoint->shards().size(); ++shard) {
    const io::SafetensorsFile& file = checkpoint->shards()[shard];
    const std::string shard_name = checkpoint->shard_name(shard);
    if (!file.metadata().empty()) inspection.metadata[shard_name] = file.metadata();
    for (const io::TensorInfo& info : file.tensors()) {
      inspection.tensors.push_back({info, shard_name, model::judge(info, inspection.model_type), std::nullopt});
      inspection.bytes += info.bytes();
      if (format::element_of(info.dtype)) to_read += info.bytes();
    }
  }
  if (!options.stats) return inspection;
  progress.begin("reading values", to_read);
  const auto sums = ErrorSums::select(stream);
  if (!sums.ok()) return sums.status();
  std::vector<ThreadBuffers> thread_buffers(static_cast<std::size_t>(stream.threads()));
  std::size_t next = 0;
  for (const io::SafetensorsFile& file : checkpoint->shards())
    for (const io::TensorInfo& info : file.tensors()) {
      InspectedTensor& tensor = inspection.tensors[next++];
      const auto kind = format::element_of(info.dtype);
      if (!kind) continue;
      auto stats = TensorStats(file, info, *kind, *sums, options.max_memory).run(stream, thread_buffers, progress);
      if (!stats.ok()) return stats.status();
      tensor.stats = std::move(stats).value();
    }
  return inspection;
}

}  // namespace kvant::measure
