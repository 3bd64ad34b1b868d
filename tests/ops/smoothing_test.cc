// Smoothing: s against the formula in long double, the folded tensors bit for bit against one rounding of each product
// and quotient, and every refusal with nothing written.
#include "kvant/smoothing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/dynamic_range_case.h"
#include "tests/support/failing_memory.h"
#include "tests/support/isas.h"
#include "tests/support/refusals.h"
#include "tests/support/sanitized.h"
#include "tests/support/special_numbers.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::tests {
namespace {

constexpr double kMaxF32 = static_cast<double>(std::numeric_limits<float>::max());
constexpr ElementKind kF32 = ElementKind::f32, kF64 = ElementKind::f64, kF16 = ElementKind::f16,
                      kBf16 = ElementKind::bf16;

// A vector or a matrix of any floating-point kind. What lies in the gaps between its rows is part of `bytes`.
struct Tensor {
  ElementKind kind;
  Shape shape;
  std::int64_t stride = 0;  // 0: dense
  std::vector<std::byte> bytes;

  Tensor(ElementKind k, const Shape& s, std::int64_t row_stride = 0) : kind(k), shape(s), stride(row_stride) {
    const std::int64_t elements = rows() == 0 ? 0 : (rows() - 1) * step() + columns();
    bytes.assign(static_cast<std::size_t>(elements) * width_of(k), std::byte{0x5A});
  }
  Tensor(ElementKind k, const Shape& s, const std::vector<double>& values, std::int64_t row_stride = 0)
      : Tensor(k, s, row_stride) {
    for (std::int64_t i = 0; i < rows() * columns(); ++i)
      put(i / columns(), i % columns(), values[static_cast<std::size_t>(i)]);
  }

  std::int64_t columns() const { return shape.row_length(); }
  std::int64_t rows() const { return columns() == 0 ? 0 : *shape.element_count() / columns(); }
  std::int64_t step() const { return stride == 0 ? columns() : stride; }
  std::size_t offset(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(i * step() + j) * width_of(kind);
  }
  double get(std::int64_t i, std::int64_t j) const { return get_float(&bytes[offset(i, j)], kind); }
  void put(std::int64_t i, std::int64_t j, double value) { put_float(&bytes[offset(i, j)], kind, value); }
  AnyRef ref() const { return {bytes.data(), kind, shape, stride}; }
  AnyMut mut() { return {bytes.data(), kind, shape, stride}; }
};

Tensor normal(ElementKind kind, const Shape& shape, std::uint32_t seed, std::int64_t stride = 0) {
  Tensor t(kind, shape, stride);
  std::mt19937 random(seed);
  std::normal_distribution<double> values(0.0, 0.3);
  for (std::int64_t i = 0; i < t.rows(); ++i)
    for (std::int64_t j = 0; j < t.columns(); ++j) t.put(i, j, values(random));
  return t;
}

std::vector<float> between(double low, double high, std::int64_t count, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(std::log(low), std::log(high));
  for (float& value : values) value = static_cast<float>(std::exp(exponent(random)));
  return values;
}

std::int64_t size_of(const std::vector<float>& values) { return static_cast<std::int64_t>(values.size()); }
TensorRef<float> channels(const std::vector<float>& values) { return {values.data(), {size_of(values)}}; }
TensorMut<float> channels_mut(std::vector<float>& values) { return {values.data(), {size_of(values)}}; }
std::vector<AnyRef> refs(const std::vector<Tensor>& tensors) {
  std::vector<AnyRef> views;
  for (const Tensor& t : tensors) views.push_back(t.ref());
  return views;
}
std::vector<AnyMut> muts(std::vector<Tensor>& tensors) {
  std::vector<AnyMut> views;
  for (Tensor& t : tensors) views.push_back(t.mut());
  return views;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), 4 * values.size());
  return bits;
}

// ---- smooth_scales --------------------------------------------------------------------------------------------

float reference_scale(float x, const std::vector<Tensor>& weights, std::int64_t j, double alpha) {
  long double w = 1e-5L;
  for (const Tensor& weight : weights)
    for (std::int64_t i = 0; i < weight.rows(); ++i)
      if (const double value = weight.get(i, j); std::isfinite(value))
        w = std::max(w, std::fabs(static_cast<long double>(value)));
  const long double a = alpha;
  return static_cast<float>(std::max(std::pow(static_cast<long double>(x), a) / std::pow(w, 1 - a), 1e-5L));
}

std::vector<float> reference_scales(const std::vector<float>& x, const std::vector<Tensor>& weights, double alpha) {
  std::vector<float> s;
  for (std::int64_t j = 0; j < size_of(x); ++j)
    s.push_back(reference_scale(x[static_cast<std::size_t>(j)], weights, j, alpha));
  return s;
}

std::vector<float> scales_of(const std::vector<float>& x, const std::vector<Tensor>& weights, double alpha,
                             const Stream& stream = Stream::cpu(1)) {
  std::vector<float> s(x.size(), -77.0f);
  const Status done = smooth_scales(stream, channels(x), refs(weights), alpha, channels_mut(s));
  EXPECT_TRUE(done.ok()) << done.message();
  return s;
}

constexpr double kAlphas[] = {0.0, 0.15, 0.5, 0.8, 0.9, 1.0};

TEST(SmoothScales, EqualTheFormulaForEveryKind) {
  std::uint32_t seed = 0;
  for (const ElementKind kind : kFloatKinds)
    for (const std::int64_t k : {1, 7, 64, 301})
      for (const double alpha : kAlphas) {
        const std::vector<float> x = between(1e-4, 1e3, k, ++seed);
        const std::vector<Tensor> weights = {normal(kind, {13, k}, ++seed)};
        ASSERT_EQ(bits_of(scales_of(x, weights, alpha)), bits_of(reference_scales(x, weights, alpha)))
            << name(kind) << " alpha " << alpha << " K " << k;
      }
}

// Each weight has the largest value of some column, so that none may be left out.
TEST(SmoothScales, SeveralWeightsOfDifferentKinds) {
  const std::int64_t k = 67;
  const std::vector<float> x = between(1e-2, 1e2, k, 1);
  std::vector<Tensor> weights = {normal(kF16, {5, k}, 2), normal(kF64, {3, k}, 3), normal(kF32, {0, k}, 4),
                                 normal(kBf16, {9, k}, 5, 80), normal(kF32, {1, k}, 6)};
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (weights[i].rows() != 0) weights[i].put(weights[i].rows() - 1, static_cast<std::int64_t>(i), -40.0);
  for (const double alpha : kAlphas)
    EXPECT_EQ(bits_of(scales_of(x, weights, alpha)), bits_of(reference_scales(x, weights, alpha))) << alpha;
}

