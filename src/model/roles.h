// What a tensor of a checkpoint is, judged by its name, shape and dtype: which of them are weights of Linear modules,
// and why the others are not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace kvant::model {

enum class Role : std::uint8_t {
  linear,     // a 2-D weight in floating point that nothing below claims
  lm_head,    // the output projection
  embedding,  // a table of vectors
  router,     // chooses the experts of a mixture
  norm,       // scale or shift of a normalization
  bias,
  conv1d,  // GPT-2's kind of linear, stored as [in, out]
  other,
};
std::string_view name(Role role);

struct Judgement {
  Role role = Role::other;
  std::string reason;  // "a 2-D weight", "has 3 dimensions"
};

// Whether loaders take such a module for a Linear, quantized or not.
bool is_linear_module(Role role);

// `model_type` is config.json's, or empty. gpt2 and its relatives keep Conv1D weights as [in, out].
Judgement judge(const io::TensorInfo& tensor, std::string_view model_type);

// Modules of the same parent that loaders join with this one into one matrix, so that all are quantized or none:
// "….k_proj" and "….v_proj" for "….q_proj".
std::vector<std::string> fused_siblings(std::string_view module);
// The same with the module itself, in the order in which loaders join them; empty where they join none.
std::vector<std::string> fused_parts(std::string_view module);

}  // namespace kvant::model
