#include "format/scheme.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/refuse.h"
#include "base/text.h"
#include "io/file.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;

// ---- Parts that rows share ----

constexpr WeightScheme kInt8Channel = {};
constexpr WeightScheme int_groups(ElementKind code, Storage storage) {
  return {.code = code, .strategy = Strategy::group, .storage = storage, .group_size = 128};
}
constexpr WeightScheme fp8(Strategy strategy) { return {.code = ElementKind::e4m3, .strategy = strategy}; }
// The OCP formats: a power of two for 32 neighbours.
constexpr WeightScheme mx(ElementKind code, Storage storage) {
  return {
      .code = code, .strategy = Strategy::group, .storage = storage, .group_size = 32, .scale_code = ElementKind::e8m0};
}
constexpr WeightScheme kNvfp4 = {.code = ElementKind::e2m1,
                                 .strategy = Strategy::tensor_group,
                                 .storage = Storage::nibbles,
                                 .group_size = 16,
                                 .scale_code = ElementKind::e4m3};
constexpr ActivationScheme kInt8Token = {};
constexpr ActivationScheme kInt8Static = {.strategy = Strategy::tensor, .dynamic = Dynamic::no};
constexpr ActivationScheme kFp8Token = {.code = ElementKind::e4m3};
constexpr ActivationScheme kFp8Static = {
    .code = ElementKind::e4m3, .strategy = Strategy::tensor, .dynamic = Dynamic::no};
constexpr ActivationScheme mx_activations(ElementKind code) {
  return {.code = code, .strategy = Strategy::group, .group_size = 32, .scale_code = ElementKind::e8m0};
}

// ---- The table ----

constexpr SchemeRow kSchemes[] = {
    {.name = "w8a8",
     .llm_compressor = "W8A8",
     .help = "8-bit weights, activations quantized at run time",
     .scheme = {.format = "int-quantized", .weights = kInt8Channel, .activations = kInt8Token},
     .takes_asymmetric_activations = true},
    {.name = "w8a8-static",
     .llm_compressor = "",
     .help = "the same with activation scales from --stats",
     .scheme = {.format = "int-quantized", .weights = kInt8Channel, .activations = kInt8Static},
     .takes_asymmetric_activations = true,
     .against_experts = "vLLM takes int8 experts only with activations that are quantized at run time, for each token"},
    {.name = "w8a16",
     .llm_compressor = "W8A16",
     .help = "8-bit weights in groups",
     .scheme = {.format = "pack-quantized", .weights = int_groups(ElementKind::s8, Storage::words), .activations = {}},
     .takes_group_size = true,
     .takes_asymmetric_weights = true},
    {.name = "w4a16",
     .llm_compressor = "W4A16",
     .help = "4-bit weights in groups",
     .scheme = {.format = "pack-quantized", .weights = int_groups(ElementKind::s4, Storage::words), .activations = {}},
     .takes_group_size = true,
     .takes_asymmetric_weights = true},
    {.name = "w4a8",
     .llm_compressor = "W4A8",
     .help = "4-bit weights in groups, 8-bit activations",
     .scheme = {.format = "int-quantized",
                .weights = int_groups(ElementKind::s4, Storage::elements),
                .activations = kInt8Token},
     .takes_group_size = true,
     .takes_asymmetric_activations = true},
    {.name = "fp8",
     .llm_compressor = "FP8_DYNAMIC",
     .help = "FP8 weights by channel, activations at run time",
     .scheme = {.format = "float-quantized", .weights = fp8(Strategy::channel), .activations = kFp8Token}},
    {.name = "fp8-tensor",
     .llm_compressor = "",
     .help = "FP8, one scale for a weight",
     .scheme = {.format = "float-quantized", .weights = fp8(Strategy::tensor), .activations = kFp8Token},
     .against_experts = "vLLM takes FP8 experts with one scale for a weight only with stored scales of activations"},
    {.name = "fp8-static",
     .llm_compressor = "",  // FP8, which scheme_named() refuses
     .help = "the same with activation scales from --stats",
     .scheme = {.format = "float-quantized", .weights = fp8(Strategy::tensor), .activations = kFp8Static}},
    {.name = "fp8-block",
     .llm_compressor = "FP8_BLOCK",
     .help = "FP8 in blocks of 128 x 128, as DeepSeek's",
     .scheme =
         {.format = "float-quantized",
          .weights = {.code = ElementKind::e4m3, .strategy = Strategy::block, .block_rows = 128, .block_columns = 128},
          .activations = ActivationScheme{.code = ElementKind::e4m3, .strategy = Strategy::group, .group_size = 128}}},
    {.name = "mxfp8",
     .llm_compressor = "MXFP8",
     .help = "FP8 in groups of 32 with powers of two",
     .scheme = {.format = "mxfp8-quantized",
                .weights = mx(ElementKind::e4m3, Storage::elements),
                .activations = mx_activations(ElementKind::e4m3)}},
    {.name = "mxfp8a16",
     .llm_compressor = "MXFP8A16",
     .help = "the same, activations as they are",
     .scheme = {.format = "mxfp8-quantized", .weights = mx(ElementKind::e4m3, Storage::elements), .activations = {}}},
    {.name = "mxfp4",
     .llm_compressor = "MXFP4",
     .help = "FP4 in groups of 32 with powers of two",
     .scheme = {.format = "mxfp4-pack-quantized",
                .weights = mx(ElementKind::e2m1, Storage::nibbles),
                .activations = mx_activations(ElementKind::e2m1)}},
    {.name = "mxfp4a16",
     .llm_compressor = "MXFP4A16",
     .help = "the same, activations as they are",
     .scheme = {.format = "mxfp4-pack-quantized",
                .weights = mx(ElementKind::e2m1, Storage::nibbles),
                .activations = {}}},
    {.name = "nvfp4",
     .llm_compressor = "NVFP4",
     .help = "FP4 in groups of 16 with FP8 scales; activations too, from --stats",
     .scheme = {.format = "nvfp4-pack-quantized",
                .weights = kNvfp4,
                .activations = ActivationScheme{.code = ElementKind::e2m1,
                                                .strategy = Strategy::tensor_group,
                                                .dynamic = Dynamic::local,
                                                .group_size = 16,
                                                .scale_code = ElementKind::e4m3}}},
    {.name = "nvfp4a16",
     .llm_compressor = "NVFP4A16",
     .help = "the same, activations as they are",
     .scheme = {.format = "nvfp4-pack-quantized", .weights = kNvfp4, .activations = {}}},
};

