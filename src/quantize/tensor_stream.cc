#include "quantize/tensor_stream.h"

#include <algorithm>

#include "base/divide_up.h"
#include "format/compressed_tensors.h"
#include "format/weight_form.h"
#include "quantize/smoothing_vectors.h"

namespace kvant::quantize {
namespace {

bool is_matrix(Action action) { return action == Action::quantize || action == Action::smooth; }

}  // namespace

std::uint64_t worker_memory(std::uint64_t tile_bytes, std::uint64_t span) {
  // Weights, codes (half as large at most), and what goes with a scale; weights have two bytes at least.
  return tile_bytes + tile_bytes / 2 + WeightTile::memory(tile_bytes / 2 / span);
}

TensorStream::TensorStream(const io::Checkpoint& checkpoint, const TensorPlan& plan, const format::Scheme& scheme,
                           std::span<const float> s, const Places& places, std::uint64_t tile_bytes)
    : checkpoint_(checkpoint),
      plan_(plan),
      place_(checkpoint.tensors().find(plan.name)->second),
      s_(s),
      places_(places),
      tile_bytes_(tile_bytes) {
  if (is_matrix(plan.action)) {
    form_ = format::weight_form(scheme, plan.dtype);
    const std::uint64_t rows = plan.shape[0], columns = plan.shape[1];
    if (plan.action == Action::quantize) span_ = format::columns_of_a_scale(scheme, columns);
    const bool packs_rows = plan.action == Action::quantize && form_.asymmetric;
    width_ = static_cast<std::uint64_t>(row_bytes(form_.weight, 1));
    tiling_ = io::Tiling({.rows = rows,
                          .columns = columns,
                          .tile_bytes = tile_bytes,
                          .element_bytes = width_,
                          .row_unit = packs_rows ? format::codes_per_word(form_.code) : 1,
                          .column_unit = span_});
    tiles_ = tiling_.bands();
  } else if (plan.action == Action::fold_norm) {
    tiles_ = 1;
  } else {
    tiles_ = base::parts_of(plan.bytes_before, tile_bytes);
  }
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
    case Action::smooth: return smooth_band(tile, worker, file);
    case Action::quantize:
      return tiling_.splits_units() ? quantize_spans(tile, worker, file) : quantize_band(tile, worker, file);
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
  if (Status s = io::read_tile(checkpoint_.shards()[place_.shard], checkpoint_.at(place_), tiling_.columns(), tile,
                               worker.weights);
      !s.ok())
    return s;
  if (s_.empty()) return {};
  return worker.tile.smooth(worker.weights, form_.weight, s_.subspan(tile.column, tile.columns));
}

Status TensorStream::smooth_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  for (std::uint64_t piece = 0; piece < tiling_.pieces(); ++piece) {
    const io::Tile tile = tiling_.at(band, piece);
    if (Status s = load(tile, worker); !s.ok()) return s;
    if (Status s = write_matrix(tile, places_.codes, tiling_.columns(), tile.column, tile.columns, 8 * width_,
                                worker.weights, file);
        !s.ok())
      return s;
  }
  return {};
}

Status TensorStream::quantize_band(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  for (std::uint64_t piece = 0; piece < tiling_.pieces(); ++piece) {
    const io::Tile tile = tiling_.at(band, piece);
    const auto segments = static_cast<std::int64_t>(tile.rows * tile.columns / span_);
    if (Status s = load(tile, worker); !s.ok()) return s;
    worker.non_finite += count_non_finite(worker.weights, form_.weight);
    if (Status s = worker.tile.ranges(worker.weights, form_, segments, false); !s.ok()) return s;
    worker.tile.make_scales(form_, segments);
    if (Status s = write_codes(tile, segments, worker, file); !s.ok()) return s;
    if (Status s = write_scales(tile, worker, file); !s.ok()) return s;
  }
  return {};
}

// A scale covers more than a tile: once over it for the range, and again for the codes.
Status TensorStream::quantize_spans(std::uint64_t band, TileWorker& worker, io::AtomicFile& file) const {
  for (std::uint64_t begin = 0; begin < tiling_.columns(); begin += span_) {
    io::Tile tile = tiling_.at(band, 0);
    const auto segments = static_cast<std::int64_t>(tile.rows);
    const auto over_pieces = [&](const auto& each) -> Status {
      for (tile.column = begin; tile.column < begin + span_; tile.column += tile.columns) {
        tile.columns = std::min(tiling_.tile_columns(), begin + span_ - tile.column);
        if (Status s = load(tile, worker); !s.ok()) return s;
        if (Status s = each(); !s.ok()) return s;
      }
      return {};
    };
    Status s = over_pieces([&] {
      worker.non_finite += count_non_finite(worker.weights, form_.weight);
      return worker.tile.ranges(worker.weights, form_, segments, tile.column != begin);
    });
    if (!s.ok()) return s;
    worker.tile.make_scales(form_, segments);
    s = over_pieces([&] { return write_codes(tile, segments, worker, file); });
    if (!s.ok()) return s;
    tile.column = begin;
    tile.columns = span_;
    if (s = write_scales(tile, worker, file); !s.ok()) return s;
  }
  return {};
}

Status TensorStream::write_codes(const io::Tile& tile, std::int64_t segments, TileWorker& worker,
                                 io::AtomicFile& file) const {
  const auto bits = static_cast<std::uint64_t>(bits_per_element(form_.code));
  worker.codes.resize(tile.rows * tile.columns * bits / 8);
  if (Status s = worker.tile.codes(worker.weights, form_, segments, worker.codes); !s.ok()) return s;
  return write_matrix(tile, places_.codes, tiling_.columns(), tile.column, tile.columns, bits, worker.codes, file);
}

Status TensorStream::write_scales(const io::Tile& tile, TileWorker& worker, io::AtomicFile& file) const {
  const std::uint64_t per_row = tiling_.columns() / span_, first = tile.column / span_, count = tile.columns / span_;
  if (Status s =
          write_matrix(tile, places_.scales, per_row, first, count,
                       static_cast<std::uint64_t>(bits_per_element(form_.scale)), worker.tile.stored_scales(), file);
      !s.ok() || !form_.asymmetric)
    return s;
  const std::uint64_t per_word = format::codes_per_word(form_.code);
  format::pack_zero_points(worker.tile.zero_points(), count, worker.words);
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