TEST(SmoothScales, WorkedOutByHand) {
  const std::vector<float> x = {4.0f, 9.0f, 0.0f, 16.0f};
  const std::vector<Tensor> weights = {Tensor(kF32, {2, 4}, {1, -0.25, 4, 0, -0.5, 0.125, 1, 0})};
  const float least = 1e-5f;
  EXPECT_EQ(scales_of(x, weights, 0.5), (std::vector<float>{2.0f, 6.0f, least, 1264.91106f}));  // 4 / sqrt(1e-5)
  EXPECT_EQ(scales_of(x, weights, 1.0), (std::vector<float>{4.0f, 9.0f, least, 16.0f}));
  EXPECT_EQ(scales_of(x, weights, 0.0), (std::vector<float>{1.0f, 4.0f, 0.25f, 1e5f}));  // 0^0 is 1
  EXPECT_EQ(scales_of(x, weights, -0.0), scales_of(x, weights, 0.0));
}

TEST(SmoothScales, ClampsBothMaxima) {
  // Columns of zeros, of less than 1e-5, of just more, without anything finite, and a huge one.
  const std::vector<float> x(6, 1.0f);
  for (const ElementKind kind : {kF32, kF64, kBf16}) {
    const std::vector<Tensor> weights = {Tensor(kind, {2, 6},
                                                {0, 1e-6, 2e-5, kNan, kInf, 1e30,  //
                                                 -0.0, -9e-6, 0, -kInf, -kInf, 1})};
    for (const double alpha : kAlphas)
      EXPECT_EQ(bits_of(scales_of(x, weights, alpha)), bits_of(reference_scales(x, weights, alpha))) << alpha;
    const std::vector<float> s = scales_of(x, weights, 0.0);
    for (const std::size_t j : {0u, 1u, 3u, 4u}) EXPECT_EQ(s[j], 1e5f) << j;
    EXPECT_LT(s[2], 1e5f);
    EXPECT_EQ(s[5], 1e-5f);  // 1e-30 is raised to it
  }
}

// s lies between x and 1 / w, so neither the greatest nor the least activations leave f32.
TEST(SmoothScales, ExtremeActivationsStayInF32) {
  const std::vector<float> x = {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), -0.0f};
  for (const double w : {0.0, 1e-5, 1.0, 1.7e308})
    for (const double alpha : {0.0, 0.5, 0.999999999, std::nextafter(1.0, 0.0), 1.0}) {
      const std::vector<Tensor> weights = {Tensor(kF64, {1, 3}, {w, w, w})};
      const std::vector<float> s = scales_of(x, weights, alpha);
      EXPECT_EQ(bits_of(s), bits_of(reference_scales(x, weights, alpha))) << w << " alpha " << alpha;
      for (const float one : s) EXPECT_TRUE(std::isfinite(one) && one >= 1e-5f) << one;
    }
}

TEST(SmoothScales, ScalesMayBeTheActivationsThemselves) {
  const std::vector<float> x = between(1e-2, 1e2, 50, 1);
  const std::vector<Tensor> weights = {normal(kF32, {4, 50}, 2)};
  std::vector<float> both = x;
  const Status done = smooth_scales(Stream::cpu(1), channels(both), refs(weights), 0.5, channels_mut(both));
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(bits_of(both), bits_of(reference_scales(x, weights, 0.5)));
}

TEST(SmoothScales, StridedRowsAndMisalignedVectors) {
  const std::int64_t k = 33;
  const std::vector<float> x = between(1e-2, 1e2, k, 1);
  std::vector<Tensor> weights = {normal(kF32, {6, k}, 2, 40), normal(kF16, {2, k}, 3, 35)};
  for (Tensor& weight : weights)  // the gaps hold what would be the largest
    for (std::int64_t i = 0; i + 1 < weight.rows(); ++i)
      for (std::int64_t j = k; j < weight.step(); ++j) weight.put(i, j, 1e4);
  std::vector<std::byte> from(4 * x.size() + 1), to(4 * x.size() + 1);
  std::memcpy(from.data() + 1, x.data(), 4 * x.size());
  const TensorRef<float> act(reinterpret_cast<const float*>(from.data() + 1), {k});
  const TensorMut<float> scales(reinterpret_cast<float*>(to.data() + 1), {k});
  const Status done = smooth_scales(Stream::cpu(1), act, refs(weights), 0.5, scales);
  ASSERT_TRUE(done.ok()) << done.message();
  std::vector<float> s(x.size());
  std::memcpy(s.data(), to.data() + 1, 4 * s.size());
  EXPECT_EQ(bits_of(s), bits_of(reference_scales(x, weights, 0.5)));
}

TEST(SmoothScales, NoChannelsAndNoRows) {
  EXPECT_TRUE(smooth_scales(Stream::cpu(1), TensorRef<float>(nullptr, {0}),
                            refs({Tensor(kF32, {3, 0}), Tensor(kF16, {0, 0})}), 0.5, TensorMut<float>(nullptr, {0}))
                  .ok());
  const std::vector<Tensor> none = {Tensor(kF32, {0, 2}), Tensor(kF64, {0, 2})};
  EXPECT_EQ(scales_of({3.0f, 0.0f}, none, 0.0), (std::vector<float>{1e5f, 1e5f}));
}

TEST(SmoothScales, SameBitsForAnyThreadsAndInstructionSet) {
  const std::vector<float> x = between(1e-2, 1e2, 1500, 1);
  const std::vector<Tensor> weights = {normal(kF32, {400, 1500}, 2), normal(kF64, {100, 1500}, 3),
                                       normal(kBf16, {300, 1500}, 4, 1600)};
  const auto want = bits_of(reference_scales(x, weights, 0.5));
  for (const ArchSku isa : compiled_isas()) {
    if (!cpu::can_run(isa)) continue;
    const ScopedVariable forced("KVANT_FORCE_ISA", std::string(name(isa)).c_str());
    for (const int threads : {1, 2, 5})
      EXPECT_EQ(bits_of(scales_of(x, weights, 0.5, Stream::cpu(threads))), want) << name(isa) << " " << threads;
  }
}

// ---- apply_smoothing ------------------------------------------------------------------------------------------

// A norm, weights, and the scales to fold into them.
struct Layer {
  std::vector<float> s;
  Tensor norm_weight;
  Tensor norm_bias;
  std::vector<Tensor> weights;
  bool has_bias = true;

  Status apply(const Stream& stream = Stream::cpu(1)) {
    return apply_smoothing(stream, channels(s), norm_weight.mut(), has_bias ? norm_bias.mut() : AnyMut(),
                           muts(weights));
  }
};

