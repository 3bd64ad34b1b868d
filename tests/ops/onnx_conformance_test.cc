// ONNX's own node tests of QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear and MatMulInteger, from Debian's
// package libonnx-testdata: equal bytes, on every instruction set that can run. The cases are found by listing the
// folder, so those of a newer package run too; what kvant has no types for is skipped by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kvant/kvant.h"
#include "tests/support/kernel_log.h"

namespace kvant::tests {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNodeFolder = "/usr/share/libonnx-testdata/data/node";
constexpr std::string_view kNamedCases[] = {"test_quantizelinear",
                                            "test_quantizelinear_axis",
                                            "test_dequantizelinear",
                                            "test_dequantizelinear_axis",
                                            "test_dynamicquantizelinear",
                                            "test_dynamicquantizelinear_expanded",
                                            "test_dynamicquantizelinear_max_adjusted",
                                            "test_dynamicquantizelinear_max_adjusted_expanded",
                                            "test_dynamicquantizelinear_min_adjusted",
                                            "test_dynamicquantizelinear_min_adjusted_expanded",
                                            "test_matmulinteger"};

// Protobuf's wire format, as much of it as the files have: a message is a sequence of numbered fields. A malformed one
// throws, which GoogleTest reports as a failure with the sentence.
struct Field {
  std::uint32_t number = 0;
  std::uint64_t value = 0;  // of a varint or a fixed-size number
  std::string_view bytes;   // of a length-delimited field
  bool delimited = false;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    throw std::runtime_error("protobuf: a varint of more than ten bytes");
  }

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw std::runtime_error("protobuf: a field goes beyond its message");
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::uint64_t fixed(std::size_t width) {
    const std::string_view taken = take(width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }

  Field field() {
    const std::uint64_t tag = varint();
    Field f;
    f.number = static_cast<std::uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0: f.value = varint(); break;
      case 1: f.value = fixed(8); break;
      case 2:
        f.delimited = true;
        f.bytes = take(varint());
        break;
      case 5: f.value = fixed(4); break;
      default: throw std::runtime_error("protobuf: wire type " + std::to_string(tag & 7) + " is not in use");
    }
    return f;
  }

 private:
  std::string_view rest_;
};

// A repeated number arrives one to a field or, packed, many in one.
template <class Add>
void each_varint(const Field& f, const Add& add) {
  if (!f.delimited) return add(f.value);
  for (WireReader packed(f.bytes); !packed.done();) add(packed.varint());
}

// TensorProto.DataType
enum OnnxType : std::int64_t {
  kOnnxFloat = 1,
  kOnnxUInt8 = 2,
  kOnnxInt8 = 3,
  kOnnxInt32 = 6,
  kOnnxFloat16 = 10,
  kOnnxDouble = 11,
  kOnnxBFloat16 = 16,
  kOnnxUInt4 = 21,
  kOnnxInt4 = 22,
};

std::optional<ElementKind> kind_of_onnx(std::int64_t type) {
  switch (type) {
    case kOnnxFloat: return ElementKind::f32;
    case kOnnxDouble: return ElementKind::f64;
    case kOnnxFloat16: return ElementKind::f16;
    case kOnnxBFloat16: return ElementKind::bf16;
    case kOnnxInt8: return ElementKind::s8;
    case kOnnxUInt8: return ElementKind::u8;
    case kOnnxInt4: return ElementKind::s4;
    case kOnnxUInt4: return ElementKind::u4;
    default: return std::nullopt;
  }
}

struct OnnxTensor {
  std::vector<std::int64_t> dims;
  std::int64_t type = 0;
  std::string name;
  std::string raw;  // little-endian elements; 4-bit ones two to a byte without regard to rows
  std::vector<std::int32_t> int32_data;

  Shape shape() const { return Shape(std::span<const std::int64_t>(dims)); }
  std::optional<ElementKind> kind() const { return kind_of_onnx(type); }
};

