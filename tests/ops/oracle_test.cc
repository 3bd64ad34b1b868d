// The scalar reference, and every other instruction set, against an oracle in exact rational arithmetic that shares
// nothing with kvant: the build writes the vectors with tests/ops/oracle/make_vectors.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/elementwise_case.h"
#include "tests/support/isas.h"

namespace kvant::tests {
namespace {

struct Vector {
  ElementKind kind;
  Numerics numerics;
  ElementKind code;
  std::int32_t q_min, q_max, zero_point;
  std::uint64_t scale, x, dy;
  std::map<std::string, std::string, std::less<>> results;  // by operator: a code, bits in hexadecimal, or "nan"
  std::string line;
};

std::vector<Vector> read_vectors() {
  std::map<std::string, ElementKind, std::less<>> kinds;
  for (const ElementInfo& element : kElements) kinds[std::string(element.name)] = element.kind;
  std::vector<Vector> vectors;
  std::ifstream file(KVANT_ORACLE_VECTORS);
  std::string line, column;
  std::getline(file, line);
  std::istringstream header(line);
  std::vector<std::string> operators;
  while (header >> column) operators.push_back(column);
  operators.erase(operators.begin(), std::ranges::find(operators, "dy") + 1);
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, numerics, code, scale, x, dy;
    Vector v;
    words >> kind >> numerics >> code >> v.q_min >> v.q_max >> v.zero_point >> scale >> x >> dy;
    v.kind = kinds.at(kind);
    v.code = kinds.at(code);
    v.numerics = numerics == "exact" ? Numerics::exact : Numerics::reciprocal;
    v.scale = std::stoull(scale, nullptr, 16);
    v.x = std::stoull(x, nullptr, 16);
    v.dy = std::stoull(dy, nullptr, 16);
    for (const std::string& op : operators) words >> v.results[op];
    v.line = line;
    vectors.push_back(std::move(v));
  }
  return vectors;
}

std::size_t width_of(ElementKind kind) { return static_cast<std::size_t>(row_bytes(kind, 1)); }

// Element i of a row that was zero there.
void put_element(std::vector<std::byte>& row, ElementKind kind, std::size_t i, std::uint64_t bits) {
  const auto per_byte = static_cast<std::size_t>(elements_per_byte(kind));
  if (per_byte == 1) {
    std::memcpy(&row[i * width_of(kind)], &bits, width_of(kind));
    return;
  }
  const auto width = static_cast<std::size_t>(bits_per_element(kind));
  row[i / per_byte] |= static_cast<std::byte>((bits & ((1u << width) - 1)) << (width * (i % per_byte)));
}
std::uint64_t element_at(const std::vector<std::byte>& row, ElementKind kind, std::size_t i) {
  std::uint64_t bits = 0;
  const auto per_byte = static_cast<std::size_t>(elements_per_byte(kind));
  std::memcpy(&bits, &row[i / per_byte * width_of(kind)], width_of(kind));
  const auto width = static_cast<std::size_t>(bits_per_element(kind));
  return per_byte == 1 ? bits : bits >> (width * (i % per_byte)) & ((1u << width) - 1);
}

// Runs one operator on one element, repeated so that vector bodies and tails both see it, and returns the result's
// bits.
std::uint64_t run_one(QuantizeKind op, const Vector& v, std::uint64_t input, ArchSku isa) {
  constexpr std::int64_t kCopies = 41;
  const Stream stream = Stream::cpu(1);
  ElementwiseDescriptor d = describe(op, v.kind, v.code, {kCopies}, PerTensor{});
  if (is_fake(op) && has_float_grid(v.code)) d.grid = v.code;
  if (elementwise_operator(op).rounds && !has_float_grid(v.code)) {
    d.q_min = v.q_min;
    d.q_max = v.q_max;
  }
  const ElementKind read = is_backward(op) ? v.kind : d.input, write = is_backward(op) ? v.kind : d.output;
  std::vector<std::byte> x(kCopies * 8), dy(kCopies * 8), out(kCopies * 8);
  for (std::size_t i = 0; i < kCopies; ++i) {
    put_element(x, read, i, input);
    put_element(dy, v.kind, i, v.dy);
  }
  ElementwiseArgs args;
  if (reads_input(op)) args.input = {x.data(), read, {kCopies}, 0};
  if (is_backward(op)) args.grad_output = {dy.data(), v.kind, {kCopies}, 0};
  args.output = {out.data(), write, {kCopies}, 0};
  if (v.kind == ElementKind::f64) {
    double s;
    std::memcpy(&s, &v.scale, 8);
    args.scale = AnyParameter(s);
  } else {
    float s;
    std::memcpy(&s, &v.scale, 4);
    args.scale = AnyParameter(s);
  }
  args.zero_point = AnyParameter(v.zero_point);
  const auto plan = ElementwisePlan::select(stream, d, {.isa = isa, .numerics = v.numerics});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  const Status status = plan->run(stream, {}, args);
  EXPECT_TRUE(status.ok()) << status.message() << " for " << v.line;
  note_kernel(plan->sku());
  const std::uint64_t first = element_at(out, write, 0), last = element_at(out, write, kCopies - 1);
  EXPECT_TRUE(first == last ||
              (is_float(write) && same_float(out.data(), &out[(kCopies - 1) * width_of(write)], write)))
      << "body and tail differ for " << v.line;
  return first;
}

void expect_float(const std::string& want, std::uint64_t got, ElementKind kind, const std::string& what,
                  const Vector& v) {
  if (want == "nan") {
    const std::uint64_t nan = kind == ElementKind::f64   ? 0x7FF8000000000000u
                              : kind == ElementKind::f32 ? 0x7FC00000u
                              : kind == ElementKind::f16 ? 0x7E00u
                                                         : 0x7FC0u;
    std::byte a[8], b[8];
    std::memcpy(a, &got, 8);
    std::memcpy(b, &nan, 8);
    ASSERT_TRUE(same_float(a, b, kind)) << what << " of " << v.line;
    return;
  }
  ASSERT_EQ(got, std::stoull(want, nullptr, 16)) << what << " of " << v.line;
}

class Oracle : public testing::TestWithParam<ArchSku> {};

TEST_P(Oracle, AgreesOnEveryVector) {
  if (!cpu::can_run(GetParam())) GTEST_SKIP() << "this machine cannot run " << name(GetParam());
  const std::vector<Vector> vectors = read_vectors();
  ASSERT_GE(vectors.size(), 5000u) << KVANT_ORACLE_VECTORS;
  for (const ElementwiseOperator& o : kElementwiseOperators)
    ASSERT_TRUE(vectors.front().results.contains(o.name)) << "make_vectors.py has no " << o.name;
  for (const Vector& v : vectors) {
    // The bits of the code that quantize makes.
    const auto code = static_cast<std::uint64_t>(std::stoi(v.results.at("quantize"))) &
                      ((std::uint64_t{1} << bits_per_element(v.code)) - 1);
    for (const ElementwiseOperator& o : kElementwiseOperators) {
      const bool forward = !o.backward_of;
      const bool reads_code = forward && o.input == ElementClass::code;
      const std::uint64_t got = run_one(o.op, v, reads_code ? code : v.x, GetParam());
      const std::string& want = v.results.find(o.name)->second;
      if (forward && o.output == ElementClass::code)
        ASSERT_EQ(got, code) << o.name << " of " << v.line;
      else
        expect_float(want, got, v.kind, std::string(o.name), v);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Oracle, testing::ValuesIn(compiled_isas()),
                         [](const auto& test) { return std::string(name(test.param)); });

// What other systems get wrong, by name.
TEST(KnownTraps, AreAvoided) {
  const auto quantize = [](float x, float scale, std::int32_t zp) {
    std::int8_t q = 99;
    const Stream stream = Stream::cpu(1);
    const auto plan = QuantizePerTensorPlan<float, std::int8_t>::select(stream, {.shape = {1}});
    EXPECT_TRUE(
        plan->run(stream, {}, {.input = {&x, {1}}, .output = {&q, {1}}, .scale = scale, .zero_point = zp}).ok());
    return static_cast<int>(q);
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(quantize(kInf, 1.0f, 0), 127);  // PyTorch 1.13: -128
  EXPECT_EQ(quantize(1e30f, 1.0f, 0), 127);
  EXPECT_EQ(quantize(-1e30f, 1.0f, -100), -128);  // FBGEMM wraps to 127
  EXPECT_EQ(quantize(-kInf, 1.0f, -100), -128);
  EXPECT_EQ(quantize(std::numeric_limits<float>::quiet_NaN(), 1.0f, 5), 5);  // x86: INT_MIN, ARM: 0
  EXPECT_EQ(quantize(std::numeric_limits<float>::quiet_NaN(), 1.0f, 500), 127);
  EXPECT_EQ(quantize(0.5f, 1.0f, 1), 1);                      // the zero point is added after rounding
  EXPECT_EQ(quantize(0.273939937f, 0.00214854861f, 0), 127);  // 127.499992 by division, 127.5 by the reciprocal
}

}  // namespace
}  // namespace kvant::tests
