// What is drawn of a layer, against the definitions in plain loops over the values of the fixture.
#include "measure/layer_detail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "measure/compare.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using io::DType;
using measure::ChannelScales;
using measure::ErrorStrip;
using measure::InputChannels;
using measure::LayerDetail;
using measure::WeightError;
using measure::WeightHistogram;

// Histogram and strip take all rows of a layer up to so many weights.
constexpr std::uint64_t kSampledWeights = 32768;

// 4 significant digits, as printf writes them.
double four_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

// Of the fourth digit of a value.
double unit(double value) { return value == 0 ? 0 : std::pow(10, std::floor(std::log10(std::abs(value)) + 1e-9) - 3); }

// Rounded to 4 digits, and these are right but for one unit in the last: sums may be formed in another order.
void expect_digits(const std::vector<double>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(want[i])) {
      EXPECT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])))
          << what << " " << i << ": " << got[i] << " instead of " << want[i];
      continue;
    }
    EXPECT_EQ(got[i], four_digits(got[i])) << what << " " << i;
    EXPECT_NEAR(got[i], four_digits(want[i]), 1.001 * unit(want[i])) << what << " " << i;
  }
}

// Nothing is added up: the digits are equal.
void expect_equal_digits(const std::vector<double>& got, std::vector<double> want, const char* what) {
  for (double& value : want) value = four_digits(value);
  EXPECT_EQ(got, want) << what;
}

