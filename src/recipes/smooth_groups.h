// Which norms can absorb the smoothing of which linears (SmoothQuant): found from config.json's model_type and the
// names of tensors, or given by the user as JSON.
//
// A group is one norm and everything that reads its output. Folding divides the norm's weight and bias by s and
// multiplies the columns of every reader by s, so that nothing else changes: a reader that is not quantized (a router
// of experts) is multiplied too, and a norm whose output goes anywhere else (a residual, as in BERT or in BLOOM with
// apply_residual_connection_post_layernorm) is left alone with the reason.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"

namespace kvant::recipes {

struct SmoothGroup {
  std::string norm;                  // a module: "model.layers.0.input_layernorm"
  std::vector<std::string> readers;  // modules: "model.layers.0.self_attn.q_proj" …
};

struct SmoothGroups {
  std::string family;  // "llama"; empty: none was recognized
  std::vector<SmoothGroup> groups;
  std::map<std::string, std::string> left_alone;  // norm → reason
  std::string refusal;                            // why nothing can be folded in this model; empty: something can
  double default_alpha = 0.5;                     // 0.8 for Llama-like models
};

// What of config.json decides.
struct ModelFacts {
  std::string model_type;                                 // "llama"
  bool do_layer_norm_before = true;                       // OPT: false for the post-norm ones
  bool apply_residual_connection_post_layernorm = false;  // BLOOM
};

// `modules` are the names of all modules that have a weight, `linears` those of 2-D weights among them.
SmoothGroups find_smooth_groups(const ModelFacts& facts, const std::set<std::string, std::less<>>& modules);

// {"groups": [{"norm": "…", "linears": ["…", …]}, …]} with names that must exist in `modules`; a name may hold "{i}",
// which stands for every number that makes the norm exist.
Result<SmoothGroups> parse_smooth_groups(std::string_view json, const std::set<std::string, std::less<>>& modules);

}  // namespace kvant::recipes
