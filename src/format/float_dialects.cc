// Dialects of small floating-point codes: DeepSeek's FP8, ModelOpt's FP8 and NVFP4, gpt-oss's MXFP4.
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/dialect_readers.h"
#include "format/module_name.h"
#include "io/json.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

// The sides of a block in "weight_block_size".
Result<std::array<std::int64_t, 2>> block_of(const io::Json& config, const std::string& where) {
  std::array<std::int64_t, 2> sides = {128, 128};
  const auto found = config.find("weight_block_size");
  if (found == config.end() || found->is_null()) return sides;
  for (std::size_t i = 0; i < 2; ++i) {
    const bool good = found->is_array() && found->size() == 2 && (*found)[i].is_number_unsigned() &&
                      (*found)[i].get<std::uint64_t>() > 0 && (*found)[i].get<std::uint64_t>() < (1u << 30);
    if (!good)
      return invalid_problem("{}: weight_block_size is {}, must be two positive integers", where,
                             printable(found->dump(-1, ' ', true)));
    sides[i] = (*found)[i].get<std::int64_t>();
  }
  return sides;
}

// One number. Refuses what is not finite and positive.
Result<float> number_at(const io::Checkpoint& checkpoint, const io::TensorPlace& place) {
  float value = 0;
  if (Status s = checkpoint.read(place, 0, std::as_writable_bytes(std::span(&value, 1))); !s.ok()) return s;
  if (value > 0 && std::isfinite(value)) return value;
  return invalid_problem("{}: tensor '{}' is {}, must be finite and positive",
                         printable(checkpoint.shard_name(place.shard)), printable(checkpoint.at(place).name), value);
}

void set_spans(QuantizedLayer& layer) {
  const ScaleSpan span = span_of(layer.scheme.weights, layer.rows, layer.columns);
  layer.scale_rows = span.rows;
  layer.group_size = span.columns;
}

// X.weight and its parts, into one layer of a ModelOpt checkpoint.
Result<QuantizedLayer> modelopt_layer(const io::Checkpoint& checkpoint, const io::TensorPlace& place,
                                      const std::string& module, std::set<std::string, std::less<>>& tensors) {
  const io::TensorInfo& codes = checkpoint.at(place);
  const bool is_fp4 = codes.dtype == io::DType::u8;
  if (codes.shape.size() != 2)
    return invalid_problem("{}: tensor '{}' is {} {}, must have 2 dimensions",
                           printable(checkpoint.shard_name(place.shard)), printable(codes.name), io::name(codes.dtype),
                           base::bracketed(codes.shape));
  QuantizedLayer layer{.module = module, .rows = codes.shape[0], .columns = codes.shape[1] * (is_fp4 ? 2 : 1)};
  layer.codes = place;
  const std::string input_scale = module + ".input_scale", scale = module + ".weight_scale";
  const bool has_input = checkpoint.find(input_scale) != nullptr;
  if (is_fp4) {
    layer.scheme = scheme_of_table(has_input ? "nvfp4" : "nvfp4a16");
    const auto unit = static_cast<std::uint64_t>(layer.scheme.weights.group_size);
    if (layer.columns % unit != 0)
      return invalid_problem("{}: tensor '{}' has in_features {}, which is not a multiple of the group size {}",
                             printable(checkpoint.shard_name(place.shard)), printable(codes.name), layer.columns, unit);
    const auto scales =
        part_of(checkpoint, scale, {io::DType::f8_e4m3}, {std::vector{layer.rows, layer.columns / unit}});
    if (!scales.ok()) return scales.status();
    layer.scales = *scales;
    const std::string global = module + ".weight_scale_2";
    const auto found = part_of(checkpoint, global, {io::DType::f32}, {{}, {1}});
    if (!found.ok()) return found.status();
    const auto value = number_at(checkpoint, *found);
    if (!value.ok()) return value.status();
    layer.global_scale = *value;
    layer.globals_multiply = true;
    tensors.insert(global);
  } else {
    const auto scales = part_of(checkpoint, scale, {io::DType::f32, io::DType::f16, io::DType::bf16},
                                {{}, {1}, {layer.rows}, {layer.rows, 1}});
    if (!scales.ok()) return scales.status();
    layer.scales = *scales;
    const bool by_row =
        layer.rows > 1 && checkpoint.at(*scales).shape.size() > 0 && checkpoint.at(*scales).shape[0] > 1;
    layer.scheme = scheme_of_table(by_row ? "fp8" : has_input ? "fp8-static" : "fp8-tensor");
    layer.scheme.scale_dtype = checkpoint.at(*scales).dtype;
    if (by_row && has_input)
      return unsupported("{}: '{}' has a scale for each row and a stored scale of its input: loaders take one of them",
                         printable(checkpoint.path().string()), printable(module));
  }
  if (has_input) {
    const auto found = part_of(checkpoint, input_scale, {io::DType::f32}, {{}, {1}});
    if (!found.ok()) return found.status();
    const auto value = number_at(checkpoint, *found);
    if (!value.ok()) return value.status();
    (is_fp4 ? layer.input_global_scale : layer.input_scale) = *found;
    tensors.insert(input_scale);
  }
  set_spans(layer);
  tensors.insert(codes.name);
  tensors.insert(scale);
  return layer;
}

}  // namespace