std::uint64_t ceiling(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// Everything of a layer that follows from its numbers.
class Expected {
 public:
  explicit Expected(const FixtureLayer& layer) : layer_(layer) {
    while (ceiling(layer.rows, stride_) * layer.columns > kSampledWeights && ceiling(layer.rows, 2 * stride_) >= 64)
      stride_ *= 2;
  }

  std::uint64_t stride() const { return stride_; }
  bool finite(std::uint64_t r, std::uint64_t c) const { return std::isfinite(weight(r, c)); }
  double weight(std::uint64_t r, std::uint64_t c) const { return layer_.quantized[r * layer_.columns + c]; }
  double scale(std::uint64_t r, std::uint64_t c) const { return layer_.scales[layer_.scale_at(r, c)]; }
  int zero_point(std::uint64_t r, std::uint64_t c) const { return layer_.zero_points[layer_.scale_at(r, c)]; }
  double value(std::uint64_t r, std::uint64_t c) const { return layer_.value(r, c); }
  double error(std::uint64_t r, std::uint64_t c) const { return weight(r, c) - value(r, c); }

  void check_histogram(const WeightHistogram& got) const {
    const bool eight = bits_per_element(layer_.code) == 8, floating = has_float_grid(layer_.code);
    const int first = !eight ? -8 : floating ? -512 : -128;
    const double per_code = !eight ? 16 : floating ? 0.25 : 1;
    EXPECT_EQ(got.first_code, first);
    EXPECT_EQ(got.bins_per_code, per_code);
    EXPECT_EQ(got.numbers, numbers());
    ASSERT_EQ(got.counts.size(), measure::kHistogramBins);
    std::vector<std::uint64_t> counts(measure::kHistogramBins, 0);
    std::uint64_t below = 0, above = 0, weights = 0;
    for (std::uint64_t r = 0; r < layer_.rows; r += stride_)
      for (std::uint64_t c = 0; c < layer_.columns; ++c) {
        if (!finite(r, c)) continue;
        // All in f32: the largest weight of a group of 4 bits lies on the end of a bin.
        const float x =
            static_cast<float>(weight(r, c)) / static_cast<float>(scale(r, c)) + static_cast<float>(zero_point(r, c));
        const float bin = std::floor((x - (static_cast<float>(first) - 0.5f)) * static_cast<float>(per_code));
        if (bin < 0)
          ++below;
        else if (bin >= static_cast<float>(measure::kHistogramBins))
          ++above;
        else
          ++counts[static_cast<std::size_t>(bin)];
        ++weights;
      }
    EXPECT_EQ(got.counts, counts);
    EXPECT_EQ(got.below, below);
    EXPECT_EQ(got.above, above);
    EXPECT_EQ(got.weights, weights);
  }

  void check_channels(const ChannelScales& got) const {
    const std::uint64_t span = ceiling(layer_.rows, measure::kPoints);
    EXPECT_EQ(got.span, span);
    std::vector<double> least, largest, sqnr_db;
    for (std::uint64_t first = 0; first < layer_.rows; first += span) {
      double low = kInf, high = 0;
      long double weights = 0, errors = 0;
      bool any_finite = false;
      for (std::uint64_t r = first; r < std::min(first + span, layer_.rows); ++r)
        for (std::uint64_t c = 0; c < layer_.columns; ++c) {
          low = std::min(low, scale(r, c));
          high = std::max(high, scale(r, c));
          if (!finite(r, c)) continue;
          any_finite = true;
          weights += static_cast<long double>(weight(r, c)) * static_cast<long double>(weight(r, c));
          errors += static_cast<long double>(error(r, c)) * static_cast<long double>(error(r, c));
        }
      least.push_back(low);
      largest.push_back(high);
      sqnr_db.push_back(!any_finite   ? kNan
                        : errors == 0 ? kInf
                                      : static_cast<double>(10 * std::log10(weights / errors)));
    }
    expect_equal_digits(got.least, least, "the least scale of point");
    expect_equal_digits(got.largest, largest, "the largest scale of point");
    expect_digits(got.sqnr_db, sqnr_db, "SQNR of point");
    EXPECT_LE(got.least.size(), measure::kPoints);
  }

  void check_strip(const ErrorStrip& got) const {
    std::uint64_t column_span = 1;
    while (ceiling(layer_.columns, column_span) > measure::kStripColumns) column_span *= 2;
    const std::uint64_t row_span = stride_ * ceiling(ceiling(layer_.rows, stride_), measure::kStripRows);
    EXPECT_EQ(got.column_span, column_span);
    EXPECT_EQ(got.row_span, row_span);
    ASSERT_EQ(got.rows, ceiling(layer_.rows, row_span));
    ASSERT_EQ(got.columns, ceiling(layer_.columns, column_span));
    EXPECT_LE(got.rows, measure::kStripRows);
    EXPECT_LE(got.columns, measure::kStripColumns);
    std::vector<double> rms;
    for (std::uint64_t i = 0; i < got.rows; ++i)
      for (std::uint64_t j = 0; j < got.columns; ++j) {
        long double sum = 0;
        std::uint64_t count = 0;
        for (std::uint64_t r = i * row_span; r < std::min((i + 1) * row_span, layer_.rows); ++r) {
          if (r % stride_ != 0) continue;
          for (std::uint64_t c = j * column_span; c < std::min((j + 1) * column_span, layer_.columns); ++c) {
            if (!finite(r, c)) continue;
            sum += static_cast<long double>(error(r, c)) * static_cast<long double>(error(r, c));
            ++count;
          }
        }
        rms.push_back(count == 0 ? 0 : static_cast<double>(std::sqrt(sum / static_cast<long double>(count))));
      }
    expect_digits(got.rms, rms, "cell");
  }

  void check_largest_errors(const std::vector<WeightError>& got) const {
    std::vector<std::tuple<double, std::uint64_t, std::uint64_t>> all;
    for (std::uint64_t r = 0; r < layer_.rows; ++r)
      for (std::uint64_t c = 0; c < layer_.columns; ++c)
        if (finite(r, c)) all.emplace_back(-std::abs(error(r, c)), r, c);
    std::sort(all.begin(), all.end());
    ASSERT_LE(got.size(), measure::kLargestErrors);
    ASSERT_LE(got.size(), all.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto [size, r, c] = all[i];
      EXPECT_EQ(std::abs(got[i].weight - got[i].value), -size) << i;
      if (size == 0) continue;
      EXPECT_EQ(got[i].row, r) << i;
      EXPECT_EQ(got[i].column, c) << i;
      EXPECT_EQ(got[i].weight, weight(r, c)) << i;
      EXPECT_EQ(got[i].value, value(r, c)) << i;
    }
    // Only what has no error may be missing.
    if (got.size() < std::min(all.size(), measure::kLargestErrors)) {
      EXPECT_EQ(std::get<0>(all[got.size()]), 0);
    }
  }

  // Of a floating-point grid, those that are drawn.
  std::vector<double> numbers() const {
    if (layer_.code == ElementKind::e2m1) return {-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6};
    if (layer_.code != ElementKind::e4m3) return {};
    std::vector<double> all = {-448, 0, 448};
    for (int exponent = -6; exponent <= 8; ++exponent)
      for (const double sign : {-1.0, 1.0}) all.push_back(std::ldexp(sign, exponent));
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  const FixtureLayer& layer_;
  std::uint64_t stride_ = 1;
};

// The largest over the median: 1 where all are zero.
double ratio_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  if (values.back() == 0) return 1;
  return median == 0 ? kInf : values.back() / median;
}

// Empty `absmax`: no statistics. Empty `s`: not smoothed.
void check_inputs(const InputChannels& got, const std::vector<double>& absmax, const std::vector<double>& s) {
  EXPECT_EQ(got.empty(), absmax.empty() && s.empty());
  std::vector<double> before, after, least, largest, divided;
  for (std::size_t j = 0; j < absmax.size() && !s.empty(); ++j) divided.push_back(absmax[j] / s[j]);
  const std::size_t columns = std::max(absmax.size(), s.size());
  if (columns == 0) return;
  const std::size_t span = ceiling(columns, measure::kPoints);
  EXPECT_EQ(got.span, span);
  for (std::size_t first = 0; first < columns; first += span) {
    const auto most = [&](const std::vector<double>& of) {
      return *std::max_element(of.begin() + static_cast<std::ptrdiff_t>(first),
                               of.begin() + static_cast<std::ptrdiff_t>(std::min(first + span, columns)));
    };
    const auto fewest = [&](const std::vector<double>& of) {
      return *std::min_element(of.begin() + static_cast<std::ptrdiff_t>(first),
                               of.begin() + static_cast<std::ptrdiff_t>(std::min(first + span, columns)));
    };
    if (!absmax.empty()) before.push_back(most(absmax));
    if (!divided.empty()) after.push_back(most(divided));
    if (!s.empty()) least.push_back(fewest(s));
    if (!s.empty()) largest.push_back(most(s));
  }
  expect_equal_digits(got.before, before, "before");
  expect_equal_digits(got.after, after, "after");
  expect_equal_digits(got.smoothing_least, least, "least s");
  expect_equal_digits(got.smoothing_largest, largest, "largest s");
  EXPECT_LE(got.before.size(), measure::kPoints);
  if (!absmax.empty()) expect_digits({four_digits(got.ratio_before)}, {ratio_of(absmax)}, "the ratio before");
  if (!divided.empty()) expect_digits({four_digits(got.ratio_after)}, {ratio_of(divided)}, "the ratio after");
}

// As the quantizer multiplies: in f32 (f64 for f64), rounded once.
void smooth(FixtureLayer& layer, const std::vector<double>& s, const Scheme& scheme) {
  for (std::size_t i = 0; i < layer.weights.size(); ++i) {
    const double w = layer.weights[i], factor = s[i % layer.columns];
    const float product = static_cast<float>(w) * static_cast<float>(factor);
    layer.quantized[i] = layer.dtype == DType::f64 ? w * factor : rounded(static_cast<double>(product), layer.dtype);
  }
  quantize_plainly(layer, scheme);
}

// One layer in a checkpoint of its own.
struct Single {
  ScratchFolder scratch;
  FixtureLayer layer;
  Scheme scheme;
  std::vector<double> absmax, s;

  Single(FixtureLayer of, const Scheme& with) : layer(std::move(of)), scheme(with) {}

  Result<measure::Comparison> compare(bool details = true) const {
    CheckpointFixture original, quantized;
    original.add(original_tensor(layer));
    original.write(scratch / "original");
    quantized.config["quantization_config"] = config_json(scheme);
    quantized.add(quantized_tensors(layer, scheme));
    quantized.write(scratch / "quantized");
    measure::CompareOptions options = {
        .original = scratch / "original", .quantized = {scratch / "quantized"}, .details = details, .threads = 2};
    if (!absmax.empty()) {
      write_safetensors(scratch / "stats.safetensors", {f32_tensor(layer.module + ".absmax", {absmax.size()}, absmax),
                                                        f32_tensor("somebody.else.absmax", {3}, {1, 2, 3})});
      options.stats = scratch / "stats.safetensors";
    }
    if (!s.empty()) {
      fs::create_directories(scratch / "quantized/kvant");
      write_safetensors(scratch / "quantized/kvant/smoothing.safetensors", {f32_tensor("norm", {s.size()}, s)},
                        {{"format", "pt"}, {layer.module, "norm"}});
    }
    base::Silence silence;
    return measure::compare(options, silence);
  }

  void check() const {
    const auto got = compare();
    ASSERT_TRUE(got.ok()) << got.status().message();
    ASSERT_EQ(got->details.size(), 1u);
    EXPECT_EQ(got->details[0].module, layer.module);
    ASSERT_EQ(got->details[0].quantized.size(), 1u);
    ASSERT_TRUE(got->details[0].quantized[0].has_value());
    const LayerDetail& detail = *got->details[0].quantized[0];
    const Expected expected(layer);
    EXPECT_EQ(detail.row_stride, expected.stride());
    expected.check_histogram(detail.histogram);
    expected.check_channels(detail.channels);
    expected.check_strip(detail.strip);
    expected.check_largest_errors(detail.largest_errors);
    check_inputs(detail.inputs, absmax, s);
    if (!detail.largest_errors.empty()) {
      const measure::LayerLoss& loss = got->quantized[0].layers[0];
      const WeightError& largest = detail.largest_errors[0];
      EXPECT_EQ(loss.largest_error, std::abs(largest.weight - largest.value));
      if (loss.largest_error > 0) {
        EXPECT_EQ(loss.largest_row, largest.row);
        EXPECT_EQ(loss.largest_column, largest.column);
      }
    }
  }
};

std::vector<double> activations(std::size_t columns) {
  std::vector<double> absmax(columns);
  for (std::size_t j = 0; j < columns; ++j)
    absmax[j] = rounded(0.2 + static_cast<double>(j * 31 % 47) / 9 + (j % 29 == 3 ? 60 : 0), DType::f32);
  return absmax;
}
std::vector<double> smoothing(std::size_t columns) {
  std::vector<double> s(columns);
  for (std::size_t j = 0; j < columns; ++j) s[j] = rounded(0.3 + static_cast<double>(j * 7 % 17) / 3, DType::f32);
  return s;
}

struct Case {
  std::string name;
  DType dtype;
  Scheme scheme;
};

class LayerDetailSchemes : public testing::TestWithParam<Case> {};

TEST_P(LayerDetailSchemes, AgreesWithTheDefinition) {
  const auto& [name, dtype, scheme] = GetParam();
  const std::pair<std::uint64_t, std::uint64_t> shapes[] = {
      {1, 1},           // a single weight, or group
      {1, 64},          // one row
      {97, 120},        // one point more than there are
      {24, 72},         // as many cells as rows
      {300, 700},       // more rows and columns than points and cells
      {1024, 528},      // sampled
      {126, 24 * 120},  // would be sampled, but 63 rows are too few
      {3, 24 * 200},    // more than a block of columns
      {70, 24 * 180},
  };
  std::uint32_t seed = 1;
  for (const auto& [rows, columns] : shapes) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    Single(make_layer("model.layers.3.mlp.up_proj", rows, whole_groups(scheme, columns), dtype, scheme, seed++), scheme)
        .check();
  }
}

