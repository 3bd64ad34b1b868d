#include "model/roles.h"

#include <fmt/core.h>

#include "format/element_dtype.h"
#include "format/module_name.h"
#include "model/families.h"

namespace kvant::model {
namespace {

// "input_layernorm", "LayerNorm", "norm1", "ln_f", "ln2"
bool looks_like_norm(std::string_view component) {
  if (component.find("norm") != std::string_view::npos || component.find("Norm") != std::string_view::npos) return true;
  if (!component.starts_with("ln")) return false;
  return component.starts_with("ln_") || component.find_first_not_of("0123456789", 2) == std::string_view::npos;
}

}  // namespace

std::string_view name(Role role) {
  switch (role) {
    case Role::linear: return "linear";
    case Role::lm_head: return "lm_head";
    case Role::embedding: return "embedding";
    case Role::router: return "router";
    case Role::norm: return "norm";
    case Role::bias: return "bias";
    case Role::conv1d: return "conv1d";
    case Role::other: return "other";
  }
  return "unknown";
}

bool is_linear_module(Role role) { return role == Role::linear || role == Role::lm_head || role == Role::router; }

std::vector<std::string> fused_parts(std::string_view module) {
  std::vector<std::string> parts;
  const ModuleName* const known = find_module_name(module);
  if (known == nullptr) return parts;
  const std::string_view parent = module.substr(0, module.size() - known->component.size());
  for (const std::string_view part : components_of(known->fused)) parts.push_back(fmt::format("{}{}", parent, part));
  return parts;
}

std::vector<std::string> fused_siblings(std::string_view module) {
  std::vector<std::string> siblings = fused_parts(module);
  std::erase(siblings, module);
  return siblings;
}

Judgement judge(const io::TensorInfo& tensor, std::string_view model_type) {
  constexpr std::string_view kBias = ".bias";
  if (tensor.name.ends_with(kBias)) {
    const auto of = std::string_view(tensor.name).substr(0, tensor.name.size() - kBias.size());
    if (looks_like_norm(format::last_component(of))) return {Role::norm, "the shift of a norm"};
    return {Role::bias, "a bias"};
  }
  const std::string_view module = format::module_of(tensor.name);
  if (module.empty()) return {Role::other, "its name does not end in .weight"};
  const std::string_view last = format::last_component(module);
  if (looks_like_norm(last)) return {Role::norm, "a norm"};
  if (tensor.shape.size() != 2)
    return {Role::other, fmt::format("has {} dimension{}, a Linear has 2", tensor.shape.size(),
                                     tensor.shape.size() == 1 ? "" : "s")};
  if (!format::element_of(tensor.dtype))
    return {Role::other, fmt::format("holds {}, not floating point", io::name(tensor.dtype))};
  const ModuleName* const known = find_module_name(module);
  const Role role = known != nullptr                                              ? known->role
                    : last.ends_with("embedding") || last.ends_with("embeddings") ? Role::embedding
                                                                                  : Role::linear;
  if (role == Role::lm_head) return {role, "the output projection"};
  if (role == Role::embedding) return {role, "an embedding"};
  if (role == Role::router) return {role, "a router of experts"};
  if (known != nullptr && known->is_conv1d && stores_conv1d(model_type))
    return {Role::conv1d, "a Conv1D, stored as [in, out]"};
  return {Role::linear, "a 2-D weight"};
}

}  // namespace kvant::model
