#include "format/widen.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kvant::tests {
namespace {

TEST(Widen, IsExactForEveryValueOf16Bits) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(all.data());
  for (const ElementKind kind : {ElementKind::f16, ElementKind::bf16}) {
    format::widen(kind, bytes, all.size(), wide.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float want = kind == ElementKind::f16 ? to_float(Half{all[i]}) : to_float(BFloat16{all[i]});
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      else
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(want)) << i;
    }
  }
}

}  // namespace
}  // namespace kvant::tests