OnnxTensor parse_tensor(std::string_view bytes) {
  OnnxTensor t;
  for (WireReader message(bytes); !message.done();) {
    const Field f = message.field();
    switch (f.number) {
      case 1: each_varint(f, [&](std::uint64_t v) { t.dims.push_back(static_cast<std::int64_t>(v)); }); break;
      case 2: t.type = static_cast<std::int64_t>(f.value); break;
      case 4:  // float_data: packed floats are raw_data already
        if (f.delimited) {
          t.raw.append(f.bytes);
        } else {
          for (unsigned shift = 0; shift < 32; shift += 8) t.raw.push_back(static_cast<char>(f.value >> shift & 0xFF));
        }
        break;
      case 5: each_varint(f, [&](std::uint64_t v) { t.int32_data.push_back(static_cast<std::int32_t>(v)); }); break;
      case 8: t.name = std::string(f.bytes); break;
      case 9: t.raw.append(f.bytes); break;
      default: break;
    }
  }
  return t;
}

struct OnnxNode {
  std::string op_type;
  std::vector<std::pair<std::string, std::int64_t>> attributes;

  std::optional<std::int64_t> attribute(std::string_view wanted) const {
    for (const auto& [name, value] : attributes)
      if (name == wanted) return value;
    return std::nullopt;
  }
};

OnnxNode parse_node(std::string_view bytes) {
  OnnxNode node;
  for (WireReader message(bytes); !message.done();) {
    const Field f = message.field();
    if (f.number == 4) node.op_type = std::string(f.bytes);
    if (f.number != 5) continue;
    std::pair<std::string, std::int64_t> attribute;
    for (WireReader inner(f.bytes); !inner.done();) {
      const Field a = inner.field();
      if (a.number == 1) attribute.first = std::string(a.bytes);
      if (a.number == 3) attribute.second = static_cast<std::int64_t>(a.value);
    }
    node.attributes.push_back(std::move(attribute));
  }
  return node;
}

std::vector<OnnxNode> parse_model(std::string_view bytes) {
  std::vector<OnnxNode> nodes;
  for (WireReader model(bytes); !model.done();) {
    const Field f = model.field();
    if (f.number != 7) continue;
    for (WireReader graph(f.bytes); !graph.done();) {
      const Field g = graph.field();
      if (g.number == 1) nodes.push_back(parse_node(g.bytes));
    }
  }
  return nodes;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The elements as kvant stores them. ONNX packs 4-bit elements across rows, kvant starts each row on a byte.
std::vector<std::byte> kvant_bytes(const OnnxTensor& t) {
  const ElementKind kind = t.kind().value();
  const Shape shape = t.shape();
  const std::int64_t elements = shape.element_count().value();
  std::string flat = t.raw;
  if (flat.empty()) {  // int32_data: the low bytes of each number, which is a pair of elements for the 4-bit types
    const int width = std::max(1, bits_per_element(kind) / 8);
    for (const std::int32_t v : t.int32_data)
      for (int i = 0; i < width; ++i) flat.push_back(static_cast<char>(v >> (8 * i) & 0xFF));
  }
  if (static_cast<std::int64_t>(flat.size()) != row_bytes(kind, elements))
    throw std::runtime_error(t.name + ": " + std::to_string(flat.size()) + " bytes for shape " + shape.to_string());

  std::vector<std::byte> bytes;
  if (!is_packed(kind)) {
    bytes.resize(flat.size());
    if (!flat.empty()) std::memcpy(bytes.data(), flat.data(), flat.size());
    return bytes;
  }
  const auto nibble = [&flat](std::int64_t i) {
    const auto pair = static_cast<unsigned char>(flat[static_cast<std::size_t>(i / 2)]);
    return static_cast<unsigned>(pair) >> (i % 2 * 4) & 0xF;
  };
  const std::int64_t row = shape.row_length();
  for (std::int64_t first = 0; first < elements; first += row)
    for (std::int64_t i = 0; i < row; i += 2)
      bytes.push_back(static_cast<std::byte>(nibble(first + i) | (i + 1 < row ? nibble(first + i + 1) << 4 : 0)));
  return bytes;
}

// ONNX's zero points have the type of the codes, kvant's are s32.
std::vector<std::int32_t> zero_points(const OnnxTensor& t) {
  const ElementKind kind = t.kind().value();
  OnnxTensor one_row = t;  // as one row, nibbles are where ONNX has them
  one_row.dims = {t.shape().element_count().value()};
  const std::vector<std::byte> bytes = kvant_bytes(one_row);
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < one_row.dims[0]; ++i) {
    const auto at = static_cast<std::size_t>(is_packed(kind) ? i / 2 : i);
    auto value = std::to_integer<std::int32_t>(bytes[at]);
    if (is_packed(kind)) value = value >> (i % 2 * 4) & 0xF;
    const CodeRange range = code_range(kind);
    values.push_back(value > range.max ? value - (range.max - range.min + 1) : value);
  }
  return values;
}

