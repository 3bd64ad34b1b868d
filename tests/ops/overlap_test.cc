// The overlap test against its definition, byte by byte, over small views in every position.
#include "ops/overlap.h"

#include <gtest/gtest.h>

#include <set>

namespace kvant::ops {
namespace {

std::set<std::uintptr_t> bytes_of(const Extent& e) {
  std::set<std::uintptr_t> bytes;
  for (std::int64_t r = 0; r < e.rows; ++r)
    for (std::int64_t i = 0; i < e.row_bytes; ++i)
      bytes.insert(e.begin + static_cast<std::uintptr_t>(r * e.stride + i));
  return bytes;
}

TEST(Overlap, EqualsItsDefinitionWhereItIsExact) {
  int overlapping = 0, apart = 0;
  const auto at = [](std::int64_t address) {
    return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
  };
  for (std::int64_t rows_a = 0; rows_a <= 3; ++rows_a)
    for (std::int64_t width_a = 0; width_a <= 3; ++width_a)
      for (std::int64_t rows_b = 0; rows_b <= 3; ++rows_b)
        for (std::int64_t width_b = 0; width_b <= 3; ++width_b)
          for (std::int64_t stride_a : {width_a, std::int64_t{6}})
            for (std::int64_t stride_b : {width_b, std::int64_t{6}})
              for (std::int64_t begin = 80; begin <= 125; ++begin) {
                const Extent a(at(100), rows_a, width_a, stride_a), b(at(begin), rows_b, width_b, stride_b);
                const auto bytes_a = bytes_of(a), bytes_b = bytes_of(b);
                bool shared = false;
                for (const std::uintptr_t byte : bytes_a) shared = shared || bytes_b.contains(byte);
                ASSERT_EQ(overlap(a, b), shared) << rows_a << "x" << width_a << "/" << stride_a << " at 100, " << rows_b
                                                 << "x" << width_b << "/" << stride_b << " at " << begin;
                (shared ? overlapping : apart)++;
              }
  EXPECT_GT(overlapping, 1000);
  EXPECT_GT(apart, 1000);
}

}  // namespace
}  // namespace kvant::ops
