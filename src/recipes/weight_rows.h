// Rows of a weight become rows of codes: what quantizing a checkpoint does to a tile that is in memory.
//
// Symmetric s8 with a scale for each row (w8a8):
//
//   scale = stored(max|w| / 127)      q = clamp(rne(w / scale), -128, 127)
//
// where stored() rounds to the dtype that the scale is written in, and never below that type's smallest normal number;
// a row of zeros has scale 1. The codes are made with the scale as it is stored. The scale is that of the finite
// weights; infinities clip and NaN becomes 0, as everywhere in kvant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "io/safetensors.h"
#include "kvant/element.h"
#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::recipes {

// The element kind of a dtype that weights come in: f32, f64, f16, bf16. Nothing for others.
std::optional<ElementKind> element_of(io::DType dtype);

class WeightRows {
 public:
  // For tiles of up to `max_rows` rows of `columns` elements of `weight`, with scales stored in `scale` (f32, f16,
  // bf16).
  static Result<WeightRows> create(const Stream& stream, std::int64_t max_rows, std::int64_t columns,
                                   ElementKind weight, ElementKind scale);

  // Multiplies column j of every row by s[j] in place, in f32 (f64 for f64), rounded once to the weight's type.
  Status smooth(std::span<std::byte> weights, std::span<const float> s);

  // `weights` holds whole rows. Writes as many codes, and for each row a scale in its stored form.
  Status quantize(std::span<const std::byte> weights, std::span<std::int8_t> codes, std::span<std::byte> scales);

  std::int64_t columns() const { return columns_; }

 private:
  WeightRows(const Stream& stream, std::int64_t max_rows, std::int64_t columns, ElementKind weight, ElementKind scale);
  std::int64_t rows_in(std::size_t bytes) const;
  void store_scales(std::int64_t rows, std::span<std::byte> scales);

  Stream stream_;
  std::int64_t max_rows_;
  std::int64_t columns_;
  ElementKind weight_;
  ElementKind scale_;
  std::vector<double> s_;              // for f64 weights
  std::vector<std::byte> magnitudes_;  // max|w| of each row, then its stored scale, in the compute type
  std::vector<std::byte> workspace_;
};

}  // namespace kvant::recipes