// One scheme for each way of codes and scales.
std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const Scheme& scheme, DType dtype) {
    all.push_back({fmt::format("{}_{}", io::name(dtype), identifier(scheme)), dtype, scheme});
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) add(w8a8(), dtype);
  add(w8a8_static(), DType::bf16);
  add(w4a16(12), DType::bf16);
  add(w4a16(24, true), DType::f32);
  add(w4a16(8, true), DType::f64);
  add(w4a16(1, true), DType::bf16);
  add(w4a16(-1), DType::f16);
  add(scheme_of("w8a16", 24, true), DType::bf16);
  add(scheme_of("w4a8", 24), DType::bf16);
  add(scheme_of("fp8"), DType::f32);
  add(scheme_of("fp8-tensor"), DType::bf16);
  add(scheme_of("fp8-block"), DType::f64);
  add(fp8_blocks(5, 44), DType::bf16);
  add(scheme_of("mxfp8"), DType::f16);
  add(scheme_of("mxfp4"), DType::f64);
  add(scheme_of("nvfp4"), DType::bf16);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, LayerDetailSchemes, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST(LayerDetail, SampledRowsAreWhole) {
  const auto stride = [](std::uint64_t rows, std::uint64_t columns) {
    SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
    const FixtureLayer layer = make_layer("a", rows, columns, DType::bf16, w8a8());
    Single(layer, w8a8()).check();
    return Expected(layer).stride();
  };
  // The last row that is sampled is the last, or not.
  EXPECT_GT(stride(1024, 512), 1u);
  EXPECT_GT(stride(1025, 512), 1u);
  EXPECT_EQ(stride(64, kSampledWeights / 64), 1u);
  // Never fewer than 64 rows.
  EXPECT_EQ(stride(126, 4800), 1u);
  EXPECT_EQ(stride(127, 4800), 2u);
  EXPECT_EQ(stride(128, 4800), 2u);
}

