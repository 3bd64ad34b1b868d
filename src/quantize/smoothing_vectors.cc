#include "quantize/smoothing_vectors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/smoothing_file.h"
#include "format/weight_source.h"
#include "io/tiling.h"
#include "kvant/range.h"
#include "kvant/smoothing.h"

namespace kvant::quantize {
namespace {

using base::invalid_problem;

// The largest magnitude of each column so far, by one thread, in the compute type of the weight.
struct ColumnWorker {
  std::vector<std::byte> weights;
  std::vector<std::byte> magnitudes;
  std::vector<std::byte> workspace;
  format::SourceScratch scratch;
  bool begun = false;
};

std::vector<double> widened(const std::vector<std::byte>& magnitudes, ElementKind compute) {
  std::vector<double> values(magnitudes.size() / static_cast<std::size_t>(row_bytes(compute, 1)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (compute == ElementKind::f64) {
      std::memcpy(&values[i], magnitudes.data() + 8 * i, 8);
    } else {
      float value;
      std::memcpy(&value, magnitudes.data() + 4 * i, 4);
      values[i] = static_cast<double>(value);
    }
  }
  return values;
}

// Column maxima are numbers of the weight's type: nothing is rounded.
std::vector<std::byte> narrowed(const std::vector<double>& values, ElementKind kind) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(kind, static_cast<std::int64_t>(values.size()))));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (kind == ElementKind::f64)
      std::memcpy(bytes.data() + 8 * i, &values[i], 8);
    else
      format::store(static_cast<float>(values[i]), kind,
                    bytes.data() + i * static_cast<std::size_t>(row_bytes(kind, 1)));
  }
  return bytes;
}

class Maker {
 public:
  Maker(const io::Checkpoint& checkpoint, const CheckpointPlan& plan, const format::ActivationStats& stats,
        const Stream& stream, std::uint64_t tile_bytes, base::Progress& progress)
      : checkpoint_(checkpoint),
        plan_(plan),
        stats_(stats),
        stream_(stream),
        tile_bytes_(tile_bytes),
        progress_(progress),
        workers_(static_cast<std::size_t>(std::max(stream.threads(), 1))) {
    for (const TensorPlan& tensor : plan.tensors)
      if (tensor.source) weights_.emplace(format::module_of(tensor.name), &*tensor.source);
  }

  Result<SmoothingVectors> make() {
    std::uint64_t bytes = 0;
    for (const SmoothedGroup& group : plan_.smoothed)
      for (const std::string& reader : group.readers) bytes += weight_of(reader).stored_bytes();
    progress_.begin("reading columns", bytes);
    SmoothingVectors vectors;
    for (const SmoothedGroup& group : plan_.smoothed) {
      auto s = vector_of(group);
      if (!s.ok()) return s.status();
      vectors.push_back(std::move(s).value());
    }
    return vectors;
  }

 private:
  const format::WeightSource& weight_of(const std::string& module) const { return *weights_.at(module); }

  Result<std::vector<float>> vector_of(const SmoothedGroup& group) {
    const std::uint64_t channels = checkpoint_.find(group.norm + ".weight")->shape[0];
    const auto k = static_cast<std::int64_t>(channels);
    std::vector<float> inputs(channels, 0.0f);
    std::vector<double> columns(channels, 0.0);
    std::vector<std::vector<std::byte>> rows;  // a row of column maxima for each reader, in its own type
    std::vector<AnyMut> row_views;
    for (const std::string& reader : group.readers) {
      if (stats_.has_absmax(reader)) {
        const auto seen = stats_.absmax(reader, channels);
        if (!seen.ok()) return seen.status();
        for (std::size_t j = 0; j < channels; ++j) inputs[j] = std::max(inputs[j], (*seen)[j]);
      }
      auto maxima = column_maxima(reader);
      if (!maxima.ok()) return maxima.status();
      for (std::size_t j = 0; j < channels; ++j) columns[j] = std::max(columns[j], (*maxima)[j]);
      const ElementKind kind = weight_of(reader).kind;
      rows.push_back(narrowed(*maxima, kind));
      row_views.push_back({rows.back().data(), kind, {1, k}, 0});
    }
    std::vector<float> s(channels);
    const AnyRef all_columns[] = {{columns.data(), ElementKind::f64, {1, k}, 0}};
    if (Status made = smooth_scales(stream_, {inputs.data(), {k}}, all_columns, plan_.alpha, {s.data(), {k}});
        !made.ok())
      return invalid_problem("smoothing of '{}': {}", io::printable(group.norm), made.message());
    if (Status fits = check_fold(group, s, row_views); !fits.ok()) return fits;
    return s;
  }

