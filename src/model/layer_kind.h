// What part of a transformer's block a Linear is, judged by its name, and where in the model it stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kvant::model {

// In the order in which a block computes them.
enum class LayerKind : std::uint8_t {
  q,
  k,
  v,
  qkv,  // q, k and v as one matrix
  o,    // the output projection of the attention
  gate,
  up,  // or the first of two linears
  gate_up,
  down,  // or the second of two
  other,
};
inline constexpr std::size_t kLayerKinds = 10;
std::string_view name(LayerKind kind);  // "q", "gate_up", "other"

// "….self_attn.q_proj" → q, "….fc2" → down, "….query_key_value" → qkv, "….experts.3.w1" → gate
LayerKind kind_of(std::string_view module);

// The first component of the name that is a number: 12 of "model.layers.12.mlp.up_proj"; nothing for "lm_head".
std::optional<std::uint64_t> block_of(std::string_view module);

// What is before that number: "model.layers." of the same; empty without a block. Blocks of one stack follow each
// other; a model that sees has another stack, "vision_tower.encoder.layers.".
std::string_view stack_of(std::string_view module);

// Whether `a` stands before `b` in the model: by stack (names without a block come last), by block, within it by kind,
// then by name with numbers compared as numbers. A strict weak order.
bool stands_before(std::string_view a, std::string_view b);

}  // namespace kvant::model
