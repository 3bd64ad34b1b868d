#include "quantize/checkpoint_plan.h"

#include <utility>

#include "format/module_name.h"

namespace kvant::quantize {

std::string_view name(Action action) {
  switch (action) {
    case Action::copy: return "copy";
    case Action::quantize: return "quantize";
    case Action::fold_norm: return "fold";
    case Action::smooth: return "smooth";
    case Action::decode: return "decode";
    case Action::recode: return "recode";
    case Action::add_scale: return "add";
  }
  return "unknown";
}

format::QuantizationConfig quantization_config(const CheckpointPlan& plan) {
  std::vector<std::vector<std::string>> modules(plan.schemes.size());
  for (const TensorPlan& tensor : plan.tensors)
    if (has_codes(tensor.action)) modules[tensor.scheme].emplace_back(format::module_of(tensor.name));
  format::QuantizationConfig config{.groups = {}, .ignore = plan.ignore, .fp8_kv_cache = plan.fp8_kv_cache};
  // The first is for all Linears that no other group names.
  for (std::size_t i = 0; i < modules.size(); ++i)
    if (!modules[i].empty()) {
      format::SchemeGroup group{.scheme = plan.schemes[i]};
      if (!config.groups.empty()) group.targets = std::move(modules[i]);
      config.groups.push_back(std::move(group));
    }
  return config;
}

}  // namespace kvant::quantize