  Result<std::vector<double>> column_maxima(const std::string& reader) {
    const format::WeightSource& weight = weight_of(reader);
    const ElementKind compute = scale_kind(weight.kind);
    const io::Tiling tiling({.rows = weight.rows,
                             .columns = weight.columns,
                             .tile_bytes = tile_bytes_,
                             .element_bytes = weight.element_bytes()});
    for (ColumnWorker& worker : workers_) worker.begun = false;
    const auto band = [&](std::size_t worker, std::uint64_t index) -> Status {
      if (Status s = read_band(weight, tiling, index, workers_[worker]); !s.ok()) return s;
      progress_.advance(weight.stored_bytes() * tiling.at(index, 0).rows / weight.rows);
      return {};
    };
    if (Status s = base::for_each_part(stream_, 0, tiling.bands(), band); !s.ok()) return s;
    std::vector<double> maxima(weight.columns, 0.0);
    for (const ColumnWorker& worker : workers_) {
      if (!worker.begun) continue;
      const std::vector<double> seen = widened(worker.magnitudes, compute);
      for (std::size_t j = 0; j < maxima.size(); ++j) maxima[j] = std::max(maxima[j], seen[j]);
    }
    return maxima;
  }

  Status read_band(const format::WeightSource& weight, const io::Tiling& tiling, std::uint64_t band,
                   ColumnWorker& worker) const {
    const ElementKind kind = weight.kind, compute = scale_kind(kind);
    const auto compute_width = static_cast<std::size_t>(row_bytes(compute, 1));
    if (!worker.begun) {
      worker.begun = true;
      worker.magnitudes.assign(weight.columns * compute_width, std::byte{0});
    }
    for (std::uint64_t piece = 0; piece < tiling.pieces(); ++piece) {
      const io::Tile tile = tiling.at(band, piece);
      if (Status s = format::read_tile(checkpoint_, weight, tile, worker.scratch, worker.weights); !s.ok()) return s;
      const Shape shape = {static_cast<std::int64_t>(tile.rows), static_cast<std::int64_t>(tile.columns)};
      const auto range = AnyRangePlan::select(
          one_thread_, {.shape = shape, .scope = PerChannel{1}, .accumulate = true, .input = kind});
      if (!range.ok()) return range.status();
      worker.workspace.resize(range->workspace_size());
      const AnyMut to{worker.magnitudes.data() + tile.column * compute_width, compute, {shape[1]}, 0};
      if (Status s = range->run(one_thread_, {worker.workspace.data(), worker.workspace.size()},
                                {.input = {worker.weights.data(), kind, shape, 0}, .max_abs_out = to});
          !s.ok())
        return s;
    }
    return {};
  }

