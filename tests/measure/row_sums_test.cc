// The sums of rows: the same bits on every instruction set.
#include "measure/row_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/checkpoint_fixture.h"

namespace kvant::tests {
namespace {

using io::DType;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(RowSums, EveryLaneWidthGivesTheSameBits) {
  for (std::size_t count = 0; count <= 70; ++count) {
    std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count), DType::f32);
    if (count > 20) values[count / 2] = 0;
    if (count > 40) values[11] = kNan;
    std::vector<std::int8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
    const std::vector<float> floats(values.begin(), values.end());
    const auto check = [&](const auto* w) {
      const measure::Loss a =
          measure::segment_loss(w, codes.data(), count, 0.01f, -3, 127, measure::LaneWidth::baseline);
      const measure::Loss b =
          measure::segment_loss(w, codes.data(), count, 0.01f, -3, 127, measure::LaneWidth::machine);
      EXPECT_EQ(a.sums.weights, b.sums.weights) << count;
      EXPECT_EQ(a.sums.errors, b.sums.errors) << count;
      EXPECT_EQ(a.sums.products, b.sums.products) << count;
      EXPECT_EQ(a.sums.values, b.sums.values) << count;
      EXPECT_EQ(a.largest, b.largest) << count;
      EXPECT_EQ(a.at_ends, b.at_ends) << count;
      EXPECT_EQ(a.non_finite, b.non_finite) << count;
      const measure::ValueSums c = measure::value_sums(w, count, measure::LaneWidth::baseline);
      const measure::ValueSums d = measure::value_sums(w, count, measure::LaneWidth::machine);
      EXPECT_EQ(c.squares, d.squares) << count;
      EXPECT_EQ(c.zeros, d.zeros) << count;
      EXPECT_EQ(c.zeros, count > 20 ? 1u : 0u) << count;
      EXPECT_EQ(d.nan, count > 40 ? 1u : 0u) << count;
    };
    check(floats.data());
    check(values.data());
  }
}

TEST(RowSums, DrawingsHaveTheSameBitsToo) {
  using measure::LaneWidth;
  constexpr std::size_t kBins = 256, kCell = 8;
  for (std::size_t count = 0; count <= 300; count += count < 70 ? 1 : 23) {
    std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count), DType::f32);
    if (count > 4) values[count / 2] = -1e30;
    if (count > 5) values[count / 3] = 1e30;
    std::vector<std::int8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
    const std::vector<float> floats(values.begin(), values.end());
    const auto check = [&](const auto* w) {
      struct Drawing {
        std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(measure::kGridTables * (kBins + 2));
        std::vector<double> errors = std::vector<double>(64, 1), magnitudes = std::vector<double>(300);
        std::vector<float> largest = std::vector<float>(300, 0.01f);
        bool operator==(const Drawing&) const = default;
      } drawings[2];
      for (const LaneWidth lanes : {LaneWidth::baseline, LaneWidth::machine}) {
        Drawing& drawing = drawings[lanes == LaneWidth::machine ? 1 : 0];
        measure::count_on_grid(w, count, 0.01f, -3, -128, 1, kBins, drawing.counts.data(), lanes);
        measure::add_cell_errors(w, codes.data(), count, 0.01f, -3, 5, kCell, drawing.errors.data(), lanes);
        measure::error_magnitudes(w, codes.data(), count, 0.01f, -3, drawing.magnitudes.data(), lanes);
        measure::raise_to_magnitudes(w, count, drawing.largest.data(), lanes);
      }
      EXPECT_EQ(drawings[0], drawings[1]) << count;
      // What they are, in plain words.
      std::vector<std::uint64_t> counts(kBins + 2);
      std::vector<double> errors(64, 0);
      for (std::size_t i = 0; i < count; ++i) {
        const float t = static_cast<float>(w[i]) / 0.01f + -3.0f - -128.5f;
        ++counts[t < 0 ? 0 : t >= 256 ? kBins + 1 : 1 + static_cast<std::size_t>(t)];
        const double e = static_cast<double>(w[i]) - static_cast<double>(0.01f) * (codes[i] + 3);
        errors[(i + 5) / kCell] += e * e;
        EXPECT_EQ(drawings[0].magnitudes[i], std::abs(e));
        EXPECT_EQ(drawings[0].largest[i], std::max(0.01f, std::abs(static_cast<float>(w[i]))));
      }
      for (std::size_t bin = 0; bin < kBins + 2; ++bin) {
        std::uint64_t got = 0;
        for (std::size_t table = 0; table < measure::kGridTables; ++table)
          got += drawings[0].counts[table * (kBins + 2) + bin];
        EXPECT_EQ(got, counts[bin]) << count << " bin " << bin;
      }
      for (std::size_t cell = 0; cell < errors.size(); ++cell)
        EXPECT_NEAR(drawings[0].errors[cell], 1 + errors[cell], 1e-12 * (1 + errors[cell]))
            << count << " cell " << cell;
    };
    check(floats.data());
    check(values.data());
  }
}

TEST(RowSums, WidensEveryValueOf16Bits) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(all.data());
  for (const ElementKind kind : {ElementKind::f16, ElementKind::bf16}) {
    measure::widen(kind, bytes, all.size(), wide.data());
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