Layer layer(ElementKind norm, const std::vector<ElementKind>& kinds, std::int64_t k, std::uint32_t seed) {
  Layer l{between(0.05, 20, k, seed), normal(norm, {k}, seed + 1), normal(norm, {k}, seed + 2), {}, true};
  for (const ElementKind kind : kinds) {
    const auto i = static_cast<std::int64_t>(l.weights.size());
    l.weights.push_back(normal(kind, {11 + i, k}, seed + 3, i % 2 == 0 ? 0 : k + 3));
  }
  return l;
}

// The product of two f32 is exact in f64, so putting it rounds to f32 once, and from there to the tensor's type.
void reference_multiply(Tensor& weight, const std::vector<float>& s) {
  for (std::int64_t i = 0; i < weight.rows(); ++i)
    for (std::int64_t j = 0; j < weight.columns(); ++j)
      weight.put(i, j, weight.get(i, j) * static_cast<double>(s[static_cast<std::size_t>(j)]));
}

void reference_divide(Tensor& norm, const std::vector<float>& s) {
  for (std::int64_t j = 0; j < norm.columns(); ++j) {
    const float by = s[static_cast<std::size_t>(j)];
    const double value = norm.get(0, j);
    norm.put(0, j,
             norm.kind == kF64 ? value / static_cast<double>(by) : static_cast<double>(static_cast<float>(value) / by));
  }
}

Layer reference(Layer l) {
  reference_divide(l.norm_weight, l.s);
  if (l.has_bias) reference_divide(l.norm_bias, l.s);
  for (Tensor& weight : l.weights) reference_multiply(weight, l.s);
  return l;
}

// Every byte counts, those between the rows included; one NaN is like another.
testing::AssertionResult equal(const Layer& got, const Layer& want) {
  const auto differ = [](const std::string& what, const Tensor& a, const Tensor& b) {
    const std::int64_t at = first_difference(a.bytes, b.bytes, a.kind);
    if (at == -1) return testing::AssertionSuccess();
    const std::size_t offset = static_cast<std::size_t>(at) * width_of(a.kind);
    return testing::AssertionFailure() << what << " of " << name(a.kind) << " has "
                                       << get_float(&a.bytes[offset], a.kind) << " at " << at << ", wanted "
                                       << get_float(&b.bytes[offset], b.kind);
  };
  if (auto result = differ("norm_weight", got.norm_weight, want.norm_weight); !result) return result;
  if (auto result = differ("norm_bias", got.norm_bias, want.norm_bias); !result) return result;
  for (std::size_t i = 0; i < want.weights.size(); ++i)
    if (auto result = differ("weights[" + std::to_string(i) + "]", got.weights[i], want.weights[i]); !result)
      return result;
  if (bits_of(got.s) != bits_of(want.s)) return testing::AssertionFailure() << "the scales were changed";
  return testing::AssertionSuccess();
}

TEST(ApplySmoothing, RoundsOnceForEveryKind) {
  std::uint32_t seed = 0;
  for (const ElementKind norm : kFloatKinds)
    for (const ElementKind kind : kFloatKinds)
      for (const std::int64_t k : {1, 5, 31, 64, 301}) {
        Layer l = layer(norm, {kind, kind}, k, seed += 10);
        const Layer want = reference(l);
        const Status done = l.apply();
        ASSERT_TRUE(done.ok()) << done.message();
        ASSERT_TRUE(equal(l, want)) << "K " << k;
      }
}

TEST(ApplySmoothing, WeightsOfDifferentKinds) {
  Layer l = layer(kBf16, {kF16, kF64, kBf16, kF32, kF64}, 130, 5);
  l.norm_bias = normal(kF32, {130}, 9);
  const Layer want = reference(l);
  const Status done = l.apply();
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_TRUE(equal(l, want));
}

TEST(ApplySmoothing, WorkedOutByHand) {
  Layer l{{2.0f, 0.5f, 3.0f},
          Tensor(kF32, {3}, {1, -3, 1}),
          Tensor(kF16, {3}, {4, 0, 1}),
          {Tensor(kF64, {2, 3}, {1, 2, 3, -4, -5, 0.1}), Tensor(kBf16, {1, 3}, {1.5, 1.5, 1.0078125})},
          true};
  ASSERT_TRUE(l.apply().ok());
  EXPECT_EQ(values_of(l.norm_weight.bytes, kF32), (std::vector<double>{0.5, -6, 0x1.555556p-2}));
  EXPECT_EQ(values_of(l.norm_bias.bytes, kF16), (std::vector<double>{2, 0, 0x1.554p-2}));
  EXPECT_EQ(values_of(l.weights[0].bytes, kF64), (std::vector<double>{2, 1, 9, -8, -2.5, 0.1 * 3}));
  EXPECT_EQ(values_of(l.weights[1].bytes, kBf16), (std::vector<double>{3, 0.75, 3.03125}));  // 3.0234375 is a tie
}

TEST(ApplySmoothing, NormWithoutBias) {
  Layer l = layer(kF32, {kF32}, 20, 1);
  l.has_bias = false;
  const Layer want = reference(l);  // whose bias is as it was
  ASSERT_TRUE(l.apply().ok());
  EXPECT_TRUE(equal(l, want));
}

TEST(ApplySmoothing, InfinitiesNanAndZerosStay) {
  for (const ElementKind kind : kFloatKinds) {
    const std::vector<double> odd = {kInf, -kInf, kNan, -0.0, 0.0, 1.0};
    Layer l{{3.0f, 0.1f, 7.0f, 2.0f, 0.3f, 2.0f},
            Tensor(kind, {6}, odd),
            Tensor(kind, {6}, odd),
            {Tensor(kind, {1, 6}, odd)},
            true};
    ASSERT_TRUE(l.apply().ok());
    for (const Tensor* t : {&l.norm_weight, &l.norm_bias, &l.weights[0]}) {
      const std::vector<double> got = values_of(t->bytes, kind);
      EXPECT_EQ(got[0], kInf);
      EXPECT_EQ(got[1], -kInf);
      EXPECT_TRUE(std::isnan(got[2]));
      EXPECT_TRUE(got[3] == 0 && std::signbit(got[3]));
      EXPECT_TRUE(got[4] == 0 && !std::signbit(got[4]));
    }
    EXPECT_EQ(l.norm_weight.get(0, 5), 0.5);
    EXPECT_EQ(l.weights[0].get(0, 5), 2.0);
  }
}

