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
constexpr Names kLlamaHeads[] = {kSplitAttention, kFusedAttention};
constexpr std::string_view kHeadNorms[] = {"self_attn.q_norm", "self_attn.k_norm"};
constexpr std::string_view kHeadLayerNorms[] = {"self_attn.q_layernorm", "self_attn.k_layernorm"};
constexpr Names kLlamaHeadNorms[] = {kHeadNorms, kHeadLayerNorms};

constexpr std::string_view kSplitMlp[] = {"mlp.gate_proj", "mlp.up_proj"};
constexpr std::string_view kFusedMlp[] = {"mlp.gate_up_proj"};
constexpr std::string_view kExperts[] = {"mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"};
constexpr std::string_view kSharedExpert[] = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"};
constexpr std::string_view kMixtralExperts[] = {"block_sparse_moe.experts.*.w1", "block_sparse_moe.experts.*.w3"};
constexpr MlpForm kLlamaMlps[] = {
    {.inputs = kSplitMlp, .output = "mlp.down_proj"},
    {.inputs = kFusedMlp, .output = "mlp.down_proj"},
    {.inputs = kExperts, .output = "mlp.experts.*.down_proj", .router = "mlp.gate"},
    {.inputs = kExperts,
     .output = "mlp.experts.*.down_proj",
     .router = "mlp.gate",
     .shared_inputs = kSharedExpert,
     .shared_output = "mlp.shared_expert.down_proj",
     .shared_gate = "mlp.shared_expert_gate"},
    {.inputs = kMixtralExperts, .output = "block_sparse_moe.experts.*.w2", .router = "block_sparse_moe.gate"},
};
constexpr StepSpec kLlamaBlock[] = {
    {.kind = StepKind::norm, .module = "input_layernorm"},
    {.kind = StepKind::heads, .forms = kLlamaHeads},
    {.kind = StepKind::head_norms, .forms = kLlamaHeadNorms},
    {.kind = StepKind::rotate},
    {.kind = StepKind::attend},
    {.kind = StepKind::linear, .module = "self_attn.o_proj"},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "post_attention_layernorm"},
    {.kind = StepKind::mlp, .mlps = kLlamaMlps},
    {.kind = StepKind::add},
};
constexpr std::string_view kLlamaTypes[] = {"llama", "mistral", "mixtral",   "qwen2",     "qwen3",
                                            "phi3",  "yi",      "qwen2_moe", "qwen3_moe", "internlm3"};
constexpr std::string_view kModelStems[] = {"model.", ""};
constexpr NetworkSpec kLlamaNetwork = {
    .stems = kModelStems,
    .blocks = "layers.",
    .tokens = "embed_tokens",
    .final_norm = "norm",
    .head = "lm_head",
    .norm = NormKind::rms,
    .epsilon = "rms_norm_eps",
    .default_epsilon = 1e-6,
    .gated = true,
};

constexpr Names kOptHeads[] = {kSplitAttention};
constexpr std::string_view kOptFc1[] = {"fc1"};
constexpr MlpForm kOptMlps[] = {{.inputs = kOptFc1, .output = "fc2"}};
constexpr StepSpec kOptBlock[] = {
    {.kind = StepKind::norm, .module = "self_attn_layer_norm"},
    {.kind = StepKind::heads, .forms = kOptHeads},
    {.kind = StepKind::attend},
    {.kind = StepKind::linear, .module = "self_attn.out_proj"},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "final_layer_norm"},
    {.kind = StepKind::mlp, .mlps = kOptMlps},
    {.kind = StepKind::add},
};
constexpr StepSpec kOptPostNormBlock[] = {
    {.kind = StepKind::heads, .forms = kOptHeads},
    {.kind = StepKind::attend},
    {.kind = StepKind::linear, .module = "self_attn.out_proj"},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "self_attn_layer_norm", .in_place = true},
    {.kind = StepKind::mlp, .mlps = kOptMlps},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "final_layer_norm", .in_place = true},
};
constexpr std::string_view kOptTypes[] = {"opt"};
constexpr std::string_view kOptStems[] = {"model.decoder.", "decoder.", ""};
// Rows 0 and 1 of its positions are for padding.
constexpr NetworkSpec kOptNetwork = {
    .stems = kOptStems,
    .blocks = "layers.",
    .tokens = "embed_tokens",
    .positions = "embed_positions",
    .first_position = 2,
    .final_norm = "final_layer_norm",
    .head = "lm_head",
    .norm = NormKind::layer,
    .epsilon = "layer_norm_eps",
    .default_epsilon = 1e-5,
    .inner_size = "ffn_dim",
    .activation = "activation_function",
};