// DynamicQuantizeLinear has cases in two forms: a model of that one node, and one of the simpler operators that ONNX
// defines it by, "expanded". Input and outputs are the operator's in both.
bool is_dynamic(std::string_view name) { return name.starts_with("test_dynamicquantizelinear"); }
bool is_matmul(std::string_view name) { return name.starts_with("test_matmulinteger"); }

// The folders with the cases of all operators, sorted.
std::vector<std::string> discover() {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(kNodeFolder, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with("test_quantizelinear") || name.starts_with("test_dequantizelinear") || is_dynamic(name) ||
        is_matmul(name))
      names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Why a case was not run; nothing if it ran, with EXPECTs for what it found.
using Skipped = std::optional<std::string>;

std::string type_text(const OnnxTensor& t) { return t.name + " has ONNX's element type " + std::to_string(t.type); }

Skipped run_data_set(const OnnxNode& node, const fs::path& folder) {
  const auto load = [&folder](const char* file) { return parse_tensor(read_file(folder / file)); };
  const OnnxTensor input = load("input_0.pb");
  const OnnxTensor scale = load("input_1.pb");
  const OnnxTensor output = load("output_0.pb");
  std::optional<OnnxTensor> zero_point;
  if (fs::exists(folder / "input_2.pb")) zero_point = load("input_2.pb");

  const bool quantize = node.op_type == "QuantizeLinear";
  const OnnxTensor& codes = quantize ? output : input;
  const OnnxTensor& floats = quantize ? input : output;
  if (!codes.kind() || !is_code(*codes.kind())) return type_text(codes) + ", which is no code type of kvant";
  if (!floats.kind() || !is_float(*floats.kind())) return type_text(floats) + ", which is no float type of kvant";
  // f16 and bf16 have f32 scales in kvant: a case with 16-bit scales asks for other arithmetic.
  if (scale.kind() != scale_kind(*floats.kind())) return type_text(scale) + ", which kvant's scales do not have";
  if (zero_point && zero_point->type != codes.type) return type_text(*zero_point) + ", unlike the codes";

  const std::int64_t axis = node.attribute("axis").value_or(1);
  const std::int64_t block_size = node.attribute("block_size").value_or(0);
  ElementwiseDescriptor descriptor;
  descriptor.op = quantize ? QuantizeKind::quantize : QuantizeKind::dequantize;
  descriptor.shape = input.shape();
  descriptor.input = *input.kind();
  descriptor.output = *output.kind();
  if (block_size != 0)
    descriptor.granularity = Granularity::per_group(static_cast<int>(axis), block_size);
  else if (scale.dims.size() == 1)
    descriptor.granularity = Granularity::per_channel(static_cast<int>(axis));
  else if (!scale.dims.empty())
    return "scale has shape " + scale.shape().to_string() + " without a block_size";

  const std::vector<std::byte> input_bytes = kvant_bytes(input);
  const std::vector<std::byte> scale_bytes = kvant_bytes(scale);
  const std::vector<std::byte> expected = kvant_bytes(output);
  std::vector<std::int32_t> zero_point_values;
  if (zero_point) zero_point_values = zero_points(*zero_point);

  const Stream stream = Stream::cpu(1);
  for (const ArchSku isa : {ArchSku::scalar, ArchSku::avx2}) {
    PlanPreference preference;
    preference.isa = isa;
    const auto plan = ElementwisePlan::select(stream, descriptor, preference);
    // The types are known to be kvant's, so only the machine or the build can be without the instruction set.
    if (isa != ArchSku::scalar && plan.status().code() == StatusCode::Unsupported) continue;
    if (!plan.ok()) {
      ADD_FAILURE() << folder << " on " << name(isa) << ": " << plan.status().message();
      continue;
    }
    std::vector<std::byte> got(expected.size(), std::byte{0xA5});
    ElementwiseArgs args;
    args.input = {input_bytes.data(), *input.kind(), input.shape(), 0};
    args.output = {got.data(), *output.kind(), output.shape(), 0};
    args.scale = AnyParameter(AnyRef{scale_bytes.data(), *scale.kind(), scale.shape(), 0});
    if (zero_point)
      args.zero_point = AnyParameter(AnyRef{zero_point_values.data(), ElementKind::s32, zero_point->shape(), 0});
    const Status done = plan->run(stream, {}, args);
    EXPECT_TRUE(done.ok()) << folder << " on " << plan->sku().name() << ": " << done.message();
    EXPECT_EQ(got, expected) << folder << " on " << plan->sku().name();
  }
  return std::nullopt;
}

Skipped run_dynamic_data_set(const fs::path& folder) {
  const auto load = [&folder](const char* file) { return parse_tensor(read_file(folder / file)); };
  const OnnxTensor x = load("input_0.pb");
  const OnnxTensor y = load("output_0.pb");
  const OnnxTensor y_scale = load("output_1.pb");
  const OnnxTensor y_zero_point = load("output_2.pb");
  if (!x.kind() || !is_float(*x.kind())) return type_text(x) + ", which is no float type of kvant";
  if (!y.kind() || !is_code(*y.kind())) return type_text(y) + ", which is no code type of kvant";
  if (y_scale.kind() != scale_kind(*x.kind())) return type_text(y_scale) + ", which kvant's scales do not have";
  if (y_zero_point.type != y.type) return type_text(y_zero_point) + ", unlike the codes";

  const std::vector<std::byte> input = kvant_bytes(x);
  const std::vector<std::byte> codes = kvant_bytes(y);
  const std::vector<std::byte> scale = kvant_bytes(y_scale);
  const std::vector<std::int32_t> zero_point = zero_points(y_zero_point);
  const DynamicRangeQuantizeDescriptor descriptor{.shape = x.shape(),
                                                  .scope = PerTensor{},
                                                  .mode = DynamicRangeMode::asymmetric,
                                                  .include_zero = true,
                                                  .input = *x.kind(),
                                                  .output = *y.kind()};
  const Stream stream = Stream::cpu(1);
  for (const ArchSku isa : {ArchSku::scalar, ArchSku::avx2}) {
    const auto plan = AnyDynamicRangeQuantizePlan::select(stream, descriptor, {.isa = isa});
    if (isa != ArchSku::scalar && plan.status().code() == StatusCode::Unsupported) continue;
    if (!plan.ok()) {
      ADD_FAILURE() << folder << " on " << name(isa) << ": " << plan.status().message();
      continue;
    }
    std::vector<std::byte> got_codes(codes.size(), std::byte{0xA5}), got_scale(scale.size(), std::byte{0xA5});
    std::vector<std::int32_t> got_zero_point(zero_point.size(), -1);
    std::vector<std::byte> scratch(plan->workspace_size());
    const Status done =
        plan->run(stream, {scratch.data(), scratch.size()},
                  {.input = {input.data(), *x.kind(), x.shape(), 0},
                   .output = {got_codes.data(), *y.kind(), y.shape(), 0},
                   .scale_out = {got_scale.data(), *y_scale.kind(), y_scale.shape(), 0},
                   .zero_point_out = {got_zero_point.data(), ElementKind::s32, y_zero_point.shape(), 0}});
    const std::string where = folder.string() + " on " + plan->sku().name();
    EXPECT_TRUE(done.ok()) << where << ": " << done.message();
    note_kernel(plan->sku());
    EXPECT_EQ(got_codes, codes) << where;
    EXPECT_EQ(got_scale, scale) << where;
    EXPECT_EQ(got_zero_point, zero_point) << where;
  }
  return std::nullopt;
}

// A matrix product of 8-bit integers. kvant's product ends in floating point: with scales of 1 and in f64 that is the
// integer itself. B is [K, N] in ONNX and [N, K] in kvant.
Skipped run_matmul_data_set(const fs::path& folder) {
  const auto load = [&folder](const char* file) { return parse_tensor(read_file(folder / file)); };
  const OnnxTensor a = load("input_0.pb");
  const OnnxTensor b = load("input_1.pb");
  const OnnxTensor y = load("output_0.pb");
  for (const OnnxTensor* codes : {&a, &b}) {
    if (codes->kind() != ElementKind::s8 && codes->kind() != ElementKind::u8)
      return type_text(*codes) + ", which is no 8-bit integer";
    if (codes->dims.size() != 2) return codes->name + " has shape " + codes->shape().to_string();
  }
  if (y.type != kOnnxInt32) return type_text(y) + " instead of int32";
  const std::int64_t m = a.dims[0], k = a.dims[1], n = b.dims[1];
  if (b.dims[0] != k || y.dims != std::vector<std::int64_t>{m, n})
    return "shapes " + a.shape().to_string() + ", " + b.shape().to_string() + " and " + y.shape().to_string();
  // One for all, or one for each row of A and column of B; none is 0.
  const auto zero_points_of = [&](const char* file) {
    return fs::exists(folder / file) ? zero_points(load(file)) : std::vector<std::int32_t>{0};
  };
  const std::vector<std::int32_t> a_zero_points = zero_points_of("input_2.pb");
  const std::vector<std::int32_t> b_zero_points = zero_points_of("input_3.pb");
  const auto parameter = [](const std::vector<std::int32_t>& values) {
    if (values.size() == 1) return AnyParameter(values[0]);
    return AnyParameter(AnyRef{values.data(), ElementKind::s32, {static_cast<std::int64_t>(values.size())}, 0});
  };

  const std::vector<std::byte> activation = kvant_bytes(a), columns = kvant_bytes(b);
  std::vector<std::byte> weight;
  for (std::int64_t column = 0; column < n; ++column)
    for (std::int64_t row = 0; row < k; ++row) weight.push_back(columns[static_cast<std::size_t>(row * n + column)]);
  std::vector<double> expected;
  if (!y.raw.empty() && y.raw.size() != static_cast<std::size_t>(4 * m * n))
    throw std::runtime_error(y.name + ": " + std::to_string(y.raw.size()) + " bytes for " + y.shape().to_string());
  for (std::size_t i = 0; i < static_cast<std::size_t>(m * n); ++i) {
    std::int32_t value = 0;
    if (y.raw.empty())
      value = y.int32_data.at(i);
    else
      std::memcpy(&value, y.raw.data() + 4 * i, 4);
    expected.push_back(value);
  }

  const Stream stream = Stream::cpu(1);
  const W8A8LinearDescriptor descriptor{.max_rows = m,
                                        .in_features = k,
                                        .out_features = n,
                                        .activation = *a.kind(),
                                        .weight = *b.kind(),
                                        .output = ElementKind::f64};
  for (const ArchSku isa : {ArchSku::scalar, ArchSku::avx2})
    for (const bool use_packed : {false, true}) {
      const auto plan = AnyLinearPlan::select(stream, descriptor, {.isa = isa});
      if (isa != ArchSku::scalar && plan.status().code() == StatusCode::Unsupported) continue;
      const AnyRef raw{weight.data(), *b.kind(), {n, k}, 0};
      const auto packed = PackedWeight::pack(stream, raw, {.isa = isa});
      if (!plan.ok() || !packed.ok()) {
        ADD_FAILURE() << folder << " on " << name(isa) << ": " << plan.status().message() << packed.status().message();
        continue;
      }
      std::vector<double> got(expected.size(), -0.5);
      std::vector<std::byte> scratch(plan->workspace_size());
      const Status done = plan->run(stream, {scratch.data(), scratch.size()},
                                    {.activation = {activation.data(), *a.kind(), {m, k}, 0},
                                     .act_scale = AnyParameter(1.0),
                                     .act_zero_point = parameter(a_zero_points),
                                     .weight = use_packed ? AnyRef{} : raw,
                                     .packed_weight = use_packed ? &*packed : nullptr,
                                     .weight_scale = AnyParameter(1.0),
                                     .weight_zero_point = parameter(b_zero_points),
                                     .output = {got.data(), ElementKind::f64, {m, n}, 0}});
      const std::string where = folder.string() + " on " + plan->sku().name() + (use_packed ? " packed" : " raw");
      EXPECT_TRUE(done.ok()) << where << ": " << done.message();
      note_kernel(plan->sku());
      EXPECT_EQ(got, expected) << where;
    }
  return std::nullopt;
}

// Runs every data set of a case; there must be one.
template <class RunDataSet>
Skipped run_data_sets(const fs::path& folder, const RunDataSet& run) {
  int data_sets = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("test_data_set_")) continue;
    if (Skipped why = run(entry.path())) return why;
    ++data_sets;
  }
  EXPECT_GT(data_sets, 0) << folder << " has no test_data_set";
  return std::nullopt;
}

