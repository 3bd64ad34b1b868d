// Sums over weights and their codes: the same bits on every instruction set, and what they are.
#include "kvant/error_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/isas.h"
#include "tests/support/kernel_log.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

// Numbers around zero that f32 holds.
std::vector<double> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<double>(normal(random));
  return values;
}

// What runs here, the scalar reference last.
std::vector<ErrorSums> every_kind() {
  std::vector<ErrorSums> all;
  for (const ArchSku isa : compiled_isas()) {
    if (!cpu::can_run(isa)) continue;
    all.push_back(ErrorSums::select(Stream::cpu(1), {.isa = isa}).value());
    KernelSku sku = all.back().sku();
    EXPECT_EQ(sku.arch, isa);
    note_kernel(sku);
    sku.element = ElementKind::f64;
    note_kernel(sku);
  }
  return all;
}

TEST(ErrorSums, AreTheSameBitsOnEveryInstructionSet) {
  const ErrorSums reference = every_kind().back();
  for (std::size_t count = 0; count <= 70; ++count) {
    std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count));
    if (count > 20) values[count / 2] = 0;
    if (count > 40) values[11] = kNan;
    std::vector<std::int8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
    const std::vector<float> floats(values.begin(), values.end());
    const auto check = [&](const auto* w) {
      for (const ErrorSums& sums : every_kind()) {
        const ErrorSums::Loss a = reference.loss(w, codes.data(), count, 0.01f, -3, 127);
        const ErrorSums::Loss b = sums.loss(w, codes.data(), count, 0.01f, -3, 127);
        EXPECT_EQ(a.sums.weights, b.sums.weights) << count;
        EXPECT_EQ(a.sums.errors, b.sums.errors) << count;
        EXPECT_EQ(a.sums.products, b.sums.products) << count;
        EXPECT_EQ(a.sums.values, b.sums.values) << count;
        EXPECT_EQ(a.largest, b.largest) << count;
        EXPECT_EQ(a.at_ends, b.at_ends) << count;
        EXPECT_EQ(a.non_finite, b.non_finite) << count;
        const ErrorSums::Values c = reference.values(w, count);
        const ErrorSums::Values d = sums.values(w, count);
        EXPECT_EQ(c.squares, d.squares) << count;
        EXPECT_EQ(c.zeros, d.zeros) << count;
        EXPECT_EQ(c.zeros, count > 20 ? 1u : 0u) << count;
        EXPECT_EQ(d.nan, count > 40 ? 1u : 0u) << count;
      }
    };
    check(floats.data());
    check(values.data());
  }
}

TEST(ErrorSums, OutputLossIsWeightedByColumns) {
  for (std::size_t count = 0; count <= 70; ++count) {
    const std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count));
    const std::vector<float> floats(values.begin(), values.end());
    std::vector<std::int8_t> codes(count);
    std::vector<float> m(count), n(count);
    ErrorSums::OutputLoss want;
    for (std::size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
      m[i] = static_cast<float>(i % 5) + 0.25f;
      n[i] = static_cast<float>(i % 3) * 0.125f;
      const double v = static_cast<double>(0.01f) * (codes[i] + 3), e = values[i] - v;
      want += {static_cast<double>(m[i]) * values[i] * values[i], static_cast<double>(m[i]) * e * e,
               static_cast<double>(n[i]) * v * v};
    }
    const auto check = [&](const auto* w) {
      const ErrorSums::OutputLoss reference =
          every_kind().back().output_loss(w, codes.data(), count, 0.01f, -3, m.data(), n.data());
      for (const ErrorSums& sums : every_kind()) {
        const ErrorSums::OutputLoss got = sums.output_loss(w, codes.data(), count, 0.01f, -3, m.data(), n.data());
        EXPECT_EQ(got.outputs, reference.outputs) << count;
        EXPECT_EQ(got.weight_errors, reference.weight_errors) << count;
        EXPECT_EQ(got.input_errors, reference.input_errors) << count;
        EXPECT_NEAR(got.outputs, want.outputs, 1e-12 * want.outputs) << count;
        EXPECT_NEAR(got.weight_errors, want.weight_errors, 1e-12 * want.weight_errors) << count;
        EXPECT_NEAR(got.input_errors, want.input_errors, 1e-12 * want.input_errors) << count;
      }
    };
    check(floats.data());
    check(values.data());
  }
}

TEST(ErrorSums, CellsOfOneColumnAreItsErrors) {
  for (std::size_t count = 0; count <= 70; ++count) {
    const std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count));
    const std::vector<float> floats(values.begin(), values.end());
    constexpr std::int32_t kZeroPoint = 70000;  // as an activation far from 0 has it
    std::vector<std::int8_t> codes(count, 5);
    for (const ErrorSums& sums : every_kind()) {
      std::vector<double> errors(count + 1, 1);
      sums.add_cell_errors(floats.data(), codes.data(), count, 0.01f, kZeroPoint, 0, 1, errors.data());
      for (std::size_t i = 0; i < count; ++i) {
        const double e = values[i] - static_cast<double>(0.01f) * (5 - kZeroPoint);
        EXPECT_EQ(errors[i], 1 + e * e) << count << " column " << i;
      }
      EXPECT_EQ(errors[count], 1) << count;
    }
  }
}

TEST(ErrorSums, DrawingsHaveTheSameBitsToo) {
  constexpr std::size_t kBins = 256, kCell = 8;
  for (std::size_t count = 0; count <= 300; count += count < 70 ? 1 : 23) {
    std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count));
    if (count > 4) values[count / 2] = -1e30;
    if (count > 5) values[count / 3] = 1e30;
    std::vector<std::int8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 256) - 128);
    const std::vector<float> floats(values.begin(), values.end());
    const auto check = [&](const auto* w) {
      struct Drawing {
        std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(ErrorSums::kGridTables * (kBins + 2));
        std::vector<double> errors = std::vector<double>(64, 1), magnitudes = std::vector<double>(300);
        std::vector<float> largest = std::vector<float>(300, 0.01f);
        bool operator==(const Drawing&) const = default;
      };
      std::vector<Drawing> drawings;
      for (const ErrorSums& sums : every_kind()) {
        Drawing& drawing = drawings.emplace_back();
        sums.count_on_grid(w, count, 0.01f, -3, -128, 1, kBins, drawing.counts.data());
        sums.add_cell_errors(w, codes.data(), count, 0.01f, -3, 5, kCell, drawing.errors.data());
        sums.error_magnitudes(w, codes.data(), count, 0.01f, -3, drawing.magnitudes.data());
        sums.raise_to_magnitudes(w, count, drawing.largest.data());
        EXPECT_EQ(drawing, drawings[0]) << count;
      }
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
        for (std::size_t table = 0; table < ErrorSums::kGridTables; ++table)
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

TEST(ErrorSums, RefusesWhatCannotBeHad) {
  EXPECT_EQ(ErrorSums::select(Stream::cpu(0)).status().code(), StatusCode::InvalidProblem);
  EXPECT_EQ(ErrorSums::select(Stream::cpu(1), {.isa = ArchSku::sm_80}).status().code(), StatusCode::Unsupported);
}

}  // namespace
}  // namespace kvant::tests
