#include "format/compressed_tensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/divide_up.h"
#include "format/module_name.h"
#include "format/weight_form.h"

namespace kvant::format {
namespace {

constexpr TensorSpec kTensors[] = {
    {TensorKind::codes, ".weight", "a quantized Linear has its codes there"},
    {TensorKind::packed_codes, ".weight_packed", "a quantized Linear has its codes there"},
    {TensorKind::scales, ".weight_scale", "the codes mean nothing without their scales"},
    {TensorKind::weight_shape, ".weight_shape", "loaders take in_features from it"},
    {TensorKind::zero_points, ".weight_zero_point", "the weights are asymmetric"},
    {TensorKind::input_scale, ".input_scale", "activations are static"},
    {TensorKind::input_zero_point, ".input_zero_point", "activations are static and asymmetric"},
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

constexpr unsigned kBits = bits_per_element(kPacked);

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
  const SchemeSpec& spec = scheme.spec();
  const bool in_words = spec.weights.storage == Storage::words;
  switch (kind) {
    case TensorKind::codes: return in_words ? "its codes are in weight_packed" : "";
    case TensorKind::packed_codes:
    case TensorKind::weight_shape: return in_words ? "" : fmt::format("the format is {}", spec.format);
    case TensorKind::scales: return "";
    case TensorKind::zero_points: return scheme.has_asymmetric_weights() ? "" : "the weights are symmetric";
    case TensorKind::input_scale:
    case TensorKind::input_zero_point:
      if (!spec.activations) return "activations are not quantized";
      if (spec.activations->dynamic) return "the scales of activations are found at run time";
      return kind == TensorKind::input_scale || scheme.has_asymmetric_activations() ? "" : "activations are symmetric";
  }
  return "";
}

std::span<const io::DType> dtypes_of(TensorKind kind, const Scheme& scheme) {
  switch (kind) {
    case TensorKind::codes:
    case TensorKind::input_zero_point: return kI8;
    case TensorKind::packed_codes:
    case TensorKind::zero_points: return kI32;
    case TensorKind::weight_shape: return kI64;
    case TensorKind::scales:
    case TensorKind::input_scale: return scheme.spec().weights.scale_dtypes;
  }
  return {};
}

std::vector<std::uint64_t> shape_of(TensorKind kind, const Scheme& scheme, const LinearShape& linear) {
  const auto& [rows, columns] = linear;
  const std::uint64_t groups = scheme.spec().has_groups() ? columns / columns_of_a_scale(scheme, columns) : 1;
  switch (kind) {
    case TensorKind::codes: return {rows, columns};
    case TensorKind::packed_codes: return {rows, base::parts_of(columns, kPerWord)};
    case TensorKind::scales: return {rows, groups};
    case TensorKind::weight_shape: return {2};
    case TensorKind::zero_points: return {base::parts_of(rows, kPerWord), groups};
    case TensorKind::input_scale:
    case TensorKind::input_zero_point: return {1};
  }
  return {};
}

std::optional<std::string_view> module_of_codes(const io::TensorInfo& tensor) {
  if (const auto module = before(tensor.name, spec_of(TensorKind::packed_codes).suffix)) return module;
  const std::string_view module = module_of(tensor.name);
  return tensor.dtype == kI8.front() && !module.empty() ? std::optional(module) : std::nullopt;
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
    const bool is_scale = spec.kind == TensorKind::scales || spec.kind == TensorKind::input_scale;
    outputs.push_back({spec.kind,
                       {fmt::format("{}{}", module, spec.suffix),
                        is_scale ? scale_dtype(scheme, dtype) : dtypes_of(spec.kind, scheme).front(),
                        shape_of(spec.kind, scheme, {rows, columns}), 0, 0}});
  }
  return outputs;
}

void unpack_codes(const std::byte* words, std::uint64_t count, std::int8_t* codes) {
  const auto load = [&](std::uint64_t i) {
    std::uint32_t word;
    std::memcpy(&word, words + 4 * i, sizeof word);
    return spread(word);
  };
  for (std::uint64_t i = 0; i < count / kPerWord; ++i) {
    const std::uint64_t eight = load(i);
    std::memcpy(codes + kPerWord * i, &eight, sizeof eight);
  }
  if (count % kPerWord == 0) return;
  const std::uint64_t eight = load(count / kPerWord);
  std::memcpy(codes + (count - count % kPerWord), &eight, static_cast<std::size_t>(count % kPerWord));
}

void pack_zero_points(std::span<const std::int32_t> zero_points, std::uint64_t groups,
                      std::vector<std::uint32_t>& words) {
  const std::uint64_t rows = groups == 0 ? 0 : zero_points.size() / groups;
  words.assign(base::parts_of(rows, kPerWord) * groups, 0);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t g = 0; g < groups; ++g) {
      const auto u = static_cast<std::uint32_t>(zero_points[r * groups + g] + word_offset(kPacked));
      words[r / kPerWord * groups + g] |= u << (kBits * (r % kPerWord));
    }
}

std::int8_t unpack_zero_point(std::uint32_t word, std::uint64_t row) {
  const std::uint32_t u = word >> (kBits * (row % kPerWord)) & ((1u << kBits) - 1);
  return static_cast<std::int8_t>(static_cast<std::int32_t>(u) - word_offset(kPacked));
}

}  // namespace kvant::format
