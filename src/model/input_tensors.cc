#include "model/input_tensors.h"

#include <fmt/core.h>

#include <map>
#include <string_view>
#include <utility>

#include "format/dialects.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "io/json.h"
#include "model/families.h"
#include "model/model_facts.h"

namespace kvant::model {
namespace {

// The dtype that a model computes in, by its config.json; BF16, as most do, where it does not say.
io::DType dtype_of(const io::Checkpoint& checkpoint) {
  const io::Json* const config = checkpoint.config();
  for (const io::Json* from :
       {config, config == nullptr || !config->contains("text_config") ? nullptr : &(*config)["text_config"]})
    for (const std::string_view key : {"dtype", "torch_dtype"}) {
      if (from == nullptr || !from->is_object()) continue;
      const auto found = from->find(key);
      if (found == from->end()) continue;
      if (*found == "float32") return io::DType::f32;
      if (*found == "float16") return io::DType::f16;
      if (*found == "bfloat16") return io::DType::bf16;
    }
  return io::DType::bf16;
}

// A matrix of expert `e` in a stack.
struct Part {
  std::string_view component;
  std::uint64_t first_row = 0;  // in the expert's rows
  std::uint64_t rows = 0;
};

// The Linears of a stack of experts; nothing where the tensor is none.
std::vector<InputTensor> parts_of_stack(const io::TensorInfo& tensor, const io::TensorPlace& place,
                                        const ExpertStacks& stacks) {
  std::vector<InputTensor> made;
  const std::string_view last = format::last_component(tensor.name);
  const std::string_view parent = format::parent_of(tensor.name);
  const auto kind = format::element_of(tensor.dtype);
  if (!kind || tensor.shape.size() != 3 || format::last_component(parent) != "experts") return made;
  if (last != stacks.gate_up && last != stacks.down) return made;
  const std::uint64_t experts = tensor.shape[0];
  const std::uint64_t out = tensor.shape[stacks.turned ? 2 : 1], in = tensor.shape[stacks.turned ? 1 : 2];
  std::vector<Part> parts;
  if (last == stacks.gate_up && out % 2 != 0) return made;
  if (last == stacks.gate_up)
    parts = {{"gate_proj", 0, out / 2}, {"up_proj", out / 2, out / 2}};
  else
    parts = {{"down_proj", 0, out}};
  for (std::uint64_t e = 0; e < experts; ++e)
    for (const Part& part : parts) {
      format::WeightSource source{.kind = *kind, .rows = part.rows, .columns = in, .place = place};
      const std::uint64_t row = stacks.turned ? 1 : in;  // from a row to the next
      source.first = e * out * in + part.first_row * row;
      source.row_stride = row;
      source.column_stride = stacks.turned ? out : 1;
      InputTensor input{.info = {.name = fmt::format("{}.{}.{}.weight", parent, e, part.component),
                                 .dtype = tensor.dtype,
                                 .shape = {part.rows, in}},
                        .shard = place.shard,
                        .stored_bytes = source.stored_bytes()};
      input.source = std::move(source);
      made.push_back(std::move(input));
    }
  return made;
}

}  // namespace

Result<InputTensors> input_tensors(const io::Checkpoint& checkpoint) {
  auto quantized = format::find_quantized_weights(checkpoint);
  if (!quantized.ok()) return quantized.status();
  InputTensors inputs;
  const io::DType dtype = dtype_of(checkpoint);
  const std::optional<ExpertStacks> stacks = expert_stacks(facts_of(checkpoint).model_type);
  // Layers by the tensor that has their codes, in whose place they stand.
  std::map<std::pair<std::size_t, std::size_t>, const format::QuantizedLayer*> layers;
  std::map<std::pair<std::size_t, std::size_t>, const format::QuantizedStack*> quantized_stacks;
  if (*quantized) {
    inputs.quantized_as = (*quantized)->description;
    inputs.is_compressed_tensors = (*quantized)->is_compressed_tensors;
    inputs.fp8_kv_cache = (*quantized)->fp8_kv_cache;
    for (const format::QuantizedStack& stack : (*quantized)->stacks)
      quantized_stacks[{stack.layer.codes.shard, stack.layer.codes.tensor}] = &stack;
    for (const format::QuantizedLayer& layer : (*quantized)->layers)
      layers[{layer.codes.shard, layer.codes.tensor}] = &layer;
  }
  for (std::size_t shard = 0; shard < checkpoint.shards().size(); ++shard) {
    const auto& tensors = checkpoint.shards()[shard].tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (const auto layer = layers.find({shard, i}); layer != layers.end()) {
        InputTensor input{.info = {.name = layer->second->module + ".weight",
                                   .dtype = dtype,
                                   .shape = {layer->second->rows, layer->second->columns}},
                          .shard = shard,
                          .stored_bytes = tensors[i].bytes()};
        input.source = format::WeightSource::of(*layer->second);
        inputs.tensors.push_back(std::move(input));
        continue;
      }
      if (const auto stack = quantized_stacks.find({shard, i}); stack != quantized_stacks.end()) {
        const format::QuantizedLayer& layer = stack->second->layer;
        const std::uint64_t experts = stack->second->experts;
        InputTensor input{
            .info = {.name = layer.module, .dtype = dtype, .shape = {experts, layer.columns, layer.rows / experts}},
            .shard = shard,
            .stored_bytes = tensors[i].bytes()};
        input.source = format::WeightSource::of_turned(layer, experts);
        inputs.tensors.push_back(std::move(input));
        continue;
      }
      if (*quantized && (*quantized)->tensors.contains(tensors[i].name)) continue;
      if (stacks)
        if (auto parts = parts_of_stack(tensors[i], {shard, i}, *stacks); !parts.empty()) {
          for (InputTensor& part : parts) inputs.tensors.push_back(std::move(part));
          continue;
        }
      InputTensor plain{.info = tensors[i], .shard = shard, .stored_bytes = tensors[i].bytes()};
      if (tensors[i].shape.size() == 2 && format::element_of(tensors[i].dtype))
        plain.source = format::WeightSource::of(checkpoint, {shard, i});
      inputs.tensors.push_back(std::move(plain));
    }
  }
  return inputs;
}

}  // namespace kvant::model
