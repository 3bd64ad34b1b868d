// What config.json says of a model that decides how its tensors are taken.
#pragma once

#include <string>

#include "io/checkpoint.h"
#include "io/json_fwd.h"

namespace kvant::model {

struct ModelFacts {
  std::string model_type;                                 // "llama"; empty: config.json is missing or does not say
  bool do_layer_norm_before = true;                       // OPT: false for the post-norm ones
  bool apply_residual_connection_post_layernorm = false;  // BLOOM
};

// From config.json; all empty where there is none. Models that see pictures keep the facts of their language model in
// "text_config".
ModelFacts facts_of(const io::Checkpoint& checkpoint);
ModelFacts facts_of(const io::Json& config);

}  // namespace kvant::model
