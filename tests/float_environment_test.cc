// The caller's floating-point mode changes no bit of a result, and is as it was afterwards.
#include <gtest/gtest.h>

#include <cfenv>
#include <vector>

#include "cpu/features.h"
#include "tests/elementwise_case.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvant::tests {
namespace {

#if defined(__x86_64__)
TEST(FloatEnvironment, ChangesNothingAndIsLeftAlone) {
  constexpr unsigned kDefault = 0x1F80, kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kStickyInexact = 0x0020;
  constexpr unsigned kUp = 0x4000, kDown = 0x2000, kTruncate = 0x6000;
  for (const ArchSku isa : cpu::compiled_isas()) {
    if (!cpu::can_run(isa)) continue;
    for (const int threads : {1, 4})
      for (const QuantizeKind op : {QuantizeKind::quantize, QuantizeKind::dequantize, QuantizeKind::fake_quantize,
                                    QuantizeKind::quantize_backward})
        for (const ElementKind f : {ElementKind::f32, ElementKind::f64, ElementKind::f16, ElementKind::bf16}) {
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
