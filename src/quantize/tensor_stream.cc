#include "quantize/tensor_stream.h"

#include <algorithm>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/stored_scale.h"
#include "format/weight_form.h"
#include "quantize/smoothing_vectors.h"

namespace kvant::quantize {
namespace {

bool is_matrix(Action action) { return has_codes(action) || action == Action::smooth || action == Action::decode; }

}  // namespace

std::uint64_t worker_memory(std::uint64_t tile_bytes, std::uint64_t span) {
  // Weights, codes (half as large at most), and what goes with a scale; weights have two bytes at least.
  return tile_bytes + tile_bytes / 2 + WeightTile::memory(tile_bytes / 2 / span);
}

std::uint64_t least_tile_bytes(const WeightForm& form, std::uint64_t columns) {
  const format::WeightScheme& weights = form.scheme;
  if (weights.strategy == format::Strategy::block)
    return static_cast<std::uint64_t>(weights.block_rows * row_bytes(form.weight, weights.block_columns));
  if (form.choice != format::ScaleChoice::search) return 0;
  const std::uint64_t rows = weights.asymmetric ? format::codes_per_word(weights.code) : 1;
  const std::uint64_t span = format::span_of(weights, 1, columns).columns;
  return rows * static_cast<std::uint64_t>(row_bytes(form.weight, static_cast<std::int64_t>(span)));
}

TensorStream::TensorStream(const io::Checkpoint& checkpoint, const TensorPlan& plan, const format::Scheme* scheme,
                           std::span<const float> s, const Places& places, std::uint64_t tile_bytes)
    : checkpoint_(checkpoint), plan_(plan), s_(s), places_(places), tile_bytes_(tile_bytes) {
  if (is_matrix(plan.action)) {
    source_ = &*plan.source;
    form_.weight = source_->kind;
    width_ = static_cast<std::uint64_t>(row_bytes(form_.weight, 1));
    io::TilingRequest request{
        .rows = source_->rows, .columns = source_->columns, .tile_bytes = tile_bytes, .element_bytes = width_};
    if (scheme != nullptr) {
      form_ = format::weight_form(*scheme, plan.dtype);
      form_.weight = source_->kind;
      span_ = format::span_of(form_.scheme, request.rows, request.columns);
      request.tile_bytes = std::max(tile_bytes, least_tile_bytes(form_, request.columns));
      request.column_unit = form_.scheme.strategy == format::Strategy::tensor ? 1 : span_.columns;
      if (form_.scheme.asymmetric)
        request.row_unit = format::codes_per_word(form_.scheme.code);  // words of zero points
      else if (form_.scheme.strategy == format::Strategy::block)
        request.row_unit = span_.rows;
      if (plan.has_feedback) {
        request.column_unit = request.columns;
        request.tile_bytes = FeedbackRounding::kRows * request.columns * width_;
      }
    }
    tiling_ = io::Tiling(request);
    tiles_ = tiling_.bands();
    return;
  }
  if (plan.action == Action::add_scale) return;  // reads nothing, and is written with what else is one number
  place_ = checkpoint.tensors().find(plan.name)->second;
  tiles_ = plan.action == Action::fold_norm ? 1 : base::parts_of(plan.bytes_before, tile_bytes);
}

void TensorStream::set_largest(double largest) {
  if (form_.scheme.strategy == format::Strategy::tensor)
    tensor_scale_ = format::symmetric_scale(largest, form_.scheme.code, form_.scale).scale;
  else
    tensor_scale_ = format::nvfp4_global_scale(largest, format::largest_number(form_.scheme.code));
}

Result<double> TensorStream::largest(std::uint64_t band, TileWorker& worker) const {
  double largest = 0;
  for (std::uint64_t piece = 0; piece < tiling_.pieces(); ++piece) {
    const io::Tile tile = tiling_.at(band, piece);
    if (Status s = load(tile, worker); !s.ok()) return s;
    const TileSegments all{{static_cast<std::int64_t>(tile.rows * tile.columns)}, PerTensor{}, 1};
    if (Status s = worker.tile.ranges(worker.weights, form_, all, false); !s.ok()) return s;
    largest = std::max(largest, worker.tile.largest(form_));
  }
  return largest;
}

TileSegments TensorStream::segments_of(const io::Tile& tile, std::uint64_t unit) const {
  const auto rows = static_cast<std::int64_t>(tile.rows), columns = static_cast<std::int64_t>(tile.columns);
  if (form_.scheme.strategy == format::Strategy::tensor) return {{rows * columns}, PerTensor{}, 1};
  if (form_.scheme.strategy == format::Strategy::block)
    return {
        {rows, columns},
        PerBlock{form_.scheme.block_rows, form_.scheme.block_columns},
        static_cast<std::int64_t>(base::parts_of(tile.rows, span_.rows) * base::parts_of(tile.columns, span_.columns))};
  // Each segment as a row of its own.
  const std::int64_t count = rows * columns / static_cast<std::int64_t>(unit);
  return {{count, static_cast<std::int64_t>(unit)}, PerToken{}, count};
}

std::uint64_t TensorStream::bytes_of(std::uint64_t tile) const {
  if (is_matrix(plan_.action)) return tiling_.at(tile, 0).rows * tiling_.columns() * width_;
  if (plan_.action == Action::fold_norm) return plan_.bytes_before;
  return std::min(tile_bytes_, plan_.bytes_before - tile * tile_bytes_);
}

Status TensorStream::run(std::uint64_t tile, TileWorker& worker, io::AtomicFile& file) const {
  switch (plan_.action) {
    case Action::copy: return copy(tile, worker, file);
    case Action::fold_norm: return fold(worker, file);
    case Action::smooth:
    case Action::decode: return write_band(tile, worker, file);
    case Action::recode: return recode_band(tile, worker, file);
    case Action::add_scale: return {};
    case Action::quantize: {
      if (feedback_ != nullptr) return quantize_with_feedback(tile, worker, file);
      // The scale of a whole tensor is known by now.
      const bool finds_ranges = form_.scheme.strategy != format::Strategy::tensor;
      return finds_ranges && tiling_.splits_units() ? quantize_spans(tile, worker, file)
                                                    : quantize_band(tile, worker, file);
    }
  }
  return {};
}

Status TensorStream::copy(std::uint64_t tile, TileWorker& worker, io::AtomicFile& file) const {
  worker.weights.resize(bytes_of(tile));
  if (Status s = checkpoint_.read(place_, tile * tile_bytes_, worker.weights); !s.ok()) return s;
  return file.write_at(places_.codes + tile * tile_bytes_, worker.weights);
}

Status TensorStream::fold(TileWorker& worker, io::AtomicFile& file) const {
  worker.weights.resize(plan_.bytes_before);
  if (Status s = checkpoint_.read(place_, 0, worker.weights); !s.ok()) return s;
  if (Status s = fold_norm(s_, plan_.dtype, worker.weights); !s.ok()) return s;
  return file.write_at(places_.codes, worker.weights);
}

Status TensorStream::load(const io::Tile& tile, TileWorker& worker) const {
  if (Status s = format::read_tile(checkpoint_, *source_, tile, worker.scratch, worker.weights); !s.ok()) return s;
  if (s_.empty()) return {};
  return worker.tile.smooth(worker.weights, form_.weight, s_.subspan(tile.column, tile.columns));
}

Status TensorStream::load_importance(TileWorker& worker) const {
  if (worker.importance_of == &plan_) return {};
  worker.importance.clear();
  const std::string_view module = format::module_of(plan_.name);
  if (stats_ != nullptr && stats_->has(module, format::Statistic::mean_square)) {
    auto squares = stats_->channels(module, format::Statistic::mean_square, tiling_.columns());
    if (!squares.ok()) return squares.status();
    worker.importance = std::move(squares).value();
    // What smoothing divides the input by.
    for (std::size_t j = 0; j < s_.size(); ++j) worker.importance[j] /= s_[j] * s_[j];
  }
  worker.importance_of = &plan_;
  return {};
}

Status TensorStream::write_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  const ElementKind kind = *format::element_of(plan_.dtype);
  const auto bits = static_cast<std::uint64_t>(bits_per_element(kind));
  for (std::uint64_t piece = 0; piece < tiling_.pieces(); ++piece) {
    const io::Tile tile = tiling_.at(band, piece);
    if (Status s = load(tile, worker); !s.ok()) return s;
    std::span<const std::byte> bytes = worker.weights;
    if (kind != source_->kind) {
      // The values of codes, in f32, rounded to the type of the model.
      const auto* const values = reinterpret_cast<const float*>(worker.weights.data());
      worker.codes.resize(tile.rows * tile.columns * bits / 8);
      for (std::size_t i = 0; i < tile.rows * tile.columns; ++i) {
        std::byte* const to = worker.codes.data() + i * bits / 8;
        format::store(values[i], kind, to);
        worker.rounded += format::load(kind, to) != values[i] ? 1 : 0;
      }
      bytes = worker.codes;
    }
    if (Status s = write_matrix(tile, places_.codes, tiling_.columns(), tile.column, tile.columns, bits, bytes, file);
        !s.ok())
      return s;
  }
  return {};
}

