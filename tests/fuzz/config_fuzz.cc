// The readers of config.json on arbitrary bytes: what a quantization_config that is accepted means can be written, and
// is read again as the same; its lists are patterns or are refused; a network that is made has the sizes that it says.
// quantization_config_test runs it over the corpus; with -DKVANT_FUZZ=ON and Clang it is a libFuzzer program:
// build/.../tests/config_fuzz tests/fuzz/corpus/config
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/patterns.h"
#include "format/quantization_config.h"
#include "format/scheme.h"
#include "io/json.h"
#include "model/model_facts.h"
#include "model/network.h"

namespace {

using kvant::io::Json;

void require(bool good, const std::string& sentence) {
  if (good) return;
  std::fprintf(stderr, "config_fuzz: %s\n", sentence.c_str());
  std::abort();
}

// Nothing where it was refused.
std::optional<kvant::format::QuantizationConfig> parse(const Json& value) {
  std::vector<std::string> problems;
  auto config = kvant::format::parse_quantization_config({"input", std::make_shared<const Json>(value)}, problems);
  require(config || !problems.empty(), "refused without a sentence");
  for (const std::string& problem : problems) require(!problem.empty(), "a sentence without a word");
  return problems.empty() ? std::move(config) : std::nullopt;
}

void check_patterns(const std::vector<std::string>& list) {
  const auto patterns = kvant::format::Patterns::parse(list);
  if (!patterns.ok()) {
    require(!patterns.status().message().empty(), "patterns are refused without a sentence");
    return;
  }
  (void)patterns->match("model.layers.0.mlp.gate_proj");
}

void check_quantization(const Json& value) {
  const auto config = parse(value);
  if (!config) return;
  require(!config->groups.empty(), "a configuration without groups was read");
  check_patterns(config->ignore);
  for (const kvant::format::SchemeGroup& group : config->groups) check_patterns(group.targets);
  (void)kvant::format::describe(*config);
  const auto again = parse(kvant::format::quantization_json(*config));
  require(again.has_value(), "what was read and written is refused");
  bool equal = again->ignore == config->ignore && again->groups.size() == config->groups.size() &&
               again->fp8_kv_cache == config->fp8_kv_cache;
  for (std::size_t i = 0; equal && i < config->groups.size(); ++i)
    equal =
        again->groups[i].scheme == config->groups[i].scheme && again->groups[i].targets == config->groups[i].targets;
  require(equal, "written and read again it differs");
}

// The modules of a Llama of two layers, one of them with experts, so that networks are made of some inputs.
const kvant::model::Modules& modules() {
  static const kvant::model::Modules all = [] {
    kvant::model::Modules made = {"model.embed_tokens", "model.norm", "lm_head"};
    for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
      for (const char* name : {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                               "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm",
                               "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "block_sparse_moe.gate"})
        made.emplace(layer + name);
      for (const char* expert : {"0", "1"})
        for (const char* name : {".w1", ".w2", ".w3"})
          made.emplace(layer + "block_sparse_moe.experts." + expert + name);
    }
    return made;
  }();
  return all;
}

void check_network(const Json& config) {
  const auto network = kvant::model::make_network(config, modules());
  if (!network.ok()) {
    require(!network.status().message().empty(), "a network is refused without a sentence");
    return;
  }
  require(!network->blocks.empty() && network->blocks.size() <= 2, "blocks without modules");
  require(network->heads > 0 && network->kv_heads > 0 && network->heads % network->kv_heads == 0,
          "heads do not divide");
  for (const kvant::model::Block& block : network->blocks)
    for (const kvant::model::Step& step : block.steps)
      for (const kvant::model::LinearModule* linear : kvant::model::linears_of(step))
        require(linear->in > 0 && linear->out > 0, linear->module + " has no size");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const auto config = kvant::io::parse_json(std::string_view(reinterpret_cast<const char*>(input), size), "input");
  if (!config.ok()) {
    require(config.status().message().substr(0, 7) == "input: ", std::string(config.status().message()));
    return 0;
  }
  // What else than an object a file holds, its reader refuses before anyone looks inside.
  if (!config->is_object()) return 0;
  (void)kvant::model::facts_of(*config);
  if (const auto value = config->find("quantization_config"); value != config->end()) check_quantization(*value);
  check_network(*config);
  return 0;
}