Result<QuantizedWeights> read_deepseek(const io::Checkpoint& checkpoint, const io::Json& config,
                                       const std::string& where) {
  constexpr std::string_view kScales = ".weight_scale_inv";
  const auto sides = block_of(config, where);
  if (!sides.ok()) return sides.status();
  Scheme scheme = scheme_of_table("fp8-block");
  scheme.weights.block_rows = (*sides)[0];
  scheme.weights.block_columns = (*sides)[1];
  scheme.activations->group_size = (*sides)[1];
  scheme.scale_dtype = io::DType::f32;
  QuantizedWeights weights;
  weights.description = fmt::format("FP8 in blocks of {} x {} (DeepSeek)", (*sides)[0], (*sides)[1]);
  for (const auto& [name, place] : checkpoint.tensors()) {
    const io::TensorInfo& codes = checkpoint.at(place);
    const std::string_view module = module_of(name);
    if (module.empty() || codes.dtype != io::DType::f8_e4m3) continue;
    const std::string scales = fmt::format("{}{}", module, kScales);
    if (codes.shape.size() != 2 || checkpoint.find(scales) == nullptr)
      return invalid_problem("{}: tensor '{}' is F8_E4M3 {}, must have 2 dimensions and its scales in '{}'",
                             printable(checkpoint.shard_name(place.shard)), printable(name),
                             base::bracketed(codes.shape), printable(scales));
    QuantizedLayer layer{.module = std::string(module), .rows = codes.shape[0], .columns = codes.shape[1]};
    layer.scheme = scheme;
    layer.codes = place;
    const auto found = part_of(checkpoint, scales, {io::DType::f32},
                               {shape_of(TensorKind::scales, scheme, {layer.rows, layer.columns})});
    if (!found.ok()) return found.status();
    layer.scales = *found;
    layer.scale_rows = static_cast<std::uint64_t>((*sides)[0]);
    layer.group_size = static_cast<std::uint64_t>((*sides)[1]);
    weights.layers.push_back(std::move(layer));
    weights.tensors.insert(name);
    weights.tensors.insert(scales);
  }
  return weights;
}

Result<QuantizedWeights> read_modelopt(const io::Checkpoint& checkpoint, const io::Json& config,
                                       const std::string& where) {
  const io::Json& facts = config.contains("quantization") ? config["quantization"] : config;
  const auto said = [&](std::string_view key) {
    const auto found = facts.is_object() ? facts.find(key) : facts.end();
    return facts.is_object() && found != facts.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string algorithm = said("quant_algo");
  if (algorithm != "FP8" && algorithm != "NVFP4" && algorithm != "FP8_PER_CHANNEL_PER_TOKEN")
    return unsupported(
        "{}: is already quantized: quant_algo is \"{}\", and of ModelOpt's kvant reads FP8, "
        "FP8_PER_CHANNEL_PER_TOKEN and NVFP4; give the original checkpoint",
        where, printable(algorithm));
  QuantizedWeights weights;
  weights.description = fmt::format("{} (ModelOpt)", algorithm);
  for (const auto& [name, place] : checkpoint.tensors()) {
    const std::string module(module_of(name));
    const io::DType dtype = checkpoint.at(place).dtype;
    if (module.empty() || (dtype != io::DType::u8 && dtype != io::DType::f8_e4m3)) continue;
    auto layer = modelopt_layer(checkpoint, place, module, weights.tensors);
    if (!layer.ok()) return layer.status();
    weights.layers.push_back(std::move(layer).value());
  }
  weights.fp8_kv_cache = said("kv_cache_quant_algo") == "FP8";
  return weights;
}

Result<QuantizedWeights> read_gpt_oss(const io::Checkpoint& checkpoint, const io::Json&, const std::string&) {
  constexpr std::string_view kBlocks = "_blocks";
  const Scheme& scheme = scheme_of_table("mxfp4a16");
  const auto group = static_cast<std::uint64_t>(scheme.weights.group_size);
  QuantizedWeights weights;
  weights.description = "MXFP4 experts (gpt-oss)";
  for (const auto& [name, place] : checkpoint.tensors()) {
    if (!name.ends_with(kBlocks)) continue;
    const io::TensorInfo& codes = checkpoint.at(place);
    if (codes.dtype != io::DType::u8 || codes.shape.size() != 4 || codes.shape[3] != group / 2)
      return invalid_problem("{}: tensor '{}' is {} {}, must be U8 [experts, out, groups, {}]",
                             printable(checkpoint.shard_name(place.shard)), printable(name), io::name(codes.dtype),
                             base::bracketed(codes.shape), group / 2);
    const std::string stack = name.substr(0, name.size() - kBlocks.size());
    const std::string scales = stack + "_scales";
    const auto found =
        part_of(checkpoint, scales, {io::DType::u8}, {std::vector{codes.shape[0], codes.shape[1], codes.shape[2]}});
    if (!found.ok()) return found.status();
    QuantizedLayer layer{
        .module = stack, .rows = codes.shape[0] * codes.shape[1], .columns = codes.shape[2] * group, .scheme = scheme};
    layer.codes = place;
    layer.scales = *found;
    set_spans(layer);
    weights.stacks.push_back({std::move(layer), codes.shape[0]});
    weights.tensors.insert(name);
    weights.tensors.insert(scales);
  }
  return weights;
}

}  // namespace kvant::format