Skipped run_case(const std::string& name) {
  const fs::path folder = fs::path(kNodeFolder) / name;
  const std::vector<OnnxNode> nodes = parse_model(read_file(folder / "model.onnx"));
  if (is_dynamic(name)) {
    const bool expanded = name.ends_with("_expanded");
    if (expanded ? nodes.size() < 2 : nodes.size() != 1 || nodes[0].op_type != "DynamicQuantizeLinear")
      return std::to_string(nodes.size()) + " nodes that are not DynamicQuantizeLinear";
    return run_data_sets(folder, run_dynamic_data_set);
  }
  if (nodes.size() != 1) return std::to_string(nodes.size()) + " nodes instead of one";
  const OnnxNode& node = nodes[0];
  if (is_matmul(name)) {
    if (node.op_type != "MatMulInteger") return "operator " + node.op_type;
    return run_data_sets(folder, run_matmul_data_set);
  }
  if (node.op_type != "QuantizeLinear" && node.op_type != "DequantizeLinear") return "operator " + node.op_type;
  for (const auto& [attribute, value] : node.attributes) {
    // saturate is for float8 alone, and the output files tell what output_dtype says.
    constexpr std::string_view kKnown[] = {"axis", "block_size", "output_dtype", "saturate"};
    if (std::find(std::begin(kKnown), std::end(kKnown), attribute) == std::end(kKnown))
      return "attribute " + attribute + " is " + std::to_string(value);
  }
  return run_data_sets(folder, [&node](const fs::path& set) { return run_data_set(node, set); });
}