// Codes as they are, packed anew. Scales of rows that lie as they did are copied by recode_parts().
Status TensorStream::recode_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  const format::QuantizedLayer& layer = *source_->codes;
  format::LayerRows& rows = worker.scratch.rows;
  for (std::uint64_t piece = 0; piece < tiling_.pieces(); ++piece) {
    const io::Tile tile = tiling_.at(band, piece);
    if (Status s =
            format::read_rows(checkpoint_, layer, tile.row, tile.rows, tile.column, tile.columns, worker.scratch.rows);
        !s.ok())
      return s;
    const std::uint64_t bits = format::stored_bits(form_.scheme);
    worker.codes.resize(tile.rows * tile.columns * bits / 8);
    for (std::uint64_t r = 0; r < tile.rows; ++r)
      format::pack_codes(form_.scheme, rows.codes.data() + r * tile.columns, tile.columns,
                         worker.codes.data() + r * tile.columns * bits / 8);
    if (Status s =
            write_matrix(tile, places_.codes, tiling_.columns(), tile.column, tile.columns, bits, worker.codes, file);
        !s.ok())
      return s;
    if (layer.arrangement == format::Arrangement::by_rows) continue;
    const auto count = static_cast<std::size_t>(tile.rows * rows.groups);
    const auto width = static_cast<std::size_t>(row_bytes(form_.scale, 1));
    const CodeRange range = form_.scheme.asymmetric ? code_range(layer.code()) : CodeRange{0, 0};
    worker.weights.resize(count * width);
    worker.zero_points.assign(rows.zero_points.begin(), rows.zero_points.begin() + static_cast<std::ptrdiff_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      if (const std::int32_t zero_point = worker.zero_points[i]; zero_point < range.min || zero_point > range.max)
        return base::unsupported(
            "'{}': the zero point of row {}, group {} is {}, and compressed-tensors holds {} to {} there; --to bf16 "
            "decodes it",
            io::printable(layer.module), tile.row + i / rows.groups, rows.first_group + i % rows.groups, zero_point,
            range.min, range.max);
      format::store(rows.scales[i], form_.scale, worker.weights.data() + width * i);
    }
    if (Status s = write_scales(tile, worker.weights, worker.zero_points, worker, file); !s.ok()) return s;
  }
  return {};
}

