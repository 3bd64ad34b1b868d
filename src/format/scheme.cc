#include "format/scheme.h"

#include "base/refuse.h"
#include "io/json.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;

io::Json weights_of(const Scheme& scheme) {
  const bool four_bits = scheme.kind == SchemeKind::w4a16;
  io::Json weights = {{"num_bits", four_bits ? 4 : 8},
                      {"type", "int"},
                      {"symmetric", !(four_bits && scheme.asymmetric)},
                      {"strategy", four_bits ? "group" : "channel"},
                      {"dynamic", false}};
  if (four_bits) weights["group_size"] = scheme.group_size;
  return weights;
}

io::Json activations_of(const Scheme& scheme) {
  if (scheme.kind == SchemeKind::w4a16) return nullptr;
  const bool is_static = scheme.kind == SchemeKind::w8a8_static;
  return {{"num_bits", 8},
          {"type", "int"},
          {"symmetric", !(is_static && scheme.asymmetric)},
          {"strategy", is_static ? "tensor" : "token"},
          {"dynamic", !is_static}};
}

}  // namespace

std::string_view name(SchemeKind kind) {
  switch (kind) {
    case SchemeKind::w8a8: return "w8a8";
    case SchemeKind::w8a8_static: return "w8a8-static";
    case SchemeKind::w4a16: return "w4a16";
  }
  return "unknown";
}

std::optional<SchemeKind> scheme_named(std::string_view text) {
  for (const SchemeKind kind : {SchemeKind::w8a8, SchemeKind::w8a8_static, SchemeKind::w4a16})
    if (name(kind) == text) return kind;
  return std::nullopt;
}

Status check(const Scheme& scheme) {
  if (scheme.kind == SchemeKind::w4a16 && (scheme.group_size <= 0 || scheme.group_size % 8 != 0))
    return invalid_problem("group size {} must be a positive multiple of 8: eight codes share a word",
                           scheme.group_size);
  if (scheme.kind == SchemeKind::w8a8 && scheme.asymmetric)
    return unsupported("w8a8 has no asymmetric form that loaders take; w8a8-static and w4a16 have one");
  if (!scheme.scale_dtype) return {};
  const io::DType dtype = *scheme.scale_dtype;
  if (dtype == io::DType::f32 || dtype == io::DType::f16 || dtype == io::DType::bf16) return {};
  return unsupported("scales of {}: must be F32, F16 or BF16", io::name(dtype));
}

io::Json quantization_config(const Scheme& scheme, std::span<const std::string> ignore) {
  io::Json ignored = io::Json::array();
  for (const std::string& pattern : ignore) ignored.push_back(pattern);
  return {{"quant_method", "compressed-tensors"},
          {"format", scheme.kind == SchemeKind::w4a16 ? "pack-quantized" : "int-quantized"},
          {"quantization_status", "compressed"},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", io::Json::array({"Linear"})},
              {"weights", weights_of(scheme)},
              {"input_activations", activations_of(scheme)},
              {"output_activations", nullptr}}}}}};
}

}  // namespace kvant::format
