// Sums over weights and their codes: the same bits on every instruction set, and what they are.
#include "kvant/error_sums.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/float_grid_reference.h"
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
        const ErrorSums::Loss a = reference.loss(w, {codes.data(), count, 0.01f, -3});
        const ErrorSums::Loss b = sums.loss(w, {codes.data(), count, 0.01f, -3});
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
          every_kind().back().output_loss(w, {codes.data(), count, 0.01f, -3}, m.data(), n.data());
      for (const ErrorSums& sums : every_kind()) {
        const ErrorSums::OutputLoss got = sums.output_loss(w, {codes.data(), count, 0.01f, -3}, m.data(), n.data());
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
      sums.add_cell_errors(floats.data(), {codes.data(), count, 0.01f, kZeroPoint}, 0, 1, errors.data());
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
        sums.add_cell_errors(w, {codes.data(), count, 0.01f, -3}, 5, kCell, drawing.errors.data());
        sums.error_magnitudes(w, {codes.data(), count, 0.01f, -3}, drawing.magnitudes.data());
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

// Bytes of finite codes, in an order that mixes signs and sizes; among them both ends.
std::vector<std::int8_t> finite_codes(ElementKind code, std::size_t count) {
  std::vector<std::int8_t> all;
  for (int byte = 0; byte < 256; ++byte) {
    const int bits = bits_per_element(code);
    if (!has_float_grid(code)) {
      const int q = static_cast<std::int8_t>(byte);
      if (q >= code_range(code).min && q <= code_range(code).max) all.push_back(static_cast<std::int8_t>(q));
    } else if (byte < 1 << bits && std::isfinite(grid_reference(code).number_of(static_cast<std::uint8_t>(byte)))) {
      all.push_back(static_cast<std::int8_t>(byte));
    }
  }
  std::vector<std::int8_t> codes(count);
  for (std::size_t i = 0; i < count; ++i) codes[i] = all[i * 37 % all.size()];
  return codes;
}

// Every function over codes of every kind: the same bits everywhere, and what they are.
TEST(ErrorSums, TakeCodesOfEveryKind) {
  for (const ElementKind code :
       {ElementKind::s8, ElementKind::s4, ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1}) {
    const bool floating = has_float_grid(code);
    const int zero_point = floating ? 0 : -3;
    const double most = floating ? grid_reference(code).max() : code_range(code).max;
    const float scale = static_cast<float>(1.25 / most);
    for (std::size_t count = 0; count <= 300; count += count < 70 ? 1 : 23) {
      SCOPED_TRACE(fmt::format("{}, {} codes", name(code), count));
      const std::vector<double> values = random_values(count, static_cast<std::uint32_t>(count));
      const std::vector<float> floats(values.begin(), values.end());
      const std::vector<std::int8_t> codes = finite_codes(code, count);
      const ErrorSums::Codes stretch{codes.data(), count, scale, zero_point, code};
      std::vector<float> m(count), n(count);
      std::vector<double> v(count), errors(count);
      ErrorSums::Loss want;
      ErrorSums::OutputLoss want_outputs;
      std::size_t place = count;
      for (std::size_t i = 0; i < count; ++i) {
        const double steps =
            floating ? grid_reference(code).number_of(static_cast<std::uint8_t>(codes[i])) : codes[i] - zero_point;
        v[i] = static_cast<double>(scale) * steps;
        errors[i] = std::abs(values[i] - v[i]);
        m[i] = static_cast<float>(i % 5) + 0.25f;
        n[i] = static_cast<float>(i % 3) * 0.125f;
        want.sums += {values[i] * values[i], errors[i] * errors[i], values[i] * v[i], v[i] * v[i]};
        want_outputs += {static_cast<double>(m[i]) * values[i] * values[i],
                         static_cast<double>(m[i]) * errors[i] * errors[i], static_cast<double>(n[i]) * v[i] * v[i]};
        if (errors[i] > want.largest) place = i;
        want.largest = std::max(want.largest, errors[i]);
        want.at_ends += std::abs(floating ? steps : codes[i]) >= most ? 1u : 0u;
        EXPECT_EQ(ErrorSums::value(stretch, i), v[i]);
      }
      const auto check = [&](const auto* w) {
        const ErrorSums::Loss first = every_kind().front().loss(w, stretch);
        EXPECT_NEAR(first.sums.weights, want.sums.weights, 1e-12 * want.sums.weights);
        EXPECT_NEAR(first.sums.errors, want.sums.errors, 1e-12 * want.sums.errors);
        EXPECT_NEAR(first.sums.products, want.sums.products, 1e-12 * (want.sums.weights + want.sums.values));
        EXPECT_NEAR(first.sums.values, want.sums.values, 1e-12 * want.sums.values);
        EXPECT_EQ(first.largest, want.largest);
        EXPECT_EQ(first.at_ends, want.at_ends);
        EXPECT_EQ(ErrorSums::place_of_error(w, stretch, first.largest), place);
        const ErrorSums::OutputLoss outputs = every_kind().front().output_loss(w, stretch, m.data(), n.data());
        EXPECT_NEAR(outputs.outputs, want_outputs.outputs, 1e-12 * want_outputs.outputs);
        EXPECT_NEAR(outputs.weight_errors, want_outputs.weight_errors, 1e-12 * want_outputs.weight_errors);
        EXPECT_NEAR(outputs.input_errors, want_outputs.input_errors, 1e-12 * want_outputs.input_errors);
        for (const ErrorSums& sums : every_kind()) {
          const ErrorSums::Loss loss = sums.loss(w, stretch);
          EXPECT_EQ(loss.sums.weights, first.sums.weights);
          EXPECT_EQ(loss.sums.errors, first.sums.errors);
          EXPECT_EQ(loss.sums.products, first.sums.products);
          EXPECT_EQ(loss.sums.values, first.sums.values);
          EXPECT_EQ(loss.largest, first.largest);
          EXPECT_EQ(loss.at_ends, first.at_ends);
          EXPECT_EQ(loss.non_finite, 0u);
          const ErrorSums::OutputLoss again = sums.output_loss(w, stretch, m.data(), n.data());
          EXPECT_EQ(again.outputs, outputs.outputs);
          EXPECT_EQ(again.weight_errors, outputs.weight_errors);
          EXPECT_EQ(again.input_errors, outputs.input_errors);
          std::vector<double> magnitudes(count), cells(count + 1, 1);
          sums.error_magnitudes(w, stretch, magnitudes.data());
          EXPECT_EQ(magnitudes, errors);
          sums.add_cell_errors(w, stretch, 0, 1, cells.data());
          for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(cells[i], 1 + errors[i] * errors[i]) << i;
          EXPECT_EQ(cells[count], 1);
        }
      };
      check(floats.data());
      check(values.data());
    }
  }
}

// A weight that is NaN has a code that is NaN, or clips: it is in no sum.
TEST(ErrorSums, WeightsThatAreNotFiniteAreInNothingWhateverTheirCodes) {
  for (const ElementKind code : {ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1}) {
    const GridReference& grid = grid_reference(code);
    constexpr std::size_t kCount = 23;
    std::vector<float> weights(kCount, 0.5f);
    std::vector<std::int8_t> codes = finite_codes(code, kCount);
    for (const std::size_t i : {2u, 3u, 11u, 22u}) {
      weights[i] = i == 3 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      codes[i] = static_cast<std::int8_t>(grid.code_of(static_cast<double>(weights[i]), true));
    }
    for (const ErrorSums& sums : every_kind()) {
      const ErrorSums::Loss loss = sums.loss(weights.data(), {codes.data(), kCount, 0.25f, 0, code});
      EXPECT_EQ(loss.non_finite, 4u);
      EXPECT_EQ(loss.sums.weights, (kCount - 4) * 0.25);
      double errors = 0, largest = 0;
      std::uint64_t ends = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        if (!std::isfinite(weights[i])) continue;
        const double number = grid.number_of(static_cast<std::uint8_t>(codes[i])), e = 0.5 - number / 4;
        errors += e * e;
        largest = std::max(largest, std::abs(e));
        ends += std::abs(number) == grid.max() ? 1u : 0u;
      }
      EXPECT_NEAR(loss.sums.errors, errors, 1e-12 * errors);
      EXPECT_EQ(loss.largest, largest);
      EXPECT_EQ(loss.at_ends, ends);
    }
  }
}

TEST(ErrorSums, RefusesWhatCannotBeHad) {
  EXPECT_EQ(ErrorSums::select(Stream::cpu(0)).status().code(), StatusCode::InvalidProblem);
  EXPECT_EQ(ErrorSums::select(Stream::cpu(1), {.isa = ArchSku::sm_80}).status().code(), StatusCode::Unsupported);
}

}  // namespace
}  // namespace kvant::tests