constexpr std::string_view kBloomQkv[] = {"self_attention.query_key_value"};
constexpr Names kBloomHeads[] = {kBloomQkv};
constexpr std::string_view kBloomUp[] = {"mlp.dense_h_to_4h"};
constexpr MlpForm kBloomMlps[] = {{.inputs = kBloomUp, .output = "mlp.dense_4h_to_h"}};
constexpr StepSpec kBloomBlock[] = {
    {.kind = StepKind::norm, .module = "input_layernorm"},
    {.kind = StepKind::heads, .forms = kBloomHeads},
    {.kind = StepKind::attend},
    {.kind = StepKind::linear, .module = "self_attention.dense"},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "post_attention_layernorm"},
    {.kind = StepKind::mlp, .mlps = kBloomMlps},
    {.kind = StepKind::add},
};
constexpr std::string_view kBloomTypes[] = {"bloom"};

constexpr std::string_view kGpt2Qkv[] = {"attn.c_attn"};
constexpr Names kGpt2Heads[] = {kGpt2Qkv};
constexpr std::string_view kGpt2Up[] = {"mlp.c_fc"};
constexpr MlpForm kGpt2Mlps[] = {{.inputs = kGpt2Up, .output = "mlp.c_proj"}};
constexpr StepSpec kGpt2Block[] = {
    {.kind = StepKind::norm, .module = "ln_1"},
    {.kind = StepKind::heads, .forms = kGpt2Heads},
    {.kind = StepKind::attend},
    {.kind = StepKind::linear, .module = "attn.c_proj"},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "ln_2"},
    {.kind = StepKind::mlp, .mlps = kGpt2Mlps},
    {.kind = StepKind::add},
};
constexpr std::string_view kGpt2Types[] = {"gpt2"};
constexpr std::string_view kGpt2Stems[] = {"transformer.", ""};
constexpr NetworkSpec kGpt2Network = {
    .stems = kGpt2Stems,
    .blocks = "h.",
    .tokens = "wte",
    .positions = "wpe",
    .final_norm = "ln_f",
    .head = "lm_head",
    .norm = NormKind::layer,
    .epsilon = "layer_norm_epsilon",
    .default_epsilon = 1e-5,
    .hidden_size = "n_embd",
    .layers = "n_layer",
    .heads = "n_head",
    .inner_size = "n_inner",
    .default_inner = 4,
    .activation = "activation_function",
    .is_conv1d = true,
};

constexpr std::string_view kBertQkv[] = {"attention.self.query", "attention.self.key", "attention.self.value"};
constexpr Names kBertHeads[] = {kBertQkv};
constexpr std::string_view kBertUp[] = {"intermediate.dense"};
constexpr MlpForm kBertMlps[] = {{.inputs = kBertUp, .output = "output.dense"}};
constexpr StepSpec kBertBlock[] = {
    {.kind = StepKind::heads, .forms = kBertHeads},
    {.kind = StepKind::attend},
    {.kind = StepKind::linear, .module = "attention.output.dense"},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "attention.output.LayerNorm", .in_place = true},
    {.kind = StepKind::mlp, .mlps = kBertMlps},
    {.kind = StepKind::add},
    {.kind = StepKind::norm, .module = "output.LayerNorm", .in_place = true},
};
constexpr std::string_view kBertTypes[] = {"bert"};
constexpr std::string_view kBertStems[] = {"bert.", ""};
constexpr NetworkSpec kBertNetwork = {
    .stems = kBertStems,
    .blocks = "encoder.layer.",
    .tokens = "embeddings.word_embeddings",
    .positions = "embeddings.position_embeddings",
    .token_types = "embeddings.token_type_embeddings",
    .embedding_norm = "embeddings.LayerNorm",
    .norm = NormKind::layer,
    .epsilon = "layer_norm_eps",
    .default_epsilon = 1e-12,
    .causal = false,
};