// Scales that are denormal, results that are, and results that vanish.
TEST(ApplySmoothing, Denormals) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const ElementKind kind : kFloatKinds) {
    Layer l{{tiny, 1e-40f, 4096.0f, 1e-3f},
            Tensor(kind, {4}, {0.0, 0.0, 6e-8, 6e-8}),
            Tensor(kind, {4}, {-0.0, 0.0, 1e-38, 1e-38}),
            {Tensor(kind, {2, 4}, {1.5, 1000, 6e-8, 6e-8, 0.5, 3, 1e-40, 1e-40})},
            true};
    const Layer want = reference(l);
    const Status done = l.apply();
    ASSERT_TRUE(done.ok()) << done.message();
    EXPECT_TRUE(equal(l, want));
  }
}

TEST(ApplySmoothing, MisalignedTensors) {
  Layer l = layer(kF32, {kF32}, 19, 1);
  const Layer want = reference(l);
  std::vector<std::byte> s(4 * 19 + 1);
  std::memcpy(s.data() + 1, l.s.data(), 4 * 19);
  const auto shifted = [](const Tensor& t) {
    std::vector<std::byte> bytes(t.bytes.size() + 1);
    std::copy(t.bytes.begin(), t.bytes.end(), bytes.begin() + 1);
    return bytes;
  };
  std::vector<std::byte> norm = shifted(l.norm_weight), bias = shifted(l.norm_bias), weight = shifted(l.weights[0]);
  const AnyMut weights[] = {{weight.data() + 1, kF32, l.weights[0].shape, 0}};
  const Status done =
      apply_smoothing(Stream::cpu(1), TensorRef<float>(reinterpret_cast<const float*>(s.data() + 1), {19}),
                      {norm.data() + 1, kF32, {19}, 0}, {bias.data() + 1, kF32, {19}, 0}, weights);
  ASSERT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(norm, shifted(want.norm_weight));
  EXPECT_EQ(bias, shifted(want.norm_bias));
  EXPECT_EQ(weight, shifted(want.weights[0]));
}

TEST(ApplySmoothing, NoChannelsAndNoRows) {
  const AnyMut none[] = {{nullptr, kF32, {3, 0}, 0}, {nullptr, kF16, {0, 0}, 0}};
  EXPECT_TRUE(
      apply_smoothing(Stream::cpu(1), TensorRef<float>(nullptr, {0}), {nullptr, kF32, {0}, 0}, AnyMut(), none).ok());
  Layer l = layer(kF32, {}, 4, 1);
  l.weights = {Tensor(kF16, {0, 4}), normal(kF32, {2, 4}, 5)};
  const Layer want = reference(l);
  ASSERT_TRUE(l.apply().ok());
  EXPECT_TRUE(equal(l, want));
}

// Two halves of one matrix are two weights, and the norm may lie in the gaps of a third.
TEST(ApplySmoothing, InterleavedTensorsDoNotOverlap) {
  std::vector<float> both = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<float> s = {2.0f, 4.0f};
  const AnyMut weights[] = {{both.data(), kF32, {2, 2}, 6}, {both.data() + 2, kF32, {2, 2}, 6}};
  ASSERT_TRUE(apply_smoothing(Stream::cpu(1), channels(s), {both.data() + 4, kF32, {2}, 0}, AnyMut(), weights).ok());
  EXPECT_EQ(both, (std::vector<float>{2, 8, 6, 16, 2.5f, 1.5f, 14, 32, 18, 40, 11, 12}));
}

TEST(ApplySmoothing, SameBitsForAnyThreadsAndInstructionSet) {
  const Layer original = layer(kF16, {kF32, kF64, kF16, kBf16}, 9001, 3);
  const Layer want = reference(original);
  for (const ArchSku isa : compiled_isas()) {
    if (!cpu::can_run(isa)) continue;
    const ScopedVariable forced("KVANT_FORCE_ISA", std::string(name(isa)).c_str());
    for (const int threads : {1, 2, 5}) {
      Layer l = original;
      const Status done = l.apply(Stream::cpu(threads));
      ASSERT_TRUE(done.ok()) << done.message();
      EXPECT_TRUE(equal(l, want)) << name(isa) << " with " << threads << " threads";
    }
  }
}

// ---- both -----------------------------------------------------------------------------------------------------

// The linears' outputs for normalized inputs n: W * (n * norm_weight + norm_bias), and what bounds their error.
struct Outputs {
  std::vector<double> y, magnitude;
};
Outputs outputs(const Layer& l, const Tensor& weight, const std::vector<double>& n) {
  Outputs o;
  for (std::int64_t i = 0; i < weight.rows(); ++i) {
    double y = 0, magnitude = 0;
    for (std::int64_t j = 0; j < weight.columns(); ++j) {
      const double scaled = n[static_cast<std::size_t>(j)] * l.norm_weight.get(0, j);
      y += weight.get(i, j) * (scaled + l.norm_bias.get(0, j));
      magnitude += std::fabs(weight.get(i, j)) * (std::fabs(scaled) + std::fabs(l.norm_bias.get(0, j)));
    }
    o.y.push_back(y);
    o.magnitude.push_back(magnitude);
  }
  return o;
}

TEST(Smoothing, LeavesTheOutputsOfTheLinears) {
  const std::int64_t k = 96;
  for (const ElementKind kind : kFloatKinds)
    for (const double alpha : {0.0, 0.5, 0.85, 1.0}) {
      Layer l = layer(kind, {kind, kind}, k, 7);
      const std::vector<float> absmax = between(0.5, 60, k, 8);  // one outlier channel among 60 times smaller ones
      ASSERT_TRUE(smooth_scales(Stream::cpu(1), channels(absmax), refs(l.weights), alpha, channels_mut(l.s)).ok());
      const Layer before = l;
      const Status done = l.apply();
      ASSERT_TRUE(done.ok()) << done.message();
      ASSERT_NE(first_difference(l.weights[0].bytes, before.weights[0].bytes, kind), -1);
      std::vector<double> n;
      for (const float x : absmax) n.push_back(static_cast<double>(x) * (n.size() % 2 == 0 ? 1 : -0.5));
      // The weight and the norm are each off by half a unit; f16 has its denormals in addition.
      const double unit = kind == kF64 ? 0x1p-53 : kind == kF32 ? 0x1p-24 : kind == kF16 ? 0x1p-11 : 0x1p-8;
      const double slack = kind == kF64 ? 64 : 2.01;  // sums are of f64 too
      for (std::size_t i = 0; i < l.weights.size(); ++i) {
        const Outputs was = outputs(before, before.weights[i], n), is = outputs(l, l.weights[i], n);
        for (std::size_t row = 0; row < was.y.size(); ++row)
          ASSERT_NEAR(is.y[row], was.y[row], slack * unit * was.magnitude[row] + (kind == kF16 ? 1e-3 : 0))
              << name(kind) << " alpha " << alpha << " row " << row;
      }
    }
}

