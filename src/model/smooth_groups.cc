#include "model/smooth_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/refuse.h"
#include "io/file.h"
#include "io/json.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;
using Modules = std::set<std::string, std::less<>>;
using Names = std::span<const std::string_view>;

// ---- Families -------------------------------------------------------------------------------------------------

// A norm and its readers in one block, relative to the block's prefix. A '*' stands for a number: experts.*.w1.
struct Edge {
  std::string_view norm;
  std::span<const Names> readers;  // one of these sets, and all of it
};

struct Family {
  std::string_view name;
  Names model_types;
  std::span<const Edge> edges;
  Names others;  // of a block, and read no norm of it
  double alpha;
  std::string_view beside;  // what must stand beside the blocks to know the family by names alone; may be empty
  std::string_view doubt;   // which model has the same names and must not be folded
};

constexpr std::string_view kSplitAttention[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
constexpr std::string_view kFusedAttention[] = {"self_attn.qkv_proj"};
constexpr std::string_view kSplitMlp[] = {"mlp.gate_proj", "mlp.up_proj"};
constexpr std::string_view kFusedMlp[] = {"mlp.gate_up_proj"};
// Routers and all experts read what the MLP reads.
constexpr std::string_view kExperts[] = {"mlp.gate", "mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"};
constexpr std::string_view kExpertsAndShared[] = {"mlp.gate",
                                                  "mlp.experts.*.gate_proj",
                                                  "mlp.experts.*.up_proj",
                                                  "mlp.shared_expert.gate_proj",
                                                  "mlp.shared_expert.up_proj",
                                                  "mlp.shared_expert_gate"};
constexpr std::string_view kMixtralExperts[] = {"block_sparse_moe.gate", "block_sparse_moe.experts.*.w1",
                                                "block_sparse_moe.experts.*.w3"};
constexpr Names kLlamaAttention[] = {kSplitAttention, kFusedAttention};
constexpr Names kLlamaMlp[] = {kSplitMlp, kFusedMlp, kExperts, kExpertsAndShared, kMixtralExperts};
constexpr Edge kLlamaEdges[] = {{"input_layernorm", kLlamaAttention}, {"post_attention_layernorm", kLlamaMlp}};
// Norms of heads read what q_proj and k_proj wrote.
constexpr std::string_view kLlamaOthers[] = {"self_attn.o_proj",
                                             "self_attn.q_norm",
                                             "self_attn.k_norm",
                                             "self_attn.q_layernorm",
                                             "self_attn.k_layernorm",
                                             "mlp.down_proj",
                                             "mlp.experts.*.down_proj",
                                             "mlp.shared_expert.down_proj",
                                             "block_sparse_moe.experts.*.w2"};
constexpr std::string_view kLlamaTypes[] = {"llama", "mistral", "mixtral",   "qwen2",     "qwen3",
                                            "phi3",  "yi",      "qwen2_moe", "qwen3_moe", "internlm3"};

constexpr std::string_view kOptFc1[] = {"fc1"};
constexpr Names kOptAttention[] = {kSplitAttention};
constexpr Names kOptMlp[] = {kOptFc1};
constexpr Edge kOptEdges[] = {{"self_attn_layer_norm", kOptAttention}, {"final_layer_norm", kOptMlp}};
constexpr std::string_view kOptOthers[] = {"self_attn.out_proj", "fc2"};
constexpr std::string_view kOptTypes[] = {"opt"};

constexpr std::string_view kBloomQkv[] = {"self_attention.query_key_value"};
constexpr std::string_view kBloomUp[] = {"mlp.dense_h_to_4h"};
constexpr Names kBloomAttention[] = {kBloomQkv};
constexpr Names kBloomMlp[] = {kBloomUp};
constexpr Edge kBloomEdges[] = {{"input_layernorm", kBloomAttention}, {"post_attention_layernorm", kBloomMlp}};
constexpr std::string_view kBloomOthers[] = {"self_attention.dense", "mlp.dense_4h_to_h"};
constexpr std::string_view kBloomTypes[] = {"bloom"};

// OPT with do_layer_norm_before false has no norm behind its blocks.
constexpr Family kFamilies[] = {{"llama", kLlamaTypes, kLlamaEdges, kLlamaOthers, 0.8, "",
                                 "a model whose norms multiply by (1 + weight) has the same names"},
                                {"opt", kOptTypes, kOptEdges, kOptOthers, 0.5, "final_layer_norm",
                                 "a model whose norms feed the residual as well may have the same names"},
                                {"bloom", kBloomTypes, kBloomEdges, kBloomOthers, 0.5, "",
                                 "a model with apply_residual_connection_post_layernorm has the same names"}};

constexpr std::string_view kBertTypes[] = {"albert",     "bart",       "bert",       "camembert", "data2vec-text",
                                           "deberta",    "deberta-v2", "distilbert", "electra",   "ernie",
                                           "longformer", "mpnet",      "roberta",    "xlm",       "xlm-roberta"};

bool is_one_of(std::string_view text, Names list) { return std::find(list.begin(), list.end(), text) != list.end(); }

const Family* family_of(std::string_view model_type) {
  for (const Family& family : kFamilies)
    if (is_one_of(model_type, family.model_types)) return &family;
  return nullptr;
}

// Gemma in all its forms (paligemma, recurrent_gemma), Qwen3-Next and its successors, and Nemotron's LayerNorm1P.
bool adds_one_to_norms(std::string_view model_type) {
  return model_type.find("gemma") != std::string_view::npos || model_type.starts_with("qwen3_next") ||
         model_type.starts_with("qwen3_5") || model_type == "nemotron";
}

// Why no norm of a model can be folded, whoever says so; empty: nothing is known against it.
std::string against_folding(const ModelFacts& facts, const Family* family) {
  const std::string model = fmt::format("model_type '{}'", printable(facts.model_type));
  if (adds_one_to_norms(facts.model_type))
    return fmt::format("{}: its norms multiply by (1 + weight), so dividing the weight would change the model", model);
  if (is_one_of(facts.model_type, kBertTypes))
    return fmt::format("{}: its LayerNorm feeds the residual as well as the linears, so it cannot be folded", model);
  if (family == nullptr) return {};
  if (family->name == "opt" && !facts.do_layer_norm_before)
    return "do_layer_norm_before is false: its norms feed the residual as well as the linears, so they cannot be "
           "folded";
  if (family->name == "bloom" && facts.apply_residual_connection_post_layernorm)
    return "apply_residual_connection_post_layernorm is true: its norms feed the residual as well as the linears, so "
           "they cannot be folded";
  return {};
}

// ---- Blocks ---------------------------------------------------------------------------------------------------

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Does `text` equal `pattern`? With the number that '*' stands for, empty where there is no '*'.
std::optional<std::string_view> fit(std::string_view text, std::string_view pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return text == pattern ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (text.size() <= before.size() + after.size() || !text.starts_with(before) || !text.ends_with(after))
    return std::nullopt;
  const std::string_view number = text.substr(before.size(), text.size() - before.size() - after.size());
  return is_number(number) ? std::optional(number) : std::nullopt;
}

bool fits_one_of(std::string_view text, Names patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return fit(text, p).has_value(); });
}

