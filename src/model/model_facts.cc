#include "model/model_facts.h"

#include <string_view>

#include "io/json.h"

namespace kvant::model {

ModelFacts facts_of(const io::Checkpoint& checkpoint) {
  return checkpoint.config() == nullptr ? ModelFacts() : facts_of(*checkpoint.config());
}

ModelFacts facts_of(const io::Json& whole) {
  ModelFacts facts;
  const auto text_at = [](const io::Json& object, std::string_view key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const io::Json* config = &whole;
  if (const auto inner = config->find("text_config");
      inner != config->end() && inner->is_object() && !text_at(*inner, "model_type").empty())
    config = &*inner;
  const auto flag_at = [&](std::string_view key, bool otherwise) {
    const auto found = config->find(key);
    return found != config->end() && found->is_boolean() ? found->get<bool>() : otherwise;
  };
  facts.model_type = text_at(*config, "model_type");
  facts.do_layer_norm_before = flag_at("do_layer_norm_before", facts.do_layer_norm_before);
  facts.apply_residual_connection_post_layernorm =
      flag_at("apply_residual_connection_post_layernorm", facts.apply_residual_connection_post_layernorm);
  return facts;
}

}  // namespace kvant::model