#if defined(__x86_64__)
TEST(Smoothing, FloatEnvironmentChangesNothingAndIsLeftAlone) {
  constexpr unsigned kDefault = 0x1F80, kFlush = 0x8040, kUp = 0x4000, kDown = 0x2000, kTruncate = 0x6000;
  constexpr unsigned kNothingMasked = 0x0000, kSticky = 0x003F;
  for (const ElementKind kind : kFloatKinds) {
    Layer original = layer(kind, {kind, kF64}, 200, 4);
    original.s[3] = 1e-39f;
    original.norm_weight.put(0, 3, 0.0);
    original.norm_bias.put(0, 3, 0.0);
    original.norm_bias.put(0, 4, kind == kF64 ? 1e-310 : kind == kF16 ? 6e-8 : 1e-39);
    original.norm_weight.put(0, 5, kNan);
    original.weights[0].put(2, 6, kNan);
    for (Tensor& weight : original.weights)  // a column of denormals
      for (std::int64_t i = 0; i < weight.rows(); ++i) weight.put(i, 8, kind == kF16 ? 6e-8 : 1e-40);
    const Layer want = reference(original);
    std::vector<float> x = between(1e-3, 1e2, 200, 5);
    x[7] = 1e-40f;
    const auto want_scales = bits_of(reference_scales(x, original.weights, 0.7));
    for (const unsigned mode : {kDefault | kFlush, kDefault | kUp, kDefault | kDown, kDefault | kTruncate | kFlush,
                                kNothingMasked, kDefault | kSticky}) {
      Layer l = original;
      std::vector<float> s(200);
      const std::vector<AnyRef> views = refs(l.weights);
      const Stream stream = Stream::cpu(4);
      _mm_setcsr(mode);
      const Status found = smooth_scales(stream, channels(x), views, 0.7, channels_mut(s));
      const unsigned between_calls = _mm_getcsr();
      const Status done = l.apply(stream);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(kDefault);
      ASSERT_TRUE(found.ok()) << found.message();
      ASSERT_TRUE(done.ok()) << done.message();
      ASSERT_EQ(between_calls, mode);
      ASSERT_EQ(after, mode);
      ASSERT_EQ(bits_of(s), want_scales) << "mode " << mode;
      ASSERT_TRUE(equal(l, want)) << "mode " << mode;
    }
  }
}

// The checks of numbers must not depend on the caller's mode either.
TEST(Smoothing, FloatEnvironmentChangesNoRefusal) {
  constexpr unsigned kDefault = 0x1F80, kFlush = 0x8040, kNothingMasked = 0x0000;
  for (const unsigned mode : {kDefault | kFlush, kNothingMasked}) {
    Layer l = layer(kF32, {kF32}, 4, 1);
    const std::vector<AnyRef> views = refs(l.weights);
    std::vector<float> s(4), x(4, 1.0f), bad(4, -1e-40f), signalling(4);
    const std::uint32_t nan = 0x7F800001;
    std::memcpy(&signalling[2], &nan, 4);
    const Stream stream = Stream::cpu(1);
    _mm_setcsr(mode);
    const Status alpha = smooth_scales(stream, channels(x), views, -1e-310, channels_mut(s));
    const Status negative = smooth_scales(stream, channels(bad), views, 0.5, channels_mut(s));
    const Status no_number = smooth_scales(stream, channels(signalling), views, 0.5, channels_mut(s));
    l.s = signalling;
    const Status scale = l.apply(stream);
    l.s = {1.0f, 1e-40f, 1.0f, 1.0f};
    const Status overflow = l.apply(stream);
    _mm_setcsr(kDefault);
    EXPECT_TRUE(refused(alpha, StatusCode::InvalidProblem, {"smooth_scales: alpha -1e-310 must lie in [0, 1]"}));
    EXPECT_TRUE(refused(negative, StatusCode::InvalidProblem, {"act_absmax[0] is -1e-40, "}));
    EXPECT_TRUE(refused(no_number, StatusCode::InvalidProblem, {"act_absmax[2] is nan, "}));
    EXPECT_TRUE(refused(scale, StatusCode::InvalidProblem, {"scales[0] is 0, "}));
    EXPECT_TRUE(refused(overflow, StatusCode::InvalidProblem, {"norm_weight would overflow f32 in channel 1: "}));
  }
}
#endif

// ---- refusals of smooth_scales --------------------------------------------------------------------------------

// What problems below have in common: run() refuses in these very words, and nothing in `memory` changes.
template <class Problem>
struct Refusing {
  testing::AssertionResult refuses(StatusCode code, std::string_view sentence) {
    auto& problem = static_cast<Problem&>(*this);
    const std::vector<std::byte> before = problem.memory;
    const Status status = problem.run();
    if (testing::AssertionResult result = refused_with(status, code, sentence); !result) return result;
    if (problem.memory != before) return testing::AssertionFailure() << "a refused call wrote: " << status.message();
    return testing::AssertionSuccess();
  }
  testing::AssertionResult invalid(std::string_view sentence) { return refuses(StatusCode::InvalidProblem, sentence); }
  testing::AssertionResult unsupported(std::string_view sentence) { return refuses(StatusCode::Unsupported, sentence); }
};

// A problem in order: four channels, weights [3, 4] of f32 and [2, 4] of f16, everything in one buffer where views can
// be moved over each other.
struct FindProblem : Refusing<FindProblem> {
  std::vector<std::byte> memory = std::vector<std::byte>(512, std::byte{0x3C});
  TensorRef<float> act_absmax{at<float>(64), {4}};                         // 16 bytes
  std::vector<AnyRef> weights = {{memory.data() + 128, kF32, {3, 4}, 0},   // 48 bytes
                                 {memory.data() + 256, kF16, {2, 4}, 0}};  // 16 bytes
  double alpha = 0.5;
  TensorMut<float> scales{at<float>(384), {4}};
  Stream stream = Stream::cpu(1);

