// A tile of a weight that is in memory becomes codes: what quantizing a checkpoint computes.
//
// ranges() looks at the values of a tile, make_scales() turns ranges into scales as they are stored
// (format/stored_scale.h), or search_scales() looks for better ones; codes() quantizes with those:
//
//   integers               q = clamp(rne(w / scale) + zero_point, q_min, q_max); in words q + 8 or q + 128
//   floating-point grids   q = grid(w / scale)
//
// Ranges are those of the finite weights; infinities clip, NaN becomes the zero point (NaN where the grid has one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/stored_scale.h"
#include "format/weight_form.h"
#include "kvant/element.h"
#include "kvant/granularity.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "kvant/tensor.h"
#include "kvant/weight_rounding.h"

namespace kvant::quantize {

using format::WeightForm;

// Which weights of a tile share a scale. Where all that does is not in one tile, its pieces are segments of their own.
struct TileSegments {
  Shape shape = {};
  Granularity granularity = PerToken{};
  std::int64_t count = 0;
};

// Belongs to one thread. Its buffers grow to the largest tile and are used again.
class WeightTile {
 public:
  explicit WeightTile(const Stream& stream) : stream_(stream) {}

  // Multiplies column j of every row by s[j] in place, in f32 (f64 for f64), rounded once to the weight's type.
  Status smooth(std::span<std::byte> weights, ElementKind weight, std::span<const float> s);

  // With `accumulate` the ranges of earlier pieces are extended.
  Status ranges(std::span<const std::byte> weights, const WeightForm& form, const TileSegments& segments,
                bool accumulate);
  // After ranges() of a symmetric form: the largest magnitude of all.
  double largest(const WeightForm& form) const;

  // After ranges(): a scale for each segment in its stored form, and for asymmetric forms a zero point. `global`: of
  // scales that are meant under one.
  void make_scales(const WeightForm& form, float global = 1);
  // In place of ranges() and make_scales(): those of WeightRounding::best_scale(), of weights in f32. `importance` is
  // that of the tile's columns; empty: all count the same. Weights that are not finite count as 0.
  Status search_scales(std::span<const std::byte> weights, const WeightForm& form, const TileSegments& segments,
                       std::span<const float> importance, float global = 1);
  // Of f32 weights: what codes are multiples of.
  std::span<const float> scales() const;
  // One scale for all that follows, in its stored form.
  void set_scale(const WeightForm& form, float scale);
  std::span<const std::byte> stored_scales() const { return stored_scales_; }
  std::span<const std::int32_t> zero_points() const { return zero_points_; }

  // After make_scales(), search_scales() or set_scale(): as many codes as weights, as they are stored. Rows of codes of
  // four bits have even lengths.
  Status codes(std::span<const std::byte> weights, const WeightForm& form, const TileSegments& segments,
               std::span<std::byte> codes) const;

  // Bytes that a tile of so many segments keeps here beside the weights and codes.
  static std::uint64_t memory(std::uint64_t segments) { return segments * 32; }

 private:
  void make_room_for_scales(const WeightForm& form, std::size_t count);
  void keep_scale(const WeightForm& form, std::size_t i, const format::SavedScale& made);

  Stream stream_;
  std::optional<WeightRounding> rounding_;
  std::vector<float> searched_weights_;  // of a few segments
  std::vector<WeightRounding::Scale> searched_scales_;
  std::vector<double> s_;              // for f64 weights
  std::vector<std::byte> low_, high_;  // min and max, or largest magnitude in high_, in the compute type
  std::vector<std::byte> scales_;      // in the compute type
  std::vector<std::byte> stored_scales_;
  std::vector<std::int32_t> zero_points_;  // in shifted_ as words store them
  std::vector<std::int32_t> shifted_;
  std::vector<std::byte> workspace_;
};

// As f32: f64 is rounded.
void widen_weights(ElementKind kind, std::span<const std::byte> from, std::span<float> to);

// How many of the weights are NaN or infinite.
std::uint64_t count_non_finite(std::span<const std::byte> weights, ElementKind weight);

}  // namespace kvant::quantize