TEST(LayerDetail, NumbersThatAreNotFinite) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Scheme& scheme : {w8a8(), w4a16(24, true), scheme_of("fp8"), scheme_of("mxfp4a16")})
      for (const std::uint64_t rows : {6u, 200u}) {
        SCOPED_TRACE(fmt::format("{} {}", io::name(dtype), rows));
        constexpr std::uint64_t kColumns = 24 * 8;
        FixtureLayer layer = make_layer("odd", rows, kColumns, dtype, scheme, 5);
        layer.weights[3] = kNan;
        layer.weights[kColumns] = kInf;
        layer.weights[kColumns + 95] = -kInf;
        for (std::size_t i = 0; i < kColumns; ++i) layer.weights[2 * kColumns + i] = 0;
        for (std::size_t i = 0; i < kColumns; ++i) layer.weights[3 * kColumns + i] = kNan;
        // A group and a column without any.
        for (std::size_t i = 0; i < 24; ++i) layer.weights[4 * kColumns + 24 + i] = kInf;
        for (std::size_t r = 0; r < rows; ++r) layer.weights[r * kColumns + 100] = kNan;
        layer.quantized = layer.weights;
        quantize_plainly(layer, scheme);
        Single(layer, scheme).check();
      }
  FixtureLayer nothing = make_layer("nothing", 4, 24, DType::f32, w8a8());
  nothing.weights.assign(nothing.weights.size(), kNan);
  nothing.quantized = nothing.weights;
  quantize_plainly(nothing, w8a8());
  Single(nothing, w8a8()).check();
}

