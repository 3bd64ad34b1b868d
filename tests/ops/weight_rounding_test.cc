// WeightRounding against plain loops: sums bit by bit on every instruction set, the search of scales candidate by
// candidate, codes that make up for errors; and what it reads and writes.
#include "kvant/weight_rounding.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/float_grid_reference.h"
#include "tests/support/network_steps_case.h"
#include "tests/support/plain_scales.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using Scale = WeightRounding::Scale;
using Form = WeightRounding::Form;

constexpr ElementKind kIntegerCodes[] = {ElementKind::s8, ElementKind::s4, ElementKind::s2};
constexpr ElementKind kFloatCodes[] = {ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1};
constexpr ElementKind kCodes[] = {ElementKind::s8,   ElementKind::s4,   ElementKind::s2,
                                  ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1};
constexpr ElementKind kScales[] = {ElementKind::f32, ElementKind::f16, ElementKind::bf16};
constexpr float kSmallestNormal = std::numeric_limits<float>::min(), kLargest = std::numeric_limits<float>::max();

// What runs here, the scalar reference last.
const std::vector<WeightRounding>& every_kind() {
  static const std::vector<WeightRounding> all = [] {
    std::vector<WeightRounding> found;
    for (const ArchSku isa : compiled_isas()) {
      if (!cpu::can_run(isa)) continue;
      found.push_back(WeightRounding::select(Stream::cpu(1), {.isa = isa}).value());
      EXPECT_EQ(found.back().sku().arch, isa);
      note_kernel(found.back().sku());
    }
    return found;
  }();
  return all;
}

// ---- The plain statement ----

// The nearest of the numbers that codes stand for under a scale of 1.
float plain_number(float y, ElementKind code, std::int32_t zero_point) {
  if (has_float_grid(code)) {
    const GridReference& grid = grid_reference(code);
    return static_cast<float>(grid.number_of(grid.code_of(static_cast<double>(y), true)));
  }
  const CodeRange range = code_range(code);
  return std::nearbyint(
      std::clamp(y, static_cast<float>(range.min - zero_point), static_cast<float>(range.max - zero_point)));
}

float plain_number_tried(float w, ElementKind code, const Scale& s) {
  return plain_number(w * std::min(1 / s.scale, kLargest), code, s.zero_point);
}

class PlainSum {
 public:
  void add(float term) {
    lanes_[count_ % 16] += term;
    ++count_;
  }
  float total() const {
    float lanes[16];
    std::copy_n(lanes_, 16, lanes);
    for (std::size_t width = 8; width > 0; width /= 2)
      for (std::size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    return lanes[0];
  }

 private:
  float lanes_[16] = {};
  std::size_t count_ = 0;
};

// Weights that share a scale. Without importance it is 1.
struct Segment {
  std::vector<float> weights;
  std::vector<float> importance = {};

  float importance_of(std::size_t i) const { return importance.empty() ? 1 : importance[i]; }
  float largest() const {
    float most = 0;
    for (const float w : weights) most = std::max(most, std::abs(w));
    return most;
  }
};

float plain_squared_error(const Segment& segment, ElementKind code, const Scale& s) {
  PlainSum sum;
  for (std::size_t i = 0; i < segment.weights.size(); ++i) {
    const float w = segment.weights[i], product = s.scale * plain_number_tried(w, code, s), e = w - product;
    sum.add(e * e * segment.importance_of(i));
  }
  return sum.total();
}

WeightRounding::Fit plain_fit(const Segment& segment, ElementKind code, const Scale& s) {
  PlainSum products, squares;
  for (std::size_t i = 0; i < segment.weights.size(); ++i) {
    const float w = segment.weights[i], d = plain_number_tried(w, code, s);
    products.add(w * d * segment.importance_of(i));
    squares.add(d * d * segment.importance_of(i));
  }
  return {products.total(), squares.total()};
}

// The search as docs/numerics.md states it.
class PlainSearch {
 public:
  PlainSearch(const Segment& segment, const Form& form) : segment_(segment), form_(form) {
    if (form.scale == ElementKind::e8m0 || form.scale == ElementKind::e4m3)
      try_codes();
    else if (segment.largest() > 0)
      try_numbers();
  }

