// Scales as checkpoints store them: the ends of each type, and zero points that fit the scale that was rounded.
#include "semantics/stored_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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
  const semantics::StoredScale none = asymmetric_scale(0, 0, -8, 7, ElementKind::f32, false);
  EXPECT_EQ(none.scale, 1.0f);
  EXPECT_EQ(none.zero_point, 0);
  const semantics::StoredScale all = asymmetric_scale(-1.0, 2.0, -128, 127, ElementKind::bf16, false);
  EXPECT_EQ(all.scale, to_float(to_bfloat16(static_cast<float>(3.0 / 255))));
  EXPECT_EQ(all.zero_point, -128 - static_cast<int>(std::nearbyint(-1.0f / all.scale)));
  // Only positive, only negative: 0 belongs to the range all the same.
  EXPECT_EQ(asymmetric_scale(5, 10, -8, 7, ElementKind::f32, false).zero_point, -8);
  EXPECT_EQ(asymmetric_scale(-10, -5, -8, 7, ElementKind::f32, false).zero_point, 7);
  EXPECT_TRUE(std::isfinite(asymmetric_scale(-1.7e308, 1.7e308, -8, 7, ElementKind::f32, true).scale));
  // A scale that was raised to the smallest normal number.
  const semantics::StoredScale tiny = asymmetric_scale(-1e-44, 0, -8, 7, ElementKind::f32, false);
  EXPECT_EQ(tiny.scale, std::numeric_limits<float>::min());
  EXPECT_EQ(tiny.zero_point, -8);
}

}  // namespace
}  // namespace kvant::tests