TEST(LayerDetail, SingleWeights) {
  for (const double weight : {0.0, -0.0, 1.0, -0.3, kNan, kInf, 1e-30}) {
    SCOPED_TRACE(weight);
    FixtureLayer layer = make_layer("one", 1, 1, DType::f32, w8a8());
    layer.weights = layer.quantized = {rounded(weight, DType::f32)};
    quantize_plainly(layer, w8a8());
    Single single(layer, w8a8());
    single.check();
    single.absmax = {0.5};
    single.check();
  }
}

TEST(LayerDetail, WeightsBeyondTheCodes) {
  // Scales that are too small: codes are clipped, and x lies beyond the bins.
  for (const Scheme& scheme : {w8a8(), w4a16(24, true), scheme_of("fp8")}) {
    FixtureLayer layer = make_layer("clipped", 30, 240, DType::f32, scheme);
    for (double& scale : layer.scales) scale = rounded(scale / 3, DType::f32);
    for (std::size_t i = 0; i < layer.codes.size(); ++i) {
      const std::size_t group = i / layer.group;
      layer.codes[i] = code_of(layer, layer.weights[i], layer.scales[group], layer.zero_points[group]);
    }
    const Single single(layer, scheme);
    single.check();
    const auto got = single.compare();
    ASSERT_TRUE(got.ok());
    EXPECT_GT(got->details[0].quantized[0]->histogram.below, 0u);
    EXPECT_GT(got->details[0].quantized[0]->histogram.above, 0u);
  }
}

