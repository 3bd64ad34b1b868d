#include "model/network.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/module_name.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "model/blocks.h"
#include "model/model_facts.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;  // of a layer
constexpr std::int64_t kMaxBlocks = 10'000;
constexpr std::int64_t kMaxExperts = 100'000;

struct ActivationName {
  std::string_view name;
  NetworkSteps::Activation activation;
};
constexpr ActivationName kActivations[] = {
    {"silu", NetworkSteps::Activation::silu},
    {"swish", NetworkSteps::Activation::silu},
    {"gelu", NetworkSteps::Activation::gelu},
    {"gelu_new", NetworkSteps::Activation::gelu_tanh},
    {"gelu_pytorch_tanh", NetworkSteps::Activation::gelu_tanh},
    {"gelu_fast", NetworkSteps::Activation::gelu_tanh},
    {"relu", NetworkSteps::Activation::relu},
};

Result<NetworkSteps::Activation> activation_named(std::string_view key, const std::string& name) {
  std::vector<std::string_view> known;
  for (const ActivationName& row : kActivations) {
    if (row.name == name) return row.activation;
    known.push_back(row.name);
  }
  return unsupported("{}: {} is \"{}\"; known are {}", io::kConfigName, key, printable(name),
                     base::joined(known, ", "));
}

class NetworkMaker {
 public:
  NetworkMaker(const io::Json& config, const Modules& modules) : config_(config), modules_(modules) {}

  Result<Network> make() {
    for (Status (NetworkMaker::*part)() :
         {&NetworkMaker::find_family, &NetworkMaker::read_sizes, &NetworkMaker::find_stem, &NetworkMaker::make_blocks,
          &NetworkMaker::make_ends})
      if (Status s = (this->*part)(); !s.ok()) return s;
    return std::move(network_);
  }

 private:
  const NetworkSpec& spec() const { return network_.spec(); }
  bool has(const std::string& module) const { return modules_.contains(module); }

  Status find_family() {
    const auto type = config_.text("model_type");
    if (!type.ok()) return type.status();
    if (type->empty()) return invalid_problem("{}: model_type is missing", io::kConfigName);
    network_.family = family_of(*type);
    if (network_.family != nullptr && network_.family->network != nullptr) return {};
    std::vector<std::string_view> known;
    for (const Family& family : families())
      if (family.network != nullptr) known.insert(known.end(), family.model_types.begin(), family.model_types.end());
    return unsupported("{}: kvant cannot run a model of model_type '{}'; it can run {}", io::kConfigName,
                       printable(*type), base::joined(known, ", "));
  }

  // Into `to`, from config.json.
  Status size(std::string_view key, std::int64_t max, std::int64_t& to,
              std::optional<std::int64_t> otherwise = std::nullopt) const {
    const auto value = config_.integer(key, 1, max, otherwise);
    if (value.ok()) to = *value;
    return value.status();
  }

