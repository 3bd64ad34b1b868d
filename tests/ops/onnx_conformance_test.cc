// ONNX's own node tests of QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, MatMulInteger and QLinearMatMul:
// equal bytes, on every instruction set that can run. onnx_node_cases.txt holds them; tests/interop/onnx_node_cases.py
// writes it from PyPI's onnx. A case of an element type that kvant does not have is skipped by the type's name; every
// other one must run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/dynamic_range_case.h"
#include "tests/support/isas.h"
#include "tests/support/kernel_log.h"

namespace kvant::tests {
namespace {

// Of ONNX 1.23, without convolutions.
constexpr std::size_t kCases = 39;

std::optional<ElementKind> kind_named(std::string_view wanted) {
  for (const ElementInfo& row : kElements)
    if (row.name == wanted) return row.kind;
  return std::nullopt;
}

// Codes of floating-point types have names like "e4m3": exponent and mantissa. Their numbers are bits.
bool is_floating_code(std::string_view element) { return element.starts_with('e'); }

struct OnnxTensor {
  std::string name;
  std::string element;
  std::vector<std::int64_t> sizes;
  std::vector<double> numbers;

  ElementKind kind() const { return kind_named(element).value(); }
  Shape shape() const { return Shape(std::span<const std::int64_t>(sizes)); }
  std::int64_t count() const { return static_cast<std::int64_t>(numbers.size()); }
  std::int64_t size(std::size_t from_the_end) const { return sizes[sizes.size() - from_the_end]; }
};

struct OnnxCase {
  std::string name;
  std::string op;
  std::map<std::string, std::int64_t> attributes;
  std::vector<OnnxTensor> inputs, outputs;

  std::int64_t attribute(const std::string& wanted, std::int64_t otherwise) const {
    const auto found = attributes.find(wanted);
    return found == attributes.end() ? otherwise : found->second;
  }
  const OnnxTensor* input(std::size_t index) const { return index < inputs.size() ? &inputs[index] : nullptr; }
};

// What a test is called, and what is printed of its parameter.
void PrintTo(const OnnxCase& c, std::ostream* out) { *out << c.name; }

// ---- the file ----

OnnxTensor parse_tensor(std::istringstream& words) {
  OnnxTensor t;
  std::string sizes, word;
  words >> t.name >> t.element >> sizes;
  if (sizes.size() < 2 || sizes.front() != '[' || sizes.back() != ']')
    throw std::runtime_error("onnx_node_cases.txt: " + t.name + " has sizes " + sizes);
  std::int64_t count = 1;
  std::istringstream inside(sizes.substr(1, sizes.size() - 2));
  while (std::getline(inside, word, ',')) {
    t.sizes.push_back(std::stoll(word));
    count *= t.sizes.back();
  }
  // A float of its shortest decimal is not always the float of that decimal's double.
  while (words >> word)
    t.numbers.push_back(t.element == "f32" ? static_cast<double>(std::strtof(word.c_str(), nullptr))
                                           : std::strtod(word.c_str(), nullptr));
  if (t.count() != count)
    throw std::runtime_error("onnx_node_cases.txt: " + t.name + " has " + std::to_string(t.count()) + " numbers, not " +
                             std::to_string(count));
  return t;
}

std::vector<OnnxCase> parse_cases(std::istream& file) {
  std::vector<OnnxCase> cases;
  std::string line, word;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> word;
    if (word == "#") continue;
    if (word == "case") {
      OnnxCase c;
      words >> c.name >> c.op;
      while (words >> word) c.attributes[word.substr(0, word.find('='))] = std::stoll(word.substr(word.find('=') + 1));
      cases.push_back(std::move(c));
    } else if (cases.empty() || (word != "in" && word != "out")) {
      throw std::runtime_error("onnx_node_cases.txt: " + line);
    } else {
      (word == "in" ? cases.back().inputs : cases.back().outputs).push_back(parse_tensor(words));
    }
  }
  return cases;
}

const std::vector<OnnxCase>& all_cases() {
  static const std::vector<OnnxCase> cases = [] {
    std::ifstream file(KVANT_SOURCE_DIR "/tests/ops/onnx_node_cases.txt");
    return parse_cases(file);
  }();
  return cases;
}

// The elements of a case that kvant's table does not have. MatMulInteger's s32 sums are compared as numbers.
std::vector<std::string> missing_elements(const OnnxCase& c) {
  std::vector<std::string> missing;
  for (const std::vector<OnnxTensor>* tensors : {&c.inputs, &c.outputs})
    for (const OnnxTensor& t : *tensors)
      if (!kind_named(t.element) && std::find(missing.begin(), missing.end(), t.element) == missing.end())
        missing.push_back(t.element);
  return missing;
}

// ---- numbers as kvant has them ----

// Rows of packed elements start on a byte.
std::vector<std::byte> stored_as(const OnnxTensor& t, ElementKind kind) {
  const int bits = bits_per_element(kind);
  const std::int64_t row = t.sizes.empty() ? 1 : t.sizes.back();
  const std::int64_t step = row_bytes(kind, row);
  const std::int64_t rows = row == 0 ? 0 : t.count() / row;
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * step));
  for (std::int64_t i = 0; i < t.count(); ++i) {
    const double number = t.numbers[static_cast<std::size_t>(i)];
    std::byte* at = &bytes[static_cast<std::size_t>(i / row * step + i % row * bits / 8)];
    if (is_float(kind)) {
      put_float(at, kind, number);
      continue;
    }
    const auto code = static_cast<std::uint64_t>(static_cast<std::int64_t>(number)) & ((std::uint64_t{1} << bits) - 1);
    const auto shifted = code << (i % row * bits % 8);
    for (int byte = 0; byte < (bits + 7) / 8; ++byte) at[byte] |= static_cast<std::byte>(shifted >> (8 * byte));
  }
  return bytes;
}
std::vector<std::byte> stored(const OnnxTensor& t) { return stored_as(t, t.kind()); }