TEST(LayerDetail, ErrorsOfOneSizeAreInOrderOfTheirPlaces) {
  FixtureLayer layer = make_layer("ties", 40, 500, DType::f32, w8a8());
  for (std::size_t i = 0; i < layer.weights.size(); ++i) layer.weights[i] = i % 500 == 499 ? 127 : 0;
  for (const std::size_t i : {39u * 500 + 3, 20u * 500 + 7, 20u * 500 + 6, 5u * 500 + 498}) layer.weights[i] = 0.25;
  for (std::size_t c = 10; c < 30; ++c) layer.weights[7 * 500 + c] = c % 2 == 0 ? 0.125 : -0.125;
  layer.quantized = layer.weights;
  quantize_plainly(layer, w8a8());
  const Single single(layer, w8a8());
  single.check();
  const auto got = single.compare();
  ASSERT_TRUE(got.ok());
  const std::vector<WeightError>& errors = got->details[0].quantized[0]->largest_errors;
  const std::pair<std::uint64_t, std::uint64_t> places[] = {{5, 498}, {20, 6}, {20, 7}, {39, 3},
                                                            {7, 10},  {7, 11}, {7, 12}, {7, 13}};
  ASSERT_EQ(errors.size(), std::size(places));
  for (std::size_t i = 0; i < errors.size(); ++i) EXPECT_EQ(std::pair(errors[i].row, errors[i].column), places[i]) << i;
}

TEST(LayerDetail, InputsBeforeAndAfterSmoothing) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const Scheme& scheme : {w8a8(), w4a16(24), scheme_of("fp8-tensor")})
      for (const std::uint64_t columns : {24u, 96u, 120u, 720u, 24u * 200}) {
        SCOPED_TRACE(fmt::format("{} {}", io::name(dtype), columns));
        Single single(make_layer("block.q_proj", 20, columns, dtype, scheme), scheme);
        single.absmax = activations(columns);
        single.check();  // statistics alone
        single.s = smoothing(columns);
        smooth(single.layer, single.s, scheme);
        single.check();
        single.absmax.clear();
        single.check();  // smoothing alone
      }
}

TEST(LayerDetail, RatiosOfInputs) {
  const auto ratio = [](std::vector<double> absmax) {
    Single single(make_layer("a", 2, absmax.size(), DType::f32, w8a8()), w8a8());
    single.absmax = std::move(absmax);
    const auto got = single.compare();
    EXPECT_TRUE(got.ok()) << got.status().message();
    return got->details[0].quantized[0]->inputs.ratio_before;
  };
  EXPECT_EQ(ratio({1, 1, 8, 2, 2}), 4);
  EXPECT_EQ(ratio({1, 8, 3, 1}), 4);
  EXPECT_EQ(ratio({0, 0, 0, 5}), kInf);
  EXPECT_EQ(ratio({0, 0, 0}), 1);
  EXPECT_EQ(ratio({3}), 1);
}

TEST(LayerDetail, StatisticsOfOthersAreNoStatistics) {
  Single single(make_layer("a", 2, 8, DType::f32, w8a8()), w8a8());
  ASSERT_TRUE(single.compare().ok());
  write_safetensors(single.scratch / "other.safetensors", {f32_tensor("b.absmax", {8}, std::vector<double>(8, 1))});
  base::Silence silence;
  const auto got = measure::compare({.original = single.scratch / "original",
                                     .quantized = {single.scratch / "quantized"},
                                     .stats = single.scratch / "other.safetensors",
                                     .details = true},
                                    silence);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_TRUE(got->details[0].quantized[0]->inputs.empty());
}

TEST(LayerDetail, RefusesStatisticsThatDoNotFit) {
  constexpr auto kBad = StatusCode::InvalidProblem;
  Single single(make_layer("a", 2, 8, DType::f32, w8a8()), w8a8());
  single.absmax.assign(7, 1);
  EXPECT_TRUE(refused(single.compare().status(), kBad, {"stats.safetensors", "'a.absmax' has 7 values"}));
  single.absmax.assign(8, 1);
  single.absmax[3] = kNan;
  EXPECT_TRUE(refused(single.compare().status(), kBad, {"'a.absmax' is nan at channel 3"}));
  single.absmax[3] = -1;
  EXPECT_TRUE(refused(single.compare().status(), kBad, {"'a.absmax' is -1 at channel 3"}));
}

