// The table of what bytes stand for, beside the formula that kernels compute it with and its definition.
#include "semantics/code_numbers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "semantics/float_grid.h"
#include "semantics/one_number.h"
#include "tests/support/float_grid_reference.h"

namespace kvant::tests {
namespace {

TEST(CodeNumbers, AreWhatKernelsCompute) {
  for (const ElementKind kind : {ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1}) {
    const float* const numbers = semantics::numbers_of(kind);
    ASSERT_NE(numbers, nullptr) << name(kind);
    const semantics::FloatGrid grid = semantics::float_grid(kind, true);
    const int codes = 1 << bits_per_element(kind);
    for (int byte = 0; byte < 256; ++byte) {
      // Bits above those of a code do not count.
      const auto code = static_cast<std::uint8_t>(byte % codes);
      const double defined = grid_reference(kind).number_of(code);
      const float computed = semantics::from_grid_code<semantics::OneNumber<float>>(code, grid);
      if (std::isnan(defined)) {
        EXPECT_TRUE(std::isnan(numbers[byte]) && std::isnan(computed)) << name(kind) << " " << byte;
        continue;
      }
      // Bits, so that 0 and -0 are two.
      EXPECT_EQ(std::bit_cast<std::uint32_t>(numbers[byte]), std::bit_cast<std::uint32_t>(static_cast<float>(defined)))
          << name(kind) << " " << byte << ": " << numbers[byte] << " instead of " << defined;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(numbers[byte]), std::bit_cast<std::uint32_t>(computed))
          << name(kind) << " " << byte;
    }
  }
}

TEST(CodeNumbers, IntegersStandForThemselves) {
  for (const ElementKind kind : {ElementKind::s8, ElementKind::u8, ElementKind::s4, ElementKind::u4, ElementKind::s2})
    EXPECT_EQ(semantics::numbers_of(kind), nullptr) << name(kind);
}

}  // namespace
}  // namespace kvant::tests