  const Scale& best() const { return best_; }
  // The one of the whole range.
  const Scale& first() const { return first_; }

 private:
  void consider(const Scale& scale) {
    float error = plain_squared_error(segment_, form_.code, scale);
    if (std::isnan(error)) error = std::numeric_limits<float>::infinity();
    if (!any_) first_ = scale;
    if (any_ && !(error < error_)) return;
    any_ = true;
    error_ = error;
    best_ = scale;
  }

  float stored(double scale) const {
    const auto single = static_cast<float>(std::min(scale, static_cast<double>(kLargest)));
    switch (form_.scale) {
      case ElementKind::f16: return std::clamp(to_float(to_half(single)), 0x1p-14f, 65504.0f);
      case ElementKind::bf16: return std::clamp(to_float(to_bfloat16(single)), kSmallestNormal, 0x1.FEp127f);
      default: return std::max(single, kSmallestNormal);
    }
  }

  void try_numbers() {
    const CodeRange range = code_range(form_.code);
    double lo = 0, hi = 0;
    for (const float w : segment_.weights) {
      lo = std::min(lo, static_cast<double>(w));
      hi = std::max(hi, static_cast<double>(w));
    }
    for (int percent = 100; percent >= 40; percent -= 4) {
      const double share = percent / 100.0, low = lo * share, high = hi * share;
      if (!form_.asymmetric) {
        consider({stored(std::max(-lo, hi) * share / largest_of(form_.code))});
        continue;
      }
      const float scale = stored((high - low) / (range.max - range.min));
      const double zero_point = range.min - std::nearbyint(static_cast<double>(static_cast<float>(low) / scale));
      consider({scale, static_cast<std::int32_t>(std::clamp<double>(zero_point, range.min, range.max))});
    }
    if (form_.asymmetric) {
      const Scale found = best_;
      for (const std::int32_t zero_point : {found.zero_point - 1, found.zero_point + 1})
        if (zero_point >= range.min && zero_point <= range.max) consider({found.scale, zero_point});
    }
    for (int i = 0; i < 2; ++i) {
      const WeightRounding::Fit fit = plain_fit(segment_, form_.code, best_);
      const float quotient = fit.products / fit.squares;
      if (quotient > 0 && std::isfinite(quotient)) consider({stored(static_cast<double>(quotient)), best_.zero_point});
    }
  }

  void try_codes() {
    const bool powers = form_.scale == ElementKind::e8m0;
    const auto largest = static_cast<double>(segment_.largest());
    const int first =
        powers ? plain_power(largest, form_.code).bits : plain_scale_under(form_.global, largest, form_.code).bits;
    consider_code(first);
    for (int below = 1; below <= (powers ? 1 : 8); ++below) consider_code(first - below);
    consider_code(first + 1);
  }
  void consider_code(int bits) {
    const bool powers = form_.scale == ElementKind::e8m0;
    if (bits < (powers ? 0 : 1) || bits > (powers ? 254 : 126)) return;
    const auto byte = static_cast<std::uint8_t>(bits);
    const double number = powers ? std::ldexp(1.0, bits - 127) : grid_reference(ElementKind::e4m3).number_of(byte);
    consider({powers ? static_cast<float>(number) : static_cast<float>(number) / form_.global, 0, byte});
  }

