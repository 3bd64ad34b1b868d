#include "recipes/smooth_groups.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "core/refuse.h"
#include "io/file.h"

namespace kvant::recipes {
namespace {

using Modules = std::set<std::string, std::less<>>;

// A norm and its readers in one block, relative to the block's prefix. A '*' stands for one component: experts.*.w1.
struct Edge {
  std::string_view norm;
  std::span<const std::string_view> readers;
};

struct Family {
  std::string_view name;
  std::span<const std::string_view> model_types;
  std::span<const Edge> edges;
  double alpha;
};

constexpr std::string_view kAttentionReaders[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                                  "self_attn.qkv_proj"};
// Routers and all experts read what the MLP reads.
constexpr std::string_view kMlpReaders[] = {"mlp.gate_proj",
                                            "mlp.up_proj",
                                            "mlp.gate_up_proj",
                                            "mlp.gate",
                                            "mlp.experts.*.gate_proj",
                                            "mlp.experts.*.up_proj",
                                            "mlp.shared_expert.gate_proj",
                                            "mlp.shared_expert.up_proj",
                                            "mlp.shared_expert_gate",
                                            "block_sparse_moe.gate",
                                            "block_sparse_moe.experts.*.w1",
                                            "block_sparse_moe.experts.*.w3"};
constexpr Edge kLlamaEdges[] = {{"input_layernorm", kAttentionReaders}, {"post_attention_layernorm", kMlpReaders}};
constexpr std::string_view kLlamaTypes[] = {"llama", "mistral", "mixtral",   "qwen2",     "qwen3",
                                            "phi3",  "yi",      "qwen2_moe", "qwen3_moe", "internlm3"};

constexpr std::string_view kOptAttention[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
constexpr std::string_view kOptMlp[] = {"fc1"};
constexpr Edge kOptEdges[] = {{"self_attn_layer_norm", kOptAttention}, {"final_layer_norm", kOptMlp}};
constexpr std::string_view kOptTypes[] = {"opt"};

constexpr std::string_view kBloomAttention[] = {"self_attention.query_key_value"};
constexpr std::string_view kBloomMlp[] = {"mlp.dense_h_to_4h"};
constexpr Edge kBloomEdges[] = {{"input_layernorm", kBloomAttention}, {"post_attention_layernorm", kBloomMlp}};
constexpr std::string_view kBloomTypes[] = {"bloom"};

constexpr Family kFamilies[] = {{"llama", kLlamaTypes, kLlamaEdges, 0.8},
                                {"opt", kOptTypes, kOptEdges, 0.5},
                                {"bloom", kBloomTypes, kBloomEdges, 0.5}};

// Does `text` equal `pattern`, in which a '*' is one component?
bool fits(std::string_view text, std::string_view pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return text == pattern;
  const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (text.size() < before.size() + 1 + after.size() || !text.starts_with(before) || !text.ends_with(after))
    return false;
  const std::string_view middle = text.substr(before.size(), text.size() - before.size() - after.size());
  return middle.find('.') == std::string_view::npos;
}

// All modules below "prefix." that an edge names.
std::vector<std::string> readers_below(const Modules& modules, std::string_view prefix,
                                       std::span<const std::string_view> patterns) {
  std::vector<std::string> readers;
  for (auto it = modules.lower_bound(prefix); it != modules.end() && it->starts_with(prefix); ++it) {
    const std::string_view rest = std::string_view(*it).substr(prefix.size());
    if (std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return fits(rest, p); }))
      readers.push_back(*it);
  }
  return readers;
}

void add_edge(const Edge& edge, const Modules& modules, SmoothGroups& found) {
  for (const std::string& module : modules) {
    if (!module.ends_with(edge.norm)) continue;
    const std::string_view prefix = std::string_view(module).substr(0, module.size() - edge.norm.size());
    if (prefix.empty() || prefix.back() != '.') continue;
    std::vector<std::string> readers = readers_below(modules, prefix, edge.readers);
    if (readers.empty())
      found.left_alone[module] = "no linear was found that reads it";
    else
      found.groups.push_back({module, std::move(readers)});
  }
}

bool is_gemma(std::string_view model_type) { return model_type.starts_with("gemma"); }

}  // namespace

