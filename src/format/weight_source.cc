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

// Rows of the tile are columns of the experts' codes, which begin where a byte and a word do.
Status read_turned_codes(const io::Checkpoint& checkpoint, const WeightSource& source, const io::Tile& tile,
                         SourceScratch& scratch, std::byte* to) {
  constexpr std::uint64_t kUnit = codes_per_word(ElementKind::s4);
  const QuantizedLayer& layer = *source.codes;
  const std::uint64_t inputs = layer.columns, outputs = layer.rows / source.turned_experts;
  for (std::uint64_t done = 0; done < tile.rows;) {
    const std::uint64_t expert = (tile.row + done) / inputs, first = (tile.row + done) % inputs;
    const std::uint64_t count = std::min(tile.rows - done, inputs - first);
    const std::uint64_t begin = first / kUnit * kUnit, columns = first + count - begin;
    scratch.turned.resize(static_cast<std::size_t>(tile.columns * columns) * sizeof(float));
    auto* const values = reinterpret_cast<float*>(scratch.turned.data());
    if (Status s = read_values(checkpoint, layer, expert * outputs + tile.column, tile.columns, begin, columns,
                               scratch.rows, values);
        !s.ok())
      return s;
    for (std::uint64_t r = 0; r < count; ++r)
      for (std::uint64_t c = 0; c < tile.columns; ++c)
        std::memcpy(to + ((done + r) * tile.columns + c) * sizeof(float), values + c * columns + first - begin + r,
                    sizeof(float));
    done += count;
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

WeightSource WeightSource::of_turned(QuantizedLayer layer, std::uint64_t experts) {
  WeightSource source{.rows = experts * layer.columns, .columns = layer.rows / experts, .place = layer.codes};
  source.codes = std::move(layer);
  source.turned_experts = experts;
  return source;
}

std::uint64_t WeightSource::stored_bytes() const {
  return codes ? codes->rows * bytes_of_codes(codes->scheme.weights, codes->columns) : rows * columns * element_bytes();
}

Status read_tile(const io::Checkpoint& checkpoint, const WeightSource& source, const io::Tile& tile,
                 SourceScratch& scratch, std::vector<std::byte>& to) {
  if (!source.codes) return read_numbers(checkpoint, source, tile, scratch, to);
  to.resize(static_cast<std::size_t>(tile.rows * tile.columns) * sizeof(float));
  if (source.turned_experts != 0) return read_turned_codes(checkpoint, source, tile, scratch, to.data());
  return read_values(checkpoint, *source.codes, tile.row, tile.rows, tile.column, tile.columns, scratch.rows,
                     reinterpret_cast<float*>(to.data()));
}

}  // namespace kvant::format