bool reads(const Edge& edge, std::string_view rest) {
  return std::any_of(edge.readers.begin(), edge.readers.end(), [&](Names set) { return fits_one_of(rest, set); });
}

std::string_view first_component(std::string_view name) { return name.substr(0, name.find('.')); }

// Do the readers of an edge live there: "self_attn", "mlp"?
bool is_home_of(const Edge& edge, std::string_view component) {
  for (const Names set : edge.readers)
    for (const std::string_view reader : set)
      if (first_component(reader) == component) return true;
  return false;
}

// "model.layers.0." of "model.layers.0.input_layernorm"; empty where the norm is in no block.
std::string_view block_of(std::string_view module, const Edge& edge) {
  if (!module.ends_with(edge.norm)) return {};
  const std::string_view prefix = module.substr(0, module.size() - edge.norm.size());
  // Blocks may lie in blocks, and the modules of each are gone through: names of hundreds of numbers, as only an
  // attacker writes, would make that long.
  constexpr int kMostNumbers = 4;
  int numbers = 0;
  bool ends_in_number = false;
  std::size_t begin = 0;
  for (std::size_t dot = prefix.find('.'); dot != std::string_view::npos; dot = prefix.find('.', begin)) {
    ends_in_number = is_number(prefix.substr(begin, dot - begin));
    numbers += ends_in_number ? 1 : 0;
    begin = dot + 1;
  }
  return ends_in_number && begin == prefix.size() && numbers <= kMostNumbers ? prefix : std::string_view();
}