constexpr std::array kStrategies = {Strategy::tensor, Strategy::channel, Strategy::group,
                                    Strategy::block,  Strategy::token,   Strategy::tensor_group};
constexpr std::array kScaleChoices = {ScaleChoice::minmax, ScaleChoice::minmax_ct, ScaleChoice::search};
constexpr std::array kFloatScales = {io::DType::f32, io::DType::f16, io::DType::bf16};

consteval bool is_complete(const SchemeRow& row) {
  const WeightScheme& weights = row.scheme.weights;
  if (row.name.empty() || row.help.empty() || row.scheme.format.empty() || !is_code(weights.code)) return false;
  if (weights.has_groups() != (weights.group_size > 0)) return false;
  if ((weights.strategy == Strategy::block) != (weights.block_rows > 0 && weights.block_columns > 0)) return false;
  if (weights.strategy == Strategy::token) return false;
  if ((weights.strategy == Strategy::tensor_group) != (weights.scale_code == ElementKind::e4m3)) return false;
  // Words hold integers, nibbles codes of four bits; zero points of weights are stored in words only.
  if (weights.storage == Storage::words && has_float_grid(weights.code)) return false;
  if (weights.storage == Storage::nibbles && bits_per_element(weights.code) != 4) return false;
  if (weights.storage != Storage::words && row.takes_asymmetric_weights) return false;
  if (row.takes_group_size && weights.strategy != Strategy::group) return false;
  if (row.takes_asymmetric_activations && !row.scheme.activations) return false;
  if (!row.scheme.activations) return true;
  const ActivationScheme& activations = *row.scheme.activations;
  const bool groups = activations.strategy == Strategy::group || activations.strategy == Strategy::tensor_group;
  return is_code(activations.code) && groups == (activations.group_size > 0) &&
         (activations.dynamic == Dynamic::local) == (activations.strategy == Strategy::tensor_group);
}

