// What kvant knows about models by name, in two tables (families.cc): families, whose blocks say which norms feed which
// linears, and components of module names, which say what a module is. Everything that judges by a name asks here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/layer_kind.h"
#include "model/model_facts.h"
#include "model/roles.h"

namespace kvant::model {

using Names = std::span<const std::string_view>;

// ---- Families ---------------------------------------------------------------------------------------------------

// Modules are named relative to their block's prefix. A '*' stands for a number: experts.*.w1.

// How the linears of an MLP may be stored.
struct MlpForm {
  Names inputs;                  // side by side: gate and up, or both as one matrix, or fc1
  std::string_view output;       // reads what the inputs and the activation made
  std::string_view router = {};  // chooses among the experts that inputs and output then are
  Names shared_inputs = {};      // of an expert that every token goes through
  std::string_view shared_output = {};
  std::string_view shared_gate = {};  // what it is multiplied with
};

// What a block does, step by step. There is a residual, which the steps of `add` add to, and what the step before made.
enum class StepKind : std::uint8_t {
  norm,        // of the residual; or of the residual in place, where it replaces it
  heads,       // queries, keys and values, side by side, from the norm (or from the residual where there is none)
  head_norms,  // of each query and each key; where the checkpoint has them
  rotate,      // queries and keys by their positions
  attend,
  linear,
  mlp,  // from the norm (or from the residual)
  add,  // to the residual
};

struct StepSpec {
  StepKind kind;
  std::string_view module = {};       // of a norm and of a linear
  std::span<const Names> forms = {};  // heads: q, k and v, or all as one; head_norms: of queries and of keys
  std::span<const MlpForm> mlps = {};
  bool in_place = false;  // of a norm
};
using BlockSpec = std::span<const StepSpec>;

enum class NormKind : std::uint8_t { rms, layer };

// What is around the blocks, and how a family reads config.json.
struct NetworkSpec {
  Names stems;                           // before all names, the first that fits: "model.", ""
  std::string_view blocks;               // "layers."
  std::string_view tokens;               // the table of embeddings
  std::string_view positions = {};       // the table of positions that are learned
  std::int64_t first_position = 0;       // the row of the first token there
  std::string_view token_types = {};     // row 0 is added
  std::string_view embedding_norm = {};  // after their sum
  std::string_view final_norm = {};      // may be missing where the checkpoint has none
  std::string_view head = {};            // without a stem; none: an encoder
  NormKind norm = NormKind::rms;
  std::string_view epsilon;    // config.json's name for it
  double default_epsilon = 0;  // where it does not say
  std::string_view hidden_size = "hidden_size";
  std::string_view layers = "num_hidden_layers";
  std::string_view heads = "num_attention_heads";
  std::string_view inner_size = "intermediate_size";
  std::int64_t default_inner = 0;  // times the hidden size, where config.json does not say
  std::string_view activation = "hidden_act";
  bool gated = false;  // the MLP multiplies act(gate) with up
  bool causal = true;
  bool is_conv1d = false;  // linears are stored as [in, out]
};

// A fact of config.json without which the norms feed the residual as well as the linears.
struct FoldCondition {
  bool ModelFacts::*fact = nullptr;  // null: there is none
  std::string_view name = {};        // as config.json writes it
  bool wanted = true;
};

struct Family {
  std::string_view name;
  Names model_types;
  BlockSpec block;
  double alpha;  // of the smoothing, unless somebody says another
  FoldCondition condition = {};
  BlockSpec block_otherwise = {};        // where the condition does not hold; empty: kvant cannot run such a model
  const NetworkSpec* network = nullptr;  // null: kvant cannot run the model
  bool has_cache_scales = false;         // loaders read scales of keys and values (format/kv_cache.h)
  std::string_view beside = {};  // what must be beside the blocks to know the family by names alone; may be empty
  std::string_view doubt = {};   // which model has the same names and must not be folded; empty: none is ever folded
};

// A norm and its readers in one block.
struct Edge {
  std::string_view norm;
  std::vector<std::vector<std::string_view>> readers;  // one of these sets, and all of it
};
// The modules of a family's block, as its steps name them.
struct BlockNames {
  std::vector<Edge> edges;
  std::vector<std::string_view> others;  // read no norm of the block
};
const BlockNames& names_of_block(const Family& family);

std::span<const Family> families();
const Family* family_of(std::string_view model_type);  // null: none has it
const Family* family_named(std::string_view name);     // of those whose norms can be folded; null: there is none
std::string names_of_families();                       // the same: "llama, opt, bloom"

// Why the keys and values of a model cannot have scales in its checkpoint; empty: they can.
std::string against_cache_scales(std::string_view model_type);

// Why no norm of a model can be folded, whoever says so; empty: nothing is known against it. `family` may be null.
std::string against_folding(const ModelFacts& facts, const Family* family);

// How a model stores all experts of a layer in two tensors of three dimensions, as transformers 5 does.
struct ExpertStacks {
  std::string_view gate_up = "gate_up_proj";  // [E, 2I, H]: gate first, then up
  std::string_view down = "down_proj";        // [E, H, I]
  bool turned = false;                        // [E, H, 2I] and [E, I, H]
};
// By the model_type; nothing where kvant does not know how to take them apart.
std::optional<ExpertStacks> expert_stacks(std::string_view model_type);

// ---- Names of modules -------------------------------------------------------------------------------------------

// Where a module must be for a row of the table to be about it.
enum class Below : std::uint8_t {
  anything,
  something,         // not at the top
  nothing,           // at the top
  attention,         // "self_attn", "attention", "SelfAttention"
  attention_output,  // "output" below an attention, as in BERT
  mlp,               // "mlp", "ffn", "feed_forward", T5's "DenseReluDense" and "DenseGatedActDense"
  intermediate,      // "intermediate"
  output,            // "output"
};

// Linears of one parent that loaders join into one matrix have the same set.
enum class FusedSet : std::uint8_t { none, qkv_proj, w_qkv, query_key_value, gate_up_proj, w1_w3, qkv_a_proj };

struct ModuleName {
  std::string_view component;  // the last of the name
  LayerKind kind = LayerKind::other;
  Role role = Role::linear;  // lm_head, embedding or router, if it is a matrix of numbers in floating point
  Below below = Below::anything;
  FusedSet fused = FusedSet::none;
  bool is_conv1d = false;  // in models of stores_conv1d()
};

// The first row that is about the module; null: there is none.
const ModuleName* find_module_name(std::string_view module);
// Every row of a set, in the order of the table. Nothing for FusedSet::none.
std::vector<std::string_view> components_of(FusedSet set);
// gpt2 and its relatives keep some linears as [in, out].
bool stores_conv1d(std::string_view model_type);

}  // namespace kvant::model
