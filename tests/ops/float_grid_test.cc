// Codes of floating-point grids: what each code means, and what numbers become, on every instruction set against a grid
// that is written plainly.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/float_grid_reference.h"
#include "tests/support/isas.h"

namespace kvant::tests {
namespace {

struct Setting {
  ElementKind grid;
  ArchSku isa;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const ElementKind grid : kFloatGrids)
    for (const ArchSku isa : compiled_isas()) all.push_back({grid, isa});
  return all;
}

class FloatGrids : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!cpu::can_run(isa())) GTEST_SKIP() << "this machine cannot run " << name(isa());
  }
  static ElementKind grid() { return GetParam().grid; }
  static ArchSku isa() { return GetParam().isa; }

  static std::vector<std::byte> run(const ElementwiseDescriptor& d, const void* x, const AnyParameter& scale,
                                    Numerics numerics = Numerics::exact) {
    const std::int64_t n = d.shape[0];
    std::vector<std::byte> out(static_cast<std::size_t>(row_bytes(d.output, n)));
    const Stream stream = Stream::cpu(1);
    const auto plan = ElementwisePlan::select(stream, d, {.isa = isa(), .numerics = numerics});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) return out;
    ElementwiseArgs args;
    args.input = {x, d.input, d.shape, 0};
    args.output = {out.data(), d.output, d.shape, 0};
    args.scale = scale;
    const Status status = plan->run(stream, {}, args);
    EXPECT_TRUE(status.ok()) << status.message();
    note_kernel(plan->sku());
    return out;
  }

  // Code i of a row.
  static std::uint8_t code_at(const std::vector<std::byte>& codes, std::size_t i) {
    const auto per_byte = static_cast<std::size_t>(elements_per_byte(grid()));
    const int bits = bits_per_element(grid());
    const auto byte = std::to_integer<unsigned>(codes[i / per_byte]);
    return static_cast<std::uint8_t>(byte >> (static_cast<std::size_t>(bits) * (i % per_byte)) & ((1u << bits) - 1));
  }

  // What x becomes, by the contract: one rounded quotient, then the grid.
  template <class C>
  static std::uint8_t wanted(const GridReference& reference, C x, C scale, bool saturate) {
    return reference.code_of(static_cast<double>(x / scale), saturate);
  }
};

template <class C>
AnyParameter parameter(C scale) {
  return AnyParameter(scale);
}

TEST_P(FloatGrids, DecodesEveryCode) {
  const GridReference reference(grid());
  const std::size_t codes = std::size_t{1} << bits_per_element(grid());
  std::vector<std::byte> packed(static_cast<std::size_t>(row_bytes(grid(), static_cast<std::int64_t>(codes))));
  for (std::size_t i = 0; i < codes; ++i) {
    const auto per_byte = static_cast<std::size_t>(elements_per_byte(grid()));
    packed[i / per_byte] |=
        static_cast<std::byte>(i << (static_cast<std::size_t>(bits_per_element(grid())) * (i % per_byte)));
  }
  const Shape shape{static_cast<std::int64_t>(codes)};
  for (const ElementKind out : kFloatKinds) {
    const AnyParameter one = out == ElementKind::f64 ? AnyParameter(1.0) : AnyParameter(1.0f);
    const auto numbers =
        run({.op = QuantizeKind::dequantize, .shape = shape, .input = grid(), .output = out}, packed.data(), one);
    const auto width = static_cast<std::size_t>(bits_per_element(out)) / 8;
    for (std::size_t i = 0; i < codes; ++i) {
      std::byte want[8];
      put_float(want, out, reference.number_of(static_cast<std::uint8_t>(i)));
      ASSERT_TRUE(same_float(&numbers[i * width], want, out)) << name(out) << " of code " << i;
    }
  }
}

// All 65536 of f16 and bf16, with scales that make quotients exact and others.
TEST_P(FloatGrids, EncodesEverySixteenBitNumber) {
  const GridReference reference(grid());
  for (const ElementKind in : {ElementKind::f16, ElementKind::bf16}) {
    std::vector<std::uint16_t> x(65536);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::uint16_t>(i);
    for (const float scale : {1.0f, 0.5f, 0.0123f, 3.7f, 1e-30f, 1e-19f, 1e30f, 0x1p-126f})
      for (const bool saturate : {true, false}) {
        if (!saturate && !may_overflow(grid())) continue;
        const auto codes =
            run({.op = QuantizeKind::quantize, .shape = {65536}, .input = in, .output = grid(), .saturate = saturate},
                x.data(), AnyParameter(scale));
        for (std::size_t i = 0; i < x.size(); ++i) {
          const float value = in == ElementKind::f16 ? to_float(Half{x[i]}) : to_float(BFloat16{x[i]});
          ASSERT_EQ(+code_at(codes, i), +wanted(reference, value, scale, saturate))
              << name(in) << " " << value << " / " << scale << (saturate ? "" : " unsaturated");
        }
      }
  }
}

