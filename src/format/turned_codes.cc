#include "format/turned_codes.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/divide_up.h"
#include "format/compressed_tensors.h"

namespace kvant::format {
namespace {

// Words [first, first + count) of a tensor.
Status read_words(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t first,
                  std::uint64_t count, std::vector<std::byte>& bytes) {
  bytes.resize(static_cast<std::size_t>(4 * count));
  return checkpoint.read(place, 4 * first, bytes);
}

// Code `place` of a word, without its sign.
std::uint32_t code_in(const std::vector<std::byte>& words, std::uint64_t word, unsigned place, unsigned bits) {
  std::uint32_t value;
  std::memcpy(&value, words.data() + 4 * word, sizeof value);
  return value >> (bits * place) & ((1u << bits) - 1);
}

// One layer's codes, scales and zero points on their way to rows.
class TurnedReader {
 public:
  TurnedReader(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
               LayerRows& rows)
      : checkpoint_(checkpoint),
        layer_(layer),
        row_(row),
        count_(count),
        rows_(rows),
        per_word_(codes_per_word(layer.code())),
        bits_(static_cast<unsigned>(layer.bits())),
        offset_(word_offset(layer.code())) {}

  Status codes(std::uint64_t column, std::uint64_t columns) {
    rows_.codes.resize(std::max<std::size_t>(rows_.codes.size(), static_cast<std::size_t>(count_ * columns)));
    const auto put = [&](std::uint64_t r, std::uint64_t c, std::uint32_t u) {
      rows_.codes[r * columns + c] = static_cast<std::int8_t>(static_cast<std::int32_t>(u) - offset_);
    };
    if (layer_.arrangement == Arrangement::awq) {
      for (std::uint64_t c = 0; c < columns; ++c) {
        if (Status s = words_of_rows(layer_.codes, column + c); !s.ok()) return s;
        for (std::uint64_t r = 0; r < count_; ++r) put(r, c, of_row(r));
      }
      return {};
    }
    for (std::uint64_t word = column / per_word_; word * per_word_ < column + columns; ++word) {
      if (Status s = read_words(checkpoint_, layer_.codes, word * layer_.rows + row_, count_, rows_.bytes); !s.ok())
        return s;
      const std::uint64_t first = std::max(column, word * per_word_);
      const std::uint64_t end = std::min(column + columns, (word + 1) * per_word_);
      for (std::uint64_t r = 0; r < count_; ++r)
        for (std::uint64_t c = first; c < end; ++c)
          put(r, c - column, code_in(rows_.bytes, r, static_cast<unsigned>(c % per_word_), bits_));
    }
    return {};
  }

  // Of one stored group, to columns `to` of the rows' scales and zero points, which have `stride`.
  Status parameters(std::uint64_t group, std::span<const std::uint64_t> to, std::uint64_t stride) {
    rows_.line.resize(static_cast<std::size_t>(count_));
    if (Status s = read_scales(checkpoint_, layer_.scales, group * layer_.rows + row_, rows_.line, rows_.bytes);
        !s.ok())
      return s;
    for (std::uint64_t r = 0; r < count_; ++r)
      for (const std::uint64_t i : to) rows_.scales[r * stride + i] = rows_.line[r];
    if (Status s = words_of_rows(*layer_.zero_points, group); !s.ok()) return s;
    const std::int32_t more = layer_.arrangement == Arrangement::gptq ? 1 : 0;
    for (std::uint64_t r = 0; r < count_; ++r)
      for (const std::uint64_t i : to)
        rows_.zero_points[r * stride + i] =
            static_cast<std::int16_t>(static_cast<std::int32_t>(of_row(r)) + more - offset_);
    return {};
  }

 private:
  // Of line `line` of a tensor whose words lie along the output, those that hold the rows.
  Status words_of_rows(const io::TensorPlace& place, std::uint64_t line) {
    const std::uint64_t first = row_ / per_word_, end = base::parts_of(row_ + count_, per_word_);
    return read_words(checkpoint_, place, line * (layer_.rows / per_word_) + first, end - first, rows_.bytes);
  }
  std::uint32_t of_row(std::uint64_t r) const {
    const std::uint64_t row = row_ + r;
    const unsigned place =
        layer_.arrangement == Arrangement::awq ? awq_place(row) : static_cast<unsigned>(row % per_word_);
    return code_in(rows_.bytes, row / per_word_ - row_ / per_word_, place, bits_);
  }

  const io::Checkpoint& checkpoint_;
  const QuantizedLayer& layer_;
  std::uint64_t row_, count_;
  LayerRows& rows_;
  std::uint64_t per_word_;
  unsigned bits_;
  std::int32_t offset_;
};

}  // namespace

Status read_turned_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                        std::uint64_t count, std::uint64_t column, std::uint64_t columns, LayerRows& rows) {
  TurnedReader reader(checkpoint, layer, row, count, rows);
  if (Status s = reader.codes(column, columns); !s.ok()) return s;
  rows.first_group = column / layer.group_size;
  rows.groups = (column + columns - 1) / layer.group_size - rows.first_group + 1;
  const auto size = static_cast<std::size_t>(count * rows.groups);
  rows.scales.resize(std::max(rows.scales.size(), size));
  rows.zero_points.resize(std::max(rows.zero_points.size(), size));
  if (layer.group_of_column == nullptr) {
    for (std::uint64_t g = 0; g < rows.groups; ++g)
      if (Status s = reader.parameters(rows.first_group + g, std::span(&g, 1), rows.groups); !s.ok()) return s;
    return {};
  }
  // Columns by their group, so that each is read once.
  std::vector<std::uint64_t> order(static_cast<std::size_t>(columns));
  for (std::uint64_t c = 0; c < columns; ++c) order[c] = c;
  const auto group_of = [&](std::uint64_t c) { return (*layer.group_of_column)[column + c]; };
  std::sort(order.begin(), order.end(),
            [&](std::uint64_t a, std::uint64_t b) { return std::pair(group_of(a), a) < std::pair(group_of(b), b); });
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first;
    while (end < order.size() && group_of(order[end]) == group_of(order[first])) ++end;
    if (Status s = reader.parameters(group_of(order[first]), std::span(order).subspan(first, end - first), rows.groups);
        !s.ok())
      return s;
    first = end;
  }
  return {};
}

}  // namespace kvant::format