Status TensorStream::quantize_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  for (std::uint64_t piece = 0; piece < tiling_.pieces(); ++piece) {
    const io::Tile tile = tiling_.at(band, piece);
    const TileSegments segments = segments_of(tile, span_.columns);
    if (Status s = load(tile, worker); !s.ok()) return s;
    worker.non_finite += count_non_finite(worker.weights, form_.weight);
    if (form_.scheme.strategy == format::Strategy::tensor) {
      worker.tile.set_scale(form_, tensor_scale_);
      if (Status s = write_codes(tile, worker.weights, form_, segments, worker, file); !s.ok()) return s;
      continue;
    }
    if (Status s = find_scales(tile, worker.weights, form_, worker); !s.ok()) return s;
    if (Status s = write_codes(tile, worker.weights, form_, segments, worker, file); !s.ok()) return s;
    if (Status s = write_scales(tile, worker, file); !s.ok()) return s;
  }
  return {};
}

Status TensorStream::find_scales(const io::Tile& tile, std::span<const std::byte> weights, const WeightForm& form,
                                 TileWorker& worker) const {
  const TileSegments segments = segments_of(tile, span_.columns);
  if (form.choice == format::ScaleChoice::search) {
    if (Status s = load_importance(worker); !s.ok()) return s;
    std::span<const float> importance = worker.importance;
    if (!importance.empty()) importance = importance.subspan(tile.column, tile.columns);
    return worker.tile.search_scales(weights, form, segments, importance, tensor_scale_);
  }
  if (Status s = worker.tile.ranges(weights, form, segments, false); !s.ok()) return s;
  worker.tile.make_scales(form, tensor_scale_);
  return {};
}

// Scales are those of the weights as they were. Each weight then becomes a multiple of its scale, whose code is the
// nearest one.
Status TensorStream::quantize_with_feedback(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  if (!worker.feedback) {
    auto made = FeedbackRounding::make();
    if (!made.ok()) return made.status();
    worker.feedback = std::move(made).value();
  }
  const io::Tile tile = tiling_.at(band, 0);
  if (Status s = load(tile, worker); !s.ok()) return s;
  worker.non_finite += count_non_finite(worker.weights, form_.weight);
  worker.values.resize(tile.rows * tile.columns);
  widen_weights(form_.weight, worker.weights, worker.values);
  WeightForm form = form_;
  form.weight = ElementKind::f32;
  const auto weights = std::as_bytes(std::span<const float>(worker.values));
  if (Status s = find_scales(tile, weights, form, worker); !s.ok()) return s;
  worker.feedback->round(
      *feedback_, form.scheme.code,
      {.group = span_.columns, .scales = worker.tile.scales(), .zero_points = worker.tile.zero_points()},
      worker.values);
  const TileSegments segments = segments_of(tile, span_.columns);
  if (Status s = write_codes(tile, weights, form, segments, worker, file); !s.ok()) return s;
  return write_scales(tile, worker, file);
}

