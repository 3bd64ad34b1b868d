// NetworkSteps::chain_products and transpose: every element is the one that a plain loop makes, and nothing else is
// read or written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/support/network_steps_case.h"

namespace kvant::tests {
namespace {

struct Shape3 {
  std::size_t rows, depth, columns;
};

// Numbers of a matrix whose last row ends where its elements end.
std::size_t extent(std::size_t rows, std::size_t columns, std::size_t stride) {
  return rows == 0 ? 0 : (rows - 1) * stride + columns;
}

std::vector<float> plain_products(const std::vector<float>& x, std::size_t x_stride, const std::vector<float>& m,
                                  std::size_t m_stride, const Shape3& s, std::vector<float> out,
                                  std::size_t out_stride) {
  for (std::size_t r = 0; r < s.rows; ++r)
    for (std::size_t j = 0; j < s.columns; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < s.depth; ++k) sum = std::fma(x[r * x_stride + k], m[k * m_stride + j], sum);
      out[r * out_stride + j] = sum;
    }
  return out;
}

void expect_chains(const std::vector<NetworkSteps>& all, const Shape3& s, std::size_t gap, bool special = false) {
  const std::size_t x_stride = s.depth + gap, m_stride = s.columns + gap, out_stride = s.columns + 2 * gap;
  const std::vector<float> x = some_numbers(extent(s.rows, s.depth, x_stride), 1, special);
  const std::vector<float> m = some_numbers(extent(s.depth, s.columns, m_stride), 2, special);
  // What lies between rows of the output stays.
  const std::vector<float> before(extent(s.rows, s.columns, out_stride), 77.0f);
  const std::vector<float> want = plain_products(x, x_stride, m, m_stride, s, before, out_stride);
  for (const NetworkSteps& steps : all) {
    Guarded<float> a(x), b(m), out(before);
    steps.chain_products(a.data(), x_stride, b.data(), m_stride, s.rows, s.depth, s.columns, out.data(), out_stride);
    ASSERT_TRUE(same_bits(out.values(), want)) << steps.sku().name() << " rows " << s.rows << " depth " << s.depth
                                               << " columns " << s.columns << " gap " << gap;
  }
}

TEST(ChainProducts, AreChainsInOrder) {
  const std::vector<NetworkSteps> all = every_network_steps();
  for (std::size_t columns = 0; columns <= 67; ++columns)
    for (const std::size_t rows : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u, 11u})
      for (const std::size_t depth : {0u, 1u, 3u, 4u, 9u}) expect_chains(all, {rows, depth, columns}, columns % 3);
}

TEST(ChainProducts, BlocksOfDepthDoNotShow) {
  const std::vector<NetworkSteps> all = every_network_steps();
  for (const std::size_t depth : {63u, 64u, 127u, 128u, 129u, 130u, 255u, 256u, 257u, 300u})
    for (const std::size_t rows : {1u, 7u, 8u, 9u, 13u})
      for (const std::size_t columns : {1u, 8u, 16u, 23u, 24u, 25u, 64u}) expect_chains(all, {rows, depth, columns}, 5);
}

TEST(ChainProducts, SpecialNumbersAreWhatIeeeSays) {
  const std::vector<NetworkSteps> all = every_network_steps();
  for (const std::size_t columns : {1u, 7u, 24u, 31u})
    for (const std::size_t rows : {1u, 4u, 10u}) expect_chains(all, {rows, 20, columns}, 0, true);
}

TEST(ChainProducts, SizesOfAttention) {
  const std::vector<NetworkSteps> all = every_network_steps();
  expect_chains(all, {128, 64, 512}, 0);
  expect_chains(all, {128, 512, 64}, 0);
  expect_chains(all, {1, 64, 1000}, 0);
  expect_chains(all, {1, 1000, 64}, 0);
}

// A row alone is that row of a batch.
TEST(ChainProducts, RowsAloneAreRowsOfABatch) {
  constexpr std::size_t kRows = 37, kDepth = 150, kColumns = 45;
  const std::vector<float> x = some_numbers(kRows * kDepth, 3), m = some_numbers(kDepth * kColumns, 4);
  for (const NetworkSteps& steps : every_network_steps()) {
    std::vector<float> batch(kRows * kColumns), alone(kRows * kColumns);
    steps.chain_products(x.data(), kDepth, m.data(), kColumns, kRows, kDepth, kColumns, batch.data(), kColumns);
    for (std::size_t r = 0; r < kRows; ++r)
      steps.chain_products(x.data() + r * kDepth, kDepth, m.data(), kColumns, 1, kDepth, kColumns,
                           alone.data() + r * kColumns, kColumns);
    EXPECT_TRUE(same_bits(alone, batch)) << steps.sku().name();
  }
}

TEST(Transpose, MovesEveryElement) {
  const std::vector<NetworkSteps> all = every_network_steps();
  for (std::size_t rows = 0; rows <= 35; ++rows)
    for (const std::size_t columns : {0u, 1u, 7u, 8u, 9u, 15u, 16u, 17u, 33u})
      for (const std::size_t gap : {0u, 3u}) {
        const std::size_t x_stride = columns + gap, out_stride = rows + 2 * gap;
        const std::vector<float> x = some_numbers(extent(rows, columns, x_stride), 5, true);
        const std::vector<float> before(extent(columns, rows, out_stride), 77.0f);
        std::vector<float> want = before;
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t c = 0; c < columns; ++c) want[c * out_stride + r] = x[r * x_stride + c];
        for (const NetworkSteps& steps : all) {
          Guarded<float> from(x), to(before);
          steps.transpose(from.data(), x_stride, rows, columns, to.data(), out_stride);
          ASSERT_TRUE(same_bits(to.values(), want)) << steps.sku().name() << " " << rows << " by " << columns;
        }
      }
}

}  // namespace
}  // namespace kvant::tests
