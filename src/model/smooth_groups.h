// Which norms can absorb the smoothing of which linears (SmoothQuant): found from config.json's model_type and the
// names of tensors, or given by the user as a family or as JSON.
//
// A group is one norm and everything that reads its output. Folding divides the norm's weight and bias by s and
// multiplies the columns of every reader by s, so that nothing else changes: a reader that is not quantized (a router
// of experts) is multiplied too, and a norm whose output goes anywhere else (a residual, as in BERT or in BLOOM with
// apply_residual_connection_post_layernorm) is left alone with the reason.
//
// Families are known by their blocks, "model.layers.0." and what is below it: both norms of a family must be there, one
// whole set of readers for each (q, k and v, or qkv), and nothing that is not known to be no reader. A norm of a block
// where this does not hold is left alone. Norms outside of blocks, such as the one before lm_head, are not looked at.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"
#include "model/model_facts.h"

namespace kvant::model {

using Modules = std::set<std::string, std::less<>>;  // the names of all modules that have a weight

struct SmoothGroup {
  std::string norm;                  // a module: "model.layers.0.input_layernorm"
  std::vector<std::string> readers;  // modules: "model.layers.0.self_attn.q_proj" …
};

struct SmoothGroups {
  std::string family;  // "llama"; "given": by a file; empty: none was recognized
  std::vector<SmoothGroup> groups;
  std::map<std::string, std::string> left_alone;  // norm → reason
  std::string refusal;                            // why nothing can be folded in this model; empty: something can
  std::string warning;                            // what to tell before folding; empty: nothing
  double default_alpha = 0.5;                     // 0.8 for Llama-like models
};

// Where there is no model_type, a family is taken whose names all blocks fit, if exactly one is, with a warning. A
// model_type that is not known is refused, also where its names look familiar: a norm may be used in another way.
SmoothGroups find_smooth_groups(const ModelFacts& facts, const Modules& modules);

// For a family that the user names: "llama", "opt" or "bloom", whatever the model_type. Refuses an unknown name, what
// is known to be wrong for the model_type (norms that multiply by (1 + weight) or feed the residual), and names of
// which no block fits. The `refusal` of the value is empty.
Result<SmoothGroups> smooth_groups_of_family(std::string_view family, const ModelFacts& facts, const Modules& modules);

// {"groups": [{"norm": "…", "linears": ["…", …]}, …], "alpha": 0.5} with names that must exist in `modules`; a name may
// hold "{i}", which stands for every number that makes the norm exist. "alpha", from 0 to 1, may be left out.
//
// Refuses, with the name of the file: what io::parse_json refuses, other keys, a norm with two groups, a linear in two
// groups or twice in one, a linear that is a norm, and what is known to be wrong for the model_type: as above, a reader
// that is left out, a linear that reads something else. The `refusal` of the value is empty.
Result<SmoothGroups> parse_smooth_groups(std::string_view json, std::string_view file_name, const ModelFacts& facts,
                                         const Modules& modules);

}  // namespace kvant::model