// All modules below a prefix, without it.
std::vector<std::string_view> below(const Modules& modules, std::string_view prefix) {
  std::vector<std::string_view> rest;
  for (auto it = modules.lower_bound(prefix); it != modules.end() && it->starts_with(prefix); ++it)
    rest.push_back(std::string_view(*it).substr(prefix.size()));
  return rest;
}

// "mlp.experts.3.w1" of "mlp.experts.*.w1"
std::string numbered(std::string_view pattern, std::size_t number) {
  std::string text(pattern);
  if (const std::size_t star = text.find('*'); star != std::string::npos) text.replace(star, 1, std::to_string(number));
  return text;
}

// The names that a set of readers has in a block. Where it has experts, as many as the block shows of any kind.
std::vector<std::string> expand(Names set, const std::vector<std::string_view>& block) {
  std::set<std::string_view> experts;
  for (const std::string_view pattern : set)
    if (pattern.find('*') != std::string_view::npos)
      for (const std::string_view rest : block)
        if (const auto number = fit(rest, pattern)) experts.insert(*number);
  std::vector<std::string> names;
  for (const std::string_view pattern : set) {
    const bool of_experts = pattern.find('*') != std::string_view::npos;
    // Without any it stands for the first, which is then missing.
    for (std::size_t i = 0; i < (of_experts ? std::max<std::size_t>(experts.size(), 1) : 1); ++i)
      names.push_back(numbered(pattern, i));
  }
  return names;
}

// The readers of an edge in a block, or why its norm is left alone.
struct Reading {
  std::vector<std::string> readers;  // with the prefix
  std::string reason;                // empty: they are all
};

Reading read_edge(const Family& family, const Edge& edge, std::string_view prefix,
                  const std::vector<std::string_view>& block) {
  const auto full = [&](std::string_view rest) { return std::string(prefix).append(rest); };
  const auto alone = [](std::string reason) { return Reading{{}, std::move(reason)}; };
  const auto is_there = [&](std::string_view rest) { return std::binary_search(block.begin(), block.end(), rest); };

  for (const Edge& other : family.edges)
    if (!is_there(other.norm))
      return alone(fmt::format("its block has no {}, so that it may feed what that one would", other.norm));

  std::vector<std::string> present;
  for (const std::string_view rest : block) {
    if (reads(edge, rest)) {
      present.emplace_back(rest);
      continue;
    }
    const auto concerns = [&](const Edge& e) { return is_home_of(e, first_component(rest)); };
    const bool is_known = fits_one_of(rest, family.others) ||
                          std::any_of(family.edges.begin(), family.edges.end(),
                                      [&](const Edge& e) { return rest == e.norm || reads(e, rest); });
    // A stranger in the attention concerns the norm before it; one that is at home nowhere, all.
    if (!is_known && (concerns(edge) || std::none_of(family.edges.begin(), family.edges.end(), concerns)))
      return alone(
          fmt::format("'{}' may read it as well: a {} block has no such module", printable(full(rest)), family.name));
  }
  if (present.empty()) return alone("no linear was found that reads it");

  // The set that most of them are of tells what is missing.
  std::vector<std::string> best;
  std::size_t most = 0;
  for (const Names set : edge.readers) {
    std::vector<std::string> names = expand(set, block);
    std::sort(names.begin(), names.end());
    if (names == present) {
      Reading reading;
      for (const std::string& name : names) reading.readers.push_back(full(name));
      return reading;
    }
    const auto found = static_cast<std::size_t>(std::count_if(names.begin(), names.end(), is_there));
    if (found > most) {
      most = found;
      best = std::move(names);
    }
  }
  for (const std::string& name : best)
    if (!is_there(name)) return alone(fmt::format("its reader '{}' is missing", printable(full(name))));
  for (const std::string& name : present)
    if (!std::binary_search(best.begin(), best.end(), name))
      return alone(fmt::format("'{}' beside '{}' reads it, which no known model has", printable(full(name)),
                               printable(full(best.front()))));
  return alone("its readers are those of no known model");
}

