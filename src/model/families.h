// What kvant knows about models by name, in two tables (families.cc): families, whose blocks say which norms feed which
// linears, and components of module names, which say what a module is. Everything that judges by a name asks here.
#pragma once

#include <cstdint>
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

// A norm and its readers in one block, relative to the block's prefix. A '*' stands for a number: experts.*.w1.
struct Edge {
  std::string_view norm;
  std::span<const Names> readers;  // one of these sets, and all of it
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
  std::span<const Edge> edges;
  Names others;  // of a block, and read no norm of it
  double alpha;  // of the smoothing, unless somebody says another
  FoldCondition condition = {};
  std::string_view beside = {};  // what must be beside the blocks to know the family by names alone; may be empty
  std::string_view doubt;        // which model has the same names and must not be folded
};

std::span<const Family> families();
const Family* family_of(std::string_view model_type);  // null: none has it
const Family* family_named(std::string_view name);     // null: there is none
std::string names_of_families();                       // "llama, opt, bloom"

// Why no norm of a model can be folded, whoever says so; empty: nothing is known against it. `family` may be null.
std::string against_folding(const ModelFacts& facts, const Family* family);

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
enum class FusedSet : std::uint8_t { none, qkv_proj, w_qkv, query_key_value, gate_up_proj, w1_w3 };

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
