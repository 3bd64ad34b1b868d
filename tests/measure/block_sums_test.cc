// Tiles that end where blocks do, and sums that are added in the order of the matrix.
#include "measure/block_sums.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvant::tests {
namespace {

using measure::kBlock;

TEST(BlockTiling, CoversEveryElementOnceInOrder) {
  for (const std::uint64_t rows : {1u, 2u, 7u})
    for (const std::uint64_t columns : {1u, 100u, 4096u, 4097u, 20000u})
      for (const std::uint64_t bytes : {1u, 1000u, 9000u, 40000u, 1000000u}) {
        const io::Tiling tiling = measure::tiling_in_blocks(rows, columns, 2, 8, bytes);
        std::uint64_t next = 0;
        for (std::uint64_t i = 0; i < tiling.count(); ++i) {
          const io::Tile tile = tiling[i];
          ASSERT_EQ(tile.row * columns + tile.column, next);
          ASSERT_TRUE(tile.columns == columns || tile.rows == 1);
          ASSERT_EQ(tile.column % kBlock, 0u);
          ASSERT_LE(tile.rows * measure::blocks_in_row(tile), measure::max_blocks(tiling));
          ASSERT_TRUE(tile.rows * (tile.columns * 2 + 8) <= bytes || (tile.rows == 1 && tile.columns <= kBlock));
          next += tile.rows * tile.columns;
        }
        ASSERT_EQ(next, rows * columns);
      }
  EXPECT_EQ(measure::tiling_in_blocks(0, 5, 2, 8, 100).count(), 0u);
  EXPECT_EQ(measure::tiling_in_blocks(5, 0, 2, 8, 100).count(), 0u);
}

TEST(SumInOrder, AddsEveryTileInItsOrder) {
  constexpr std::uint64_t kRows = 5, kColumns = 3 * kBlock + 1;
  for (const int threads : {1, 3})
    for (const std::uint64_t kept : {1u, 1000u})
      for (const std::uint64_t bytes : {1u, 200000u}) {
        const io::Tiling tiling = measure::tiling_in_blocks(kRows, kColumns, 2, 8, bytes);
        std::vector<std::uint64_t> order;
        const auto work = [](std::size_t, const io::Tile& tile, std::span<std::uint64_t> blocks, std::uint64_t& rows) {
          const std::uint64_t per_row = measure::blocks_in_row(tile);
          for (std::uint64_t b = 0; b < blocks.size(); ++b)
            blocks[b] = (tile.row + b / per_row) * 100 + tile.column / kBlock + b % per_row;
          rows = tile.rows;
          return Status();
        };
        const auto add = [&](const io::Tile& tile, std::span<const std::uint64_t> blocks, std::uint64_t rows) {
          EXPECT_EQ(rows, tile.rows);
          order.insert(order.end(), blocks.begin(), blocks.end());
        };
        ASSERT_TRUE(
            (measure::sum_in_order<std::uint64_t, std::uint64_t>(Stream::cpu(threads), tiling, kept, work, add).ok()));
        std::vector<std::uint64_t> wanted;
        for (std::uint64_t r = 0; r < kRows; ++r)
          for (std::uint64_t b = 0; b < 4; ++b) wanted.push_back(r * 100 + b);
        EXPECT_EQ(order, wanted) << threads << " threads, " << kept << " blocks, " << bytes << " bytes";
      }
}

}  // namespace
}  // namespace kvant::tests
