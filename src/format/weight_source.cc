#include "format/weight_source.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/divide_up.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"

namespace kvant::format {
namespace {

// A matrix that is stored by columns: stretches of `rows` elements become columns.
template <class Element>
void turn(const std::byte* from, std::uint64_t rows, std::uint64_t columns, std::byte* to) {
  // Squares that stay in the cache on both sides.
  constexpr std::uint64_t kSide = 32;
  for (std::uint64_t c0 = 0; c0 < columns; c0 += kSide)
    for (std::uint64_t r0 = 0; r0 < rows; r0 += kSide)
      for (std::uint64_t c = c0; c < std::min(columns, c0 + kSide); ++c)
        for (std::uint64_t r = r0; r < std::min(rows, r0 + kSide); ++r)
          std::memcpy(to + (r * columns + c) * sizeof(Element), from + (c * rows + r) * sizeof(Element),
                      sizeof(Element));
}

Status read_numbers(const io::Checkpoint& checkpoint, const WeightSource& source, const io::Tile& tile,
                    SourceScratch& scratch, std::vector<std::byte>& to) {
  const std::uint64_t width = source.element_bytes();
  const bool by_columns = source.column_stride != 1;
  const std::uint64_t lines = by_columns ? tile.columns : tile.rows, length = by_columns ? tile.rows : tile.columns;
  const std::uint64_t stride = by_columns ? source.column_stride : source.row_stride;
  const std::uint64_t first = source.first + tile.row * source.row_stride + tile.column * source.column_stride;
  std::vector<std::byte>& read = by_columns ? scratch.turned : to;
  read.resize(static_cast<std::size_t>(lines * length * width));
  // Whole lines follow each other in the file.
  const bool dense = stride == length;
  for (std::uint64_t i = 0; i < (dense ? 1 : lines); ++i)
    if (Status s =
            checkpoint.read(source.place, (first + i * stride) * width,
                            std::span(read).subspan(static_cast<std::size_t>(i * length * width),
                                                    static_cast<std::size_t>(dense ? read.size() : length * width)));
        !s.ok())
      return s;
  if (!by_columns) return {};
  to.resize(read.size());
  switch (width) {
    case 2: turn<std::uint16_t>(read.data(), tile.rows, tile.columns, to.data()); break;
    case 4: turn<std::uint32_t>(read.data(), tile.rows, tile.columns, to.data()); break;
    default: turn<std::uint64_t>(read.data(), tile.rows, tile.columns, to.data()); break;
  }
  return {};
}

}  // namespace

WeightSource WeightSource::of(const io::Checkpoint& checkpoint, const io::TensorPlace& place) {
  const io::TensorInfo& info = checkpoint.at(place);
  return {.kind = element_of(info.dtype).value_or(ElementKind::f32),
          .rows = info.shape[0],
          .columns = info.shape[1],
          .place = place,
          .row_stride = info.shape[1]};
}

WeightSource WeightSource::of(QuantizedLayer layer) {
  WeightSource source{.rows = layer.rows, .columns = layer.columns, .place = layer.codes};
  source.codes = std::move(layer);
  return source;
}

std::uint64_t WeightSource::stored_bytes() const {
  return codes ? rows * bytes_of_codes(codes->scheme.weights, columns) : rows * columns * element_bytes();
}

Status read_tile(const io::Checkpoint& checkpoint, const WeightSource& source, const io::Tile& tile,
                 SourceScratch& scratch, std::vector<std::byte>& to) {
  if (!source.codes) return read_numbers(checkpoint, source, tile, scratch, to);
  to.resize(static_cast<std::size_t>(tile.rows * tile.columns) * sizeof(float));
  return read_values(checkpoint, *source.codes, tile.row, tile.rows, tile.column, tile.columns, scratch.rows,
                     reinterpret_cast<float*>(to.data()));
}

}  // namespace kvant::format