// kvant's zero points are s32, and codes of floating-point types have none: ONNX gives them one of zero.
std::vector<std::int32_t> zero_points(const OnnxTensor* t) {
  std::vector<std::int32_t> values;
  if (t == nullptr) return values;
  for (const double number : t->numbers) values.push_back(static_cast<std::int32_t>(number));
  if (!is_floating_code(t->element)) return values;
  for (const std::int32_t value : values) EXPECT_EQ(value, 0) << t->name << " of " << t->element;
  return {};
}

// ONNX adds the zero point of 0.0 to the quotient of a floating-point code, which makes +0.0 of -0.0. kvant adds
// nothing and keeps the sign.
void add_zero_to_codes(std::vector<std::byte>& codes, ElementKind kind) {
  const int bits = bits_per_element(kind);
  for (std::byte& byte : codes)
    for (int shift = 0; shift < 8; shift += bits) {
      const unsigned negative_zero = 1u << (bits - 1), mask = (1u << bits) - 1;
      if ((std::to_integer<unsigned>(byte) >> shift & mask) == negative_zero)
        byte &= static_cast<std::byte>(~(mask << shift));
    }
}

// One number, or as many as the shape says; kvant has scales of f32 beside f16, which holds every one of f16.
AnyParameter parameter(const std::vector<std::int32_t>& values, const Shape& shape) {
  if (values.empty()) return AnyParameter(std::int32_t{0});
  if (values.size() == 1) return AnyParameter(values[0]);
  return AnyParameter(AnyRef{values.data(), ElementKind::s32, shape, 0});
}
OnnxTensor held_as_its_element(OnnxTensor t) {
  std::byte bytes[8];
  for (double& number : t.numbers) {
    put_float(bytes, t.kind(), number);
    number = get_float(bytes, t.kind());
  }
  return t;
}
AnyParameter parameter(const OnnxTensor& t, const std::vector<std::byte>& floats) {
  if (t.count() == 1) return AnyParameter(static_cast<float>(t.numbers[0]));
  return AnyParameter(AnyRef{floats.data(), ElementKind::f32, t.shape(), 0});
}

// f(isa) for every instruction set that this machine can run.
template <class Function>
void for_each_isa(const Function& f) {
  for (const ArchSku isa : compiled_isas())
    if (cpu::can_run(isa)) f(isa);
}

// ---- the operators ----

