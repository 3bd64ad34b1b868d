// The caller's floating-point mode changes no bit of a result, and is as it was afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/elementwise_case.h"
#include "tests/support/f32_linear_case.h"
#include "tests/support/isas.h"
#include "tests/support/linear_case.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::tests {
namespace {

#if defined(__x86_64__)
TEST(FloatEnvironment, ChangesNothingAndIsLeftAlone) {
  constexpr unsigned kDefault = 0x1F80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kStickyInexact = 0x0020;
  constexpr unsigned kUp = 0x4000, kDown = 0x2000, kTruncate = 0x6000;
  for (const ArchSku isa : compiled_isas()) {
    if (!cpu::can_run(isa)) continue;
    for (const int threads : {1, 4})
      for (const QuantizeKind op : {QuantizeKind::quantize, QuantizeKind::dequantize, QuantizeKind::fake_quantize,
                                    QuantizeKind::quantize_backward})
        for (const ElementKind f : kFloatKinds) {
          const Stream stream = Stream::cpu(threads);
          const ElementwiseCase c(describe(op, f, ElementKind::s8, {300, 401}, Granularity::per_channel(0)), 9, true);
          const auto want = c.run(stream, isa, Numerics::exact);
          for (const unsigned mode : {kDefault | kFlushToZero | kDenormalsAreZero, kDefault | kUp, kDefault | kDown,
                                      kDefault | kTruncate | kFlushToZero, kDefault | kStickyInexact}) {
            _mm_setcsr(mode);
            const auto got = c.run(stream, isa, Numerics::exact);
            const unsigned after = _mm_getcsr();
            _mm_setcsr(kDefault);
            ASSERT_EQ(after, mode) << name(isa);
            ASSERT_EQ(first_difference(got, want, c.write_kind), -1) << c.describe_case() << " mode " << mode;
          }
        }
  }
}
#endif

#if defined(__x86_64__)
// The checks of the parameters come before the kernel's own mode is set, and must not depend on the caller's.
TEST(FloatEnvironment, ChangesNoRefusal) {
  constexpr unsigned kDefault = 0x1F80, kDenormalsAreZero = 0x0040, kNothingMasked = 0x0000, kTruncate = 0x6000;
  const Stream stream = Stream::cpu(1);
  const float x = 1.0f;
  std::int8_t q = 0;
  const auto runs = [&](float scale, Numerics numerics, unsigned mode) {
    const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = {1}}, {.numerics = numerics});
    const QuantizePerTensorArgs<float, std::int8_t> args{.input = {&x, {1}}, .output = {&q, {1}}, .scale = scale};
    _mm_setcsr(mode);
    const bool ok = plan->run(stream, {}, args).ok();
    _mm_setcsr(kDefault);
    return ok;
  };
  for (const unsigned mode : {kDefault, kDefault | kDenormalsAreZero, kNothingMasked, kDefault | kTruncate}) {
    EXPECT_TRUE(runs(1e-40f, Numerics::exact, mode)) << mode;
    EXPECT_FALSE(runs(1e-40f, Numerics::reciprocal, mode)) << mode;
    EXPECT_FALSE(runs(0x1p-128f, Numerics::reciprocal, mode)) << mode;
    EXPECT_TRUE(runs(0x1p-128f + 0x1p-149f, Numerics::reciprocal, mode)) << mode;
    EXPECT_FALSE(runs(0.0f, Numerics::exact, mode)) << mode;
  }
}
#endif

#if defined(__x86_64__)
constexpr unsigned kDefaultMode = 0x1F80;
constexpr unsigned kOtherModes[] = {kDefaultMode | 0x8040,           // flush to zero, denormals are zero
                                    kDefaultMode | 0x4000,           // up
                                    kDefaultMode | 0x2000,           // down
                                    kDefaultMode | 0x6000 | 0x8000,  // truncate, flush to zero
                                    kDefaultMode | 0x0020};          // an inexact result before

