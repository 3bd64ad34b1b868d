// Codes that are stored by input channels, as GPTQ and AWQ do: words that hold a column's, or a few columns', codes of
// many rows.
#pragma once

#include <cstdint>

#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::format {

// Which nibble of its word, from the lowest, holds row `row` in AWQ's order: 0, 4, 1, 5, 2, 6, 3, 7. Its kernels take
// even and odd nibbles apart.
constexpr unsigned awq_place(std::uint64_t row) { return static_cast<unsigned>(row % 8 / 2 + row % 2 * 4); }

// read_rows() of such a layer, whose bounds are checked.
Status read_turned_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                        std::uint64_t count, std::uint64_t column, std::uint64_t columns, LayerRows& rows);

}  // namespace kvant::format
