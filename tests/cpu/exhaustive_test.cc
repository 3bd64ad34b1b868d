// Every input there is: all 2^32 f32 bit patterns for several parameter sets, all 65536 of f16 and bf16 for many, on
// every instruction set against the scalar reference, for equality; and all f32 on floating-point grids against a grid
// that is written plainly.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "semantics/quantize.h"
#include "tests/support/elementwise_case.h"
#include "tests/support/float_grid_reference.h"
#include "tests/support/isas.h"

namespace kvant::tests {
namespace {

struct ParameterSet {
  double scale;
  std::int32_t zero_point;
  std::int32_t q_min;
  std::int32_t q_max;
  Numerics numerics;
  std::optional<ElementKind> grid = std::nullopt;  // a floating-point one, in place of zero point and range
  bool saturate = true;

  ElementKind code() const { return grid.value_or(q_min < 0 ? ElementKind::s8 : ElementKind::u8); }
};

ParameterSet on_grid(ElementKind grid, double scale, bool saturate = true, Numerics numerics = Numerics::exact) {
  return {scale, 0, 0, 0, numerics, grid, saturate};
}

std::ostream& operator<<(std::ostream& out, const ParameterSet& p) {
  if (p.grid)
    return out << "scale " << p.scale << " grid " << name(*p.grid) << (p.saturate ? " " : " unsaturated ")
               << name(p.numerics);
  return out << "scale " << p.scale << " zp " << p.zero_point << " range [" << p.q_min << ", " << p.q_max << "] "
             << name(p.numerics);
}

std::vector<ArchSku> vector_isas() {
  std::vector<ArchSku> isas;
  for (const ArchSku isa : compiled_isas())
    if (isa != ArchSku::scalar && cpu::can_run(isa)) isas.push_back(isa);
  return isas;
}

ElementwisePlan select(QuantizeKind op, ElementKind f, const ParameterSet& p, std::int64_t n, ArchSku isa,
                       const Stream& stream) {
  ElementwiseDescriptor d = describe(op, f, p.code(), {n}, PerTensor{});
  if (p.grid) {
    if (is_fake(op)) d.grid = p.grid;
    d.saturate = p.saturate;
  } else {
    d.q_min = p.q_min;
    d.q_max = p.q_max;
  }
  auto plan = ElementwisePlan::select(stream, d, {.isa = isa, .numerics = p.numerics});
  if (!plan.ok()) {
    ADD_FAILURE() << plan.status().message();
    std::abort();
  }
  return *plan;
}

// x in [0, count) bit patterns from `first` on, through the scalar kernel and each other one.
void compare(QuantizeKind op, ElementKind f, const ParameterSet& p, const std::vector<std::byte>& x,
             const std::vector<std::byte>& dy, const Stream& stream) {
  const std::int64_t n = static_cast<std::int64_t>(x.size()) * 8 / bits_per_element(f);
  const ElementKind write = op == QuantizeKind::quantize ? p.code() : f;
  thread_local std::vector<std::byte> want, got;
  want.resize(static_cast<std::size_t>(row_bytes(write, n)));
  got.resize(want.size());
  ElementwiseArgs args;
  args.input = {x.data(), f, {n}, 0};
  args.grad_output = {dy.data(), f, {n}, 0};
  args.scale = f == ElementKind::f64 ? AnyParameter(p.scale) : AnyParameter(static_cast<float>(p.scale));
  args.zero_point = AnyParameter(p.zero_point);
  args.output = {want.data(), write, {n}, 0};
  const ElementwisePlan reference = select(op, f, p, n, ArchSku::scalar, stream);
  ASSERT_TRUE(reference.run(stream, {}, args).ok());
  note_kernel(reference.sku());
  for (const ArchSku isa : vector_isas()) {
    const ElementwisePlan plan = select(op, f, p, n, isa, stream);
    args.output.data = got.data();
    const Status status = plan.run(stream, {}, args);
    ASSERT_TRUE(status.ok()) << status.message();
    note_kernel(plan.sku());
    const std::int64_t at = first_difference(got, want, write);
    if (at == -1) continue;
    std::uint64_t bits = 0;
    const std::size_t width = unit_bytes(f);
    const auto element = static_cast<std::size_t>(at) * static_cast<std::size_t>(elements_per_byte(write));
    std::memcpy(&bits, x.data() + element * width, width);
    FAIL() << plan.sku().name() << " differs for the input with bits " << std::hex << bits << std::dec << ", " << p;
  }
}

void compare_all_f32(QuantizeKind op, const ParameterSet& p) {
  if (vector_isas().empty()) GTEST_SKIP() << "nothing to compare with the scalar kernels on this machine";
  constexpr std::uint64_t kChunk = 1 << 20;
  const Stream stream = Stream::cpu();
  std::vector<std::byte> x(kChunk * 4), dy;
  if (is_backward(op)) {
    dy.resize(x.size());
    std::mt19937 random(5);
    fill_random(dy, ElementKind::f32, random);
  }
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += kChunk) {
    for (std::uint64_t i = 0; i < kChunk; ++i) {
      const auto bits = static_cast<std::uint32_t>(first + i);
      std::memcpy(x.data() + i * 4, &bits, 4);
    }
    compare(op, ElementKind::f32, p, x, dy, stream);
    if (testing::Test::HasFatalFailure()) return;
  }
}

class AllF32 : public testing::TestWithParam<ParameterSet> {};

TEST_P(AllF32, Quantize) { compare_all_f32(QuantizeKind::quantize, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Sets, AllF32,
                         testing::Values(ParameterSet{0.00214854861, 0, -128, 127, Numerics::exact},
                                         ParameterSet{0.00214854861, 0, -128, 127, Numerics::reciprocal},
                                         ParameterSet{0.1, 13, -128, 127, Numerics::exact},
                                         ParameterSet{0.0313725509, 127, 0, 255, Numerics::exact},
                                         ParameterSet{0.0313725509, 127, 0, 255, Numerics::reciprocal},
                                         ParameterSet{7.88860905e-31, -3, -127, 127,
                                                      Numerics::exact},  // 2^-100, the least of the fast form
                                         ParameterSet{3.3, -77, -100, 50, Numerics::exact},
                                         ParameterSet{1e-35, 1001, -8, 7, Numerics::exact}));  // the general form

TEST(AllF32Training, FakeQuantizeExact) {
  compare_all_f32(QuantizeKind::fake_quantize, {0.00214854861, 5, -128, 127, Numerics::exact});
}
TEST(AllF32Training, FakeQuantizeReciprocal) {
  compare_all_f32(QuantizeKind::fake_quantize, {0.37, -3, 0, 255, Numerics::reciprocal});
}
TEST(AllF32Training, QuantizeBackward) {
  compare_all_f32(QuantizeKind::quantize_backward, {0.00214854861, 5, -128, 127, Numerics::exact});
}
TEST(AllF32Training, FakeQuantizeBackward) {
  compare_all_f32(QuantizeKind::fake_quantize_backward, {0.1, 13, -127, 127, Numerics::exact});
}

// ---- floating-point grids, against a grid that is written plainly ----

// The codes of `count` f32 whose bits follow each other from `first` on. Quotients grow with the bits, so codes change
// at few places, which are looked for.
std::vector<std::byte> grid_codes(const GridReference& reference, const ParameterSet& p, std::uint32_t first,
                                  std::uint32_t count) {
  const auto code_at = [&](std::uint32_t i) {
    const float quotient = std::bit_cast<float>(first + i) / static_cast<float>(p.scale);
    return reference.code_of(static_cast<double>(quotient), p.saturate);
  };
  const bool packed = is_packed(*p.grid);
  std::vector<std::byte> codes(static_cast<std::size_t>(row_bytes(*p.grid, count)));
  for (std::uint32_t begin = 0; begin < count;) {
    const std::uint8_t code = code_at(begin);
    std::uint32_t last = begin, beyond = count;
    while (beyond - last > 1) {
      const std::uint32_t middle = last + (beyond - last) / 2;
      (code_at(middle) == code ? last : beyond) = middle;
    }
    if (!packed) {
      std::memset(&codes[begin], code, beyond - begin);
    } else {
      for (; begin < beyond && begin % 2 != 0; ++begin) codes[begin / 2] |= static_cast<std::byte>(code << 4);
      const std::uint32_t whole = (beyond - begin) / 2;
      if (whole != 0) std::memset(&codes[begin / 2], code << 4 | code, whole);
      if (begin + 2 * whole < beyond) codes[begin / 2 + whole] |= static_cast<std::byte>(code);
    }
    begin = beyond;
  }
  return codes;
}

class AllF32ToGrids : public testing::TestWithParam<ParameterSet> {};

TEST_P(AllF32ToGrids, EqualTheReferenceOnEveryInstructionSet) {
  const ParameterSet& p = GetParam();
  const GridReference reference(*p.grid);
  constexpr std::uint32_t kChunk = 1 << 20;
  const Stream stream = Stream::cpu();
  std::vector<float> x(kChunk);
  std::vector<std::byte> got(static_cast<std::size_t>(row_bytes(*p.grid, kChunk)));
  ElementwiseArgs args;
  args.input = {x.data(), ElementKind::f32, {kChunk}, 0};
  args.output = {got.data(), *p.grid, {kChunk}, 0};
  args.scale = AnyParameter(static_cast<float>(p.scale));
  std::vector<ArchSku> isas = vector_isas();
  isas.push_back(ArchSku::scalar);
  for (std::uint64_t first = 0; first < std::uint64_t{1} << 32; first += kChunk) {
    for (std::uint32_t i = 0; i < kChunk; ++i) x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(first) + i);
    const std::vector<std::byte> want = grid_codes(reference, p, static_cast<std::uint32_t>(first), kChunk);
    for (const ArchSku isa : isas) {
      const ElementwisePlan plan = select(QuantizeKind::quantize, ElementKind::f32, p, kChunk, isa, stream);
      const Status status = plan.run(stream, {}, args);
      ASSERT_TRUE(status.ok()) << status.message();
      note_kernel(plan.sku());
      const std::int64_t at = first_difference(got, want, *p.grid);
      ASSERT_EQ(at, -1) << plan.sku().name() << " differs from bits " << std::hex
                        << first + static_cast<std::uint64_t>(at) * static_cast<unsigned>(elements_per_byte(*p.grid))
                        << std::dec << " on, " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, AllF32ToGrids,
                         testing::Values(on_grid(ElementKind::e4m3, 1), on_grid(ElementKind::e5m2, 1),
                                         on_grid(ElementKind::e2m1, 1),
                                         on_grid(ElementKind::e4m3, 0.00214854861, false),
                                         on_grid(ElementKind::e5m2, 3.3, false)));

// ---- the product that is corrected ----

struct FusedLanes {
  using F = float;
  static float mul(float a, float b) { return a * b; }
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static float fnma(float a, float b, float c) { return std::fma(-a, b, c); }
};

// x around scale * middle: the nearest number and two neighbours to each side.
bool is_quotient_around(float scale, float inverse, float middle) {
  const semantics::CorrectedMultiply<FusedLanes> corrected{scale, inverse};
  const std::uint32_t nearest = std::bit_cast<std::uint32_t>(scale * middle);
  bool same = true;
  for (std::uint32_t bits = nearest - 2; bits != nearest + 3; ++bits) {
    const float x = std::bit_cast<float>(bits);
    same = same && corrected(x) == x / scale;
  }
  return same;
}

// Where a floating-point grid could notice: numbers of a grid, and the middles between them, are 1 + k/16 times a power
// of two for e4m3, and every second of these for the others, subnormal ones and the max included. All mantissas that a
// scale can have.
TEST(CorrectedProduct, IsTheQuotientWhereverAGridCouldNotice) {
  std::atomic<std::uint32_t> wrong = 0;
  constexpr std::uint32_t kMantissas = 1 << 23;
  const unsigned workers = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < workers; ++worker)
    threads.emplace_back([&, worker] {
      for (std::uint32_t mantissa = worker; mantissa < kMantissas; mantissa += workers) {
        const float scale = std::bit_cast<float>(0x3F800000u | mantissa), inverse = 1 / scale;
        for (int k = 0; k < 16; ++k)
          if (!is_quotient_around(scale, inverse, 1 + static_cast<float>(k) / 16)) wrong = 0x3F800000u | mantissa;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u) << "scale " << std::bit_cast<float>(wrong.load());
}

// The same at the ends of the scales that are served, with the least and the greatest quotients of a grid.
TEST(CorrectedProduct, IsTheQuotientAtTheEndsOfItsScales) {
  for (const int exponent : {-64, -63, -1, 1, 98, 99})
    for (std::uint32_t mantissa = 0; mantissa < 1 << 23; mantissa += 10007) {
      const float scale = std::ldexp(std::bit_cast<float>(0x3F800000u | mantissa), exponent), inverse = 1 / scale;
      for (int power = -17; power <= 16; ++power)
        for (int k = 0; k < 16; ++k)
          ASSERT_TRUE(is_quotient_around(scale, inverse, std::ldexp(1 + static_cast<float>(k) / 16, power)))
              << std::hexfloat << scale << " times " << 1 + static_cast<float>(k) / 16 << " at 2^" << power;
    }
}

// All inputs of the 16-bit types, for many parameter sets and every operator that reads them.
class AllSixteenBit : public testing::TestWithParam<ElementKind> {};

TEST_P(AllSixteenBit, EveryOperator) {
  if (vector_isas().empty()) GTEST_SKIP() << "nothing to compare with the scalar kernels on this machine";
  const ElementKind f = GetParam();
  const Stream stream = Stream::cpu();
  std::vector<std::byte> x(65536 * 2), dy(x.size());
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    std::memcpy(&x[i * 2], &bits, 2);
  }
  std::mt19937 random(17);
  fill_random(dy, f, random);
  constexpr double kScales[] = {1.0, 0.5,    0.1,   1.0 / 127, 0.00214854861, 1e-6,
                                3.7, 1000.0, 1e-38, 1e30,      7.88860905e-31};
  constexpr std::int32_t kRanges[][2] = {{-128, 127}, {0, 255}, {-127, 127}, {-8, 7}, {-100, 50}, {3, 3}};
  for (const double scale : kScales)
    for (const auto& range : kRanges)
      for (const std::int32_t zp : {0, 7, -113, 128, 40000, -(1 << 23)})
        for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal}) {
          const ParameterSet p{scale, zp, range[0], range[1], numerics};
          for (const QuantizeKind op : {QuantizeKind::quantize, QuantizeKind::fake_quantize,
                                        QuantizeKind::quantize_backward, QuantizeKind::fake_quantize_backward}) {
            compare(op, f, p, x, dy, stream);
            if (HasFatalFailure()) return;
          }
        }
  for (const double scale : kScales)
    for (const ElementKind grid : kFloatGrids)
      for (const Numerics numerics : {Numerics::exact, Numerics::reciprocal})
        for (const bool saturate : {true, false})
          for (const QuantizeKind op : {QuantizeKind::quantize, QuantizeKind::fake_quantize,
                                        QuantizeKind::quantize_backward, QuantizeKind::fake_quantize_backward}) {
            if (!saturate && (is_backward(op) || !may_overflow(grid))) continue;
            compare(op, f, on_grid(grid, scale, saturate, numerics), x, dy, stream);
            if (HasFatalFailure()) return;
          }
}

INSTANTIATE_TEST_SUITE_P(Types, AllSixteenBit, testing::Values(ElementKind::f16, ElementKind::bf16),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace kvant::tests