// Long runs of bf16 find codes by where they change among the mantissas. With a scale that puts a number of bf16 on a
// tie of the grid, or one rounding beside it, the change is there or a mantissa away. In order the numbers fill blocks
// of the same exponent; shuffled, with few of the smallest and some zeros, blocks of all exponents.
TEST_P(FloatGrids, CodesOfBf16ChangeWhereTheyShould) {
  const GridReference reference(grid());
  const double min_normal = std::ldexp(1.0, info(grid()).format.min_exponent());
  std::mt19937 random(20);
  std::vector<float> scales;
  for (int tie = 3; tie < 32; tie += 2)
    for (int i = 0; i < 4; ++i) {
      const auto number = static_cast<float>(128 + random() % 128);
      const float scale = std::ldexp(number / static_cast<float>(tie), static_cast<int>(random() % 60) - 40);
      for (const float near : {scale, std::nextafter(scale, 0.0f), std::nextafter(scale, 1e30f)})
        scales.push_back(near);
    }
  for (int i = 0; i < 64; ++i)
    scales.push_back(std::ldexp(1 + static_cast<float>(random()) * 0x1p-32f, static_cast<int>(random() % 160) - 62));
  scales.insert(scales.end(), {0x1p-64f, 0x1.FFFFFEp-64f, 0x1p100f, 0x1.000002p-64f, 0x1.FFFFFEp99f});
  for (const float scale : scales)
    for (const bool shuffled : {false, true}) {
      // All numbers from half the smallest normal number of the grid to twice its largest.
      std::vector<std::uint16_t> x;
      const auto bits = [](double number) { return std::bit_cast<std::uint32_t>(static_cast<float>(number)) >> 16; };
      const std::uint32_t least = bits(0.5 * min_normal * scale);
      const std::uint32_t most = bits(2 * reference.max() * scale);
      for (std::uint32_t b = least; b <= most; ++b) {
        const bool rare = b < bits(1.01 * min_normal * scale) || b > bits(0.99 * reference.max() * scale);
        if (shuffled && rare && random() % 64 != 0) continue;
        x.push_back(static_cast<std::uint16_t>(b | (random() % 2 << 15)));
        if (shuffled && random() % 64 == 0) x.push_back(static_cast<std::uint16_t>(random() % 2 << 15));
      }
      while (x.size() < 2048 || x.size() % 2 != 0)
        x.push_back(static_cast<std::uint16_t>(bits(reference.max() * scale / 2)));
      if (shuffled) std::shuffle(x.begin(), x.end(), random);
      const auto n = static_cast<std::int64_t>(x.size());
      const auto codes = run({.op = QuantizeKind::quantize, .shape = {n}, .input = ElementKind::bf16, .output = grid()},
                             x.data(), AnyParameter(scale));
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float value = to_float(BFloat16{x[i]});
        ASSERT_EQ(+code_at(codes, i), +wanted(reference, value, scale, true)) << value << " / " << scale;
      }
    }
}

// Around every tie and number of the grid: the neighbours in f32 and f64, both signs. A tie of an f64 that would be one
// in f32 only shows two roundings.
template <class C>
std::vector<C> around_the_grid(const GridReference& reference, C scale) {
  std::vector<double> numbers;
  for (int code = 0; code < 128; ++code) {
    const double number = reference.number_of(static_cast<std::uint8_t>(code));
    if (std::isfinite(number) && number >= 0) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  numbers.push_back(2 * numbers.back() - numbers[numbers.size() - 2]);
  numbers.push_back(4 * numbers.back());
  std::vector<C> x = {std::numeric_limits<C>::infinity(), std::numeric_limits<C>::quiet_NaN(),
                      std::numeric_limits<C>::max(), std::numeric_limits<C>::denorm_min(),
                      std::numeric_limits<C>::min()};
  for (std::size_t i = 0; i < numbers.size(); ++i)
    for (const double at : {numbers[i], i == 0 ? 0.0 : (numbers[i - 1] + numbers[i]) / 2}) {
      C value = static_cast<C>(at) * scale;
      for (int step = 0; step < 3; ++step) value = std::nextafter(value, C(0));
      for (int step = 0; step < 7; ++step, value = std::nextafter(value, std::numeric_limits<C>::infinity()))
        x.push_back(value);
    }
  const std::size_t positive = x.size();
  for (std::size_t i = 0; i < positive; ++i) x.push_back(-x[i]);
  return x;
}

template <class C>
void expect_codes_around(ElementKind grid,
                         const std::function<std::vector<std::byte>(const std::vector<C>&, C, bool)>& quantize,
                         const std::function<std::uint8_t(const std::vector<std::byte>&, std::size_t)>& code_at) {
  const GridReference reference(grid);
  for (const C scale : {C(1), C(0.3), C(0.00214854861), C(7), C(0x1.fffffep-3), C(0x1.000002p9)})
    for (const bool saturate : {true, false}) {
      if (!saturate && !may_overflow(grid)) continue;
      const std::vector<C> x = around_the_grid<C>(reference, scale);
      const auto codes = quantize(x, scale, saturate);
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(+code_at(codes, i), +reference.code_of(static_cast<double>(x[i] / scale), saturate))
            << x[i] << " / " << scale << (saturate ? "" : " unsaturated");
    }
}

TEST_P(FloatGrids, RoundsF32AndF64Once) {
  const auto quantize = [&]<class C>(const std::vector<C>& x, C scale, bool saturate) {
    return run({.op = QuantizeKind::quantize,
                .shape = {static_cast<std::int64_t>(x.size())},
                .input = kind_of<C>,
                .output = grid(),
                .saturate = saturate},
               x.data(), parameter(scale));
  };
  const auto at = [](const std::vector<std::byte>& codes, std::size_t i) { return code_at(codes, i); };
  expect_codes_around<float>(grid(), quantize, at);
  expect_codes_around<double>(grid(), quantize, at);
}

INSTANTIATE_TEST_SUITE_P(Grids, FloatGrids, testing::ValuesIn(settings()), [](const auto& test) {
  return std::string(name(test.param.grid)) + "_" + std::string(name(test.param.isa));
});

}  // namespace
}  // namespace kvant::tests