void run_elementwise(const OnnxCase& c) {
  const bool quantize = c.op == "QuantizeLinear";
  const OnnxTensor &input = c.inputs.at(0), &output = c.outputs.at(0);
  const OnnxTensor scale = held_as_its_element(c.inputs.at(1));
  const OnnxTensor* zero_point = c.input(2);
  const OnnxTensor& codes = quantize ? output : input;
  if (zero_point != nullptr) {
    ASSERT_EQ(zero_point->element, codes.element);
    ASSERT_EQ(zero_point->count(), scale.count());
  }
  for (const auto& [attribute, value] : c.attributes) {
    // The output in the file has its type already, and saturate is 1 unless it is named.
    const bool known = attribute == "axis" || attribute == "block_size" || attribute == "output_dtype" ||
                       (attribute == "saturate" && value == 1);
    ASSERT_TRUE(known) << "attribute " << attribute << " is " << value;
  }
  ElementwiseDescriptor descriptor;
  descriptor.op = quantize ? QuantizeKind::quantize : QuantizeKind::dequantize;
  descriptor.shape = input.shape();
  descriptor.input = input.kind();
  descriptor.output = output.kind();
  const auto axis = static_cast<int>(c.attribute("axis", 1));
  if (const std::int64_t block = c.attribute("block_size", 0); block != 0)
    descriptor.granularity = Granularity::per_group(axis, block);
  else if (scale.count() > 1)
    descriptor.granularity = Granularity::per_channel(axis);

  const std::vector<std::byte> input_bytes = stored(input), expected = stored(output);
  const std::vector<std::byte> scales = stored_as(scale, ElementKind::f32);
  const std::vector<std::int32_t> zero_point_values = zero_points(zero_point);
  const Stream stream = Stream::cpu(1);
  for_each_isa([&](ArchSku isa) {
    const auto plan = ElementwisePlan::select(stream, descriptor, {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> got(expected.size(), std::byte{0xA5});
    ElementwiseArgs args;
    args.input = {input_bytes.data(), input.kind(), input.shape(), 0};
    args.output = {got.data(), output.kind(), output.shape(), 0};
    args.scale = parameter(scale, scales);
    args.zero_point = parameter(zero_point_values, scale.shape());
    const Status done = plan->run(stream, {}, args);
    EXPECT_TRUE(done.ok()) << plan->sku().name() << ": " << done.message();
    note_kernel(plan->sku());
    if (quantize && zero_point != nullptr && is_floating_code(codes.element)) add_zero_to_codes(got, output.kind());
    EXPECT_EQ(got, expected) << plan->sku().name();
  });
}

void run_dynamic(const OnnxCase& c) {
  const OnnxTensor& x = c.inputs.at(0);
  const OnnxTensor &y = c.outputs.at(0), &y_scale = c.outputs.at(1), &y_zero_point = c.outputs.at(2);
  ASSERT_TRUE(c.attributes.empty());
  const std::vector<std::byte> input = stored(x), codes = stored(y), scale = stored(y_scale);
  const std::vector<std::int32_t> zero_point = zero_points(&y_zero_point);
  const DynamicRangeQuantizeDescriptor descriptor{.shape = x.shape(),
                                                  .scope = PerTensor{},
                                                  .mode = DynamicRangeMode::asymmetric,
                                                  .include_zero = true,
                                                  .input = x.kind(),
                                                  .output = y.kind()};
  const Stream stream = Stream::cpu(1);
  for_each_isa([&](ArchSku isa) {
    const auto plan = AnyDynamicRangeQuantizePlan::select(stream, descriptor, {.isa = isa});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<std::byte> got_codes(codes.size(), std::byte{0xA5}), got_scale(scale.size(), std::byte{0xA5});
    std::vector<std::int32_t> got_zero_point(zero_point.size(), -1);
    std::vector<std::byte> scratch(plan->workspace_size());
    const Status done =
        plan->run(stream, {scratch.data(), scratch.size()},
                  {.input = {input.data(), x.kind(), x.shape(), 0},
                   .output = {got_codes.data(), y.kind(), y.shape(), 0},
                   .scale_out = {got_scale.data(), y_scale.kind(), y_scale.shape(), 0},
                   .zero_point_out = {got_zero_point.data(), ElementKind::s32, y_zero_point.shape(), 0}});
    EXPECT_TRUE(done.ok()) << plan->sku().name() << ": " << done.message();
    note_kernel(plan->sku());
    EXPECT_EQ(got_codes, codes) << plan->sku().name();
    EXPECT_EQ(got_scale, scale) << plan->sku().name();
    EXPECT_EQ(got_zero_point, zero_point) << plan->sku().name();
  });
}

// A product of matrices of codes, or of as many pairs of them as the sizes before the last two say.
struct MatMul {
  const OnnxTensor& a;  // [..., M, K]
  const OnnxTensor& b;  // [..., K, N], where kvant has [N, K]
  const OnnxTensor& y;  // [..., M, N]
  const OnnxTensor* a_zero_point;
  const OnnxTensor* b_zero_point;
  AnyParameter a_scale, b_scale;
  ElementKind output;
  std::optional<float> y_scale = std::nullopt;
  std::int32_t y_zero_point = 0;

  void run() const {
    const std::int64_t m = a.size(2), k = a.size(1), n = b.size(1), matrices = a.count() / (m * k);
    ASSERT_EQ(b.size(2), k);
    ASSERT_EQ(b.count(), matrices * k * n);
    ASSERT_EQ(y.count(), matrices * m * n);
    const std::vector<std::int32_t> a_zero_points = zero_points(a_zero_point),
                                    b_zero_points = zero_points(b_zero_point);
    const std::vector<std::byte> activation = stored(a), columns = stored(b), expected = stored_as(y, output);
    std::vector<std::byte> weights;
    for (std::int64_t i = 0; i < matrices; ++i)
      for (std::int64_t column = 0; column < n; ++column)
        for (std::int64_t row = 0; row < k; ++row)
          weights.push_back(columns[static_cast<std::size_t>((i * k + row) * n + column)]);

    const Stream stream = Stream::cpu(1);
    for_each_isa([&](ArchSku isa) {
      const auto plan = AnyLinearPlan::select(stream,
                                              W8A8LinearDescriptor{.max_rows = m,
                                                                   .in_features = k,
                                                                   .out_features = n,
                                                                   .activation = a.kind(),
                                                                   .weight = b.kind(),
                                                                   .output = output},
                                              {.isa = isa});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      std::vector<std::byte> scratch(plan->workspace_size());
      for (const bool use_packed : {false, true}) {
        std::vector<std::byte> got(expected.size(), std::byte{0xA5});
        for (std::int64_t i = 0; i < matrices; ++i) {
          const AnyRef weight{&weights[static_cast<std::size_t>(i * n * k)], b.kind(), {n, k}, 0};
          const auto packed = PackedWeight::pack(stream, weight, {.isa = isa});
          ASSERT_TRUE(packed.ok()) << packed.status().message();
          const Status done =
              plan->run(stream, {scratch.data(), scratch.size()},
                        {.activation = {&activation[static_cast<std::size_t>(i * m * k)], a.kind(), {m, k}, 0},
                         .act_scale = a_scale,
                         .act_zero_point = parameter(a_zero_points, {m}),
                         .weight = use_packed ? AnyRef{} : weight,
                         .packed_weight = use_packed ? &*packed : nullptr,
                         .weight_scale = b_scale,
                         .weight_zero_point = parameter(b_zero_points, {n}),
                         .output = {&got[static_cast<std::size_t>(i * m * row_bytes(output, n))], output, {m, n}, 0},
                         .output_scale = y_scale,
                         .output_zero_point = y_zero_point});
          EXPECT_TRUE(done.ok()) << plan->sku().name() << ": " << done.message();
        }
        note_kernel(plan->sku());
        EXPECT_EQ(got, expected) << plan->sku().name() << (use_packed ? " packed" : " raw");
      }
    });
  }
};

// In f64 and with scales of 1, kvant's product is the sum itself.
void run_matmul_integer(const OnnxCase& c) {
  MatMul{c.inputs.at(0), c.inputs.at(1),    c.outputs.at(0),   c.input(2),
         c.input(3),     AnyParameter(1.0), AnyParameter(1.0), ElementKind::f64}
      .run();
}

void run_qlinear_matmul(const OnnxCase& c) {
  ASSERT_EQ(c.inputs.size(), 8u);
  const OnnxTensor a_scale = held_as_its_element(c.inputs[1]), b_scale = held_as_its_element(c.inputs[4]);
  const OnnxTensor y_scale = held_as_its_element(c.inputs[6]);
  const std::vector<std::byte> a_scales = stored_as(a_scale, ElementKind::f32);
  const std::vector<std::byte> b_scales = stored_as(b_scale, ElementKind::f32);
  ASSERT_EQ(y_scale.count(), 1);
  ASSERT_EQ(c.inputs[7].count(), 1);
  MatMul{c.inputs[0],
         c.inputs[3],
         c.outputs.at(0),
         c.input(2),
         c.input(5),
         parameter(a_scale, a_scales),
         parameter(b_scale, b_scales),
         c.outputs.at(0).kind(),
         static_cast<float>(y_scale.numbers[0]),
         zero_points(c.input(7))[0]}
      .run();
}

void run_case(const OnnxCase& c) {
  if (c.op == "QuantizeLinear" || c.op == "DequantizeLinear") return run_elementwise(c);
  if (c.op == "DynamicQuantizeLinear") return run_dynamic(c);
  if (c.op == "MatMulInteger") return run_matmul_integer(c);
  if (c.op == "QLinearMatMul") return run_qlinear_matmul(c);
  ADD_FAILURE() << c.name << " has operator " << c.op;
}

class OnnxNodeTest : public testing::TestWithParam<OnnxCase> {};

TEST_P(OnnxNodeTest, EqualBytes) {
  const std::vector<std::string> missing = missing_elements(GetParam());
  if (!missing.empty()) GTEST_SKIP() << GetParam().name << ": kvant has no element " << missing[0];
  run_case(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Onnx, OnnxNodeTest, testing::ValuesIn(all_cases()),
                         [](const auto& one) { return one.param.name; });

// All of them are there, and only an element that kvant does not have keeps one from running. Runs them once more: a
// filter of the cases above must not decide whether this holds.
TEST(OnnxNodes, AllCasesRunWhoseElementsKvantHas) {
  std::map<std::string, int> waiting;
  std::map<std::string, int> run;
  std::size_t run_count = 0, waiting_count = 0;
  for (const OnnxCase& c : all_cases()) {
    const std::vector<std::string> missing = missing_elements(c);
    for (const std::string& element : missing) ++waiting[element];
    if (!missing.empty()) {
      ++waiting_count;
      continue;
    }
    SCOPED_TRACE(c.name);
    run_case(c);
    ++run[c.op];
    ++run_count;
  }
  EXPECT_EQ(run_count + waiting_count, kCases);
  EXPECT_EQ(run.size(), 5u) << "operators";
  EXPECT_EQ(run["QLinearMatMul"], 8);
  std::cout << "ONNX: " << run_count << " of " << kCases << " cases ran\n";
  for (const auto& [element, cases] : waiting)
    std::cout << "ONNX: " << cases << " cases wait for element " << element << ", which kvant does not have\n";
}

TEST(OnnxReader, StoresElementsOfEveryWidth) {
  const OnnxTensor t{"t", "s4", {2, 3}, {1, 2, 3, -1, 7, -8}};
  const std::vector<std::byte> rows = {std::byte{0x21}, std::byte{0x03}, std::byte{0x7F}, std::byte{0x08}};
  EXPECT_EQ(stored(t), rows);
  const std::vector<std::byte> bytes = {std::byte{1},    std::byte{2}, std::byte{3},
                                        std::byte{0xFF}, std::byte{7}, std::byte{0xF8}};
  EXPECT_EQ(stored_as(t, ElementKind::s8), bytes);
  EXPECT_EQ(zero_points(&t), (std::vector<std::int32_t>{1, 2, 3, -1, 7, -8}));
}

TEST(OnnxReader, AddsZeroToFloatingPointCodes) {
  std::vector<std::byte> bytes = {std::byte{0x80}, std::byte{0x88}, std::byte{0x08}, std::byte{0x1F}};
  std::vector<std::byte> nibbles = bytes;
  add_zero_to_codes(bytes, ElementKind::s8);  // codes of eight bits and of four
  EXPECT_EQ(bytes, (std::vector<std::byte>{std::byte{0}, std::byte{0x88}, std::byte{0x08}, std::byte{0x1F}}));
  add_zero_to_codes(nibbles, ElementKind::s4);
  EXPECT_EQ(nibbles, (std::vector<std::byte>{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0x1F}}));
}

TEST(OnnxReader, RefusesWhatIsNoCase) {
  for (const char* text : {"in x f32 [2] 1 2\n", "case a B\nin x f32 [2] 1\n", "case a B\nin x f32 2 1 2\n",
                           "case a B\nother x f32 [2] 1 2\n"}) {
    std::istringstream file(text);
    EXPECT_THROW(parse_cases(file), std::runtime_error) << text;
  }
}

}  // namespace
}  // namespace kvant::tests