constexpr Family kFamilies[] = {
    {.name = "llama",
     .model_types = kLlamaTypes,
     .block = kLlamaBlock,
     .alpha = 0.8,
     .network = &kLlamaNetwork,
     .has_cache_scales = true,
     .doubt = "a model whose norms multiply by (1 + weight) has the same names"},
    // With do_layer_norm_before false it has no norm after its blocks.
    {.name = "opt",
     .model_types = kOptTypes,
     .block = kOptBlock,
     .alpha = 0.5,
     .condition = {&ModelFacts::do_layer_norm_before, "do_layer_norm_before", true},
     .block_otherwise = kOptPostNormBlock,
     .network = &kOptNetwork,
     .beside = "final_layer_norm",
     .doubt = "a model whose norms feed the residual as well may have the same names"},
    {.name = "bloom",
     .model_types = kBloomTypes,
     .block = kBloomBlock,
     .alpha = 0.5,
     .condition = {&ModelFacts::apply_residual_connection_post_layernorm, "apply_residual_connection_post_layernorm",
                   false},
     .doubt = "a model with apply_residual_connection_post_layernorm has the same names"},
    {.name = "gpt2", .model_types = kGpt2Types, .block = kGpt2Block, .alpha = 0.5, .network = &kGpt2Network},
    {.name = "bert", .model_types = kBertTypes, .block = kBertBlock, .alpha = 0.5, .network = &kBertNetwork},
};

// They keep the matrices of experts turned. A '*' at an end of a model_type stands for anything, here and below.
constexpr std::string_view kTurnedExperts[] = {"llama4*", "qwen3_vl_moe*"};
// Gate and up of an expert take turns, and experts have biases.
constexpr std::string_view kMixedExperts[] = {"gpt_oss"};

// Models of which no norm can be folded.
struct Unfoldable {
  Names model_types;
  std::string_view reason;
};

// Gemma in all its forms (paligemma, recurrent_gemma), Qwen3-Next and its successors, and Nemotron's LayerNorm1P.
constexpr std::string_view kAddOneTypes[] = {"*gemma*", "qwen3_next*", "qwen3_5*", "nemotron"};
constexpr std::string_view kPostNormTypes[] = {"albert",     "bart",       "bert",       "camembert", "data2vec-text",
                                               "deberta",    "deberta-v2", "distilbert", "electra",   "ernie",
                                               "longformer", "mpnet",      "roberta",    "xlm",       "xlm-roberta"};
