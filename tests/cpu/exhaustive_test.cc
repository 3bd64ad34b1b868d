// Every input there is: all 2^32 f32 bit patterns for several parameter sets, all 65536 of f16 and bf16 for many, on
// every instruction set against the scalar reference, for equality.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/support/elementwise_case.h"
#include "tests/support/isas.h"

namespace kvant::tests {
namespace {

struct ParameterSet {
  double scale;
  std::int32_t zero_point;
  std::int32_t q_min;
  std::int32_t q_max;
  Numerics numerics;
};

std::ostream& operator<<(std::ostream& out, const ParameterSet& p) {
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
  ElementwiseDescriptor d = describe(op, f, p.q_min < 0 ? ElementKind::s8 : ElementKind::u8, {n}, PerTensor{});
  d.q_min = p.q_min;
  d.q_max = p.q_max;
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
  const ElementKind write = op == QuantizeKind::quantize ? (p.q_min < 0 ? ElementKind::s8 : ElementKind::u8) : f;
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
    const auto width = static_cast<std::size_t>(bits_per_element(f)) / 8;
    std::memcpy(&bits, x.data() + static_cast<std::size_t>(at) * width, width);
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
}

INSTANTIATE_TEST_SUITE_P(Types, AllSixteenBit, testing::Values(ElementKind::f16, ElementKind::bf16),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace kvant::tests