// A scale covers more than a tile: once over it for the range, and again for the codes.
Status TensorStream::quantize_spans(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  for (std::uint64_t begin = 0; begin < tiling_.columns(); begin += span_.columns) {
    io::Tile tile = tiling_.at(band, 0);
    const auto over_pieces = [&](const auto& each) -> Status {
      for (tile.column = begin; tile.column < begin + span_.columns; tile.column += tile.columns) {
        tile.columns = std::min(tiling_.tile_columns(), begin + span_.columns - tile.column);
        if (Status s = load(tile, worker); !s.ok()) return s;
        if (Status s = each(segments_of(tile, tile.columns)); !s.ok()) return s;
      }
      return {};
    };
    Status s = over_pieces([&](const TileSegments& segments) {
      worker.non_finite += count_non_finite(worker.weights, form_.weight);
      return worker.tile.ranges(worker.weights, form_, segments, tile.column != begin);
    });
    if (!s.ok()) return s;
    worker.tile.make_scales(form_, tensor_scale_);
    s = over_pieces(
        [&](const TileSegments& segments) { return write_codes(tile, worker.weights, form_, segments, worker, file); });
    if (!s.ok()) return s;
    tile.column = begin;
    tile.columns = span_.columns;
    if (s = write_scales(tile, worker, file); !s.ok()) return s;
  }
  return {};
}

Status TensorStream::write_codes(const io::Tile& tile, std::span<const std::byte> weights, const WeightForm& form,
                                 const TileSegments& segments, TileWorker& worker, io::AtomicFile& file) const {
  const std::uint64_t bits = format::stored_bits(form_.scheme);
  worker.codes.resize(tile.rows * tile.columns * bits / 8);
  if (Status s = worker.tile.codes(weights, form, segments, worker.codes); !s.ok()) return s;
  return write_matrix(tile, places_.codes, tiling_.columns(), tile.column, tile.columns, bits, worker.codes, file);
}

Status TensorStream::write_scales(const io::Tile& tile, std::span<const std::byte> stored,
                                  std::span<const std::int32_t> zero_points, TileWorker& worker,
                                  io::AtomicFile& file) const {
  const std::uint64_t per_row = base::parts_of(tiling_.columns(), span_.columns), first = tile.column / span_.columns;
  const std::uint64_t count = base::parts_of(tile.columns, span_.columns);
  const io::Tile scales{.row = tile.row / span_.rows, .rows = base::parts_of(tile.rows, span_.rows)};
  if (Status s = write_matrix(scales, places_.scales, per_row, first, count,
                              static_cast<std::uint64_t>(bits_per_element(form_.scale)), stored, file);
      !s.ok() || !form_.scheme.asymmetric)
    return s;
  const std::uint64_t per_word = format::codes_per_word(form_.scheme.code);
  format::pack_zero_points(form_.scheme.code, zero_points, count, worker.words);
  const io::Tile packed{.row = tile.row / per_word, .rows = base::parts_of(tile.rows, per_word)};
  return write_matrix(packed, places_.zero_points, per_row, first, count, 32, std::as_bytes(std::span(worker.words)),
                      file);
}

// Elements [first, first + count) of the tile's rows, in a matrix of `columns` that begins at byte `at`.
Status TensorStream::write_matrix(const io::Tile& tile, std::uint64_t at, std::uint64_t columns, std::uint64_t first,
                                  std::uint64_t count, std::uint64_t bits, std::span<const std::byte> bytes,
                                  io::AtomicFile& file) const {
  if (count == columns) return file.write_at(at + tile.row * columns * bits / 8, bytes);
  const std::uint64_t row_bytes = count * bits / 8;
  for (std::uint64_t r = 0; r < tile.rows; ++r) {
    const std::uint64_t to = at + ((tile.row + r) * columns + first) * bits / 8;
    if (Status s = file.write_at(to, bytes.subspan(r * row_bytes, row_bytes)); !s.ok()) return s;
  }
  return {};
}

}  // namespace kvant::quantize