// The groups of a family and what is left alone.
SmoothGroups groups_of(const Family& family, const Modules& modules) {
  SmoothGroups found;
  found.family = family.name;
  found.default_alpha = family.alpha;
  for (const std::string& module : modules) {
    for (const Edge& edge : family.edges) {
      const std::string_view prefix = block_of(module, edge);
      if (prefix.empty()) continue;
      Reading reading = read_edge(family, edge, prefix, below(modules, prefix));
      if (reading.reason.empty())
        found.groups.push_back({module, std::move(reading.readers)});
      else
        found.left_alone[module] = std::move(reading.reason);
    }
  }
  return found;
}

// Is what must stand beside the blocks there: "model.decoder.final_layer_norm" for "model.decoder.layers.0."?
bool has_beside(const Family& family, const SmoothGroups& found, const Modules& modules) {
  if (family.beside.empty()) return true;
  return std::all_of(found.groups.begin(), found.groups.end(), [&](const SmoothGroup& group) {
    std::string_view stem = group.norm;
    for (int component = 0; component < 3; ++component) {  // the norm, the number, "layers"
      const std::size_t dot = stem.rfind('.');
      stem = stem.substr(0, dot == std::string_view::npos ? 0 : dot);
    }
    return modules.contains(stem.empty() ? std::string(family.beside) : fmt::format("{}.{}", stem, family.beside));
  });
}

SmoothGroups refusal_of(std::string reason) {
  SmoothGroups refused;
  refused.refusal = std::move(reason);
  return refused;
}

std::string names_of_families() {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The first of what is left alone, for a sentence about all.
std::string example_of(const SmoothGroups& found) {
  if (found.left_alone.empty()) return "there is none of its norms";
  const auto& [norm, reason] = *found.left_alone.begin();
  return fmt::format("'{}': {}", printable(norm), reason);
}

SmoothGroups find_by_names(const ModelFacts& facts, const Modules& modules) {
  std::vector<std::pair<const Family*, SmoothGroups>> fitting;
  for (const Family& family : kFamilies) {
    SmoothGroups found = groups_of(family, modules);
    if (!found.groups.empty() && found.left_alone.empty() && has_beside(family, found, modules))
      fitting.emplace_back(&family, std::move(found));
  }
  if (fitting.size() != 1)
    return refusal_of(
        fmt::format("config.json names no model_type, and the names of tensors fit {}; name one of {} with "
                    "--smooth-groups, or give the groups as a JSON file",
                    fitting.empty() ? "no known family" : "more than one family", names_of_families()));
  auto& [family, found] = fitting.front();
  if (std::string against = against_folding(facts, family); !against.empty()) return refusal_of(std::move(against));
  found.warning = fmt::format("config.json names no model_type: taken for {}-like by its tensor names; {}",
                              family->name, family->doubt);
  return std::move(found);
}

}  // namespace

