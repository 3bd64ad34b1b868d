// What a tensor of a checkpoint is, judged by its name, shape and dtype: which of them are weights of Linear modules,
// and why the others are not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "kvant/status.h"

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

// `model_type` is config.json's, or empty. gpt2 and its relatives keep Conv1D weights as [in, out].
Judgement judge(const io::TensorInfo& tensor, std::string_view model_type);

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight"; empty for other names.
std::string_view module_of(std::string_view tensor_name);
// "up_proj"
std::string_view last_component(std::string_view module);

// Modules of the same parent that loaders join with this one into one matrix, so that all are quantized or none:
// "….k_proj" and "….v_proj" for "….q_proj".
std::vector<std::string> fused_siblings(std::string_view module);

// A list of patterns as --ignore takes them and as compressed-tensors writes them: an exact module name, or "re:" and a
// regular expression that is matched from the start of the name.
class Patterns {
 public:
  // Refuses a regular expression that does not compile, has a back-reference or more than 1024 bytes, naming it.
  static Result<Patterns> parse(std::span<const std::string> patterns);

  // The first pattern that matches; null if none does. Nothing matches a name of more than 4096 bytes.
  const std::string* match(std::string_view module) const;
  // All that match, in their order.
  std::vector<const std::string*> matches(std::string_view module) const;

 private:
  struct Pattern;
  bool fits(std::size_t pattern, std::string_view module) const;
  std::vector<std::string> patterns_;
  std::shared_ptr<const std::vector<Pattern>> compiled_;
};

}  // namespace kvant::model