TEST(LayerDetail, JsonHasTheSameNumbers) {
  const auto numbers = [](const io::Json& list) {
    std::vector<double> all;
    for (const io::Json& value : list)
      all.push_back(value.is_string() ? (value == "inf" ? kInf : value == "-inf" ? -kInf : kNan) : value.get<double>());
    return all;
  };
  Single single(make_layer("a", 120, 240, DType::bf16, w4a16(24, true)), w4a16(24, true));
  for (std::size_t c = 0; c < 240; ++c)
    single.layer.weights[c] = single.layer.weights[240 + c] = 0;  // a point of zeros
  single.absmax = activations(240);
  single.s = smoothing(240);
  smooth(single.layer, single.s, single.scheme);
  const auto got = single.compare();
  ASSERT_TRUE(got.ok()) << got.status().message();
  const LayerDetail& detail = *got->details[0].quantized[0];
  const io::Json json = to_json(*got)["details"][0]["quantized"][0];
  EXPECT_EQ(json["row_stride"], detail.row_stride);
  EXPECT_EQ(json["histogram"]["counts"].get<std::vector<std::uint64_t>>(), detail.histogram.counts);
  EXPECT_EQ(json["histogram"]["below"], detail.histogram.below);
  EXPECT_EQ(json["histogram"]["above"], detail.histogram.above);
  EXPECT_EQ(json["histogram"]["weights"], detail.histogram.weights);
  EXPECT_EQ(json["histogram"]["first_code"], -8);
  EXPECT_EQ(json["histogram"]["bins_per_code"], 16);
  EXPECT_EQ(json["channels"]["span"], 2);
  EXPECT_EQ(numbers(json["channels"]["least"]), detail.channels.least);
  EXPECT_EQ(numbers(json["channels"]["largest"]), detail.channels.largest);
  EXPECT_EQ(numbers(json["channels"]["sqnr_db"]), detail.channels.sqnr_db);
  EXPECT_EQ(json["channels"]["sqnr_db"][0], "inf");
  EXPECT_EQ(json["strip"]["rows"], detail.strip.rows);
  EXPECT_EQ(json["strip"]["columns"], detail.strip.columns);
  EXPECT_EQ(json["strip"]["row_span"], detail.strip.row_span);
  EXPECT_EQ(json["strip"]["column_span"], detail.strip.column_span);
  EXPECT_EQ(numbers(json["strip"]["rms"]), detail.strip.rms);
  ASSERT_EQ(json["largest_errors"].size(), measure::kLargestErrors);
  for (std::size_t i = 0; i < measure::kLargestErrors; ++i) {
    const WeightError& error = detail.largest_errors[i];
    EXPECT_EQ(json["largest_errors"][i]["row"], error.row);
    EXPECT_EQ(json["largest_errors"][i]["column"], error.column);
    EXPECT_EQ(json["largest_errors"][i]["weight"], error.weight);
    EXPECT_EQ(json["largest_errors"][i]["value"], error.value);
    EXPECT_EQ(json["largest_errors"][i]["error"], error.weight - error.value);
  }
  EXPECT_EQ(json["inputs"]["span"], 4);
  EXPECT_EQ(numbers(json["inputs"]["before"]), detail.inputs.before);
  EXPECT_EQ(numbers(json["inputs"]["after"]), detail.inputs.after);
  EXPECT_EQ(numbers(json["inputs"]["smoothing_least"]), detail.inputs.smoothing_least);
  EXPECT_EQ(numbers(json["inputs"]["smoothing_largest"]), detail.inputs.smoothing_largest);
  EXPECT_EQ(json["inputs"]["ratio_before"], detail.inputs.ratio_before);
  EXPECT_EQ(json["inputs"]["ratio_after"], detail.inputs.ratio_after);
  // Without smoothing there is nothing after it.
  Single plain(make_layer("a", 4, 8, DType::f32, w8a8()), w8a8());
  plain.absmax = activations(8);
  const auto other = plain.compare();
  ASSERT_TRUE(other.ok()) << other.status().message();
  const io::Json inputs = to_json(*other)["details"][0]["quantized"][0]["inputs"];
  EXPECT_EQ(inputs["after"], io::Json::array());
  EXPECT_EQ(inputs["smoothing_least"], io::Json::array());
  EXPECT_TRUE(inputs["ratio_after"].is_null());
  EXPECT_TRUE(inputs["ratio_before"].is_number());
}

}  // namespace
}  // namespace kvant::tests