// Each whole and with names of its own.
consteval bool schemes_are_complete() {
  for (std::size_t i = 0; i < std::size(kSchemes); ++i) {
    if (!is_complete(kSchemes[i])) return false;
    for (std::size_t j = 0; j < i; ++j) {
      if (kSchemes[i].name == kSchemes[j].name || kSchemes[i].scheme == kSchemes[j].scheme) return false;
      if (!kSchemes[i].llm_compressor.empty() && kSchemes[i].llm_compressor == kSchemes[j].llm_compressor) return false;
    }
  }
  return true;
}
static_assert(schemes_are_complete(), "a row of the schemes lacks something, or stands there twice");

std::string names_where(bool (*fits)(const SchemeRow&)) {
  std::vector<std::string_view> names;
  for (const SchemeRow& row : kSchemes)
    if (fits(row)) names.push_back(row.name);
  return base::joined(names, ", ");
}

// The row that the scheme is, but for its options.
const SchemeRow* row_of(const Scheme& scheme) {
  for (const SchemeRow& row : kSchemes) {
    Scheme like = row.scheme;
    like.scale_dtype = scheme.scale_dtype;
    like.scale_choice = scheme.scale_choice;
    if (row.takes_asymmetric_weights) like.weights.asymmetric = scheme.weights.asymmetric;
    if (row.takes_asymmetric_activations && scheme.activations)
      like.activations->asymmetric = scheme.activations->asymmetric;
    if (row.takes_group_size && (scheme.weights.has_groups() || scheme.weights.strategy == Strategy::channel)) {
      like.weights.strategy = scheme.weights.strategy;
      like.weights.group_size = scheme.weights.group_size;
    }
    if (like == scheme) return &row;
  }
  return nullptr;
}

// Why a way to find scales does not go with the weights; empty: it does.
std::string against(ScaleChoice choice, const WeightScheme& weights) {
  if (choice == ScaleChoice::minmax_ct && (weights.asymmetric || has_float_grid(weights.code)))
    return "is minmax for all but symmetric integers";
  if (choice == ScaleChoice::search && !has_scale_of_row(weights))
    return "looks for scales of groups and channels only";
  return {};
}

std::string words_of(const WeightScheme& weights) {
  std::string text = fmt::format("{} weights", name(weights.code));
  switch (weights.strategy) {
    case Strategy::tensor: text += " per tensor"; break;
    case Strategy::channel:
    case Strategy::token: text += " per channel"; break;
    case Strategy::block:
      text += fmt::format(" in blocks of {} x {}", weights.block_rows, weights.block_columns);
      break;
    case Strategy::group:
    case Strategy::tensor_group: text += fmt::format(" in groups of {}", weights.group_size); break;
  }
  return text;
}

}  // namespace

std::string_view name(Strategy strategy) {
  switch (strategy) {
    case Strategy::tensor: return "tensor";
    case Strategy::channel: return "channel";
    case Strategy::group: return "group";
    case Strategy::block: return "block";
    case Strategy::token: return "token";
    case Strategy::tensor_group: return "tensor_group";
  }
  return "unknown";
}
std::span<const Strategy> strategies() { return kStrategies; }

std::string_view name(ScaleChoice choice) {
  switch (choice) {
    case ScaleChoice::minmax: return "minmax";
    case ScaleChoice::minmax_ct: return "minmax-ct";
    case ScaleChoice::search: return "search";
  }
  return "unknown";
}
std::span<const ScaleChoice> scale_choices() { return kScaleChoices; }

std::span<const SchemeRow> schemes() { return kSchemes; }

Result<const SchemeRow*> scheme_named(std::string_view text) {
  for (const SchemeRow& row : kSchemes)
    if (row.name == text || (!text.empty() && row.llm_compressor == text)) return &row;
  if (text == "FP8")
    return unsupported(
        "scheme FP8: llm-compressor's FP8 has one scale for a weight and stored scales of activations, which is "
        "fp8-static "
        "here; fp8 is its FP8_DYNAMIC. Use one of these names");
  return unsupported("scheme '{}': must be one of {}", io::printable(text),
                     names_where([](const SchemeRow&) { return true; }));
}

