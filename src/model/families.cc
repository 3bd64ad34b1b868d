#include "model/families.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/text.h"
#include "format/module_name.h"
#include "io/file.h"

namespace kvant::model {
namespace {

// ---- Families ---------------------------------------------------------------------------------------------------

constexpr std::string_view kSplitAttention[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
constexpr std::string_view kFusedAttention[] = {"self_attn.qkv_proj"};
constexpr std::string_view kSplitMlp[] = {"mlp.gate_proj", "mlp.up_proj"};
constexpr std::string_view kFusedMlp[] = {"mlp.gate_up_proj"};
// Routers and all experts read what the MLP reads.
constexpr std::string_view kExperts[] = {"mlp.gate", "mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"};
constexpr std::string_view kExpertsAndShared[] = {"mlp.gate",
                                                  "mlp.experts.*.gate_proj",
                                                  "mlp.experts.*.up_proj",
                                                  "mlp.shared_expert.gate_proj",
                                                  "mlp.shared_expert.up_proj",
                                                  "mlp.shared_expert_gate"};
constexpr std::string_view kMixtralExperts[] = {"block_sparse_moe.gate", "block_sparse_moe.experts.*.w1",
                                                "block_sparse_moe.experts.*.w3"};
constexpr Names kLlamaAttention[] = {kSplitAttention, kFusedAttention};
constexpr Names kLlamaMlp[] = {kSplitMlp, kFusedMlp, kExperts, kExpertsAndShared, kMixtralExperts};
constexpr Edge kLlamaEdges[] = {{"input_layernorm", kLlamaAttention}, {"post_attention_layernorm", kLlamaMlp}};
// Norms of heads read what q_proj and k_proj wrote.
constexpr std::string_view kLlamaOthers[] = {"self_attn.o_proj",
                                             "self_attn.q_norm",
                                             "self_attn.k_norm",
                                             "self_attn.q_layernorm",
                                             "self_attn.k_layernorm",
                                             "mlp.down_proj",
                                             "mlp.experts.*.down_proj",
                                             "mlp.shared_expert.down_proj",
                                             "block_sparse_moe.experts.*.w2"};
constexpr std::string_view kLlamaTypes[] = {"llama", "mistral", "mixtral",   "qwen2",     "qwen3",
                                            "phi3",  "yi",      "qwen2_moe", "qwen3_moe", "internlm3"};

constexpr std::string_view kOptFc1[] = {"fc1"};
constexpr Names kOptAttention[] = {kSplitAttention};
constexpr Names kOptMlp[] = {kOptFc1};
constexpr Edge kOptEdges[] = {{"self_attn_layer_norm", kOptAttention}, {"final_layer_norm", kOptMlp}};
constexpr std::string_view kOptOthers[] = {"self_attn.out_proj", "fc2"};
constexpr std::string_view kOptTypes[] = {"opt"};

constexpr std::string_view kBloomQkv[] = {"self_attention.query_key_value"};
constexpr std::string_view kBloomUp[] = {"mlp.dense_h_to_4h"};
constexpr Names kBloomAttention[] = {kBloomQkv};
constexpr Names kBloomMlp[] = {kBloomUp};
constexpr Edge kBloomEdges[] = {{"input_layernorm", kBloomAttention}, {"post_attention_layernorm", kBloomMlp}};
constexpr std::string_view kBloomOthers[] = {"self_attention.dense", "mlp.dense_4h_to_h"};
constexpr std::string_view kBloomTypes[] = {"bloom"};

constexpr Family kFamilies[] = {
    {.name = "llama",
     .model_types = kLlamaTypes,
     .edges = kLlamaEdges,
     .others = kLlamaOthers,
     .alpha = 0.8,
     .doubt = "a model whose norms multiply by (1 + weight) has the same names"},
    // With do_layer_norm_before false it has no norm after its blocks.
    {.name = "opt",
     .model_types = kOptTypes,
     .edges = kOptEdges,
     .others = kOptOthers,
     .alpha = 0.5,
     .condition = {&ModelFacts::do_layer_norm_before, "do_layer_norm_before", true},
     .beside = "final_layer_norm",
     .doubt = "a model whose norms feed the residual as well may have the same names"},
    {.name = "bloom",
     .model_types = kBloomTypes,
     .edges = kBloomEdges,
     .others = kBloomOthers,
     .alpha = 0.5,
     .condition = {&ModelFacts::apply_residual_connection_post_layernorm, "apply_residual_connection_post_layernorm",
                   false},
     .doubt = "a model with apply_residual_connection_post_layernorm has the same names"},
};

// Models of which no norm can be folded. A '*' at an end of a model_type stands for anything.
struct Unfoldable {
  Names model_types;
  std::string_view reason;
};

// Gemma in all its forms (paligemma, recurrent_gemma), Qwen3-Next and its successors, and Nemotron's LayerNorm1P.
constexpr std::string_view kAddOneTypes[] = {"*gemma*", "qwen3_next*", "qwen3_5*", "nemotron"};
constexpr std::string_view kBertTypes[] = {"albert",     "bart",       "bert",       "camembert", "data2vec-text",
                                           "deberta",    "deberta-v2", "distilbert", "electra",   "ernie",
                                           "longformer", "mpnet",      "roberta",    "xlm",       "xlm-roberta"};
constexpr Unfoldable kUnfoldable[] = {
    {kAddOneTypes, "its norms multiply by (1 + weight), so dividing the weight would change the model"},
    {kBertTypes, "its LayerNorm feeds the residual as well as the linears, so it cannot be folded"},
};

// ---- Names of modules -------------------------------------------------------------------------------------------

// Llama, Mistral, Qwen, Phi, Baichuan, OPT, BLOOM, GPT-NeoX, Falcon, GPT-2, MPT, BERT, T5, InternLM2, and Meta's own
// names. Of rows with the same component, the one whose `below` fits comes first.
constexpr ModuleName kModuleNames[] = {
    {.component = "q_proj", .kind = LayerKind::q, .fused = FusedSet::qkv_proj},
    {.component = "k_proj", .kind = LayerKind::k, .fused = FusedSet::qkv_proj},
    {.component = "v_proj", .kind = LayerKind::v, .fused = FusedSet::qkv_proj},
    {.component = "wq", .kind = LayerKind::q, .fused = FusedSet::w_qkv},
    {.component = "wk", .kind = LayerKind::k, .fused = FusedSet::w_qkv},
    {.component = "wv", .kind = LayerKind::v, .fused = FusedSet::w_qkv},
    {.component = "query", .kind = LayerKind::q, .fused = FusedSet::query_key_value},
    {.component = "key", .kind = LayerKind::k, .fused = FusedSet::query_key_value},
    {.component = "value", .kind = LayerKind::v, .fused = FusedSet::query_key_value},
    {.component = "q", .kind = LayerKind::q},
    {.component = "k", .kind = LayerKind::k},
    {.component = "v", .kind = LayerKind::v},
    {.component = "qkv_proj", .kind = LayerKind::qkv},
    {.component = "query_key_value", .kind = LayerKind::qkv},
    {.component = "c_attn", .kind = LayerKind::qkv, .is_conv1d = true},
    {.component = "q_attn", .is_conv1d = true},
    {.component = "Wqkv", .kind = LayerKind::qkv},
    {.component = "wqkv", .kind = LayerKind::qkv},
    {.component = "W_pack", .kind = LayerKind::qkv},

    {.component = "o_proj", .kind = LayerKind::o},
    {.component = "o", .kind = LayerKind::o},
    {.component = "out_proj", .kind = LayerKind::down, .below = Below::mlp},
    {.component = "out_proj", .kind = LayerKind::o},
    // T5 has one in the MLP, Meta one in the attention.
    {.component = "wo", .kind = LayerKind::down, .below = Below::mlp},
    {.component = "wo", .kind = LayerKind::o},
    // GPT-2 has one in either half of a block.
    {.component = "c_proj", .kind = LayerKind::o, .below = Below::attention, .is_conv1d = true},
    {.component = "c_proj", .kind = LayerKind::down, .below = Below::mlp, .is_conv1d = true},
    {.component = "c_proj", .is_conv1d = true},
    // BLOOM's self_attention.dense, and in BERT attention.output.dense, intermediate.dense and output.dense.
    {.component = "dense", .kind = LayerKind::o, .below = Below::attention},
    {.component = "dense", .kind = LayerKind::o, .below = Below::attention_output},
    {.component = "dense", .kind = LayerKind::up, .below = Below::intermediate},
    {.component = "dense", .kind = LayerKind::down, .below = Below::output},

    {.component = "gate_proj", .kind = LayerKind::gate, .fused = FusedSet::gate_up_proj},
    {.component = "up_proj", .kind = LayerKind::up, .fused = FusedSet::gate_up_proj},
    {.component = "w1", .kind = LayerKind::gate, .fused = FusedSet::w1_w3},
    {.component = "w3", .kind = LayerKind::up, .fused = FusedSet::w1_w3},
    {.component = "wi_0", .kind = LayerKind::gate},
    {.component = "wi_1", .kind = LayerKind::up},
    {.component = "wi", .kind = LayerKind::up},
    {.component = "fc1", .kind = LayerKind::up},
    {.component = "c_fc", .kind = LayerKind::up, .is_conv1d = true},
    {.component = "fc_in", .kind = LayerKind::up},
    {.component = "dense_h_to_4h", .kind = LayerKind::up},
    {.component = "gate_up_proj", .kind = LayerKind::gate_up},
    {.component = "down_proj", .kind = LayerKind::down},
    {.component = "w2", .kind = LayerKind::down},
    {.component = "fc2", .kind = LayerKind::down},
    {.component = "fc_out", .kind = LayerKind::down},
    {.component = "dense_4h_to_h", .kind = LayerKind::down},

    {.component = "lm_head", .role = Role::lm_head},
    {.component = "embed_out", .role = Role::lm_head},
    {.component = "output_layer", .role = Role::lm_head},
    {.component = "output_projection", .role = Role::lm_head},
    {.component = "score", .role = Role::lm_head},
    // The head of InternLM2 and of Meta's own files.
    {.component = "output", .role = Role::lm_head, .below = Below::nothing},

    // Beside those that end in "embedding" or "embeddings".
    {.component = "embed_tokens", .role = Role::embedding},
    {.component = "embed_positions", .role = Role::embedding},
    {.component = "embed_in", .role = Role::embedding},
    {.component = "wte", .role = Role::embedding},
    {.component = "wpe", .role = Role::embedding},
    {.component = "shared", .role = Role::embedding},
    {.component = "relative_attention_bias", .role = Role::embedding},

    // "gate" alone is a router; "gate_proj" is half of an MLP.
    {.component = "gate", .role = Role::router, .below = Below::something},
    {.component = "router", .role = Role::router, .below = Below::something},
    {.component = "shared_expert_gate", .role = Role::router, .below = Below::something},
    {.component = "classifier", .role = Role::router, .below = Below::something},
};

constexpr std::string_view kConv1dTypes[] = {"gpt2", "imagegpt", "decision_transformer"};

// Both tables are searched by name, so a row that is incomplete would be found by nobody, or by everybody.
consteval bool tables_are_complete() {
  for (const Family& family : kFamilies) {
    if (family.name.empty() || family.model_types.empty() || family.edges.empty() || family.doubt.empty()) return false;
    if (!(family.alpha >= 0 && family.alpha <= 1)) return false;
    if ((family.condition.fact == nullptr) != family.condition.name.empty()) return false;
    for (const Edge& edge : family.edges)
      if (edge.norm.empty() || edge.readers.empty()) return false;
  }
  for (const ModuleName& name : kModuleNames)
    if (name.component.empty()) return false;
  return true;
}
static_assert(tables_are_complete(), "a row of the families or of the module names lacks something");

// ---- Looking things up --------------------------------------------------------------------------------------------

bool is_one_of(std::string_view text, Names list) { return std::find(list.begin(), list.end(), text) != list.end(); }

// '*' at an end of the pattern stands for anything.
bool fits(std::string_view model_type, std::string_view pattern) {
  const bool any_before = pattern.starts_with('*'), any_after = pattern.ends_with('*');
  pattern.remove_prefix(any_before ? 1 : 0);
  pattern.remove_suffix(any_after ? 1 : 0);
  if (any_before && any_after) return model_type.find(pattern) != std::string_view::npos;
  if (any_before) return model_type.ends_with(pattern);
  return any_after ? model_type.starts_with(pattern) : model_type == pattern;
}

bool is_attention(std::string_view component) {
  return component.find("attn") != std::string_view::npos || component.find("ttention") != std::string_view::npos;
}

bool is_mlp(std::string_view component) {
  for (const std::string_view part : {"mlp", "MLP", "ffn", "feed_forward", "Dense"})
    if (component.find(part) != std::string_view::npos) return true;
  return false;
}

bool is_below(std::string_view module, Below below) {
  const std::string_view parent = format::parent_of(module), component = format::last_component(parent);
  switch (below) {
    case Below::anything: return true;
    case Below::something: return !parent.empty();
    case Below::nothing: return module.find('.') == std::string_view::npos;
    case Below::attention: return is_attention(component);
    case Below::attention_output:
      return component == "output" && is_attention(format::last_component(format::parent_of(parent)));
    case Below::mlp: return is_mlp(component) && !is_attention(component);
    case Below::intermediate: return component == "intermediate";
    case Below::output: return component == "output";
  }
  return false;
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* family_of(std::string_view model_type) {
  for (const Family& family : kFamilies)
    if (is_one_of(model_type, family.model_types)) return &family;
  return nullptr;
}

const Family* family_named(std::string_view name) {
  for (const Family& family : kFamilies)
    if (family.name == name) return &family;
  return nullptr;
}

std::string names_of_families() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return base::joined(names, ", ");
}

std::string against_folding(const ModelFacts& facts, const Family* family) {
  for (const Unfoldable& unfoldable : kUnfoldable)
    if (std::any_of(unfoldable.model_types.begin(), unfoldable.model_types.end(),
                    [&](std::string_view pattern) { return fits(facts.model_type, pattern); }))
      return fmt::format("model_type '{}': {}", io::printable(facts.model_type), unfoldable.reason);
  if (family == nullptr || family->condition.fact == nullptr) return {};
  const FoldCondition& condition = family->condition;
  if (facts.*condition.fact == condition.wanted) return {};
  return fmt::format("{} is {}: its norms feed the residual as well as the linears, so they cannot be folded",
                     condition.name, !condition.wanted);
}

const ModuleName* find_module_name(std::string_view module) {
  const std::string_view last = format::last_component(module);
  const auto* const found = std::find_if(std::begin(kModuleNames), std::end(kModuleNames), [&](const ModuleName& name) {
    return name.component == last && is_below(module, name.below);
  });
  return found == std::end(kModuleNames) ? nullptr : found;
}

std::vector<std::string_view> components_of(FusedSet set) {
  std::vector<std::string_view> components;
  if (set == FusedSet::none) return components;
  for (const ModuleName& name : kModuleNames)
    if (name.fused == set) components.push_back(name.component);
  return components;
}

bool stores_conv1d(std::string_view model_type) { return is_one_of(model_type, kConv1dTypes); }

}  // namespace kvant::model