  const Segment& segment_;
  const Form& form_;
  bool any_ = false;
  float error_ = 0;
  Scale best_, first_;
};

// ---- Data ----

std::vector<float> normal_weights(std::size_t count, std::uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> weights(count);
  for (float& w : weights) w = normal(random);
  return weights;
}

// How much weights count: much and little, every fifth nothing.
std::vector<float> some_importance(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> importance(count);
  for (std::size_t i = 0; i < count; ++i)
    importance[i] =
        i % 5 == 3 ? 0
                   : std::ldexp(1 + static_cast<float>(random() % 1000) / 1000, static_cast<int>(random() % 12) - 6);
  return importance;
}

// Weights that are ties, clip, are 0 or nearly so under a scale.
std::vector<float> weights_around(float scale, ElementKind code, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> weights = normal_weights(count, seed);
  for (std::size_t i = 0; i < count; ++i) {
    const float far = std::abs(weights[i]) * static_cast<float>(largest_of(code));
    switch (random() % 8) {
      case 0: weights[i] = scale * (static_cast<float>(random() % 41) / 4 - 5); break;
      case 1: weights[i] = std::copysign(scale * far, weights[i]); break;
      case 2: weights[i] = std::copysign(0.0f, weights[i]); break;
      case 3: weights[i] = std::copysign(1e-42f, weights[i]); break;
      default: weights[i] *= scale * static_cast<float>(largest_of(code)) / 2; break;
    }
    if (!std::isfinite(weights[i])) weights[i] = std::copysign(kLargest, weights[i]);
  }
  return weights;
}

std::vector<std::int32_t> zero_points_of(ElementKind code) {
  if (has_float_grid(code)) return {0};
  return {0, code_range(code).min, code_range(code).max};
}

std::string text(const Scale& s) {
  return fmt::format("scale {:a} zero point {} bits {}", s.scale, s.zero_point, s.bits);
}
::testing::AssertionResult same(const Scale& got, const Scale& want) {
  if (std::bit_cast<std::uint32_t>(got.scale) == std::bit_cast<std::uint32_t>(want.scale) &&
      got.zero_point == want.zero_point && got.bits == want.bits)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << text(got) << ", not " << text(want);
}

// ---- Sums ----

void expect_sums(const Segment& segment, ElementKind code, const Scale& scale) {
  const std::size_t count = segment.weights.size();
  const WeightRounding::Fit fit = plain_fit(segment, code, scale);
  const std::vector<float> want = {plain_squared_error(segment, code, scale), fit.products, fit.squares};
  Guarded<float> w(segment.weights), m(segment.importance);
  const float* const importance = segment.importance.empty() ? nullptr : m.data();
  for (const WeightRounding& rounding : every_kind()) {
    const WeightRounding::Fit got = rounding.fit(w.data(), importance, count, code, scale);
    const std::vector<float> sums = {rounding.squared_error(w.data(), importance, count, code, scale), got.products,
                                     got.squares};
    ASSERT_TRUE(same_bits(sums, want)) << rounding.sku().name() << " " << name(code) << " " << text(scale) << " of "
                                       << count << (importance == nullptr ? "" : " with importance");
  }
}

TEST(WeightRounding, SumsAreThoseOfAPlainLoop) {
  // The smallest normal number, the least of e8m0, one without a reciprocal in f32, and others.
  constexpr float kTried[] = {0.037f, 1, kSmallestNormal, 0x1p-127f, 1e-40f, 1e-25f, 65504, 1e25f, 0x1p127f, kLargest};
  std::vector<std::size_t> counts = {127, 128, 129, 1000};
  for (std::size_t count = 0; count <= 70; ++count) counts.push_back(count);
  for (const std::size_t count : counts)
    for (const ElementKind code : kCodes)
      for (const std::int32_t zero_point : zero_points_of(code))
        for (const float scale : kTried) {
          const auto seed = static_cast<std::uint32_t>(count);
          const Segment segment = {weights_around(scale, code, count, seed)};
          ASSERT_NO_FATAL_FAILURE(expect_sums(segment, code, {scale, zero_point}));
          if (count == 0) continue;
          const Segment weighed = {segment.weights, some_importance(count, seed)};
          ASSERT_NO_FATAL_FAILURE(expect_sums(weighed, code, {scale, zero_point}));
        }
}

// ---- The search ----

struct NamedSegment {
  std::string name;
  Segment segment;
};

// Segments of so many weights of every sort.
std::vector<NamedSegment> segments_of(std::size_t count) {
  const auto seed = static_cast<std::uint32_t>(count);
  std::vector<NamedSegment> all;
  for (const float deviation : {0.02f, 30.0f, 1e-4f, 1e-30f, 1e-19f, 1e-40f, 1e19f, 5e37f}) {
    std::vector<float> weights = normal_weights(count, seed, deviation);
    for (float& w : weights) w = std::clamp(w, -kLargest, kLargest);
    all.push_back({fmt::format("normal, {}", deviation), {weights}});
    all.push_back({fmt::format("normal, {}, importance", deviation), {weights, some_importance(count, seed)}});
  }
  std::vector<float> weights = normal_weights(count, seed + 1, 0.02f);
  const auto add = [&](const char* about, const auto& change) {
    std::vector<float> changed = weights;
    for (std::size_t i = 0; i < count; ++i) changed[i] = change(i, changed[i]);
    all.push_back({about, {changed}});
    all.push_back({std::string(about) + ", importance", {changed, some_importance(count, seed + 2)}});
  };
  add("zeros", [](std::size_t, float) { return 0.0f; });
  add("negative zeros", [](std::size_t, float) { return -0.0f; });
  add("one outlier", [](std::size_t i, float w) { return i == 0 ? 25.0f : w; });
  add("one outlier below", [](std::size_t i, float w) { return i == 0 ? -25.0f : w; });
  add("one that is not 0", [](std::size_t i, float) { return i == 0 ? -0.3f : 0.0f; });
  add("positive", [](std::size_t, float w) { return std::abs(w) + 1e-3f; });
  add("negative", [](std::size_t, float w) { return -std::abs(w); });
  add("constant", [](std::size_t, float) { return 0.7f; });
  add("on a grid", [](std::size_t i, float) { return static_cast<float>(i % 16) - 8; });
  add("the largest numbers", [](std::size_t i, float) { return i % 3 == 0 ? -kLargest : kLargest; });
  add("the smallest numbers", [](std::size_t i, float) { return i % 3 == 0 ? -1e-45f : 3e-45f; });
  add("huge among others", [](std::size_t i, float w) { return i % 5 == 3 ? 3e20f * w : w; });
  all.push_back({"without any importance", {weights, std::vector<float>(count, 0.0f)}});
  return all;
}

void expect_best(const NamedSegment& named, const Form& form) {
  const Segment& segment = named.segment;
  const std::size_t count = segment.weights.size();
  const PlainSearch plain(segment, form);
  Guarded<float> w(segment.weights), m(segment.importance);
  const float* const importance = segment.importance.empty() ? nullptr : m.data();
  for (const WeightRounding& rounding : every_kind()) {
    const Scale best = rounding.best_scale(w.data(), importance, count, form);
    ASSERT_TRUE(same(best, plain.best()))
        << rounding.sku().name() << " " << name(form.code) << " by " << name(form.scale)
        << (form.asymmetric ? " asymmetric" : "") << " under " << form.global << ", " << count << ": " << named.name;
    // Not NaN, which is what squares of huge weights without importance sum up to.
    const float error = rounding.squared_error(w.data(), importance, count, form.code, best);
    ASSERT_FALSE(error > rounding.squared_error(w.data(), importance, count, form.code, plain.first())) << named.name;
  }
}

template <class Function>
void for_each_segment(const Function& f) {
  for (const std::size_t count : {1u, 2u, 15u, 16u, 17u, 32u, 47u, 64u, 100u, 128u, 300u})
    for (const NamedSegment& named : segments_of(count)) ASSERT_NO_FATAL_FAILURE(f(named));
}

TEST(WeightRounding, BestScalesOfIntegersAreThoseOfAPlainSearch) {
  for_each_segment([](const NamedSegment& named) {
    for (const ElementKind code : kIntegerCodes)
      for (const ElementKind scale : kScales)
        for (const bool asymmetric : {false, true})
          ASSERT_NO_FATAL_FAILURE(expect_best(named, {.code = code, .scale = scale, .asymmetric = asymmetric}));
  });
}

TEST(WeightRounding, BestScalesOfFloatingPointNumbersAreThoseOfAPlainSearch) {
  for_each_segment([](const NamedSegment& named) {
    for (const ElementKind code : kFloatCodes)
      for (const ElementKind scale : kScales)
        ASSERT_NO_FATAL_FAILURE(expect_best(named, {.code = code, .scale = scale}));
  });
}

// Powers of two, and e4m3 under a global scale: of a tensor whose largest weight is here or elsewhere, and so small or
// so large that scales have no reciprocal, or all numbers of e4m3 are too large.
TEST(WeightRounding, BestScalesThatAreCodesAreThoseOfAPlainSearch) {
  for_each_segment([](const NamedSegment& named) {
    const float here = static_cast<float>(448 * 6) / std::max(named.segment.largest(), 1e-30f);
    for (const ElementKind code : kFloatCodes) {
      ASSERT_NO_FATAL_FAILURE(expect_best(named, {.code = code, .scale = ElementKind::e8m0}));
      for (const float global : {here, here / 50, here * 300, 1.0f, kSmallestNormal, kLargest}) {
        const Form form = {
            .code = code, .scale = ElementKind::e4m3, .global = std::clamp(global, kSmallestNormal, kLargest)};
        ASSERT_NO_FATAL_FAILURE(expect_best(named, form));
      }
    }
  });
}

TEST(WeightRounding, NothingHasNoScaleToFind) {
  for (const WeightRounding& rounding : every_kind()) {
    EXPECT_TRUE(same(rounding.best_scale(nullptr, nullptr, 0, {}), {}));
    EXPECT_TRUE(same(rounding.best_scale(nullptr, nullptr, 0, {.asymmetric = true}), {}));
    EXPECT_TRUE(same(rounding.best_scale(nullptr, nullptr, 0, {.code = ElementKind::e2m1, .scale = ElementKind::e8m0}),
                     {1, 0, 127}));
    rounding.best_scales(nullptr, nullptr, 16, 0, {}, nullptr);
  }
}

// Segments that follow each other have the scales that they have alone.
TEST(WeightRounding, ManySegmentsAreManyTimesOne) {
  const std::vector<Form> forms = {{.code = ElementKind::s4},
                                   {.code = ElementKind::s4, .scale = ElementKind::f16, .asymmetric = true},
                                   {.code = ElementKind::e4m3, .scale = ElementKind::bf16},
                                   {.code = ElementKind::e2m1, .scale = ElementKind::e8m0},
                                   {.code = ElementKind::e2m1, .scale = ElementKind::e4m3, .global = 20000}};
  for (const std::size_t count : {0u, 1u, 16u, 21u, 32u, 128u})
    for (const std::size_t segments : {1u, 2u, 3u, 8u, 9u}) {
      std::vector<float> weights = normal_weights(count * segments, 7, 0.03f);
      std::fill_n(weights.begin(), count, 0.0f);
      Guarded<float> w(weights), m(some_importance(count * segments, 8));
      for (const WeightRounding& rounding : every_kind())
        for (const Form& form : forms)
          for (const float* const importance :
               {static_cast<const float*>(nullptr), static_cast<const float*>(m.data())}) {
            Guarded<Scale> scales(std::vector<Scale>(segments, Scale{77, 77, 77}));
            rounding.best_scales(w.data(), importance, count, segments, form, scales.data());
            for (std::size_t i = 0; i < segments; ++i)
              ASSERT_TRUE(
                  same(scales.data()[i],
                       rounding.best_scale(w.data() + i * count,
                                           importance == nullptr ? nullptr : importance + i * count, count, form)))
                  << rounding.sku().name() << " " << name(form.code) << ", segment " << i << " of " << segments;
          }
    }
}

// Normal weights in int4: what a search is for.
TEST(WeightRounding, GainsMoreThanADecibelOnInt4) {
  constexpr std::size_t kCount = 1 << 17, kGroup = 128;
  const std::vector<float> weights = normal_weights(kCount, 1);
  const WeightRounding rounding = WeightRounding::select(Stream::cpu()).value();
  double signal = 0, noise = 0, noise_of_range = 0;
  for (std::size_t i = 0; i < kCount; i += kGroup) {
    const Segment group = {
        {weights.begin() + static_cast<std::ptrdiff_t>(i), weights.begin() + static_cast<std::ptrdiff_t>(i + kGroup)}};
    const Scale best = rounding.best_scale(group.weights.data(), nullptr, kGroup, {.code = ElementKind::s4});
    const Scale of_range = {group.largest() / 7};
    const auto squared_error = [](float w, const Scale& s) {
      const double e = static_cast<double>(w) - static_cast<double>(s.scale) *
                                                    static_cast<double>(plain_number(w / s.scale, ElementKind::s4, 0));
      return e * e;
    };
    double here = 0, here_of_range = 0;
    for (const float w : group.weights) {
      signal += static_cast<double>(w) * static_cast<double>(w);
      here += squared_error(w, best);
      here_of_range += squared_error(w, of_range);
    }
    EXPECT_LE(here, here_of_range * (1 + 1e-5)) << i;
    noise += here;
    noise_of_range += here_of_range;
  }
  const double sqnr = 10 * std::log10(signal / noise), sqnr_of_range = 10 * std::log10(signal / noise_of_range);
  RecordProperty("sqnr", fmt::format("{:.3f} dB, of ranges {:.3f} dB", sqnr, sqnr_of_range));
  EXPECT_GE(sqnr, 19.8);
  EXPECT_GE(sqnr, sqnr_of_range + 1);
}

// ---- Codes that make up for errors ----

// A block of columns, and what it becomes.
struct BlockCase {
  std::size_t columns, rows, stride, factor_stride;
  std::vector<float> targets, weights, errors, numbers, factors, scales, zero_points;