// The package's files use only some of what the reader has to understand.
TEST(OnnxReader, ReadsPackedAndUnpackedNumbers) {
  using namespace std::string_literals;
  const OnnxTensor unpacked = parse_tensor("\x08\x02\x08\x03\x10\x03\x28\x01\x28\x02"s);
  EXPECT_EQ(unpacked.dims, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(unpacked.type, kOnnxInt8);
  EXPECT_EQ(unpacked.int32_data, (std::vector<std::int32_t>{1, 2}));

  const OnnxTensor packed = parse_tensor("\x0A\x03\x02\xAC\x02\x2A\x0B\x07\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"s);
  EXPECT_EQ(packed.dims, (std::vector<std::int64_t>{2, 300}));
  EXPECT_EQ(packed.int32_data, (std::vector<std::int32_t>{7, -1}));

  const OnnxTensor floats = parse_tensor("\x08\x01\x10\x01\x25\x00\x00\x80\x3F\x42\x01x"s);  // 1.0f
  EXPECT_EQ(floats.raw, "\x00\x00\x80\x3F"s);
  EXPECT_EQ(floats.name, "x");
  EXPECT_EQ(parse_tensor("\x22\x04\x00\x00\x80\x3F"s).raw, floats.raw);
  EXPECT_EQ(parse_tensor("\x4A\x04\x00\x00\x80\x3F"s).raw, floats.raw);

  EXPECT_THROW(parse_tensor("\x4A\x05\x00"s), std::runtime_error);
  EXPECT_THROW(parse_tensor("\x10\x80"s), std::runtime_error);
  EXPECT_THROW(parse_tensor("\x0B"s), std::runtime_error);
}

TEST(OnnxReader, RepacksFourBitRows) {
  OnnxTensor t;
  t.type = kOnnxInt4;
  t.dims = {2, 3};
  t.raw = "\x21\xF3\x87";  // 1 2 3 -1 7 -8
  const std::vector<std::byte> rows = {std::byte{0x21}, std::byte{0x03}, std::byte{0x7F}, std::byte{0x08}};
  EXPECT_EQ(kvant_bytes(t), rows);
  EXPECT_EQ(zero_points(t), (std::vector<std::int32_t>{1, 2, 3, -1, 7, -8}));
  t.raw.clear();
  t.int32_data = {0x21, 0xF3, 0x87};
  EXPECT_EQ(zero_points(t), (std::vector<std::int32_t>{1, 2, 3, -1, 7, -8}));
  t.int32_data.pop_back();
  EXPECT_THROW(kvant_bytes(t), std::runtime_error);
}

class OnnxNodeTest : public testing::TestWithParam<std::string> {};

TEST_P(OnnxNodeTest, EqualBytes) {
  if (const Skipped why = run_case(GetParam())) GTEST_SKIP() << GetParam() << ": " << *why;
}

// Without the package there is nothing to instantiate, which OnnxNodes.NamedCasesAreFoundAndRun reports.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OnnxNodeTest);
INSTANTIATE_TEST_SUITE_P(Discovered, OnnxNodeTest, testing::ValuesIn(discover()),
                         [](const auto& one) { return one.param; });

// Runs them once more: a filter or a shuffle of the cases above must not decide whether this holds.
TEST(OnnxNodes, NamedCasesAreFoundAndRun) {
  if (!fs::exists(kNodeFolder))
    GTEST_SKIP() << "no folder " << kNodeFolder << ": install Debian's package libonnx-testdata";
  const std::vector<std::string> found = discover();
  for (const std::string_view wanted : kNamedCases) {
    const std::string name(wanted);
    ASSERT_NE(std::find(found.begin(), found.end(), name), found.end()) << name << " is not in " << kNodeFolder;
    const Skipped why = run_case(name);
    EXPECT_FALSE(why.has_value()) << name << " was skipped: " << why.value_or("");
  }
}

}  // namespace
}  // namespace kvant::tests
