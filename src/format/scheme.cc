#include "format/scheme.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/refuse.h"
#include "base/text.h"
#include "io/json.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;

constexpr std::array kFloatScales = {io::DType::f32, io::DType::f16, io::DType::bf16};

constexpr SchemeSpec kSchemes[] = {
    {.kind = SchemeKind::w8a8,
     .name = "w8a8",
     .help = "8-bit weights, activations quantized at run time",
     .format = "int-quantized",
     .weights = {.scale_dtypes = kFloatScales},
     .activations = ActivationSpec{}},
    {.kind = SchemeKind::w8a8_static,
     .name = "w8a8-static",
     .help = "activation scales from --stats",
     .format = "int-quantized",
     .weights = {.scale_dtypes = kFloatScales},
     .activations = ActivationSpec{.strategy = Strategy::tensor, .dynamic = false, .takes_asymmetric = true}},
    {.kind = SchemeKind::w4a16,
     .name = "w4a16",
     .help = "4-bit weights in groups",
     .format = "pack-quantized",
     .weights = {.code = ElementKind::s4,
                 .strategy = Strategy::group,
                 .storage = Storage::words,
                 .takes_asymmetric = true,
                 .default_group_size = 128,
                 .scale_dtypes = kFloatScales},
     .activations = {}},
};

consteval bool is_complete(const SchemeSpec& spec) {
  const WeightSpec& weights = spec.weights;
  if (spec.name.empty() || spec.help.empty() || spec.format.empty()) return false;
  if (!is_code(weights.code) || weights.scale_dtypes.empty()) return false;
  if (spec.has_groups() != (weights.default_group_size > 0)) return false;
  if (weights.strategy != Strategy::channel && weights.strategy != Strategy::group) return false;
  if (weights.storage == Storage::words) {
    if (weights.default_group_size % static_cast<std::int64_t>(codes_per_word(weights.code)) != 0) return false;
  } else if (is_packed(weights.code) || weights.takes_asymmetric) {
    return false;  // no dtype is that narrow, and zero points of weights are stored in words only
  }
  if (!spec.activations) return true;
  const ActivationSpec& activations = *spec.activations;
  if (activations.code != ElementKind::s8) return false;
  if (activations.dynamic && activations.takes_asymmetric) return false;  // zero points are stored, if at all
  return activations.strategy == (activations.dynamic ? Strategy::token : Strategy::tensor);
}

// Rows in the order of SchemeKind, each whole and with a name of its own.
consteval bool schemes_are_complete() {
  for (std::size_t i = 0; i < std::size(kSchemes); ++i) {
    if (static_cast<std::size_t>(kSchemes[i].kind) != i || !is_complete(kSchemes[i])) return false;
    for (std::size_t j = 0; j < i; ++j)
      if (kSchemes[i].name == kSchemes[j].name) return false;
  }
  return true;
}
static_assert(schemes_are_complete(), "a row of the schemes lacks something, or stands in the wrong place");

}  // namespace

std::string_view name(Strategy strategy) {
  switch (strategy) {
    case Strategy::tensor: return "tensor";
    case Strategy::channel: return "channel";
    case Strategy::group: return "group";
    case Strategy::token: return "token";
  }
  return "unknown";
}

std::span<const SchemeSpec> schemes() { return kSchemes; }
const SchemeSpec& spec_of(SchemeKind kind) { return kSchemes[static_cast<std::size_t>(kind)]; }
std::string_view name(SchemeKind kind) { return spec_of(kind).name; }

std::optional<SchemeKind> scheme_named(std::string_view text) {
  for (const SchemeSpec& spec : kSchemes)
    if (spec.name == text) return spec.kind;
  return std::nullopt;
}

Scheme default_scheme(SchemeKind kind) {
  Scheme scheme{.kind = kind};
  if (scheme.spec().has_groups()) scheme.group_size = scheme.spec().weights.default_group_size;
  return scheme;
}

Status check(const Scheme& scheme) {
  const SchemeSpec& spec = scheme.spec();
  if (spec.has_groups()) {
    const auto per_word = static_cast<std::int64_t>(codes_per_word(spec.weights.code));
    if (spec.weights.storage == Storage::words && (scheme.group_size <= 0 || scheme.group_size % per_word != 0))
      return invalid_problem("group size {} must be a positive multiple of {}: {} codes share a word",
                             scheme.group_size, per_word, per_word == 8 ? "eight" : "four");
    if (scheme.group_size <= 0) return invalid_problem("group size {} must be positive", scheme.group_size);
  }
  if (scheme.asymmetric && !spec.takes_asymmetric()) {
    std::vector<std::string_view> others;
    for (const SchemeSpec& other : kSchemes)
      if (other.takes_asymmetric()) others.push_back(other.name);
    return unsupported("{} has no asymmetric form that loaders accept; {} have one", spec.name,
                       base::joined(others, " and "));
  }
  if (!scheme.scale_dtype) return {};
  const std::span<const io::DType> dtypes = spec.weights.scale_dtypes;
  if (std::find(dtypes.begin(), dtypes.end(), *scheme.scale_dtype) != dtypes.end()) return {};
  std::string listed;
  for (const io::DType dtype : dtypes)
    listed += fmt::format("{}{}", listed.empty() ? "" : dtype == dtypes.back() ? " or " : ", ", io::name(dtype));
  return unsupported("scales of {}: must be {}", io::name(*scheme.scale_dtype), listed);
}

std::string describe(const Scheme& scheme) {
  std::string text(name(scheme.kind));
  if (scheme.spec().has_groups()) text += fmt::format(", groups of {}", scheme.group_size);
  if (scheme.asymmetric) text += ", asymmetric";
  return text;
}

}  // namespace kvant::format