  BlockCase(std::size_t c, std::size_t r, std::size_t gap, ElementKind code, bool with_zero_points)
      : columns(c), rows(r), stride(r + gap), factor_stride(c + gap) {
    const auto seed = static_cast<std::uint32_t>(100 * c + r);
    const std::size_t extent = c == 0 || r == 0 ? 0 : (c - 1) * stride + r;
    weights = normal_weights(extent, seed, 0.5f);
    targets = normal_weights(extent, seed + 1, 0.5f);
    errors.assign(extent, 77);
    numbers.assign(extent, 78);
    scales = normal_weights(c * r, seed + 2);
    for (float& s : scales) s = (std::abs(s) + 0.25f) / static_cast<float>(largest_of(code));
    // Above the diagonal, on it and beyond the columns nothing is read.
    factors.assign(c == 0 ? 0 : (c - 1) * factor_stride + c, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> some = normal_weights(factors.size(), seed + 3, 0.3f);
    for (std::size_t k = 0; k < c; ++k)
      for (std::size_t i = 0; i < k; ++i) factors[k * factor_stride + i] = some[k * factor_stride + i];
    if (with_zero_points) {
      const CodeRange range = code_range(code);
      for (std::size_t i = 0; i < c * r; ++i)
        zero_points.push_back(static_cast<float>(range.min + static_cast<int>(i) % (range.max - range.min + 1)));
    }
    // Ties, and targets far beyond the codes.
    for (std::size_t i = 0; i < std::min(c * r, extent); i += 3) targets[i] = i % 2 == 0 ? scales[i] * 1.5f : -30.0f;
  }

  void settle_plainly(ElementKind code) {
    for (std::size_t i = 0; i < columns; ++i)
      for (std::size_t r = 0; r < rows; ++r) {
        const float scale = scales[i * rows + r];
        const auto zero_point = static_cast<std::int32_t>(zero_points.empty() ? 0 : zero_points[i * rows + r]);
        const std::size_t at = i * stride + r;
        const float d = plain_number(targets[at] / scale, code, zero_point), product = scale * d;
        numbers[at] = d;
        errors[at] = weights[at] - product;
        for (std::size_t k = i + 1; k < columns; ++k)
          targets[k * stride + r] = std::fma(factors[k * factor_stride + i], errors[at], targets[k * stride + r]);
      }
  }
};

void expect_settled(const BlockCase& before, ElementKind code) {
  BlockCase want = before;
  want.settle_plainly(code);
  for (const WeightRounding& rounding : every_kind()) {
    Guarded<float> targets(before.targets), weights(before.weights), errors(before.errors), numbers(before.numbers),
        factors(before.factors), scales(before.scales), zero_points(before.zero_points);
    std::vector<const float*> scale_rows, zero_rows;
    for (std::size_t i = 0; i < before.columns; ++i) {
      scale_rows.push_back(scales.data() + i * before.rows);
      zero_rows.push_back(zero_points.data() + i * before.rows);
    }
    rounding.settle({.targets = targets.data(),
                     .weights = weights.data(),
                     .errors = errors.data(),
                     .numbers = numbers.data(),
                     .columns = before.columns,
                     .rows = before.rows,
                     .stride = before.stride,
                     .factors = factors.data(),
                     .factor_stride = before.factor_stride,
                     .scales = scale_rows.data(),
                     .zero_points = before.zero_points.empty() ? nullptr : zero_rows.data()},
                    code);
    const std::string about = fmt::format("{} {} {} by {}, stride {}", rounding.sku().name(), name(code),
                                          before.columns, before.rows, before.stride);
    ASSERT_TRUE(same_bits(numbers.values(), want.numbers)) << "numbers of " << about;
    ASSERT_TRUE(same_bits(errors.values(), want.errors)) << "errors of " << about;
    ASSERT_TRUE(same_bits(targets.values(), want.targets)) << "targets of " << about;
    ASSERT_TRUE(same_bits(weights.values(), before.weights)) << "weights of " << about;
  }
}

TEST(WeightRounding, SettlesColumnsOneAfterTheOther) {
  for (const ElementKind code : kCodes)
    for (const bool with_zero_points : {false, true}) {
      if (with_zero_points && has_float_grid(code)) continue;
      for (std::size_t columns = 0; columns <= 9; ++columns)
        for (std::size_t rows = 0; rows <= 70; ++rows)
          ASSERT_NO_FATAL_FAILURE(
              expect_settled({columns, rows, (columns + rows) % 3 * 5, code, with_zero_points}, code));
      ASSERT_NO_FATAL_FAILURE(expect_settled({128, 20, 12, code, with_zero_points}, code));
    }
}

// ---- What cannot be had ----

TEST(WeightRounding, RefusesWhatCannotBeHad) {
  EXPECT_TRUE(invalid(WeightRounding::select(Stream::cpu(0)).status(), "0 threads"));
  EXPECT_TRUE(unsupported(WeightRounding::select(Stream::cpu(1), {.isa = ArchSku::sm_80}).status(),
                          {"weight_rounding", "sm_80"}));
  const Stream gpu = Stream::cuda(nullptr);
  const Status status = WeightRounding::select(gpu).status();
  if (gpu.status().ok())
    EXPECT_TRUE(unsupported(status, {"weight_rounding", "copy the weights to the host"}));
  else
    EXPECT_EQ(status.code(), gpu.status().code());
}

}  // namespace
}  // namespace kvant::tests
