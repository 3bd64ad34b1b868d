// Codes of FP8 and FP4 against the CUDA toolkit's own conversions, which its headers also have for the host.
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvant/kvant.h"

namespace kvant::tests {
namespace {

std::uint8_t toolkit_code(double x, ElementKind grid, bool saturate) {
  const auto mode = saturate ? __NV_SATFINITE : __NV_NOSAT;
  if (grid == ElementKind::e4m3) return __nv_cvt_double_to_fp8(x, mode, __NV_E4M3);
  if (grid == ElementKind::e5m2) return __nv_cvt_double_to_fp8(x, mode, __NV_E5M2);
  return __nv_cvt_double_to_fp4(x, __NV_E2M1, cudaRoundNearest);
}

float toolkit_number(std::uint8_t code, ElementKind grid) {
  const __half_raw half = grid == ElementKind::e4m3   ? __nv_cvt_fp8_to_halfraw(code, __NV_E4M3)
                          : grid == ElementKind::e5m2 ? __nv_cvt_fp8_to_halfraw(code, __NV_E5M2)
                                                      : __nv_cvt_fp4_to_halfraw(code, __NV_E2M1);
  return to_float(Half{half.x});
}

std::uint8_t code_at(const std::vector<std::uint8_t>& row, ElementKind grid, std::size_t i) {
  if (!is_packed(grid)) return row[i];
  return static_cast<std::uint8_t>(row[i / 2] >> (4 * (i % 2)) & 0xF);
}

class ToolkitCodes : public testing::TestWithParam<ElementKind> {
 protected:
  // Codes of numbers with scale 1.
  template <class T>
  static std::vector<std::uint8_t> codes_of(const std::vector<T>& x, bool saturate) {
    const auto n = static_cast<std::int64_t>(x.size());
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(row_bytes(GetParam(), n)));
    const Stream stream = Stream::cpu();
    const auto plan = ElementwisePlan::select(
        stream,
        {.op = QuantizeKind::quantize, .shape = {n}, .input = kind_of<T>, .output = GetParam(), .saturate = saturate});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    const AnyParameter one = kind_of<T> == ElementKind::f64 ? AnyParameter(1.0) : AnyParameter(1.0f);
    ElementwiseArgs args;
    args.input = {x.data(), kind_of<T>, {n}, 0};
    args.output = {codes.data(), GetParam(), {n}, 0};
    args.scale = one;
    EXPECT_TRUE(plan->run(stream, {}, args).ok());
    return codes;
  }

  template <class T>
  static void expect_equal(const std::vector<T>& x, bool saturate) {
    const auto codes = codes_of(x, saturate);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double value;
      if constexpr (sizeof(T) == 2)
        value = to_float(x[i]);
      else
        value = x[i];
      if (std::isnan(value)) {  // the headers keep signs and payloads that the instructions drop
        ASSERT_EQ(+code_at(codes, GetParam(), i), is_packed(GetParam()) ? 0 : 0x7F);
        continue;
      }
      ASSERT_EQ(+code_at(codes, GetParam(), i), +toolkit_code(value, GetParam(), saturate))
          << value << (saturate ? "" : " unsaturated");
    }
  }
};

TEST_P(ToolkitCodes, Decode) {
  const ElementKind grid = GetParam();
  const std::size_t count = std::size_t{1} << bits_per_element(grid);
  std::vector<std::uint8_t> codes(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_packed(grid))
      codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | i << (4 * (i % 2)));
    else
      codes[i] = static_cast<std::uint8_t>(i);
  }
  std::vector<float> numbers(count);
  const Stream stream = Stream::cpu();
  const Shape shape{static_cast<std::int64_t>(count)};
  const auto plan = ElementwisePlan::select(
      stream, {.op = QuantizeKind::dequantize, .shape = shape, .input = grid, .output = ElementKind::f32});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ElementwiseArgs args;
  args.input = {codes.data(), grid, shape, 0};
  args.output = {numbers.data(), ElementKind::f32, shape, 0};
  args.scale = AnyParameter(1.0f);
  ASSERT_TRUE(plan->run(stream, {}, args).ok());
  for (std::size_t i = 0; i < count; ++i) {
    const float want = toolkit_number(static_cast<std::uint8_t>(i), grid);
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(numbers[i])) << i;
    else
      EXPECT_EQ(std::bit_cast<std::uint32_t>(numbers[i]), std::bit_cast<std::uint32_t>(want)) << i;
  }
}

TEST_P(ToolkitCodes, EncodeSixteenBits) {
  std::vector<Half> halves(65536);
  std::vector<BFloat16> brains(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    halves[i].bits = static_cast<std::uint16_t>(i);
    brains[i].bits = static_cast<std::uint16_t>(i);
  }
  for (const bool saturate : {true, false}) {
    if (!saturate && is_packed(GetParam())) continue;
    expect_equal(halves, saturate);
    expect_equal(brains, saturate);
  }
}

// Every 61st f32, and f64 between them.
TEST_P(ToolkitCodes, EncodeF32AndF64) {
  constexpr std::uint64_t kStep = 61, kChunk = 1 << 20;
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += kStep * kChunk) {
    std::vector<float> x;
    std::vector<double> wide;
    for (std::uint64_t i = 0; i < kChunk && first + i * kStep < std::uint64_t{1} << 32; ++i) {
      const auto bits = static_cast<std::uint32_t>(first + i * kStep);
      x.push_back(std::bit_cast<float>(bits));
      if (i % 16 == 0)
        wide.push_back(std::bit_cast<double>(std::bit_cast<std::uint64_t>(static_cast<double>(x.back())) + i));
    }
    expect_equal(x, true);
    expect_equal(wide, true);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, ToolkitCodes, testing::Values(ElementKind::e4m3, ElementKind::e5m2, ElementKind::e2m1),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace kvant::tests