ModelFacts facts_of(const io::Checkpoint& checkpoint) {
  ModelFacts facts;
  if (!checkpoint.config()) return facts;
  const auto text_at = [](const io::Json& object, std::string_view key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const io::Json* config = &*checkpoint.config();
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

SmoothGroups find_smooth_groups(const ModelFacts& facts, const Modules& modules) {
  if (facts.model_type.empty()) return find_by_names(facts, modules);
  const Family* family = family_of(facts.model_type);
  if (std::string against = against_folding(facts, family); !against.empty()) return refusal_of(std::move(against));
  if (family == nullptr)
    return refusal_of(
        fmt::format("the order of norms and linears in model_type '{}' is not known; if its blocks are "
                    "like Llama's, say --smooth-groups llama (known are {}), or give the groups as a JSON "
                    "file",
                    printable(facts.model_type), names_of_families()));
  SmoothGroups found = groups_of(*family, modules);
  if (found.groups.empty())
    found.refusal = fmt::format("no norm can be folded as in a {} model: {}", family->name, example_of(found));
  return found;
}

Result<SmoothGroups> smooth_groups_of_family(std::string_view name, const ModelFacts& facts, const Modules& modules) {
  const auto* const family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.name == name; });
  if (family == std::end(kFamilies))
    return invalid_problem("smoothing groups: there is no family '{}'; known are {}", printable(name),
                           names_of_families());
  if (const std::string against = against_folding(facts, family); !against.empty())
    return unsupported("smoothing groups of the family {}: {}", name, against);
  SmoothGroups found = groups_of(*family, modules);
  if (found.groups.empty())
    return unsupported("smoothing groups of the family {}: no norm can be folded: {}", name, example_of(found));
  return found;
}

// ---- Groups of a file -----------------------------------------------------------------------------------------

namespace {

constexpr std::string_view kIndexPlace = "{i}";

// "model.layers.{i}.x" with i in place.
std::string with_index(std::string text, std::string_view index) {
  for (std::size_t at = text.find(kIndexPlace); at != std::string::npos; at = text.find(kIndexPlace, at + index.size()))
    text.replace(at, kIndexPlace.size(), index);
  return text;
}

// The numbers that make a name with "{i}" the name of a module; one empty text for a name without.
std::vector<std::string> indices_of(const std::string& text, const Modules& modules) {
  const std::size_t at = text.find(kIndexPlace);
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

class GroupsOfFile {
 public:
  GroupsOfFile(std::string_view file_name, const Family* family, const Modules& modules)
      : file_(printable(file_name)), family_(family), modules_(modules) {
    found_.family = "given";
    if (family != nullptr) found_.default_alpha = family->alpha;
  }

  Status read(const io::Json& document) {
    if (!document.is_object()) return bad("must be an object with an array \"groups\"");
    const io::Json* groups = nullptr;
    for (const auto& [key, value] : document.items()) {
      if (key == "groups" && value.is_array()) {
        groups = &value;
      } else if (key == "alpha") {
        if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1))
          return bad(fmt::format("\"alpha\" is {}, must be a number from 0 to 1", shown(value)));
        found_.default_alpha = value.get<double>();
      } else if (key != "groups") {
        return bad(fmt::format("the key '{}' is not known; known are groups and alpha", printable(key)));
      }
    }
    if (groups == nullptr) return bad("must be an object with an array \"groups\"");
    if (groups->empty()) return bad("\"groups\" is empty; name a norm and its linears, or leave out the file");
    for (const io::Json& group : *groups)
      if (Status s = read_group(group); !s.ok()) return s;
    for (const auto& [linear, norm] : norm_of_)
      if (norms_.contains(linear))
        return bad(
            fmt::format("'{}' is a norm and also a linear of the norm '{}'", printable(linear), printable(norm)));
    return {};
  }
  SmoothGroups take() { return std::move(found_); }

 private:
  Status bad(const std::string& what) const { return invalid_problem("{}: {}", file_, what); }
  static std::string shown(const io::Json& value) { return printable(value.dump(-1, ' ', true)); }