Result<Scheme> with_options(const SchemeRow& row, const SchemeOptions& options) {
  Scheme scheme = row.scheme;
  if (options.group_size) {
    if (!row.takes_group_size)
      return unsupported("{} does not take a group size; {} do", row.name,
                         names_where([](const SchemeRow& r) { return r.takes_group_size; }));
    const std::int64_t size = *options.group_size;
    const auto per_word = static_cast<std::int64_t>(codes_per_word(scheme.weights.code));
    if (size == -1) {
      scheme.weights.strategy = Strategy::channel;
      scheme.weights.group_size = 0;
    } else if (scheme.weights.storage == Storage::words && (size <= 0 || size % per_word != 0)) {
      return invalid_problem(
          "group size {} must be a positive multiple of {}: {} codes share a word; -1 is one group for each channel",
          size, per_word, per_word == 8 ? "eight" : "four");
    } else if (size <= 0) {
      return invalid_problem("group size {} must be positive, or -1 for one group for each channel", size);
    } else {
      scheme.weights.group_size = size;
    }
  }
  if (options.asymmetric) {
    if (!row.takes_asymmetric())
      return unsupported("{} has no asymmetric form that loaders accept; {} have one", row.name,
                         names_where([](const SchemeRow& r) { return r.takes_asymmetric(); }));
    if (row.takes_asymmetric_weights) scheme.weights.asymmetric = true;
    if (row.takes_asymmetric_activations) scheme.activations->asymmetric = true;
  }
  if (const std::string reason = against(options.scale_choice.value_or(ScaleChoice::minmax), scheme.weights);
      !reason.empty())
    return unsupported("{}: --scale {}: {}", row.name, name(*options.scale_choice), reason);
  scheme.scale_choice = options.scale_choice.value_or(bits_per_element(scheme.weights.code) <= 4 ? ScaleChoice::search
                                                                                                 : ScaleChoice::minmax);
  if (!options.scale_dtype) return scheme;
  if (scheme.weights.scale_code)
    return unsupported("{} stores its scales as {}: it takes no other dtype of scales", row.name,
                       name(*scheme.weights.scale_code));
  if (std::find(kFloatScales.begin(), kFloatScales.end(), *options.scale_dtype) == kFloatScales.end())
    return unsupported("scales of {}: must be F32, F16 or BF16", io::name(*options.scale_dtype));
  scheme.scale_dtype = options.scale_dtype;
  return scheme;
}

std::string describe(const Scheme& scheme) {
  const SchemeRow* const row = row_of(scheme);
  std::string text;
  if (row != nullptr) {
    text = row->name;
    if (row->takes_group_size)
      text += scheme.weights.has_groups() ? fmt::format(", groups of {}", scheme.weights.group_size)
                                          : std::string(", a scale for each channel");
  } else {
    text = words_of(scheme.weights);
    text += scheme.activations ? fmt::format(", {} activations per {}", name(scheme.activations->code),
                                             name(scheme.activations->strategy))
                               : std::string(", activations as they are");
  }
  if (scheme.is_asymmetric()) text += ", asymmetric";
  return text;
}

std::string_view against_experts(const Scheme& scheme) {
  if (const SchemeRow* const row = row_of(scheme); row != nullptr && !row->against_experts.empty())
    return row->against_experts;
  if (scheme.has_asymmetric_activations()) return "vLLM quantizes the activations of experts without zero points";
  return {};
}

ScaleSpan span_of(const WeightScheme& weights, std::uint64_t rows, std::uint64_t columns) {
  switch (weights.strategy) {
    case Strategy::tensor: return {rows, columns};
    case Strategy::channel:
    case Strategy::token: return {1, columns};
    case Strategy::group:
    case Strategy::tensor_group: return {1, static_cast<std::uint64_t>(weights.group_size)};
    case Strategy::block:
      return {static_cast<std::uint64_t>(weights.block_rows), static_cast<std::uint64_t>(weights.block_columns)};
  }
  return {};
}

std::int64_t column_unit(const WeightScheme& weights) {
  if (weights.has_groups()) return weights.group_size;
  switch (weights.storage) {
    case Storage::elements: return 1;
    case Storage::words: return static_cast<std::int64_t>(codes_per_word(weights.code));
    case Storage::nibbles: return 2;
  }
  return 1;
}

}  // namespace kvant::format
