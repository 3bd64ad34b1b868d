// What the metadata of a GGUF say of a network, and what follows: its tensors under both names, and its config.json.
// The facts are two tables in gguf_network.cc: architectures, and the tensors of a layer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::model {

// The sizes that shapes are made of.
enum class Size : std::uint8_t {
  none,
  hidden,
  query,      // heads times head
  key_value,  // key-value heads times head
  head,
  intermediate,
  expert_intermediate,
  experts,
  vocabulary,
};
inline constexpr std::size_t kSizes = static_cast<std::size_t>(Size::vocabulary) + 1;

// Far beyond any network.
inline constexpr std::uint64_t kMaxGgufLayers = 1024;
inline constexpr std::uint64_t kMaxGgufExperts = 1024;

struct GgufArchitecture;

// Llama 3's scaling of rotary frequencies, or another; `kind` is empty where there is none.
struct RopeScaling {
  std::string kind;  // "llama3", "linear", "yarn"
  double factor = 1;
  std::uint64_t original_context = 0;
};

struct GgufNetwork {
  const GgufArchitecture* architecture = nullptr;
  std::array<std::uint64_t, kSizes> sizes{};
  std::uint64_t layers = 0, heads = 0, key_value_heads = 0, context = 0, experts_used = 0;
  double norm_epsilon = 0, rope_theta = 0;
  RopeScaling rope_scaling;
  unsigned features = 0;  // which tensors it has, of Feature in gguf_network.cc

  std::uint64_t size(Size size) const { return sizes[static_cast<std::size_t>(size)]; }
};

std::string names_of_gguf_architectures();  // "llama, qwen2, …"

Result<GgufNetwork> read_gguf_network(const io::GgufFile& file);

// One tensor of the file and what it is in a checkpoint.
struct GgufTensorRule {
  std::string gguf_name;             // "blk.0.attn_q.weight"
  std::string name;                  // "model.layers.0.self_attn.q_proj.weight"; of experts, "{}" stands for the number
  std::vector<std::uint64_t> shape;  // of one expert, if it holds experts
  std::uint64_t experts = 0;         // 0: it is one tensor
  std::uint64_t heads = 0;           // whose rows are in llama.cpp's order; 0: none
};
// All that the file must have, in the order of the model. Nothing else may be there but kRopeFactorsName.
std::vector<GgufTensorRule> tensor_rules(const GgufNetwork& network);
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

// The name in a checkpoint of a linear's weight, whatever the sizes of its network; of experts, "{}" stands for the
// number. Empty: there is no such linear. Networks with experts call them and their router differently, so that those
// need the network's model type.
struct GgufLinearName {
  std::string name;
  bool holds_experts = false;
};
GgufLinearName name_of_gguf_linear(std::string_view gguf_name, std::string_view model_type);
bool needs_model_type(std::string_view gguf_name);
std::vector<std::string> model_types_with_experts();  // "mixtral", …

// config.json, in f32.
io::Json config_of(const GgufNetwork& network, const io::GgufFile& file);

// Whether those are the factors by which Llama 3 divides the rotary frequencies; sets kind, factor and context.
Status set_llama3_scaling(GgufNetwork& network, std::span<const float> factors, std::string_view file_name);

}  // namespace kvant::model
