#include "format/compressed_tensors.h"

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <utility>

#include "base/divide_up.h"
#include "format/module_name.h"
#include "format/weight_form.h"

namespace kvant::format {
namespace {

constexpr TensorSpec kTensors[] = {
    {TensorKind::codes, ".weight", "a quantized Linear has its codes there"},
    {TensorKind::packed_codes, ".weight_packed", "a quantized Linear has its codes there"},
    {TensorKind::scales, ".weight_scale", "the codes mean nothing without their scales"},
    {TensorKind::global_scale, ".weight_global_scale", "the scales are meant under it"},
    {TensorKind::weight_shape, ".weight_shape", "loaders take in_features from it"},
    {TensorKind::zero_points, ".weight_zero_point", "the weights are asymmetric"},
    {TensorKind::input_scale, ".input_scale", "activations are static"},
    {TensorKind::input_zero_point, ".input_zero_point", "activations are static and asymmetric"},
    {TensorKind::input_global_scale, ".input_global_scale", "scales of activations are found under it"},
};

consteval bool kinds_are_complete() {
  for (std::size_t i = 0; i < std::size(kTensors); ++i)
    if (static_cast<std::size_t>(kTensors[i].kind) != i || kTensors[i].suffix.empty() || kTensors[i].needed.empty())
      return false;
  return true;
}
static_assert(kinds_are_complete(), "a row of the tensors lacks something, or stands in the wrong place");

constexpr std::array kI8 = {io::DType::i8};
constexpr std::array kI32 = {io::DType::i32};
constexpr std::array kI64 = {io::DType::i64};
constexpr std::array kF32 = {io::DType::f32};
constexpr std::array kE4m3 = {io::DType::f8_e4m3};
// torch has a dtype for e8m0, and loaders write bytes.
constexpr std::array kE8m0 = {io::DType::u8, io::DType::f8_e8m0};
constexpr std::array kNibbles = {io::DType::u8};
constexpr std::array kNumbers = {io::DType::f32, io::DType::f16, io::DType::bf16};

bool is_packed_in(const WeightScheme& weights) { return weights.storage != Storage::elements; }

// Eight codes u = q + 8 of a word, each in its byte as q.
std::uint64_t spread(std::uint32_t word) {
  std::uint64_t x = word;
  x = (x | x << 16) & 0x0000FFFF0000FFFFu;
  x = (x | x << 8) & 0x00FF00FF00FF00FFu;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Fu;
  x ^= 0x0808080808080808u;                     // four bits in two's complement
  return x | (x & 0x0808080808080808u) * 0x1E;  // and their sign in the upper four
}

// What is before the suffix of a name that has it.
std::optional<std::string_view> before(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return name.substr(0, name.size() - suffix.size());
}

}  // namespace

std::span<const TensorSpec> tensor_specs() { return kTensors; }
const TensorSpec& spec_of(TensorKind kind) { return kTensors[static_cast<std::size_t>(kind)]; }

std::string why_absent(TensorKind kind, const Scheme& scheme) {
  const WeightScheme& weights = scheme.weights;
  const auto unless = [](bool there, std::string why) { return there ? std::string() : std::move(why); };
  switch (kind) {
    case TensorKind::codes: return unless(!is_packed_in(weights), "its codes are in weight_packed");
    case TensorKind::packed_codes: return unless(is_packed_in(weights), fmt::format("the format is {}", scheme.format));
    case TensorKind::weight_shape:
      return unless(weights.storage == Storage::words, fmt::format("the format is {}", scheme.format));
    case TensorKind::scales: return "";
    case TensorKind::global_scale:
      return unless(weights.strategy == Strategy::tensor_group, "no global scale belongs to its scales");
    case TensorKind::zero_points: return unless(weights.asymmetric, "the weights are symmetric");
    case TensorKind::input_scale:
    case TensorKind::input_zero_point:
    case TensorKind::input_global_scale: break;
  }
  if (!scheme.activations) return "activations are not quantized";
  const ActivationScheme& activations = *scheme.activations;
  if (kind == TensorKind::input_global_scale)
    return unless(activations.dynamic == Dynamic::local, "no global scale belongs to activations");
  if (activations.dynamic != Dynamic::no) return "the scales of activations are found at run time";
  return unless(kind == TensorKind::input_scale || activations.asymmetric, "activations are symmetric");
}

std::span<const io::DType> dtypes_of(TensorKind kind, const Scheme& scheme) {
  const WeightScheme& weights = scheme.weights;
  switch (kind) {
    case TensorKind::codes:
      if (has_float_grid(weights.code)) return kE4m3;
      return kI8;
    case TensorKind::packed_codes:
      if (weights.storage == Storage::nibbles) return kNibbles;
      return kI32;
    case TensorKind::input_zero_point: return kI8;
    case TensorKind::zero_points: return kI32;
    case TensorKind::weight_shape: return kI64;
    case TensorKind::global_scale:
    case TensorKind::input_global_scale: return kF32;
    case TensorKind::scales:
      if (weights.scale_code == ElementKind::e8m0) return kE8m0;
      if (weights.scale_code == ElementKind::e4m3) return kE4m3;
      return kNumbers;
    case TensorKind::input_scale: return kNumbers;
  }
  return {};
}

std::vector<std::uint64_t> shape_of(TensorKind kind, const Scheme& scheme, const LinearShape& linear) {
  const auto& [rows, columns] = linear;
  const WeightScheme& weights = scheme.weights;
  const ScaleSpan span = span_of(weights, rows, columns);
  const std::uint64_t groups = weights.has_groups() ? columns / span.columns : 1;
  switch (kind) {
    case TensorKind::codes: return {rows, columns};
    case TensorKind::packed_codes:
      if (weights.storage == Storage::nibbles) return {rows, columns / 2};
      return {rows, base::parts_of(columns, codes_per_word(weights.code))};
    case TensorKind::scales:
      if (weights.strategy == Strategy::tensor) return {1};
      if (weights.strategy == Strategy::block)
        return {base::parts_of(rows, span.rows), base::parts_of(columns, span.columns)};
      return {rows, groups};
    case TensorKind::weight_shape: return {2};
    case TensorKind::zero_points: return {base::parts_of(rows, codes_per_word(weights.code)), groups};
    case TensorKind::global_scale:
    case TensorKind::input_scale:
    case TensorKind::input_zero_point:
    case TensorKind::input_global_scale: return {1};
  }
  return {};
}

std::optional<std::string_view> module_of_codes(const io::TensorInfo& tensor) {
  if (const auto module = before(tensor.name, spec_of(TensorKind::packed_codes).suffix)) return module;
  const std::string_view module = module_of(tensor.name);
  const bool holds_codes = tensor.dtype == kI8.front() || tensor.dtype == kE4m3.front();
  return holds_codes && !module.empty() ? std::optional(module) : std::nullopt;
}

std::optional<std::string_view> module_of_quantized(const io::TensorInfo& tensor) {
  for (const TensorSpec& spec : kTensors)
    if (spec.kind != TensorKind::codes)
      if (const auto module = before(tensor.name, spec.suffix)) return module;
  return module_of_codes(tensor);
}

std::vector<LayerOutput> layer_outputs(const Scheme& scheme, std::string_view module, io::DType dtype,
                                       std::uint64_t rows, std::uint64_t columns) {
  std::vector<LayerOutput> outputs;
  for (const TensorSpec& spec : kTensors) {
    if (!why_absent(spec.kind, scheme).empty()) continue;
    const bool is_number =
        spec.kind == TensorKind::input_scale || (spec.kind == TensorKind::scales && !scheme.weights.scale_code);
    outputs.push_back({spec.kind,
                       {fmt::format("{}{}", module, spec.suffix),
                        is_number ? scale_dtype(scheme, dtype) : dtypes_of(spec.kind, scheme).front(),
                        shape_of(spec.kind, scheme, {rows, columns}), 0, 0}});
  }
  return outputs;
}

std::uint64_t bytes_of_codes(const WeightScheme& weights, std::uint64_t count) {
  switch (weights.storage) {
    case Storage::elements: return count;
    case Storage::words: return 4 * base::parts_of(count, codes_per_word(weights.code));
    case Storage::nibbles: return base::parts_of(count, std::uint64_t{2});
  }
  return 0;
}

std::uint64_t stored_bits(const WeightScheme& weights) {
  return weights.storage == Storage::elements ? 8 : static_cast<std::uint64_t>(bits_per_element(weights.code));
}

void pack_codes(const WeightScheme& weights, const std::int8_t* codes, std::uint64_t count, std::byte* stored) {
  const auto n = static_cast<std::size_t>(count);
  if (stored_bits(weights) == 8) {
    // Words hold their codes in the order of bytes.
    const std::byte sign = weights.storage == Storage::words ? std::byte{0x80} : std::byte{0};
    for (std::size_t i = 0; i < n; ++i) stored[i] = static_cast<std::byte>(codes[i]) ^ sign;
    return;
  }
  const int offset = weights.storage == Storage::words ? word_offset(weights.code) : 0;
  for (std::size_t i = 0; i < n; i += 2)
    stored[i / 2] = static_cast<std::byte>(((codes[i] + offset) & 0xF) | ((codes[i + 1] + offset) & 0xF) << 4);
}

void unpack_codes(const WeightScheme& weights, const std::byte* stored, std::uint64_t count, std::int8_t* codes) {
  const auto n = static_cast<std::size_t>(count);
  if (weights.storage == Storage::elements) {
    std::memcpy(codes, stored, n);
  } else if (weights.storage == Storage::nibbles) {
    for (std::size_t i = 0; i < n; ++i)
      codes[i] = static_cast<std::int8_t>(std::to_integer<int>(stored[i / 2]) >> (4 * (i % 2)) & 0xF);
  } else if (bits_per_element(weights.code) == 8) {
    for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::int8_t>(stored[i] ^ std::byte{0x80});
  } else {
    constexpr std::size_t kPerWord = codes_per_word(ElementKind::s4);
    const auto load = [&](std::size_t i) {
      std::uint32_t word;
      std::memcpy(&word, stored + 4 * i, sizeof word);
      return spread(word);
    };
    for (std::size_t i = 0; i < n / kPerWord; ++i) {
      const std::uint64_t eight = load(i);
      std::memcpy(codes + kPerWord * i, &eight, sizeof eight);
    }
    if (n % kPerWord == 0) return;
    const std::uint64_t eight = load(n / kPerWord);
    std::memcpy(codes + (n - n % kPerWord), &eight, n % kPerWord);
  }
}

void pack_zero_points(ElementKind code, std::span<const std::int32_t> zero_points, std::uint64_t groups,
                      std::vector<std::uint32_t>& words) {
  const std::uint64_t rows = groups == 0 ? 0 : zero_points.size() / groups, per_word = codes_per_word(code);
  words.assign(base::parts_of(rows, per_word) * groups, 0);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t g = 0; g < groups; ++g) {
      const auto u = static_cast<std::uint32_t>(zero_points[r * groups + g] + word_offset(code));
      words[r / per_word * groups + g] |= u << (static_cast<unsigned>(bits_per_element(code)) * (r % per_word));
    }
}

std::int8_t unpack_zero_point(ElementKind code, std::uint32_t word, std::uint64_t row) {
  const auto bits = static_cast<unsigned>(bits_per_element(code));
  const std::uint32_t u = word >> (bits * (row % codes_per_word(code))) & ((1u << bits) - 1);
  return static_cast<std::int8_t>(static_cast<std::int32_t>(u) - word_offset(code));
}

}  // namespace kvant::format