// Buffers and plans are made beforehand: what the test itself computes does depend on the mode.
template <class Case>
void expect_the_same_in_every_mode(const Case& c, ArchSku isa, bool packed, int threads) {
  const Stream stream = Stream::cpu(threads);
  const std::vector<std::byte> want = c.wanted();
  const typename Case::Prepared linear(c, {.isa = isa}, {.packed = packed}, stream);
  ASSERT_TRUE(linear.status().ok()) << linear.status().message();
  for (const unsigned mode : kOtherModes) {
    linear.forget_output();
    _mm_setcsr(mode);
    const Status done = linear.run(stream);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(kDefaultMode);
    ASSERT_TRUE(done.ok()) << done.message();
    note_kernel(linear.plan().sku());
    ASSERT_EQ(after, mode) << name(isa);
    ASSERT_TRUE(c.equal(linear.output(), want)) << " mode " << mode << " on " << name(isa);
  }
}

// Results, scales and products of scales that are denormal, and sums that f32 must round.
TEST(FloatEnvironment, ChangesNoLinearLayer) {
  for (const ArchSku isa : linear_isas())
    for (const int threads : {1, 4})
      for (const ElementKind output : kFloatKinds)
        for (const bool packed : {false, true})
          for (const double scale : {0.013, 1e-23, 3e-40}) {
            LinearCase c(70, 300, 131, {ElementKind::u8, ElementKind::s8, output}, CodeData::uniform, CodeData::uniform,
                         9);
            c.draw_parameters(4);
            c.act_scale = {std::vector<double>(70, held(scale, c.scale_type())), true};
            c.weight_scale = {std::vector<double>(131, held(scale, c.scale_type())), true};
            ASSERT_NO_FATAL_FAILURE(expect_the_same_in_every_mode(c, isa, packed, threads));
          }
}

// Sums that are denormal from beginning to end, and ordinary ones.
TEST(FloatEnvironment, ChangesNoF32LinearLayer) {
  for (const ArchSku isa : runnable_isas())
    for (const int threads : {1, 4})
      for (const ElementKind weight : kF32WeightKinds)
        for (const bool packed : {false, true})
          for (const float factor : {1.0f, 1e-41f}) {
            F32LinearCase c(70, 300, 131, weight, true, 9);
            for (std::vector<std::byte>* values : {&c.x, &c.bias})
              for (std::size_t i = 0; i < values->size(); i += 4) {
                const float scaled = factor * F32LinearCase::float_at(*values, static_cast<std::int64_t>(i / 4));
                std::memcpy(&(*values)[i], &scaled, 4);
              }
            ASSERT_NO_FATAL_FAILURE(expect_the_same_in_every_mode(c, isa, packed, threads));
          }
}