  template <class T>
  T* at(std::size_t offset) {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
  Status run() { return smooth_scales(stream, act_absmax, weights, alpha, scales); }
};

TEST(SmoothScalesRefusal, Alpha) {
  EXPECT_TRUE(FindProblem().run().ok());
  const std::pair<double, std::string_view> all[] = {
      {1.5, "1.5"}, {-0.1, "-0.1"}, {kNan, "nan"}, {kInf, "inf"}, {std::nextafter(1.0, 2.0), "1.0000000000000002"}};
  for (const auto& [alpha, text] : all) {
    FindProblem p;
    p.alpha = alpha;
    EXPECT_TRUE(p.invalid("smooth_scales: alpha " + std::string(text) + " must lie in [0, 1]"));
  }
}

TEST(SmoothScalesRefusal, ActAbsmax) {
  FindProblem kind;
  kind.act_absmax.kind = kF64;
  EXPECT_TRUE(kind.unsupported("smooth_scales: act_absmax has element f64, must be f32"));
  FindProblem rank;
  rank.act_absmax.shape = {2, 2};
  EXPECT_TRUE(rank.invalid("smooth_scales: act_absmax has shape [2, 2], must have one dimension"));
  FindProblem negative;
  negative.act_absmax.shape = {-4};
  EXPECT_TRUE(negative.invalid("smooth_scales: act_absmax: size -4 of dimension 0 in shape [-4] is negative"));
  FindProblem huge;
  huge.act_absmax.shape = {std::int64_t{1} << 60};
  EXPECT_TRUE(
      huge.invalid("smooth_scales: act_absmax: shape [1152921504606846976] has more bytes than 63 bits can count"));
  FindProblem null;
  null.act_absmax.data = nullptr;
  EXPECT_TRUE(null.invalid("smooth_scales: act_absmax is null for shape [4]"));
  FindProblem stride;
  stride.act_absmax.row_stride = 3;
  EXPECT_TRUE(stride.invalid("smooth_scales: act_absmax has row stride 3, which is less than its row of 4"));

  const std::pair<double, std::string_view> bad[] = {{-1, "-1"}, {kNan, "nan"}, {kInf, "inf"}, {-kInf, "-inf"}};
  for (const auto& [value, text] : bad) {
    FindProblem p;
    put_float(p.memory.data() + 64 + 12, kF32, value);
    EXPECT_TRUE(
        p.invalid("smooth_scales: act_absmax[3] is " + std::string(text) + ", must be finite and not negative"));
    p.scales = {p.at<float>(64), {4}};  // in place, too
    EXPECT_TRUE(
        p.invalid("smooth_scales: act_absmax[3] is " + std::string(text) + ", must be finite and not negative"));
  }
}

TEST(SmoothScalesRefusal, Weights) {
  FindProblem none;
  none.weights.clear();
  EXPECT_TRUE(none.invalid("smooth_scales: there are 0 weights, must be at least 1"));
  for (const ElementKind code : {ElementKind::s8, ElementKind::u4, ElementKind::s32}) {
    FindProblem kind;
    kind.weights[1].kind = code;
    EXPECT_TRUE(kind.unsupported("smooth_scales: weights[1] has element " + std::string(name(code)) +
                                 ", must be one of f32, f64, f16, bf16"));
  }
  FindProblem columns;
  columns.weights[1].shape = {3, 5};
  EXPECT_TRUE(columns.invalid("smooth_scales: weights[1] has shape [3, 5], must have 4 columns"));
  FindProblem rank;
  rank.weights[0].shape = {4};
  EXPECT_TRUE(rank.invalid("smooth_scales: weights[0] has shape [4], must have two dimensions"));
  rank.weights[0].shape = {1, 3, 4};
  EXPECT_TRUE(rank.invalid("smooth_scales: weights[0] has shape [1, 3, 4], must have two dimensions"));
  FindProblem negative;
  negative.weights[0].shape = {-3, 4};
  EXPECT_TRUE(negative.invalid("smooth_scales: weights[0]: size -3 of dimension 0 in shape [-3, 4] is negative"));
  FindProblem huge;
  huge.weights[0].shape = {std::int64_t{1} << 59, 4};
  EXPECT_TRUE(
      huge.invalid("smooth_scales: weights[0]: shape [576460752303423488, 4] has more bytes than 63 bits can count"));
  FindProblem stride;
  stride.weights[0].row_stride = 3;
  EXPECT_TRUE(stride.invalid("smooth_scales: weights[0] has row stride 3, which is less than its row of 4"));
  FindProblem null;
  null.weights[1].data = nullptr;
  EXPECT_TRUE(null.invalid("smooth_scales: weights[1] is null for shape [2, 4]"));
}

TEST(SmoothScalesRefusal, Scales) {
  FindProblem kind;
  kind.scales.kind = kF16;
  EXPECT_TRUE(kind.unsupported("smooth_scales: scales has element f16, must be f32"));
  FindProblem shape;
  shape.scales.shape = {5};
  EXPECT_TRUE(shape.invalid("smooth_scales: scales has shape [5], must have [4]"));
  shape.scales.shape = {1, 4};
  EXPECT_TRUE(shape.invalid("smooth_scales: scales has shape [1, 4], must have [4]"));
  FindProblem null;
  null.scales.data = nullptr;
  EXPECT_TRUE(null.invalid("smooth_scales: scales is null for shape [4]"));

  const std::pair<std::size_t, std::string_view> overlaps[] = {
      {64 + 4, "act_absmax"}, {64 - 15, "act_absmax"}, {128 + 47, "weights[0]"}, {256 - 15, "weights[1]"}};
  for (const auto& [offset, other] : overlaps) {
    FindProblem p;
    p.scales.data = p.memory.data() + offset;
    EXPECT_TRUE(p.invalid("smooth_scales: scales overlaps " + std::string(other)));
  }
  for (const std::size_t offset : {64u - 16u, 64u, 64u + 16u, 128u + 48u, 256u - 16u, 256u + 16u}) {
    FindProblem p;
    p.scales.data = p.memory.data() + offset;
    EXPECT_TRUE(p.run().ok()) << offset;
  }
}

// What is wrong with a view is said before what is wrong with a number.
TEST(SmoothScalesRefusal, ViewsBeforeValues) {
  FindProblem p;
  put_float(p.memory.data() + 64, kF32, -1);
  p.scales.shape = {5};
  EXPECT_TRUE(p.invalid("smooth_scales: scales has shape [5], must have [4]"));
  p.scales.shape = {4};
  p.alpha = 2;
  EXPECT_TRUE(p.invalid("smooth_scales: alpha 2 must lie in [0, 1]"));
}

TEST(SmoothScalesRefusal, StreamAndInstructionSet) {
  FindProblem p;
  p.stream = Stream::cpu(0);
  EXPECT_TRUE(refused(p.run(), StatusCode::InvalidProblem, {"0 threads"}));
  p.stream = Stream::cpu(1);
  const ScopedVariable forced("KVANT_FORCE_ISA", "abacus");
  EXPECT_TRUE(p.unsupported("smooth_scales: KVANT_FORCE_ISA=abacus is not an instruction set; known: scalar, avx2"));
}

// ---- refusals of apply_smoothing ------------------------------------------------------------------------------

struct ApplyProblem : Refusing<ApplyProblem> {
  std::vector<std::byte> memory = std::vector<std::byte>(640, std::byte{0x3C});
  TensorRef<float> scales{reinterpret_cast<const float*>(memory.data() + 64), {4}};  // 16 bytes
  AnyMut norm_weight{memory.data() + 128, kF16, {4}, 0};                             // 8 bytes
  AnyMut norm_bias{memory.data() + 192, kF32, {4}, 0};                               // 16 bytes
  std::vector<AnyMut> weights = {{memory.data() + 256, kF32, {3, 4}, 0},             // 48 bytes
                                 {memory.data() + 384, kF16, {2, 4}, 0}};            // 16 bytes
  Stream stream = Stream::cpu(1);

