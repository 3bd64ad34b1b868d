#include "model/roles.h"

#include <algorithm>
#include <array>
#include <optional>
#include <regex>

#include "base/refuse.h"

namespace kvant::model {
namespace {

template <std::size_t kCount>
bool is_one_of(std::string_view text, const std::array<std::string_view, kCount>& list) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

// Last components of modules, in the families that are in use: Llama, Mistral, Qwen, Phi, OPT, BLOOM, GPT-NeoX, Falcon,
// GPT-2.
constexpr std::array<std::string_view, 5> kHeads = {"lm_head", "embed_out", "output_layer", "output_projection",
                                                    "score"};
// Beside those that end in "embedding" or "embeddings".
constexpr std::array<std::string_view, 7> kEmbeddings = {
    "embed_tokens", "embed_positions", "embed_in", "wte", "wpe", "shared", "relative_attention_bias"};
// "gate" alone is a router; "gate_proj" is half of an MLP.
constexpr std::array<std::string_view, 4> kRouters = {"gate", "router", "shared_expert_gate", "classifier"};
constexpr std::array<std::string_view, 4> kConv1d = {"c_attn", "c_proj", "c_fc", "q_attn"};
constexpr std::array<std::string_view, 3> kConv1dModels = {"gpt2", "imagegpt", "decision_transformer"};

bool is_float(io::DType dtype) {
  return dtype == io::DType::f32 || dtype == io::DType::f64 || dtype == io::DType::f16 || dtype == io::DType::bf16;
}

std::string_view without_last(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : module.substr(0, dot);
}

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

std::string_view module_of(std::string_view tensor_name) {
  constexpr std::string_view kSuffix = ".weight";
  if (!tensor_name.ends_with(kSuffix)) return {};
  return tensor_name.substr(0, tensor_name.size() - kSuffix.size());
}

std::string_view last_component(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string_view::npos ? module : module.substr(dot + 1);
}

std::vector<std::string> fused_siblings(std::string_view module) {
  static constexpr std::array<std::array<std::string_view, 3>, 5> kFused = {{{"q_proj", "k_proj", "v_proj"},
                                                                             {"wq", "wk", "wv"},
                                                                             {"query", "key", "value"},
                                                                             {"gate_proj", "up_proj", ""},
                                                                             {"w1", "w3", ""}}};
  const std::string_view last = last_component(module);
  const std::string_view parent = module.substr(0, module.size() - last.size());
  std::vector<std::string> siblings;
  for (const auto& fused : kFused) {
    if (!is_one_of(last, fused)) continue;
    for (const std::string_view sibling : fused)
      if (!sibling.empty() && sibling != last) siblings.push_back(fmt::format("{}{}", parent, sibling));
  }
  return siblings;
}

Judgement judge(const io::TensorInfo& tensor, std::string_view model_type) {
  const std::string_view module = module_of(tensor.name);
  constexpr std::string_view kBias = ".bias";
  if (tensor.name.ends_with(kBias)) {
    const auto of = std::string_view(tensor.name).substr(0, tensor.name.size() - kBias.size());
    if (looks_like_norm(last_component(of))) return {Role::norm, "the shift of a norm"};
    return {Role::bias, "a bias"};
  }
  if (module.empty()) return {Role::other, "its name does not end in .weight"};
  const std::string_view last = last_component(module);
  if (looks_like_norm(last)) return {Role::norm, "a norm"};
  if (tensor.shape.size() != 2)
    return {Role::other, fmt::format("has {} dimension{}, a Linear has 2", tensor.shape.size(),
                                     tensor.shape.size() == 1 ? "" : "s")};
  if (!is_float(tensor.dtype))
    return {Role::other, fmt::format("holds {}, not floating point", io::name(tensor.dtype))};
  // Where it is not below anything, "output" is the head of InternLM2 and of Meta's own files.
  if (is_one_of(last, kHeads) || module == "output") return {Role::lm_head, "the output projection"};
  if (is_one_of(last, kEmbeddings) || last.ends_with("embedding") || last.ends_with("embeddings"))
    return {Role::embedding, "an embedding"};
  if (is_one_of(last, kRouters) && !without_last(module).empty()) return {Role::router, "a router of experts"};
  if (is_one_of(model_type, kConv1dModels) && is_one_of(last, kConv1d))
    return {Role::conv1d, "a Conv1D, stored as [in, out]"};
  return {Role::linear, "a 2-D weight"};
}

namespace {

constexpr std::size_t kLongestPattern = 1024;

// config.json of any checkpoint may hold "re:(a+)+$", for which libstdc++'s usual search takes time that doubles with
// each letter of a name. The other search has no back-references, and no pattern for names of modules needs them.
#ifdef __GLIBCXX__
constexpr auto kFlags = std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kFlags = std::regex::ECMAScript;
#endif

}  // namespace

struct Patterns::Pattern {
  std::optional<std::regex> expression;  // nothing: the text itself
};

Result<Patterns> Patterns::parse(std::span<const std::string> patterns) {
  Patterns parsed;
  auto compiled = std::make_shared<std::vector<Pattern>>();
  for (const std::string& text : patterns) {
    Pattern pattern;
    if (text.starts_with("re:")) {
      // libstdc++ compiles by recursion: 20,000 brackets, which only an attacker writes, would end the program.
      if (text.size() > kLongestPattern)
        return base::invalid_problem("pattern '{}' has {} bytes, the most are {}", io::printable(text), text.size(),
                                     kLongestPattern);
      try {
        pattern.expression.emplace(text.substr(3), kFlags);
      } catch (const std::regex_error& e) {
        return base::invalid_problem("pattern '{}' is no regular expression: {}", io::printable(text), e.what());
      }
    }
    parsed.patterns_.push_back(text);
    compiled->push_back(std::move(pattern));
  }
  parsed.compiled_ = std::move(compiled);
  return parsed;
}

bool Patterns::fits(std::size_t pattern, std::string_view module) const {
  // The time grows with the pattern and the name, and only an attacker writes such names.
  constexpr std::size_t kLongestName = 4096;
  if (module.size() > kLongestName) return false;
  const std::optional<std::regex>& expression = (*compiled_)[pattern].expression;
  if (!expression) return patterns_[pattern] == module;
  return std::regex_search(module.begin(), module.end(), *expression, std::regex_constants::match_continuous);
}

const std::string* Patterns::match(std::string_view module) const {
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (fits(i, module)) return &patterns_[i];
  return nullptr;
}

std::vector<const std::string*> Patterns::matches(std::string_view module) const {
  std::vector<const std::string*> found;
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (fits(i, module)) found.push_back(&patterns_[i]);
  return found;
}

}  // namespace kvant::model