TEST(FloatEnvironment, ChangesNoLinearLayerThatQuantizes) {
  constexpr std::int64_t kM = 70, kK = 300, kN = 131;
  const std::vector<std::byte> drawn = draw(Data::specials, ElementKind::f32, kM * kK, 5);
  std::vector<float> x(static_cast<std::size_t>(kM * kK)), smooth(static_cast<std::size_t>(kK)),
      weight_scale(static_cast<std::size_t>(kN));
  std::memcpy(x.data(), drawn.data(), drawn.size());
  for (std::size_t i = 0; i < smooth.size(); ++i) smooth[i] = 0.1f * static_cast<float>(i + 1);
  for (std::size_t i = 0; i < weight_scale.size(); ++i) weight_scale[i] = i % 3 == 0 ? 1e-40f : 0.013f;
  const std::vector<std::byte> w = draw_codes(CodeData::uniform, ElementKind::s8, kN, kK, 6);
  const TensorRef<std::int8_t> weight(reinterpret_cast<const std::int8_t*>(w.data()), {kN, kK});
  for (const ArchSku isa : linear_isas())
    for (const int threads : {1, 4})
      for (const bool is_static : {false, true})
        for (const bool smoothed : {false, true})
          for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal}) {
            const Stream stream = Stream::cpu(threads);
            QuantizedLinearDescriptor d{.max_rows = kM,
                                        .in_features = kK,
                                        .out_features = kN,
                                        .mode = DynamicRangeMode::asymmetric,
                                        .smooth = smoothed};
            if (is_static) d.act_scale = 0.037;
            const auto plan = QuantizedLinearPlan<float>::select(stream, d, {.isa = isa, .numerics = numerics});
            ASSERT_TRUE(plan.ok()) << plan.status().message();
            std::vector<std::byte> scratch(plan->workspace_size());
            std::vector<float> y(static_cast<std::size_t>(kM * kN)), want;
            QuantizedLinearArgs<float, std::int8_t> args{.input = {x.data(), {kM, kK}},
                                                         .weight = weight,
                                                         .weight_scale = TensorRef<float>(weight_scale.data(), {kN}),
                                                         .output = {y.data(), {kM, kN}}};
            if (smoothed) args.smooth = {smooth.data(), {kK}};
            Status done = plan->run(stream, {scratch.data(), scratch.size()}, args);
            ASSERT_TRUE(done.ok()) << done.message();
            note_kernel(plan->sku());
            want.swap(y);
            y.resize(want.size());
            args.output = {y.data(), {kM, kN}};
            for (const unsigned mode : kOtherModes) {
              std::fill(y.begin(), y.end(), -77.0f);
              _mm_setcsr(mode);
              done = plan->run(stream, {scratch.data(), scratch.size()}, args);
              const unsigned after = _mm_getcsr();
              _mm_setcsr(kDefaultMode);
              ASSERT_TRUE(done.ok()) << done.message();
              ASSERT_EQ(after, mode) << name(isa);
              ASSERT_EQ(first_difference(std::as_bytes(std::span(y)), std::as_bytes(std::span(want)), ElementKind::f32),
                        -1)
                  << " mode " << mode << " on " << name(isa);
            }
          }
}

// A static scale becomes f32 in select(), which may be called under any mode too.
TEST(FloatEnvironment, ChangesNoStaticScale) {
  const Stream stream = Stream::cpu(1);
  const std::int8_t one = 1;
  for (const unsigned mode : kOtherModes)
    for (const auto& [scale, served] : {std::pair{1e-40, true}, {0.1, true}, {1e-60, false}, {1e60, false}}) {
      _mm_setcsr(mode);
      const auto plan = SmoothQuantLinearPlan<float>::select(
          stream, {.max_rows = 1, .in_features = 1, .out_features = 1, .act_scale = scale});
      const unsigned after = _mm_getcsr();
      _mm_setcsr(kDefaultMode);
      // Flags of what happened may be raised.
      EXPECT_EQ(after & ~0x3Fu, mode & ~0x3Fu);
      ASSERT_EQ(plan.ok(), served) << scale << " mode " << mode;
      if (!served) continue;
      std::vector<std::byte> scratch(plan->workspace_size());
      float y = -1;
      const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                    {.activation = TensorRef<std::int8_t>(&one, {1, 1}),
                                     .weight = {&one, {1, 1}},
                                     .weight_scale = 1.0f,
                                     .output = {&y, {1, 1}}});
      ASSERT_TRUE(done.ok()) << done.message();
      EXPECT_EQ(y, static_cast<float>(scale)) << "mode " << mode;
    }
}
#endif

TEST(FloatEnvironment, RoundingModeOfTheStandardLibraryIsKept) {
  const ElementwiseCase c(describe(QuantizeKind::quantize, ElementKind::f32, ElementKind::s8, {1000}, PerTensor{}), 4,
                          false);
  const auto want = c.run(Stream::cpu(1), ArchSku::scalar, Numerics::exact);
  std::fesetround(FE_UPWARD);
  const auto got = c.run(Stream::cpu(1), ArchSku::scalar, Numerics::exact);
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(mode, FE_UPWARD);
  EXPECT_EQ(first_difference(got, want, c.write_kind), -1);
}

}  // namespace
}  // namespace kvant::tests