  Status read_group(const io::Json& group) {
    const auto shape = [&] {
      return bad(
          fmt::format("a group is {}, must be an object of a string \"norm\" and a list \"linears\" of at least "
                      "one string",
                      shown(group)));
    };
    if (!group.is_object()) return shape();
    const io::Json *norm = nullptr, *linears = nullptr;
    for (const auto& [key, value] : group.items()) {
      if (key == "norm")
        norm = &value;
      else if (key == "linears")
        linears = &value;
      else
        return bad(fmt::format("the key '{}' of a group is not known; known are norm and linears", printable(key)));
    }
    if (norm == nullptr || !norm->is_string() || linears == nullptr || !linears->is_array() || linears->empty() ||
        !std::all_of(linears->begin(), linears->end(), [](const io::Json& linear) { return linear.is_string(); }))
      return shape();
    const auto& norm_name = norm->get_ref<const std::string&>();
    const std::vector<std::string> indices = indices_of(norm_name, modules_);
    if (indices.empty()) return bad(fmt::format("no module is named like the norm '{}'", printable(norm_name)));
    for (const std::string& index : indices) {
      SmoothGroup one{index.empty() ? norm_name : with_index(norm_name, index), {}};
      for (const io::Json& linear : *linears) {
        const auto& name = linear.get_ref<const std::string&>();
        one.readers.push_back(index.empty() ? name : with_index(name, index));
      }
      if (Status s = add(std::move(one)); !s.ok()) return s;
    }
    return {};
  }

  Status add(SmoothGroup group) {
    if (!modules_.contains(group.norm)) return bad(fmt::format("there is no module '{}'", printable(group.norm)));
    if (!norms_.insert(group.norm).second)
      return bad(fmt::format("the norm '{}' has two groups; put all its linears into one", printable(group.norm)));
    for (const std::string& linear : group.readers) {
      if (!modules_.contains(linear))
        return bad(fmt::format("there is no module '{}', a linear of the norm '{}'", printable(linear),
                               printable(group.norm)));
      if (linear == group.norm)
        return bad(fmt::format("'{}' is a norm and also one of its own linears", printable(linear)));
      const auto [place, fresh] = norm_of_.try_emplace(linear, group.norm);
      if (fresh) continue;
      if (place->second == group.norm)
        return bad(fmt::format("the norm '{}' has the linear '{}' twice", printable(group.norm), printable(linear)));
      return bad(fmt::format("the linear '{}' is in two groups, of the norms '{}' and '{}'", printable(linear),
                             printable(place->second), printable(group.norm)));
    }
    if (Status s = check_against_family(group); !s.ok()) return s;
    found_.groups.push_back(std::move(group));
    return {};
  }

  // What the family of the model_type knows about the norm.
  Status check_against_family(const SmoothGroup& group) const {
    if (family_ == nullptr) return {};
    for (const Edge& edge : family_->edges) {
      const std::string_view prefix = block_of(group.norm, edge);
      if (prefix.empty()) continue;
      for (const std::string_view rest : below(modules_, prefix)) {
        const std::string module = std::string(prefix).append(rest);
        const bool given = std::find(group.readers.begin(), group.readers.end(), module) != group.readers.end();
        if (reads(edge, rest)) {
          if (given) continue;
          return bad(fmt::format("the norm '{}' also feeds '{}'; add it to the group", printable(group.norm),
                                 printable(module)));
        }
        const bool is_known =
            fits_one_of(rest, family_->others) ||
            std::any_of(family_->edges.begin(), family_->edges.end(), [&](const Edge& e) { return reads(e, rest); });
        if (given && is_known)
          return bad(fmt::format("'{}' does not read the norm '{}' in a {} model; take it out of the group",
                                 printable(module), printable(group.norm), family_->name));
      }
    }
    return {};
  }

  std::string file_;
  const Family* family_;
  const Modules& modules_;
  SmoothGroups found_;
  std::set<std::string> norms_;
  std::map<std::string, std::string> norm_of_;  // linear → norm
};

}  // namespace

Result<SmoothGroups> parse_smooth_groups(std::string_view json, std::string_view file_name, const ModelFacts& facts,
                                         const Modules& modules) {
  const Family* family = family_of(facts.model_type);
  if (const std::string against = against_folding(facts, family); !against.empty())
    return unsupported("{}: {}", printable(file_name), against);
  const auto document = io::parse_json(json, file_name);
  if (!document.ok()) return document.status();
  GroupsOfFile groups(file_name, family, modules);
  if (Status s = groups.read(*document); !s.ok()) return s;
  return groups.take();
}

}  // namespace kvant::model
