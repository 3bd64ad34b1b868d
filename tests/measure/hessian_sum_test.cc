// The sum of x xᵀ: the order of its sums by plain loops, for any batch, number of threads and instruction set.
#include "measure/hessian_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/network_steps_case.h"

namespace kvant::tests {
namespace {

using measure::HessianBuffers;
using measure::HessianSum;

// Chains of 512 rows in f32, added in f64.
std::vector<float> plain_sum(const std::vector<float>& x, std::size_t stride, std::size_t rows, std::size_t in) {
  std::vector<float> sum(in * in);
  for (std::size_t i = 0; i < in; ++i)
    for (std::size_t j = 0; j < in; ++j) {
      double total = 0;
      for (std::size_t first = 0; first < rows; first += 512) {
        float chain = 0;
        for (std::size_t r = first; r < std::min(first + 512, rows); ++r)
          chain = std::fma(x[r * stride + i], x[r * stride + j], chain);
        total += static_cast<double>(chain);
      }
      sum[i * in + j] = static_cast<float>(total);
    }
  return sum;
}

std::vector<float> sum_in_batches(const Stream& stream, const NetworkSteps& steps, const std::vector<float>& x,
                                  std::size_t stride, std::size_t rows, std::size_t in, std::size_t batch) {
  HessianSum sum(in);
  HessianBuffers buffers;
  for (std::size_t r = 0; r < rows; r += batch)
    EXPECT_TRUE(sum.add(stream, steps, x.data() + r * stride, static_cast<std::int64_t>(stride),
                        static_cast<std::int64_t>(std::min(batch, rows - r)), buffers)
                    .ok());
  EXPECT_TRUE(sum.finish(stream, steps, buffers).ok());
  std::vector<float> all(in * in);
  constexpr std::size_t kRows = 70;
  for (std::size_t r = 0; r < in; r += kRows) sum.read(r, std::min(kRows, in - r), all.data() + r * in);
  return all;
}

TEST(HessianSum, IsChainsOf512RowsAddedInF64) {
  struct Case {
    std::size_t in, rows;
  };
  for (const auto& [in, rows] :
       {Case{1, 3}, Case{7, 511}, Case{95, 512}, Case{96, 513}, Case{97, 1030}, Case{200, 40}, Case{288, 600}}) {
    const std::size_t stride = in + in % 3;
    const std::vector<float> x = some_numbers(rows * stride, static_cast<std::uint32_t>(in));
    const std::vector<float> want = plain_sum(x, stride, rows, in);
    for (const NetworkSteps& steps : every_network_steps())
      for (const int threads : {1, 3})
        for (const std::size_t batch : {rows, std::size_t{512}, std::size_t{100}}) {
          const std::vector<float> got = sum_in_batches(Stream::cpu(threads), steps, x, stride, rows, in, batch);
          ASSERT_TRUE(same_bits(got, want))
              << steps.sku().name() << " in " << in << " rows " << rows << " batch " << batch;
        }
    for (std::size_t i = 0; i < in; ++i)
      for (std::size_t j = 0; j < i; ++j) ASSERT_EQ(want[i * in + j], want[j * in + i]);
  }
}

}  // namespace
}  // namespace kvant::tests
