// A tile of a weight that is in memory becomes codes: what quantizing a checkpoint computes.
//
// A tile is [segments, length] weights, dense; a segment is what shares a scale, or a piece of it where all of it does
// not fit in memory. ranges() looks at the values, make_scales() turns ranges into scales as they are stored
// (format/stored_scale.h), codes() quantizes with those:
//
//   s8            q = clamp(rne(w / scale), -128, 127)
//   s4, packed    q = clamp(rne(w / scale) + zero_point, -8, 7), stored as u = q + 8 in four bits, the first in the
//                 lowest; eight of them are a little-endian I32
//
// Ranges are those of the finite weights; infinities clip, NaN becomes the zero point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/weight_form.h"
#include "kvant/element.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::quantize {

using format::WeightForm;

// Belongs to one thread. Its buffers grow to the largest tile and are used again.
class WeightTile {
 public:
  explicit WeightTile(const Stream& stream) : stream_(stream) {}

  // Multiplies column j of every row by s[j] in place, in f32 (f64 for f64), rounded once to the weight's type.
  Status smooth(std::span<std::byte> weights, ElementKind weight, std::span<const float> s);

  // `weights` holds `segments` segments or pieces. With `accumulate` the ranges of earlier pieces are extended.
  Status ranges(std::span<const std::byte> weights, const WeightForm& form, std::int64_t segments, bool accumulate);

  // After ranges(): a scale for each segment in its stored form, and for asymmetric forms a zero point.
  void make_scales(const WeightForm& form, std::int64_t segments);
  std::span<const std::byte> stored_scales() const { return stored_scales_; }
  std::span<const std::int32_t> zero_points() const { return zero_points_; }

  // After make_scales(): as many codes as weights, two to a byte for four bits. Segments of those have even lengths.
  Status codes(std::span<const std::byte> weights, const WeightForm& form, std::int64_t segments,
               std::span<std::byte> codes) const;

  // Bytes that a tile of `segments` keeps here beside the weights and codes.
  static std::uint64_t memory(std::uint64_t segments) { return segments * 32; }

 private:
  Stream stream_;
  std::vector<double> s_;              // for f64 weights
  std::vector<std::byte> low_, high_;  // min and max, or largest magnitude in high_, in the compute type
  std::vector<std::byte> scales_;      // in the compute type
  std::vector<std::byte> stored_scales_;
  std::vector<std::int32_t> zero_points_;  // in shifted_ as words store them
  std::vector<std::int32_t> shifted_;
  std::vector<std::byte> workspace_;
};

// How many of the weights are NaN or infinite.
std::uint64_t count_non_finite(std::span<const std::byte> weights, ElementKind weight);

}  // namespace kvant::quantize
