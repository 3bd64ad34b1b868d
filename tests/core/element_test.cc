// Element kinds and the 16-bit conversions, for every value there is.
#include "kvant/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace kvant {
namespace {

template <class T>
void expect_round_trips(T (*narrowed)(float)) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const T value{static_cast<std::uint16_t>(bits)};
    const float f = to_float(value);
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(to_float(narrowed(f))));
    else
      ASSERT_EQ(narrowed(f).bits, value.bits);
  }
}

TEST(Element, HalfSurvivesAFullRoundTrip) { expect_round_trips<Half>(to_half); }
TEST(Element, BFloat16SurvivesAFullRoundTrip) { expect_round_trips<BFloat16>(to_bfloat16); }

// Between two neighbours: below the middle down, above it up, at the middle to the even one.
template <class T>
void check_rounding(T (*narrow)(float), std::uint16_t first, std::uint16_t last) {
  for (std::uint32_t bits = first; bits < last; ++bits) {
    const T low{static_cast<std::uint16_t>(bits)}, high{static_cast<std::uint16_t>(bits + 1)};
    const float a = to_float(low), b = to_float(high);
    const float middle = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
    ASSERT_EQ(narrow(middle).bits, bits % 2 == 0 ? low.bits : high.bits) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, a)).bits, low.bits) << bits;
    ASSERT_EQ(narrow(std::nextafter(middle, b)).bits, high.bits) << bits;
  }
}

TEST(Element, HalfRoundsToNearestEven) { check_rounding<Half>(&to_half, 0, 0x7BFF); }
TEST(Element, BFloat16RoundsToNearestEven) { check_rounding<BFloat16>(&to_bfloat16, 1, 0x7F7F); }

TEST(Element, NarrowingOverflowsToInfinityAndKeepsNan) {
  EXPECT_EQ(to_half(65520.0f).bits, 0x7C00);
  EXPECT_EQ(to_half(-1e30f).bits, 0xFC00);
  EXPECT_EQ(to_bfloat16(3.4e38f).bits, 0x7F80);
  float signalling;
  const std::uint32_t bits = 0x7F800001;
  std::memcpy(&signalling, &bits, 4);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(signalling))));
}

TEST(Element, RowsOfPackedCodesTakeWholeBytes) {
  EXPECT_EQ(row_bytes(ElementKind::s4, 0), 0);
  EXPECT_EQ(row_bytes(ElementKind::s4, 7), 4);
  EXPECT_EQ(row_bytes(ElementKind::u4, 8), 4);
  EXPECT_EQ(row_bytes(ElementKind::f64, 3), 24);
  EXPECT_EQ(row_bytes(ElementKind::s4, INT64_MAX), INT64_MAX / 2 + 1);
}

}  // namespace
}  // namespace kvant
