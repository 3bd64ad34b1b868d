// Matrices in tiles: every element once, what belongs together in one tile where it fits, and the bytes of a tile.
#include "io/tiling.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using io::Tile;
using io::Tiling;

TEST(Tiling, CoversEveryElementOnce) {
  for (const std::uint64_t rows : {1u, 3u, 8u, 17u})
    for (const std::uint64_t columns : {1u, 24u, 96u, 480u})
      for (const std::uint64_t row_unit : {1u, 8u})
        for (const std::uint64_t column_unit : {std::uint64_t{1}, std::uint64_t{24}, columns}) {
          if (columns % column_unit != 0) continue;
          for (const std::uint64_t bytes : {1u, 50u, 400u, 3000u, 100000u}) {
            const Tiling tiling({.rows = rows,
                                 .columns = columns,
                                 .tile_bytes = bytes,
                                 .element_bytes = 2,
                                 .row_unit = row_unit,
                                 .column_unit = column_unit});
            std::vector<int> seen(rows * columns);
            for (std::uint64_t i = 0; i < tiling.count(); ++i) {
              const Tile tile = tiling[i];
              EXPECT_EQ(tile.row % row_unit, 0u);
              EXPECT_LE(tile.rows, tiling.tile_rows());
              EXPECT_LE(tile.columns, tiling.tile_columns());
              if (!tiling.splits_units()) {
                EXPECT_EQ(tile.column % column_unit, 0u);
                EXPECT_EQ(tile.columns % column_unit, 0u);
              } else {
                EXPECT_EQ(tile.column % 8, 0u);
              }
              // A tile is as large as was asked for, or the smallest that there is.
              EXPECT_TRUE(tile.rows * tile.columns * 2 <= bytes || (tile.rows <= row_unit && tile.columns <= 8));
              for (std::uint64_t r = 0; r < tile.rows; ++r)
                for (std::uint64_t c = 0; c < tile.columns; ++c) ++seen[(tile.row + r) * columns + tile.column + c];
            }
            EXPECT_EQ(seen, std::vector<int>(rows * columns, 1));
            EXPECT_EQ(tiling.count(), tiling.bands() * tiling.pieces());
          }
        }
  EXPECT_EQ(Tiling({.rows = 0, .columns = 5, .tile_bytes = 100, .element_bytes = 2}).count(), 0u);
  EXPECT_EQ(Tiling({.rows = 5, .columns = 0, .tile_bytes = 100, .element_bytes = 2}).count(), 0u);
  EXPECT_EQ(Tiling().count(), 0u);
}

TEST(Tiling, TilesAreReadAsTheyAre) {
  const ScratchFolder scratch;
  std::vector<double> values;
  for (int i = 0; i < 5 * 12; ++i) values.push_back(i);
  write_safetensors(scratch / "m.safetensors", {f16_tensor("m", {5, 12}, values)});
  const auto file = io::SafetensorsFile::open(scratch / "m.safetensors");
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> bytes;
  for (const Tile& tile : {Tile{0, 5, 0, 12}, Tile{1, 2, 0, 12}, Tile{3, 1, 8, 4}, Tile{2, 3, 4, 3}}) {
    ASSERT_TRUE(io::read_tile(*file, file->tensors()[0], 12, tile, bytes).ok());
    ASSERT_EQ(bytes.size(), 2 * tile.rows * tile.columns);
    for (std::uint64_t r = 0; r < tile.rows; ++r)
      for (std::uint64_t c = 0; c < tile.columns; ++c) {
        Half half;
        std::memcpy(&half, bytes.data() + 2 * (r * tile.columns + c), 2);
        EXPECT_EQ(to_float(half), static_cast<float>((tile.row + r) * 12 + tile.column + c));
      }
  }
  EXPECT_FALSE(io::read_tile(*file, file->tensors()[0], 12, {4, 2, 0, 12}, bytes).ok());
}

}  // namespace
}  // namespace kvant::tests
