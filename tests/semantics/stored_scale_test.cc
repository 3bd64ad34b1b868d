// Scales as checkpoints store them: the ends of each type, and zero points that fit the scale that was rounded.
#include "semantics/stored_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvant::tests {
namespace {

using semantics::asymmetric_scale;
using semantics::stored;

TEST(StoredScale, IsNeverBelowTheSmallestNormalNumberNorInfinite) {
  EXPECT_EQ(stored(1e-30, ElementKind::f16), 0x1p-14f);
  EXPECT_EQ(stored(1e6, ElementKind::f16), 65504.0f);
  EXPECT_EQ(stored(1e-45, ElementKind::bf16), std::numeric_limits<float>::min());
  EXPECT_EQ(stored(1e300, ElementKind::f32), std::numeric_limits<float>::max());
  EXPECT_EQ(stored(3.4e38, ElementKind::bf16), 0x1.FEp127f);
  EXPECT_EQ(stored(0.1, ElementKind::bf16), 0.10009765625f);
}

TEST(StoredScale, ZeroPointsComeFromTheStoredScale) {
  const semantics::SavedScale none = asymmetric_scale(0, 0, -8, 7, ElementKind::f32, false);
  EXPECT_EQ(none.scale, 1.0f);
  EXPECT_EQ(none.zero_point, 0);
  const semantics::SavedScale all = asymmetric_scale(-1.0, 2.0, -128, 127, ElementKind::bf16, false);
  EXPECT_EQ(all.scale, to_float(to_bfloat16(static_cast<float>(3.0 / 255))));
  EXPECT_EQ(all.zero_point, -128 - static_cast<int>(std::nearbyint(-1.0f / all.scale)));
  // Only positive, only negative: 0 belongs to the range all the same.
  EXPECT_EQ(asymmetric_scale(5, 10, -8, 7, ElementKind::f32, false).zero_point, -8);
  EXPECT_EQ(asymmetric_scale(-10, -5, -8, 7, ElementKind::f32, false).zero_point, 7);
  EXPECT_TRUE(std::isfinite(asymmetric_scale(-1.7e308, 1.7e308, -8, 7, ElementKind::f32, true).scale));
  // A scale that was raised to the smallest normal number.
  const semantics::SavedScale tiny = asymmetric_scale(-1e-44, 0, -8, 7, ElementKind::f32, false);
  EXPECT_EQ(tiny.scale, std::numeric_limits<float>::min());
  EXPECT_EQ(tiny.zero_point, -8);
}

TEST(StoredScale, SymmetricScalesReachTheLargestNumber) {
  using semantics::symmetric_scale;
  EXPECT_EQ(symmetric_scale(0, ElementKind::e4m3, ElementKind::f32).scale, 1.0f);
  EXPECT_EQ(symmetric_scale(127, ElementKind::s8, ElementKind::f32).scale, 1.0f);
  EXPECT_EQ(symmetric_scale(14, ElementKind::s4, ElementKind::bf16).scale, 2.0f);
  EXPECT_EQ(symmetric_scale(448, ElementKind::e4m3, ElementKind::bf16).scale, 1.0f);
  EXPECT_EQ(symmetric_scale(3, ElementKind::e2m1, ElementKind::f16).scale, 0.5f);
  EXPECT_EQ(symmetric_scale(1e-3, ElementKind::e4m3, ElementKind::f16).scale, 0x1p-14f);
}

// compressed-tensors rounds the mantissa up from 1.75 on.
TEST(StoredScale, PowersOfTwo) {
  using semantics::power_scale;
  const auto power = [](double largest, ElementKind code) {
    const semantics::SavedScale made = power_scale(largest, code);
    EXPECT_EQ(made.zero_point, 0);
    EXPECT_EQ(made.scale, std::ldexp(1.0f, made.bits - 127)) << largest;
    return made.bits - 127;
  };
  for (const auto& [code, top] : {std::pair{ElementKind::e4m3, 8}, {ElementKind::e2m1, 2}}) {
    EXPECT_EQ(power(0, code), 0);
    EXPECT_EQ(power(1, code), -top);
    EXPECT_EQ(power(1.5, code), -top);
    EXPECT_EQ(power(std::nextafter(1.75, 0), code), -top);
    EXPECT_EQ(power(1.75, code), 1 - top);
    EXPECT_EQ(power(std::nextafter(2.0, 0), code), 1 - top);
    EXPECT_EQ(power(2, code), 1 - top);
    EXPECT_EQ(power(0x1.BFFFFEp-20, code), -20 - top);  // the float before 1.75
    EXPECT_EQ(power(0x1.Cp-20, code), -19 - top);
    // Neither below 2^-127 nor above 2^127.
    EXPECT_EQ(power(1e-45, code), -127);
    EXPECT_EQ(power(1e300, code), 127);
    EXPECT_EQ(power(0x1p-120, code), std::max(-127, -120 - top));
  }
}

TEST(StoredScale, CodesUnderAGlobalScale) {
  using semantics::scale_under;
  EXPECT_EQ(semantics::nvfp4_global_scale(2, 6), 1344.0f);
  EXPECT_EQ(semantics::nvfp4_global_scale(0, 6), 1.0f);
  // The largest group has the largest scale, and numbers are divided by the global one.
  const semantics::SavedScale largest = scale_under(1344, 2, ElementKind::e2m1);
  EXPECT_EQ(largest.bits, 0x7E);
  EXPECT_EQ(largest.scale, 448.0f / 1344);
  // 0.1 / 6 * 1344 = 22.4, whose neighbours in e4m3 are 22 and 24.
  const semantics::SavedScale some = scale_under(1344, 0.1, ElementKind::e2m1);
  EXPECT_EQ(some.scale, 22.0f / 1344);
  EXPECT_EQ(some.bits, 0x5B);
  // What would be 0 is 0.125.
  for (const double tiny : {0.0, 1e-7}) {
    EXPECT_EQ(scale_under(1344, tiny, ElementKind::e2m1).bits, 0x20);
    EXPECT_EQ(scale_under(1344, tiny, ElementKind::e2m1).scale, 0.125f / 1344);
  }
  EXPECT_EQ(scale_under(1344, 1e300, ElementKind::e2m1).bits, 0x7E);
}

}  // namespace
}  // namespace kvant::tests