  ApplyProblem() {
    for (std::size_t j = 0; j < 4; ++j) set_scale(j, 2.0);
  }

  void set_scale(std::size_t j, double value) { put_float(memory.data() + 64 + 4 * j, kF32, value); }
  static void set(const AnyMut& view, std::size_t i, double value) {
    put_float(static_cast<std::byte*>(view.data) + i * width_of(view.kind), view.kind, value);
  }
  Status run() { return apply_smoothing(stream, scales, norm_weight, norm_bias, weights); }
};

TEST(ApplySmoothingRefusal, Scales) {
  EXPECT_TRUE(ApplyProblem().run().ok());
  ApplyProblem kind;
  kind.scales.kind = kBf16;
  EXPECT_TRUE(kind.unsupported("apply_smoothing: scales has element bf16, must be f32"));
  ApplyProblem rank;
  rank.scales.shape = {4, 1};
  EXPECT_TRUE(rank.invalid("apply_smoothing: scales has shape [4, 1], must have one dimension"));
  ApplyProblem null;
  null.scales.data = nullptr;
  EXPECT_TRUE(null.invalid("apply_smoothing: scales is null for shape [4]"));
  const std::pair<double, std::string_view> bad[] = {{0.0, "0"},    {-0.0, "-0"},  {-2, "-2"},
                                                     {kNan, "nan"}, {kInf, "inf"}, {-kInf, "-inf"}};
  for (const auto& [value, text] : bad) {
    ApplyProblem p;
    p.set_scale(2, value);
    EXPECT_TRUE(p.invalid("apply_smoothing: scales[2] is " + std::string(text) + ", must be finite and positive"));
  }
}

TEST(ApplySmoothingRefusal, Norm) {
  const std::pair<AnyMut ApplyProblem::*, std::string> norms[] = {{&ApplyProblem::norm_weight, "norm_weight"},
                                                                  {&ApplyProblem::norm_bias, "norm_bias"}};
  for (const auto& [norm, what] : norms) {
    ApplyProblem kind;
    (kind.*norm).kind = ElementKind::s8;
    EXPECT_TRUE(kind.unsupported("apply_smoothing: " + what + " has element s8, must be one of f32, f64, f16, bf16"));
    ApplyProblem shape;
    (shape.*norm).shape = {3};
    EXPECT_TRUE(shape.invalid("apply_smoothing: " + what + " has shape [3], must have [4]"));
    (shape.*norm).shape = {1, 4};
    EXPECT_TRUE(shape.invalid("apply_smoothing: " + what + " has shape [1, 4], must have [4]"));
    ApplyProblem stride;
    (stride.*norm).row_stride = 2;
    EXPECT_TRUE(stride.invalid("apply_smoothing: " + what + " has row stride 2, which is less than its row of 4"));
  }
  ApplyProblem null;
  null.norm_weight.data = nullptr;
  EXPECT_TRUE(null.invalid("apply_smoothing: norm_weight is null for shape [4]"));
  ApplyProblem no_bias;  // whatever else its view says
  no_bias.norm_bias = {nullptr, ElementKind::s8, {7}, 1};
  EXPECT_TRUE(no_bias.run().ok());
}

TEST(ApplySmoothingRefusal, Weights) {
  ApplyProblem none;
  none.weights.clear();
  EXPECT_TRUE(none.invalid("apply_smoothing: there are 0 weights, must be at least 1"));
  ApplyProblem kind;
  kind.weights[1].kind = ElementKind::u8;
  EXPECT_TRUE(kind.unsupported("apply_smoothing: weights[1] has element u8, must be one of f32, f64, f16, bf16"));
  ApplyProblem columns;
  columns.weights[1].shape = {3, 5};
  EXPECT_TRUE(columns.invalid("apply_smoothing: weights[1] has shape [3, 5], must have 4 columns"));
  ApplyProblem rank;
  rank.weights[0].shape = {4};
  EXPECT_TRUE(rank.invalid("apply_smoothing: weights[0] has shape [4], must have two dimensions"));
  ApplyProblem stride;
  stride.weights[0].row_stride = 3;
  EXPECT_TRUE(stride.invalid("apply_smoothing: weights[0] has row stride 3, which is less than its row of 4"));
  ApplyProblem null;
  null.weights[1].data = nullptr;
  EXPECT_TRUE(null.invalid("apply_smoothing: weights[1] is null for shape [2, 4]"));
}

// Moves each written tensor over each other one by a byte, and right beside it.
TEST(ApplySmoothingRefusal, Overlaps) {
  struct Place {
    std::string name;
    std::size_t offset, bytes;
  };
  const Place places[] = {{"scales", 64, 16},
                          {"norm_weight", 128, 8},
                          {"norm_bias", 192, 16},
                          {"weights[0]", 256, 48},
                          {"weights[1]", 384, 16}};
  const auto written = [](ApplyProblem& p, std::size_t which) -> AnyMut& {
    return which == 1 ? p.norm_weight : which == 2 ? p.norm_bias : p.weights[which - 3];
  };
  for (std::size_t moved = 1; moved < 5; ++moved)
    for (std::size_t other = 0; other < 5; ++other) {
      if (other == moved) continue;
      const std::size_t later = std::max(moved, other), earlier = std::min(moved, other);
      ApplyProblem p;
      written(p, moved).data = p.memory.data() + places[other].offset + places[other].bytes - 1;
      EXPECT_TRUE(p.invalid("apply_smoothing: " + places[later].name + " overlaps " + places[earlier].name));
      written(p, moved).data = p.memory.data() + places[other].offset + places[other].bytes;
      EXPECT_TRUE(p.run().ok()) << places[moved].name << " behind " << places[other].name;
    }
  ApplyProblem twice;
  twice.weights.push_back(twice.weights[0]);
  EXPECT_TRUE(twice.invalid("apply_smoothing: weights[2] overlaps weights[0]"));
}

TEST(ApplySmoothingRefusal, OverflowOfTheNorm) {
  ApplyProblem f16;
  f16.set_scale(2, 0.5);
  ApplyProblem::set(f16.norm_weight, 2, -60000);
  EXPECT_TRUE(f16.invalid("apply_smoothing: norm_weight would overflow f16 in channel 2: -60000 divided by scale 0.5"));
  ApplyProblem::set(f16.norm_weight, 2, 32752);  // its double is the greatest f16, 65504
  EXPECT_TRUE(f16.run().ok());
  EXPECT_EQ(get_float(static_cast<std::byte*>(f16.norm_weight.data) + 4, kF16), 65504);

  ApplyProblem f32;
  f32.set_scale(3, 0.25);
  ApplyProblem::set(f32.norm_bias, 3, 1e38);
  EXPECT_TRUE(f32.invalid("apply_smoothing: norm_bias would overflow f32 in channel 3: 1e+38 divided by scale 0.25"));
  ApplyProblem::set(f32.norm_bias, 3, kInf);
  EXPECT_TRUE(f32.run().ok());

  ApplyProblem bf16;
  bf16.norm_weight.kind = kBf16;
  bf16.set_scale(0, 0.99609375);  // the quotient is finite in f32 and rounds up to infinity
  const std::uint16_t greatest = 0x7F7F;
  std::memcpy(bf16.norm_weight.data, &greatest, 2);
  ApplyProblem::set(bf16.norm_weight, 1, 1);
  EXPECT_TRUE(
      bf16.invalid("apply_smoothing: norm_weight would overflow bf16 in channel 0: 3.3895314e+38 divided by "
                   "scale 0.99609375"));

  ApplyProblem f64;
  f64.norm_bias = {f64.memory.data() + 512, kF64, {4}, 0};
  for (std::size_t j = 0; j < 4; ++j) ApplyProblem::set(f64.norm_bias, j, 1e39);
  EXPECT_TRUE(f64.run().ok());
  f64.set_scale(1, 1e-5);
  ApplyProblem::set(f64.norm_bias, 1, 1e305);
  EXPECT_TRUE(f64.invalid("apply_smoothing: norm_bias would overflow f64 in channel 1: 1e+305 divided by scale 1e-05"));
}

TEST(ApplySmoothingRefusal, OverflowOfAWeight) {
  ApplyProblem f16;
  ApplyProblem::set(f16.weights[1], 4 + 3, -40000);
  EXPECT_TRUE(
      f16.invalid("apply_smoothing: weights[1] would overflow f16 in channel 3: magnitude 40000 times scale 2"));
  ApplyProblem::set(f16.weights[1], 4 + 3, -32752);
  EXPECT_TRUE(f16.run().ok());
  EXPECT_EQ(get_float(static_cast<std::byte*>(f16.weights[1].data) + 14, kF16), -65504);

  ApplyProblem f32;
  ApplyProblem::set(f32.weights[0], 8, 2e38);
  EXPECT_TRUE(
      f32.invalid("apply_smoothing: weights[0] would overflow f32 in channel 0: magnitude 2e+38 times scale 2"));
  ApplyProblem::set(f32.weights[0], 8, kMaxF32 / 2);
  EXPECT_TRUE(f32.run().ok());
  EXPECT_EQ(get_float(static_cast<std::byte*>(f32.weights[0].data) + 32, kF32), kMaxF32);

  ApplyProblem bf16;
  bf16.weights[1].kind = kBf16;
  const std::uint16_t greatest = 0xFF7F;
  std::memcpy(static_cast<std::byte*>(bf16.weights[1].data) + 2, &greatest, 2);
  bf16.set_scale(1, 1.00390625);  // the product would be finite in f32's range, and rounds up
  EXPECT_TRUE(
      bf16.invalid("apply_smoothing: weights[1] would overflow bf16 in channel 1: magnitude 3.3895314e+38 times "
                   "scale 1.0039062"));

  ApplyProblem f64;
  f64.weights[1] = {f64.memory.data() + 512, kF64, {2, 4}, 0};
  for (std::size_t i = 0; i < 8; ++i) ApplyProblem::set(f64.weights[1], i, 1e300);
  EXPECT_TRUE(f64.run().ok());
  ApplyProblem::set(f64.weights[1], 2, 1e308);
  EXPECT_TRUE(
      f64.invalid("apply_smoothing: weights[1] would overflow f64 in channel 2: magnitude 1e+308 times scale 2"));
}

// Rounding decides: 65519.99 is the last that f16 takes down to 65504, 65520 the first that it takes up to infinity.
TEST(ApplySmoothingRefusal, OverflowBeginsWhereRoundingDoes) {
  const auto folds = [](double value, float scale) {
    ApplyProblem p;
    for (std::size_t j = 0; j < 4; ++j) p.set_scale(j, static_cast<double>(scale));
    ApplyProblem::set(p.weights[1], 0, value);
    return p.run().ok();
  };
  EXPECT_TRUE(folds(32.0, 65519.99f / 32));
  EXPECT_FALSE(folds(32.0, 65520.0f / 32));
}

TEST(ApplySmoothingRefusal, StreamAndInstructionSet) {
  ApplyProblem p;
  p.stream = Stream::cpu(0);
  EXPECT_TRUE(refused(p.run(), StatusCode::InvalidProblem, {"0 threads"}));
  p.stream = Stream::cpu(1);
  const ScopedVariable forced("KVANT_FORCE_ISA", "abacus");
  EXPECT_TRUE(p.unsupported("apply_smoothing: KVANT_FORCE_ISA=abacus is not an instruction set; known: scalar, avx2"));
}

// ---- out of memory --------------------------------------------------------------------------------------------

// Refuses the first allocation of a call, then the second, and so on until the call needs no more.
template <class Problem>
void expect_no_throw_without_memory(std::string_view sentence) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer owns the allocator";
  std::int64_t refused_calls = 0;
  for (bool succeeded = false; !succeeded; ++refused_calls) {
    ASSERT_LT(refused_calls, 1000);
    Problem p;
    const std::vector<std::byte> before = p.memory;
    g_allocations_left = refused_calls;
    const Status status = p.run();
    const bool ran_out = g_allocations_left < 0;
    g_allocations_left = -1;
    succeeded = status.ok();
    ASSERT_EQ(succeeded, !ran_out);
    if (succeeded) continue;
    ASSERT_EQ(status.message(), sentence);
    ASSERT_EQ(status.code(), StatusCode::Internal);
    ASSERT_EQ(p.memory, before) << "wrote before allocation " << refused_calls;
  }
  EXPECT_GT(refused_calls, 5);
}

TEST(SmoothScalesRefusal, OutOfMemory) {
  expect_no_throw_without_memory<FindProblem>("smooth_scales: out of memory for 4 channels");
}

TEST(ApplySmoothingRefusal, OutOfMemory) {
  expect_no_throw_without_memory<ApplyProblem>("apply_smoothing: out of memory for 4 channels");
}

}  // namespace
}  // namespace kvant::tests