  // Folds the norm and a row of column maxima for each weight, to see whether anything overflows.
  Status check_fold(const SmoothedGroup& group, const std::vector<float>& s, const std::vector<AnyMut>& rows) const {
    const auto k = static_cast<std::int64_t>(s.size());
    std::vector<std::byte> norm[2];
    AnyMut views[2];
    const std::string_view suffixes[2] = {".weight", ".bias"};
    for (int i = 0; i < 2; ++i) {
      const auto place = checkpoint_.tensors().find(group.norm + std::string(suffixes[i]));
      if (place == checkpoint_.tensors().end()) continue;
      const io::TensorInfo& tensor = *checkpoint_.find(place->first);
      norm[i].resize(tensor.bytes());
      if (Status read = checkpoint_.read(place->second, 0, norm[i]); !read.ok()) return read;
      views[i] = {norm[i].data(), *format::element_of(tensor.dtype), {k}, 0};
    }
    const Status folded = apply_smoothing(stream_, {s.data(), {k}}, views[0], views[1], rows);
    if (folded.ok()) return {};
    return invalid_problem(
        "smoothing of '{}' and the linears after it ({} …): {}; choose an alpha other than {} or leave "
        "it out with --smooth-groups",
        io::printable(group.norm), io::printable(group.readers.front()), folded.message(), plan_.alpha);
  }

  const io::Checkpoint& checkpoint_;
  const CheckpointPlan& plan_;
  const format::ActivationStats& stats_;
  const Stream& stream_;
  const Stream one_thread_ = Stream::cpu(1);
  std::uint64_t tile_bytes_;
  base::Progress& progress_;
  std::vector<ColumnWorker> workers_;                                        // one for each thread
  std::map<std::string, const format::WeightSource*, std::less<>> weights_;  // by module
};

}  // namespace

Result<SmoothingVectors> make_smoothing_vectors(const io::Checkpoint& checkpoint, const CheckpointPlan& plan,
                                                const format::ActivationStats& stats, const Stream& stream,
                                                std::uint64_t tile_bytes, base::Progress& progress) {
  return Maker(checkpoint, plan, stats, stream, tile_bytes, progress).make();
}

Status fold_norm(std::span<const float> s, io::DType dtype, std::span<std::byte> norm) {
  const auto k = static_cast<std::int64_t>(s.size());
  // apply_smoothing wants a weight beside the norm: an empty one.
  const AnyMut none[] = {{nullptr, ElementKind::f32, {0, k}, 0}};
  return apply_smoothing(Stream::cpu(1), {s.data(), {k}}, {norm.data(), *format::element_of(dtype), {k}, 0}, {}, none);
}

Status write_smoothing_vectors(const std::filesystem::path& path, const CheckpointPlan& plan,
                               const SmoothingVectors& vectors) {
  std::vector<format::SmoothingVector> all;
  for (std::size_t i = 0; i < vectors.size(); ++i)
    all.push_back({plan.smoothed[i].norm, plan.smoothed[i].readers, vectors[i]});
  return format::write_smoothing_file(path, all);
}

Result<SmoothingVectors> read_smoothing_vectors(const std::filesystem::path& path, const io::Checkpoint& checkpoint,
                                                const CheckpointPlan& plan) {
  const auto file = format::SmoothingFile::open(path);
  if (!file.ok()) return file.status();
  const auto bad = [&](std::string_view what) {
    return invalid_problem("{}: {}; start over with --force", io::printable(path.string()), what);
  };
  SmoothingVectors vectors;
  for (const SmoothedGroup& group : plan.smoothed) {
    const io::TensorInfo* tensor = file->find(group.norm);
    if (tensor == nullptr || tensor->dtype != io::DType::f32 ||
        tensor->shape != checkpoint.find(group.norm + ".weight")->shape)
      return bad(fmt::format("has no vector of the right length for '{}'", io::printable(group.norm)));
    std::vector<float> s(tensor->shape[0]);
    if (Status read = file->read(*tensor, 0, s); !read.ok())
      return invalid_problem("{}; start over with --force", read.message());
    for (const float value : s)
      if (value <= 0) return bad(fmt::format("'{}' holds {}", io::printable(group.norm), value));
    vectors.push_back(std::move(s));
  }
  return vectors;
}

}  // namespace kvant::quantize
