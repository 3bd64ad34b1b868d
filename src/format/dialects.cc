#include "format/dialects.h"

#include <array>
#include <utility>

#include "base/divide_up.h"
#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/module_name.h"
#include "format/quantization_config.h"
#include "io/json.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

Result<QuantizedWeights> read_compressed_tensors(const io::Checkpoint& checkpoint) {
  auto config = read_quantization_config(checkpoint);
  if (!config.ok()) return config.status();
  auto layers = find_quantized_layers(checkpoint, *config);
  if (!layers.ok()) return layers.status();
  QuantizedWeights weights{.description = describe(*config),
                           .layers = std::move(layers).value(),
                           .tensors = {},
                           .fp8_kv_cache = config->fp8_kv_cache};
  for (const QuantizedLayer& layer : weights.layers)
    for (const TensorSpec& spec : tensor_specs()) {
      std::string name = fmt::format("{}{}", layer.module, spec.suffix);
      if (checkpoint.find(name) != nullptr) weights.tensors.insert(std::move(name));
    }
  return weights;
}

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

Result<QuantizedWeights> read_fp8_blocks(const io::Checkpoint& checkpoint, const io::Json& config,
                                         const std::string& where) {
  constexpr std::string_view kScales = ".weight_scale_inv";
  const auto sides = block_of(config, where);
  if (!sides.ok()) return sides.status();
  const Scheme scheme{.format = "float-quantized",
                      .weights = {.code = ElementKind::e4m3,
                                  .strategy = Strategy::block,
                                  .block_rows = (*sides)[0],
                                  .block_columns = (*sides)[1]},
                      .activations = std::nullopt};
  QuantizedWeights weights;
  weights.description = fmt::format("FP8 in blocks of {} x {} (DeepSeek)", (*sides)[0], (*sides)[1]);
  for (const auto& [name, place] : checkpoint.tensors()) {
    const io::TensorInfo& codes = checkpoint.at(place);
    const std::string_view module = module_of(name);
    if (module.empty() || codes.dtype != io::DType::f8_e4m3) continue;
    const std::string scales = fmt::format("{}{}", module, kScales);
    const auto found = checkpoint.tensors().find(scales);
    if (codes.shape.size() != 2 || found == checkpoint.tensors().end())
      return invalid_problem("{}: tensor '{}' is F8_E4M3 {}, must have 2 dimensions and its scales in '{}'",
                             printable(checkpoint.shard_name(place.shard)), printable(name),
                             base::bracketed(codes.shape), printable(scales));
    QuantizedLayer layer{.module = std::string(module), .rows = codes.shape[0], .columns = codes.shape[1]};
    layer.scheme = scheme;
    layer.scale_rows = static_cast<std::uint64_t>((*sides)[0]);
    layer.group_size = static_cast<std::uint64_t>((*sides)[1]);
    layer.codes = place;
    layer.scales = found->second;
    const io::TensorInfo& info = checkpoint.at(found->second);
    const std::vector<std::uint64_t> shape = shape_of(TensorKind::scales, scheme, {layer.rows, layer.columns});
    if (info.dtype != io::DType::f32 || info.shape != shape)
      return invalid_problem("{}: tensor '{}' is {} {}, must be F32 {}",
                             printable(checkpoint.shard_name(found->second.shard)), printable(scales),
                             io::name(info.dtype), base::bracketed(info.shape), base::bracketed(shape));
    weights.layers.push_back(std::move(layer));
    weights.tensors.insert(name);
    weights.tensors.insert(scales);
  }
  return weights;
}

}  // namespace

Result<std::optional<QuantizedWeights>> find_quantized_weights(const io::Checkpoint& checkpoint) {
  const auto text = find_quantization_config(checkpoint);
  if (!text.ok()) return text.status();
  if (!*text) return std::optional<QuantizedWeights>();
  const auto& [where, value] = **text;
  const auto method = value->is_object() ? value->find("quant_method") : value->end();
  const std::string name =
      value->is_object() && method != value->end() && method->is_string() ? method->get<std::string>() : std::string();
  Result<QuantizedWeights> found =
      name == "compressed-tensors" ? read_compressed_tensors(checkpoint)
      : name == "fp8"
          ? read_fp8_blocks(checkpoint, *value, where)
          : Result<QuantizedWeights>(unsupported("{}: is already quantized: quant_method is \"{}\", and kvant reads "
                                                 "compressed-tensors and fp8; give the original "
                                                 "checkpoint",
                                                 where, printable(name)));
  if (!found.ok()) return found.status();
  return std::optional(std::move(found).value());
}

}  // namespace kvant::format