SmoothGroups find_smooth_groups(const ModelFacts& facts, const Modules& modules) {
  SmoothGroups found;
  if (is_gemma(facts.model_type)) {
    found.refusal = "its norms multiply by (1 + weight), so dividing the weight would change the model";
    return found;
  }
  const Family* family = nullptr;
  for (const Family& f : kFamilies)
    if (std::find(f.model_types.begin(), f.model_types.end(), facts.model_type) != f.model_types.end()) family = &f;
  if (family == nullptr) {
    found.refusal = fmt::format("the order of norms and linears in model_type '{}' is not known; give it as a file",
                                io::printable(facts.model_type));
    return found;
  }
  found.family = family->name;
  found.default_alpha = family->alpha;
  if (family->name == "opt" && !facts.do_layer_norm_before) {
    found.refusal = "do_layer_norm_before is false: its norms feed the residual as well";
    return found;
  }
  if (family->name == "bloom" && facts.apply_residual_connection_post_layernorm) {
    found.refusal = "apply_residual_connection_post_layernorm is true: its norms feed the residual as well";
    return found;
  }
  for (const Edge& edge : family->edges) add_edge(edge, modules, found);
  std::sort(found.groups.begin(), found.groups.end(),
            [](const SmoothGroup& a, const SmoothGroup& b) { return a.norm < b.norm; });
  if (found.groups.empty()) found.refusal = "no norm with linears behind it was found among its tensors";
  return found;
}

namespace {

// "model.layers.{i}.x" with i in place.
std::string with_index(std::string text, std::string_view index) {
  constexpr std::string_view kPlace = "{i}";
  for (std::size_t at = text.find(kPlace); at != std::string::npos; at = text.find(kPlace, at + index.size()))
    text.replace(at, kPlace.size(), index);
  return text;
}

// The numbers that make a name with "{i}" the name of a module; one empty text for a name without.
std::vector<std::string> indices_of(const std::string& text, const Modules& modules) {
  const std::size_t at = text.find("{i}");
  if (at == std::string::npos) return {""};
  std::vector<std::string> indices;
  const std::string prefix = text.substr(0, at);
  for (auto it = modules.lower_bound(prefix); it != modules.end() && it->starts_with(prefix); ++it) {
    const std::size_t end = it->find_first_not_of("0123456789", at);
    const std::string index = it->substr(at, end == std::string::npos ? std::string::npos : end - at);
    if (!index.empty() && with_index(text, index) == *it) indices.push_back(index);
  }
  return indices;
}

}  // namespace

Result<SmoothGroups> parse_smooth_groups(std::string_view json, const Modules& modules) {
  const nlohmann::json document = nlohmann::json::parse(json, nullptr, false);
  const auto bad = [](const std::string& what) { return core::invalid_problem("smoothing groups: {}", what); };
  if (!document.is_object() || !document.contains("groups") || !document["groups"].is_array())
    return bad("must be an object with an array \"groups\"");
  SmoothGroups found;
  found.family = "given";
  for (const nlohmann::json& group : document["groups"]) {
    if (!group.is_object() || !group.contains("norm") || !group["norm"].is_string() || !group.contains("linears") ||
        !group["linears"].is_array() || group["linears"].empty())
      return bad("each group needs a string \"norm\" and a list \"linears\" of at least one");
    const auto norm = group["norm"].get<std::string>();
    const std::vector<std::string> indices = indices_of(norm, modules);
    if (indices.empty()) return bad(fmt::format("no module is named like the norm '{}'", io::printable(norm)));
    for (const std::string& index : indices) {
      SmoothGroup one{with_index(norm, index), {}};
      for (const nlohmann::json& linear : group["linears"]) {
        if (!linear.is_string()) return bad("the names of linears must be strings");
        one.readers.push_back(with_index(linear.get<std::string>(), index));
      }
      for (const std::string* module : {&one.norm, &one.readers.front()})
        if (!modules.contains(*module)) return bad(fmt::format("there is no module '{}'", io::printable(*module)));
      for (const std::string& reader : one.readers)
        if (!modules.contains(reader)) return bad(fmt::format("there is no module '{}'", io::printable(reader)));
      found.groups.push_back(std::move(one));
    }
  }
  return found;
}

}  // namespace kvant::recipes
