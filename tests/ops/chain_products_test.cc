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

template <class T>
std::vector<T> plain_products(const std::vector<T>& x, std::size_t x_stride, const std::vector<T>& m,
                              std::size_t m_stride, const Shape3& s, std::vector<T> out, std::size_t out_stride) {
  for (std::size_t r = 0; r < s.rows; ++r)
    for (std::size_t j = 0; j < s.columns; ++j) {
      T sum = 0;
      for (std::size_t k = 0; k < s.depth; ++k) sum = std::fma(x[r * x_stride + k], m[k * m_stride + j], sum);
      out[r * out_stride + j] = sum;
    }
  return out;
}

// In f32 and f64.
template <class T>
class ChainProducts : public ::testing::Test {
 protected:
  void expect_chains(const Shape3& s, std::size_t gap, bool special = false) const {
    const std::size_t x_stride = s.depth + gap, m_stride = s.columns + gap, out_stride = s.columns + 2 * gap;
    const std::vector<T> x = some_numbers<T>(extent(s.rows, s.depth, x_stride), 1, special);
    const std::vector<T> m = some_numbers<T>(extent(s.depth, s.columns, m_stride), 2, special);
    // What lies between rows of the output stays.
    const std::vector<T> before(extent(s.rows, s.columns, out_stride), T(77));
    const std::vector<T> want = plain_products(x, x_stride, m, m_stride, s, before, out_stride);
    for (const NetworkSteps& steps : all_) {
      Guarded<T> a(x), b(m), out(before);
      steps.chain_products(a.data(), x_stride, b.data(), m_stride, s.rows, s.depth, s.columns, out.data(), out_stride);
      ASSERT_TRUE(same_bits(out.values(), want)) << steps.sku().name() << " rows " << s.rows << " depth " << s.depth
                                                 << " columns " << s.columns << " gap " << gap;
    }
  }

  const std::vector<NetworkSteps> all_ = every_network_steps();
};
using Computed = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ChainProducts, Computed);

TYPED_TEST(ChainProducts, AreChainsInOrder) {
  for (std::size_t columns = 0; columns <= 67; ++columns)
    for (const std::size_t rows : {0u, 1u, 2u, 3u, 4u, 5u, 8u, 9u, 11u})
      for (const std::size_t depth : {0u, 1u, 3u, 4u, 9u})
        ASSERT_NO_FATAL_FAILURE(this->expect_chains({rows, depth, columns}, columns % 3));
}

// Blocks of columns have a width of 3 vectors: 24 numbers in f32 and 12 in f64 on AVX2.
TYPED_TEST(ChainProducts, BlocksOfDepthDoNotShow) {
  for (const std::size_t depth : {63u, 64u, 127u, 128u, 129u, 130u, 255u, 256u, 257u, 300u})
    for (const std::size_t rows : {1u, 7u, 8u, 9u, 13u})
      for (const std::size_t columns : {1u, 8u, 11u, 12u, 13u, 16u, 23u, 24u, 25u, 64u})
        ASSERT_NO_FATAL_FAILURE(this->expect_chains({rows, depth, columns}, 5));
}

TYPED_TEST(ChainProducts, SpecialNumbersAreWhatIeeeSays) {
  for (const std::size_t columns : {1u, 7u, 24u, 31u})
    for (const std::size_t rows : {1u, 4u, 10u})
      ASSERT_NO_FATAL_FAILURE(this->expect_chains({rows, 20, columns}, 0, true));
}

TYPED_TEST(ChainProducts, SizesOfAttention) {
  for (const Shape3& shape : {Shape3{128, 64, 512}, {128, 512, 64}, {1, 64, 1000}, {1, 1000, 64}})
    ASSERT_NO_FATAL_FAILURE(this->expect_chains(shape, 0));
}

// A row alone is that row of a batch.
TYPED_TEST(ChainProducts, RowsAloneAreRowsOfABatch) {
  using T = TypeParam;
  constexpr std::size_t kRows = 37, kDepth = 150, kColumns = 45;
  const std::vector<T> x = some_numbers<T>(kRows * kDepth, 3), m = some_numbers<T>(kDepth * kColumns, 4);
  for (const NetworkSteps& steps : this->all_) {
    std::vector<T> batch(kRows * kColumns), alone(kRows * kColumns);
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