  Status read_sizes() {
    Network& n = network_;
    if (Status s = size(spec().hidden_size, kMaxSize, n.hidden); !s.ok()) return s;
    if (Status s = size(spec().heads, kMaxSize, n.heads); !s.ok()) return s;
    if (Status s = size("num_key_value_heads", kMaxSize, n.kv_heads, n.heads); !s.ok()) return s;
    if (Status s = size("head_dim", kMaxSize, n.head_size, std::max<std::int64_t>(n.hidden / n.heads, 1)); !s.ok())
      return s;
    if (Status s = size(spec().layers, kMaxBlocks, blocks_); !s.ok()) return s;
    const auto inner = spec().default_inner == 0 ? std::nullopt : std::optional(spec().default_inner * n.hidden);
    if (Status s = size(spec().inner_size, kMaxSize, inner_, inner); !s.ok()) return s;
    if (Status s = size("max_position_embeddings", std::int64_t{1} << 40, n.max_positions, 1 << 30); !s.ok()) return s;
    if (n.heads % n.kv_heads != 0)
      return invalid_problem("{}: {} attention heads cannot share {} key and value heads evenly", io::kConfigName,
                             n.heads, n.kv_heads);
    if (n.head_size * n.heads > kMaxSize)
      return invalid_problem("{}: {} heads of {} numbers are more than {}", io::kConfigName, n.heads, n.head_size,
                             kMaxSize);
    n.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(n.head_size)));
    const auto projected = config_.integer("word_embed_proj_dim", 1, kMaxSize, n.hidden);
    if (!projected.ok()) return projected.status();
    if (*projected != n.hidden)
      return unsupported(
          "{}: word_embed_proj_dim is {}, must be hidden_size {}: embeddings that are projected are not "
          "known",
          io::kConfigName, *projected, n.hidden);
    const auto epsilon = config_.positive(spec().epsilon, spec().default_epsilon);
    if (!epsilon.ok()) return epsilon.status();
    n.epsilon = static_cast<float>(*epsilon);
    auto name = config_.text(spec().activation);
    if (!name.ok()) return name.status();
    if (name->empty()) return invalid_problem("{}: {} is missing", io::kConfigName, spec().activation);
    const auto activation = activation_named(spec().activation, *name);
    if (!activation.ok()) return activation.status();
    n.activation = *activation;
    return {};
  }

  // The first of the family's stems under which there is a table of embeddings.
  Status find_stem() {
    for (const std::string_view stem : spec().stems) {
      stem_ = stem;
      if (has(below_stem(spec().tokens))) return {};
    }
    return invalid_problem("there is no '{}{}', the table of embeddings of a {} model", spec().stems.front(),
                           spec().tokens, network_.family->name);
  }

  std::string below_stem(std::string_view module) const {
    return module.empty() ? std::string() : fmt::format("{}{}", stem_, module);
  }

  LinearModule linear(std::string module, std::int64_t in, std::int64_t out) const {
    return {std::move(module), in, out, spec().is_conv1d};
  }

  // ---- Blocks ----

  Status make_blocks() {
    if (Status s = find_windows(); !s.ok()) return s;
    BlockSpec block = network_.family->block;
    if (const FoldCondition& condition = network_.family->condition; condition.fact != nullptr) {
      const auto holds = config_.flag(condition.name, condition.wanted);
      if (!holds.ok()) return holds.status();
      if (*holds != condition.wanted) block = network_.family->block_otherwise;
    }
    for (std::int64_t i = 0; i < blocks_; ++i) {
      Block made{fmt::format("{}{}{}.", stem_, spec().blocks, i), {}};
      for (const StepSpec& step : block)
        if (Status s = add_step(step, i, made); !s.ok()) return s;
      network_.blocks.push_back(std::move(made));
    }
    return {};
  }

  // Which blocks see only the last tokens.
  Status find_windows() {
    windows_.assign(static_cast<std::size_t>(blocks_), 0);
    const auto window = config_.integer("sliding_window", 0, std::int64_t{1} << 40, 0);
    const auto used = config_.flag("use_sliding_window", true);
    if (!window.ok()) return window.status();
    if (!used.ok()) return used.status();
    if (*window == 0 || !*used) return {};
    const io::Json* const types = config_.find("layer_types");
    if (types == nullptr) {
      windows_.assign(windows_.size(), *window);
      return {};
    }
    if (!types->is_array() || types->size() != windows_.size())
      return invalid_problem("{}: layer_types must be a list of {} names, one for each layer", io::kConfigName,
                             blocks_);
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      if ((*types)[i] == "sliding_attention")
        windows_[i] = *window;
      else if ((*types)[i] != "full_attention")
        return unsupported(
            "{}: layer_types names a kind of attention that is not known for layer {}; known are "
            "full_attention and sliding_attention",
            io::kConfigName, i);
    }
    return {};
  }

  Status add_step(const StepSpec& step, std::int64_t block, Block& made) {
    const auto full = [&](std::string_view module) { return made.prefix + std::string(module); };
    switch (step.kind) {
      case StepKind::norm:
        if (!has(full(step.module))) return missing(full(step.module));
        made.steps.emplace_back(NormStep{full(step.module), step.in_place});
        return {};
      case StepKind::heads: return add_heads(step, made);
      case StepKind::head_norms:
        for (const Names form : step.forms)
          if (has(full(form[0]))) {
            if (!has(full(form[1]))) return missing(full(form[1]));
            made.steps.emplace_back(HeadNormsStep{full(form[0]), full(form[1])});
            return {};
          }
        return {};
      case StepKind::rotate: {
        if (network_.rotary.frequencies.empty()) {
          auto rotary = read_rotary(config_, network_.head_size);
          if (!rotary.ok()) return rotary.status();
          network_.rotary = std::move(rotary).value();
        }
        made.steps.emplace_back(RotateStep{});
        return {};
      }
      case StepKind::attend:
        made.steps.emplace_back(AttendStep{attention_of(made), windows_[static_cast<std::size_t>(block)]});
        return {};
      case StepKind::linear:
        if (!has(full(step.module))) return missing(full(step.module));
        made.steps.emplace_back(LinearStep{linear(full(step.module), network_.context_width(), network_.hidden)});
        return {};
      case StepKind::mlp: return add_mlp(step, made);
      case StepKind::add: made.steps.emplace_back(AddStep{}); return {};
    }
    return {};
  }

  // The parent of the linears that make the heads, which a step before has found.
  static std::string attention_of(const Block& made) {
    for (const Step& step : made.steps)
      if (const auto* heads = std::get_if<HeadsStep>(&step))
        return std::string(format::parent_of(heads->linears.front().module));
    return {};
  }

  static Status missing(const std::string& module) {
    return invalid_problem("there is no module '{}', which the model needs", printable(module));
  }

  Status add_heads(const StepSpec& step, Block& made) {
    const std::int64_t queries = network_.context_width(), keys = network_.kv_heads * network_.head_size;
    for (const Names form : step.forms) {
      if (!has(made.prefix + std::string(form[0]))) continue;
      HeadsStep heads;
      const std::array<std::int64_t, 3> outs = {queries, keys, keys};
      for (std::size_t i = 0; i < form.size(); ++i) {
        std::string module = made.prefix + std::string(form[i]);
        if (!has(module)) return missing(module);
        heads.linears.push_back(
            linear(std::move(module), network_.hidden, form.size() == 1 ? network_.heads_width() : outs[i]));
      }
      made.steps.emplace_back(std::move(heads));
      return {};
    }
    return missing(made.prefix + std::string(step.forms[0][0]));
  }

  Result<Expert> expert_of(const MlpForm& form, const std::string& prefix, std::uint64_t number,
                           std::int64_t inner) const {
    Expert expert;
    const std::int64_t width = spec().gated ? 2 * inner : inner;
    for (const std::string_view input : form.inputs) {
      std::string module = prefix + numbered(input, number);
      if (!has(module)) return missing(module);
      expert.inputs.push_back(
          linear(std::move(module), network_.hidden, width / static_cast<std::int64_t>(form.inputs.size())));
    }
    std::string output = prefix + numbered(form.output, number);
    if (!has(output)) return missing(output);
    expert.output = linear(std::move(output), inner, network_.hidden);
    return expert;
  }

  Status add_mlp(const StepSpec& step, Block& made) {
    for (const MlpForm& form : step.mlps) {
      if (!has(made.prefix + numbered(form.inputs[0], 0))) continue;
      MlpStep mlp;
      if (form.router.empty()) {
        auto expert = expert_of(form, made.prefix, 0, inner_);
        if (!expert.ok()) return expert.status();
        mlp.inner = inner_;
        mlp.experts.push_back(std::move(expert).value());
      } else {
        for (const MlpForm& other : step.mlps)
          if (!other.shared_gate.empty() && has(made.prefix + std::string(other.shared_gate)))
            return unsupported("'{}{}': an expert that all tokens share is not known yet", printable(made.prefix),
                               other.shared_gate);
        if (Status s = add_experts(form, made.prefix, mlp); !s.ok()) return s;
      }
      made.steps.emplace_back(std::move(mlp));
      return {};
    }
    return missing(made.prefix + std::string(step.mlps[0].inputs[0]));
  }

  Status add_experts(const MlpForm& form, const std::string& prefix, MlpStep& mlp) {
    std::int64_t experts = 0;
    const std::string_view count = config_.find("num_local_experts") != nullptr ? "num_local_experts" : "num_experts";
    if (Status s = size(count, kMaxExperts, experts); !s.ok()) return s;
    if (Status s = size("num_experts_per_tok", experts, mlp.chosen); !s.ok()) return s;
    if (Status s = size("moe_intermediate_size", kMaxSize, mlp.inner, inner_); !s.ok()) return s;
    // Mixtral always does; Qwen says whether.
    const auto renormalize = config_.flag("norm_topk_prob", count == "num_local_experts");
    if (!renormalize.ok()) return renormalize.status();
    mlp.renormalize = *renormalize;
    const std::string router = prefix + std::string(form.router);
    if (!has(router)) return missing(router);
    mlp.router = linear(router, network_.hidden, experts);
    for (std::int64_t e = 0; e < experts; ++e) {
      auto expert = expert_of(form, prefix, static_cast<std::uint64_t>(e), mlp.inner);
      if (!expert.ok()) return expert.status();
      mlp.experts.push_back(std::move(expert).value());
    }
    return {};
  }

  // ---- What is around them ----

  Status make_ends() {
    Network& n = network_;
    if (Status s = size("vocab_size", std::int64_t{1} << 31, n.vocabulary, 0); !s.ok()) return s;
    n.tokens = below_stem(spec().tokens);
    const auto needed = [&](std::string_view module, std::string& to) -> Status {
      to = below_stem(module);
      return to.empty() || has(to) ? Status() : missing(to);
    };
    if (Status s = needed(spec().positions, n.positions); !s.ok()) return s;
    if (Status s = needed(spec().token_types, n.token_types); !s.ok()) return s;
    if (Status s = needed(spec().embedding_norm, n.embedding_norm); !s.ok()) return s;
    n.final_norm = below_stem(spec().final_norm);
    // OPT's models whose blocks end in a norm have none after them.
    if (!n.final_norm.empty() && !has(n.final_norm)) {
      if (n.blocks.empty() || !std::holds_alternative<NormStep>(n.blocks.back().steps.back()))
        return missing(n.final_norm);
      n.final_norm.clear();
    }
    if (spec().head.empty()) return {};
    const std::string head(spec().head);
    n.head = LinearModule{has(head) ? head : n.tokens, n.hidden, n.vocabulary, false};
    return {};
  }

  ConfigFields config_;
  const Modules& modules_;
  Network network_;
  std::string stem_;
  std::int64_t blocks_ = 0;
  std::int64_t inner_ = 0;
  std::vector<std::int64_t> windows_;
};

}  // namespace

Result<Network> make_network(const io::Json& config, const Modules& modules) {
  return NetworkMaker(config, modules).make();
}

std::vector<std::vector<const LinearModule*>> readers_of(const Step& step) {
  std::vector<std::vector<const LinearModule*>> readers;
  const auto add_group = [&](const std::vector<LinearModule>& linears) {
    std::vector<const LinearModule*>& group = readers.emplace_back();
    for (const LinearModule& linear : linears) group.push_back(&linear);
  };
  if (const auto* heads = std::get_if<HeadsStep>(&step)) add_group(heads->linears);
  if (const auto* one = std::get_if<LinearStep>(&step)) readers.push_back({&one->linear});
  if (const auto* mlp = std::get_if<MlpStep>(&step)) {
    if (mlp->router) readers.push_back({&*mlp->router});
    for (const Expert& expert : mlp->experts) {
      add_group(expert.inputs);
      readers.push_back({&expert.output});
    }
  }
  return readers;
}

std::vector<const LinearModule*> linears_of(const Step& step) {
  std::vector<const LinearModule*> linears;
  for (const std::vector<const LinearModule*>& group : readers_of(step))
    linears.insert(linears.end(), group.begin(), group.end());
  return linears;
}

}  // namespace kvant::model
