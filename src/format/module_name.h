// Names of tensors and modules: components joined by dots. "model.layers.0.mlp.up_proj.weight" is the weight of the
// module "model.layers.0.mlp.up_proj".
#pragma once

#include <string_view>

namespace kvant::format {

// "model.layers.0.mlp.up_proj" of "model.layers.0.mlp.up_proj.weight"; empty for other names.
constexpr std::string_view module_of(std::string_view tensor_name) {
  constexpr std::string_view kSuffix = ".weight";
  if (!tensor_name.ends_with(kSuffix)) return {};
  return tensor_name.substr(0, tensor_name.size() - kSuffix.size());
}

// "up_proj" of "model.layers.0.mlp.up_proj"
constexpr std::string_view last_component(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? module : module.substr(dot + 1);
}

// "model.layers.0.mlp"; empty where nothing is above.
constexpr std::string_view parent_of(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
}

// "model"
constexpr std::string_view first_component(std::string_view module) { return module.substr(0, module.find('.')); }

// A component that is a number: a layer, an expert.
constexpr bool is_number(std::string_view component) {
  return !component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos;
}

// "model.layers.0.mlp.experts" of "model.layers.0.mlp.experts.3.up_proj", whose matrices loaders join into one stack;
// empty for other names, also for those of shared experts.
constexpr std::string_view experts_of(std::string_view module) {
  const std::string_view expert = parent_of(module), experts = parent_of(expert);
  return is_number(last_component(expert)) && last_component(experts) == "experts" ? experts : std::string_view();
}

}  // namespace kvant::format