// They keep some linears as [in, out].
constexpr std::string_view kConv1dTypes[] = {"gpt2", "imagegpt", "decision_transformer"};
constexpr Unfoldable kUnfoldable[] = {
    {kAddOneTypes, "its norms multiply by (1 + weight), so dividing the weight would change the model"},
    {kPostNormTypes, "its LayerNorm feeds the residual as well as the linears, so it cannot be folded"},
    {kConv1dTypes, "its linears are Conv1D, stored as [in, out], which are not quantized"},
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
    // What DeepSeek's attention reads its input with.
    {.component = "q_a_proj", .fused = FusedSet::qkv_a_proj},
    {.component = "kv_a_proj_with_mqa", .fused = FusedSet::qkv_a_proj},
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

// Both tables are searched by name, so a row that is incomplete would be found by nobody, or by everybody.
consteval bool is_complete(BlockSpec block) {
  for (const StepSpec& step : block) {
    const bool named = step.kind == StepKind::norm || step.kind == StepKind::linear;
    if (named == step.module.empty()) return false;
    if ((step.kind == StepKind::heads || step.kind == StepKind::head_norms) == step.forms.empty()) return false;
    if ((step.kind == StepKind::mlp) == step.mlps.empty()) return false;
    for (const MlpForm& form : step.mlps)
      if (form.inputs.empty() || form.output.empty()) return false;
  }
  return !block.empty();
}

consteval bool tables_are_complete() {
  for (const Family& family : kFamilies) {
    if (family.name.empty() || family.model_types.empty()) return false;
    if (!(family.alpha >= 0 && family.alpha <= 1)) return false;
    if ((family.condition.fact == nullptr) != family.condition.name.empty()) return false;
    if (!is_complete(family.block) || (!family.block_otherwise.empty() && !is_complete(family.block_otherwise)))
      return false;
    if (const NetworkSpec* n = family.network; n != nullptr)
      if (n->stems.empty() || n->blocks.empty() || n->tokens.empty() || n->epsilon.empty() || n->default_epsilon <= 0)
        return false;
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

bool is_among(std::string_view model_type, Names patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](std::string_view pattern) { return fits(model_type, pattern); });
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

// What an MLP reads its input with.
std::vector<std::string_view> readers_of(const MlpForm& form) {
  std::vector<std::string_view> readers;
  if (!form.router.empty()) readers.push_back(form.router);
  readers.insert(readers.end(), form.inputs.begin(), form.inputs.end());
  readers.insert(readers.end(), form.shared_inputs.begin(), form.shared_inputs.end());
  if (!form.shared_gate.empty()) readers.push_back(form.shared_gate);
  return readers;
}

BlockNames collect_names(BlockSpec block) {
  BlockNames names;
  const auto other = [&](std::string_view module) {
    if (!module.empty() && !is_one_of(module, names.others)) names.others.push_back(module);
  };
  std::string_view norm;  // whose output the next step reads
  const auto reads = [&](std::vector<std::string_view> set) {
    if (norm.empty()) {
      for (const std::string_view module : set) other(module);
      return;
    }
    if (names.edges.empty() || names.edges.back().norm != norm) names.edges.push_back({norm, {}});
    names.edges.back().readers.push_back(std::move(set));
  };
  for (const StepSpec& step : block) {
    if (step.kind == StepKind::linear || (step.kind == StepKind::norm && step.in_place)) other(step.module);
    if (step.kind == StepKind::head_norms)
      for (const Names form : step.forms)
        for (const std::string_view module : form) other(module);
    if (step.kind == StepKind::heads)
      for (const Names form : step.forms) reads({form.begin(), form.end()});
    for (const MlpForm& form : step.mlps) {
      reads(readers_of(form));
      other(form.output);
      other(form.shared_output);
    }
    norm = step.kind == StepKind::norm && !step.in_place ? step.module : std::string_view();
  }
  return names;
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
    if (family.name == name && !family.doubt.empty()) return &family;
  return nullptr;
}

std::string names_of_families() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies)
    if (!family.doubt.empty()) names.push_back(family.name);
  return base::joined(names, ", ");
}

std::string against_cache_scales(std::string_view model_type) {
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) {
    if (!family.has_cache_scales) continue;
    if (is_one_of(model_type, family.model_types)) return {};
    known.insert(known.end(), family.model_types.begin(), family.model_types.end());
  }
  return fmt::format("model_type '{}': loaders are known to read scales of keys and values only of {}",
                     io::printable(model_type), base::joined(known, ", "));
}

const BlockNames& names_of_block(const Family& family) {
  static const std::vector<BlockNames> all = [] {
    std::vector<BlockNames> names;
    for (const Family& each : kFamilies) names.push_back(collect_names(each.block));
    return names;
  }();
  return all[static_cast<std::size_t>(&family - kFamilies)];
}

std::string against_folding(const ModelFacts& facts, const Family* family) {
  for (const Unfoldable& unfoldable : kUnfoldable)
    if (is_among(facts.model_type, unfoldable.model_types))
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

std::optional<ExpertStacks> expert_stacks(std::string_view model_type) {
  if (is_among(model_type, kMixedExperts)) return std::nullopt;
  return ExpertStacks{.turned = is_among(model_type, kTurnedExperts)};
}

bool stores_conv1d(std::string_view model_type) { return is_one_of(model_type, kConv1dTypes); }

}  // namespace kvant::model
