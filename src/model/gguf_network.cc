#include "model/gguf_network.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <span>

#include "base/refuse.h"
#include "base/text.h"
#include "io/json.h"
#include "model/gguf_metadata.h"

namespace kvant::model {
namespace {

using base::invalid_problem;

// Far beyond any network, and small enough that a row fits into memory and no product overflows.
constexpr std::uint64_t kMaxGgufSize = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxVocabulary = std::uint64_t{1} << 24;
constexpr std::uint64_t kMaxContext = std::uint64_t{1} << 40;

// What Llama 3 has beside the factor, which alone differs between its models.
constexpr double kLowFrequencyFactor = 1, kHighFrequencyFactor = 4;
constexpr std::uint64_t kLlama3Context = 8192;

// Which tensors a network has, beside those that all have.
enum Feature : unsigned {
  kAlways = 0,
  kDense = 1,
  kAttentionBias = 2,        // of q, k and v
  kAttentionOutputBias = 4,  // of o
  kMlpBias = 8,
  kHasHeadNorms = 16,
  kHasMixtralExperts = 32,
  kQwenExperts = 64,
  kOutput = 128,  // no tied embeddings
};

}  // namespace

struct GgufArchitecture {
  std::string_view gguf_name;
  bool has_experts;
  std::string_view model_type;
  std::string_view class_name;
  bool rows_in_other_order;  // of q and k
  unsigned features;
};

namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", false, "llama", "LlamaForCausalLM", true, kDense},
    {"llama", true, "mixtral", "MixtralForCausalLM", true, kHasMixtralExperts},
    {"qwen2", false, "qwen2", "Qwen2ForCausalLM", false, kDense | kAttentionBias},
    {"qwen3", false, "qwen3", "Qwen3ForCausalLM", false, kDense | kHasHeadNorms},
    {"qwen3moe", true, "qwen3_moe", "Qwen3MoeForCausalLM", false, kQwenExperts | kHasHeadNorms},
};

enum class Heads : std::uint8_t { none, query, key_value };

struct TensorName {
  std::string_view gguf_name;
  std::string_view name;  // "{}" stands for the number of an expert
  Size rows;              // none: one dimension
  Size columns;
  Feature feature = kAlways;
  Heads heads = Heads::none;

  bool holds_experts() const { return name.find("{}") != std::string_view::npos; }
};

constexpr TensorName kBefore[] = {
    {"token_embd.weight", "model.embed_tokens.weight", Size::vocabulary, Size::hidden},
};

// Behind "blk.N." and "model.layers.N.".
constexpr TensorName kOfLayer[] = {
    {"attn_norm.weight", "input_layernorm.weight", Size::none, Size::hidden},
    {"attn_q.weight", "self_attn.q_proj.weight", Size::query, Size::hidden, kAlways, Heads::query},
    {"attn_q.bias", "self_attn.q_proj.bias", Size::none, Size::query, kAttentionBias, Heads::query},
    {"attn_k.weight", "self_attn.k_proj.weight", Size::key_value, Size::hidden, kAlways, Heads::key_value},
    {"attn_k.bias", "self_attn.k_proj.bias", Size::none, Size::key_value, kAttentionBias, Heads::key_value},
    {"attn_v.weight", "self_attn.v_proj.weight", Size::key_value, Size::hidden},
    {"attn_v.bias", "self_attn.v_proj.bias", Size::none, Size::key_value, kAttentionBias},
    {"attn_output.weight", "self_attn.o_proj.weight", Size::hidden, Size::query},
    {"attn_output.bias", "self_attn.o_proj.bias", Size::none, Size::hidden, kAttentionOutputBias},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", Size::none, Size::head, kHasHeadNorms},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", Size::none, Size::head, kHasHeadNorms},
    {"ffn_norm.weight", "post_attention_layernorm.weight", Size::none, Size::hidden},
    {"ffn_gate.weight", "mlp.gate_proj.weight", Size::intermediate, Size::hidden, kDense},
    {"ffn_gate.bias", "mlp.gate_proj.bias", Size::none, Size::intermediate, kMlpBias},
    {"ffn_up.weight", "mlp.up_proj.weight", Size::intermediate, Size::hidden, kDense},
    {"ffn_up.bias", "mlp.up_proj.bias", Size::none, Size::intermediate, kMlpBias},
    {"ffn_down.weight", "mlp.down_proj.weight", Size::hidden, Size::intermediate, kDense},
    {"ffn_down.bias", "mlp.down_proj.bias", Size::none, Size::hidden, kMlpBias},
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight", Size::experts, Size::hidden, kHasMixtralExperts},
    {"ffn_gate_exps.weight", "block_sparse_moe.experts.{}.w1.weight", Size::intermediate, Size::hidden,
     kHasMixtralExperts},
    {"ffn_down_exps.weight", "block_sparse_moe.experts.{}.w2.weight", Size::hidden, Size::intermediate,
     kHasMixtralExperts},
    {"ffn_up_exps.weight", "block_sparse_moe.experts.{}.w3.weight", Size::intermediate, Size::hidden,
     kHasMixtralExperts},
    {"ffn_gate_inp.weight", "mlp.gate.weight", Size::experts, Size::hidden, kQwenExperts},
    {"ffn_gate_exps.weight", "mlp.experts.{}.gate_proj.weight", Size::expert_intermediate, Size::hidden, kQwenExperts},
    {"ffn_up_exps.weight", "mlp.experts.{}.up_proj.weight", Size::expert_intermediate, Size::hidden, kQwenExperts},
    {"ffn_down_exps.weight", "mlp.experts.{}.down_proj.weight", Size::hidden, Size::expert_intermediate, kQwenExperts},
};

constexpr TensorName kBehind[] = {
    {"output_norm.weight", "model.norm.weight", Size::none, Size::hidden},
    {"output.weight", "lm_head.weight", Size::vocabulary, Size::hidden, kOutput},
};

constexpr unsigned kOfExperts = kHasMixtralExperts | kQwenExperts;

// "attn_q.weight" of "blk.12.attn_q.weight", and 12. Nothing behind the number: another name.
struct LayerName {
  std::uint64_t layer = 0;
  std::string_view rest;
};
LayerName layer_name_of(std::string_view gguf_name) {
  constexpr std::string_view kLayer = "blk.";
  if (!gguf_name.starts_with(kLayer)) return {};
  const std::string_view behind = gguf_name.substr(kLayer.size());
  LayerName name;
  const auto [end, error] = std::from_chars(behind.data(), behind.data() + behind.size(), name.layer);
  const auto digits = static_cast<std::size_t>(end - behind.data());
  // One name for each number: no zeros before it.
  if (error != std::errc() || name.layer >= kMaxGgufLayers || (behind.front() == '0' && digits > 1)) return {};
  if (digits < behind.size() && behind[digits] == '.') name.rest = behind.substr(digits + 1);
  return name;
}

// Whether a row is that linear's.
bool is_linear(const TensorName& row, std::string_view gguf_name) {
  return row.gguf_name == gguf_name && row.rows != Size::none;
}

class NetworkReader {
 public:
  explicit NetworkReader(const io::GgufFile& file) : file_(file), metadata_(file) {}

  Result<GgufNetwork> run() {
    if (Status s = find_architecture(); !s.ok()) return s;
    if (Status s = read_sizes(); !s.ok()) return s;
    if (Status s = read_heads(); !s.ok()) return s;
    if (Status s = read_rope(); !s.ok()) return s;
    if (Status s = read_epsilon(); !s.ok()) return s;
    find_features();
    return network_;
  }

 private:
  std::string key(std::string_view name) const { return base::text("{}.{}", prefix_, name); }
  void set(Size size, std::uint64_t value) { network_.sizes[static_cast<std::size_t>(size)] = value; }

  Status find_architecture() {
    const auto text = metadata_.text("general.architecture");
    if (!text.ok()) return text.status();
    if (!*text) return invalid_problem("{}: \"general.architecture\" is missing", metadata_.file_name());
    prefix_ = **text;
    const auto experts = metadata_.count_or(key("expert_count"), 0, 0, kMaxGgufExperts);
    if (!experts.ok()) return experts.status();
    for (const GgufArchitecture& row : kArchitectures)
      if (row.gguf_name == prefix_ && row.has_experts == (*experts > 0)) network_.architecture = &row;
    if (network_.architecture == nullptr)
      return base::unsupported("{}: architecture \"{}\"{} is not known, only {}", metadata_.file_name(),
                               io::printable(prefix_), *experts > 0 ? " with experts" : "",
                               names_of_gguf_architectures());
    set(Size::experts, *experts);
    network_.features = network_.architecture->features;
    return {};
  }

  // `name` from 1 to `most` into `to`.
  Status take(std::string_view name, std::uint64_t most, std::uint64_t& to) const {
    const auto value = metadata_.count_between(key(name), 1, most);
    if (!value.ok()) return value.status();
    to = *value;
    return {};
  }

  Status read_sizes() {
    std::uint64_t hidden = 0, intermediate = 0;
    if (Status s = take("block_count", kMaxGgufLayers, network_.layers); !s.ok()) return s;
    if (Status s = take("embedding_length", kMaxGgufSize, hidden); !s.ok()) return s;
    if (Status s = take("feed_forward_length", kMaxGgufSize, intermediate); !s.ok()) return s;
    if (Status s = take("context_length", kMaxContext, network_.context); !s.ok()) return s;
    set(Size::hidden, hidden);
    set(Size::intermediate, intermediate);
    const io::GgufTensor* const embeddings = file_.find_tensor(kBefore[0].gguf_name);
    if (embeddings == nullptr)
      return invalid_problem("{}: tensor \"{}\" is missing", metadata_.file_name(), kBefore[0].gguf_name);
    if (embeddings->shape.size() != 2 || embeddings->shape[0] < 1 || embeddings->shape[0] > kMaxVocabulary)
      return invalid_problem("{}: tensor \"{}\": shape [{}] must have two dimensions and from 1 to {} rows",
                             metadata_.file_name(), kBefore[0].gguf_name, base::joined(embeddings->shape, ", "),
                             kMaxVocabulary);
    set(Size::vocabulary, embeddings->shape[0]);
    if (!network_.architecture->has_experts) return {};
    if (Status s = take("expert_used_count", network_.size(Size::experts), network_.experts_used); !s.ok()) return s;
    std::uint64_t expert_intermediate = intermediate;
    if ((network_.features & kQwenExperts) != 0)
      if (Status s = take("expert_feed_forward_length", kMaxGgufSize, expert_intermediate); !s.ok()) return s;
    set(Size::expert_intermediate, expert_intermediate);
    return {};
  }

  Status read_heads() {
    const std::uint64_t hidden = network_.size(Size::hidden);
    if (Status s = take("attention.head_count", kMaxGgufSize, network_.heads); !s.ok()) return s;
    const auto key_value = metadata_.count_or(key("attention.head_count_kv"), network_.heads, 1, network_.heads);
    if (!key_value.ok()) return key_value.status();
    network_.key_value_heads = *key_value;
    const auto head = metadata_.count_or(key("attention.key_length"), hidden / network_.heads, 2, kMaxGgufSize);
    if (!head.ok()) return head.status();
    // A head that another size is said for, or whose halves are not turned against each other as a whole.
    for (const std::string_view name : {"attention.value_length", "rope.dimension_count"}) {
      const auto other = metadata_.count_or(key(name), *head, 1, kMaxGgufSize);
      if (!other.ok()) return other.status();
      if (*other != *head)
        return base::unsupported("{}: \"{}\" is {}, heads have {}; only equal ones are read", metadata_.file_name(),
                                 key(name), *other, *head);
    }
    if (*head % 2 != 0 || network_.heads * *head > kMaxGgufSize || network_.heads % network_.key_value_heads != 0)
      return invalid_problem(
          "{}: {} heads of {} with {} for keys and values: a head must be even, all of them at most {}, and the first "
          "number a multiple of the last",
          metadata_.file_name(), network_.heads, *head, network_.key_value_heads, kMaxGgufSize);
    set(Size::head, *head);
    set(Size::query, network_.heads * *head);
    set(Size::key_value, network_.key_value_heads * *head);
    return {};
  }

  Status read_rope() {
    const auto theta = metadata_.number(key("rope.freq_base"));
    if (!theta.ok()) return theta.status();
    network_.rope_theta = theta->value_or(10000.0);
    if (!std::isfinite(network_.rope_theta) || network_.rope_theta <= 0)
      return invalid_problem("{}: \"{}\" is {}, must be positive and finite", metadata_.file_name(),
                             key("rope.freq_base"), network_.rope_theta);
    const auto original = metadata_.count_or(key("rope.scaling.original_context_length"), 0, 0, kMaxContext);
    if (!original.ok()) return original.status();
    network_.rope_scaling.original_context = *original;
    const auto kind = metadata_.text(key("rope.scaling.type"));
    if (!kind.ok()) return kind.status();
    if (!*kind || **kind == "none") return {};
    const auto factor = metadata_.number(key("rope.scaling.factor"));
    if (!factor.ok()) return factor.status();
    const auto attention = metadata_.number(key("rope.scaling.attn_factor"));
    if (!attention.ok()) return attention.status();
    const bool known = **kind == "linear" || (**kind == "yarn" && *original > 0);
    if (!known || !*factor || !std::isfinite(**factor) || **factor < 1 || attention->value_or(1) != 1)
      return base::unsupported(
          "{}: rope scaling \"{}\" with factor {}, original context {} and attention factor {}: only linear and yarn "
          "with a factor of at least 1 are read, yarn with its original context, and no attention factor",
          metadata_.file_name(), io::printable(**kind), factor->value_or(0), *original, attention->value_or(1));
    network_.rope_scaling.kind = **kind;
    network_.rope_scaling.factor = **factor;
    return {};
  }

  Status read_epsilon() {
    const std::string name = key("attention.layer_norm_rms_epsilon");
    const auto value = metadata_.number(name);
    if (!value.ok()) return value.status();
    if (!*value || !std::isfinite(**value) || **value < 0)
      return invalid_problem("{}: \"{}\" must be there, finite and not negative", metadata_.file_name(), name);
    network_.norm_epsilon = **value;
    return {};
  }

  void find_features() {
    if (file_.find_tensor("output.weight") != nullptr) network_.features |= kOutput;
    // Hugging Face's Llama has a bias in all four linears of attention or in none, and so in its MLP.
    if (network_.architecture->model_type != "llama") return;
    if (file_.find_tensor("blk.0.attn_q.bias") != nullptr) network_.features |= kAttentionBias | kAttentionOutputBias;
    if (file_.find_tensor("blk.0.ffn_gate.bias") != nullptr) network_.features |= kMlpBias;
  }

  const io::GgufFile& file_;
  GgufMetadata metadata_;
  std::string prefix_;
  GgufNetwork network_;
};

}  // namespace

std::string names_of_gguf_architectures() {
  std::vector<std::string_view> names;
  for (const GgufArchitecture& row : kArchitectures)
    if (std::find(names.begin(), names.end(), row.gguf_name) == names.end()) names.push_back(row.gguf_name);
  return base::joined(names, ", ");
}

Result<GgufNetwork> read_gguf_network(const io::GgufFile& file) { return NetworkReader(file).run(); }

std::vector<GgufTensorRule> tensor_rules(const GgufNetwork& network) {
  std::vector<GgufTensorRule> rules;
  const auto add = [&](const TensorName& row, const std::string& gguf_prefix, const std::string& prefix) {
    if ((network.features & row.feature) != row.feature) return;
    GgufTensorRule rule{gguf_prefix + std::string(row.gguf_name), prefix + std::string(row.name), {}};
    if (row.rows != Size::none) rule.shape.push_back(network.size(row.rows));
    rule.shape.push_back(network.size(row.columns));
    if (row.holds_experts()) rule.experts = network.size(Size::experts);
    if (network.architecture->rows_in_other_order && row.heads != Heads::none)
      rule.heads = row.heads == Heads::query ? network.heads : network.key_value_heads;
    rules.push_back(std::move(rule));
  };
  for (const TensorName& row : kBefore) add(row, "", "");
  for (std::uint64_t layer = 0; layer < network.layers; ++layer)
    for (const TensorName& row : kOfLayer)
      add(row, base::text("blk.{}.", layer), base::text("model.layers.{}.", layer));
  for (const TensorName& row : kBehind) add(row, "", "");
  return rules;
}

GgufLinearName name_of_gguf_linear(std::string_view gguf_name, std::string_view model_type) {
  for (const TensorName& row : kBehind)
    if (is_linear(row, gguf_name)) return {std::string(row.name), false};
  unsigned experts = 0;
  for (const GgufArchitecture& architecture : kArchitectures)
    if (architecture.model_type == model_type) experts = architecture.features & kOfExperts;
  const auto [layer, rest] = layer_name_of(gguf_name);
  for (const TensorName& row : kOfLayer)
    if (is_linear(row, rest) && ((row.feature & kOfExperts) == 0 || (row.feature & experts) != 0))
      return {base::text("model.layers.{}.{}", layer, row.name), row.holds_experts()};
  return {};
}

bool needs_model_type(std::string_view gguf_name) {
  const std::string_view rest = layer_name_of(gguf_name).rest;
  return std::ranges::any_of(
      kOfLayer, [&](const TensorName& row) { return is_linear(row, rest) && (row.feature & kOfExperts) != 0; });
}

std::vector<std::string> model_types_with_experts() {
  std::vector<std::string> names;
  for (const GgufArchitecture& row : kArchitectures)
    if (row.has_experts) names.emplace_back(row.model_type);
  return names;
}

io::Json config_of(const GgufNetwork& network, const io::GgufFile& file) {
  const GgufMetadata metadata(file);
  const auto token = [&](const std::string& key) {
    const auto id = metadata.count(key);
    return id.ok() && *id ? io::Json(**id) : io::Json();
  };
  const bool tied = (network.features & kOutput) == 0;
  io::Json config = {{"architectures", io::Json::array({network.architecture->class_name})},
                     {"attention_bias", (network.features & kAttentionBias) != 0},
                     {"attention_dropout", 0.0},
                     {"bos_token_id", token("tokenizer.ggml.bos_token_id")},
                     {"eos_token_id", token("tokenizer.ggml.eos_token_id")},
                     {"head_dim", network.size(Size::head)},
                     {"hidden_act", "silu"},
                     {"hidden_size", network.size(Size::hidden)},
                     {"initializer_range", 0.02},
                     {"intermediate_size", network.size(Size::intermediate)},
                     {"max_position_embeddings", network.context},
                     {"model_type", network.architecture->model_type},
                     {"num_attention_heads", network.heads},
                     {"num_hidden_layers", network.layers},
                     {"num_key_value_heads", network.key_value_heads},
                     {"rms_norm_eps", network.norm_epsilon},
                     {"rope_scaling", nullptr},
                     {"rope_theta", network.rope_theta},
                     {"tie_word_embeddings", tied},
                     {"torch_dtype", "float32"},
                     {"use_cache", true},
                     {"vocab_size", network.size(Size::vocabulary)}};
  if (network.architecture->model_type == "llama") config["mlp_bias"] = (network.features & kMlpBias) != 0;
  const RopeScaling& scaling = network.rope_scaling;
  if (!scaling.kind.empty()) {
    io::Json& json = config["rope_scaling"] = {{"rope_type", scaling.kind}, {"factor", scaling.factor}};
    if (scaling.kind == "llama3") {
      json["low_freq_factor"] = kLowFrequencyFactor;
      json["high_freq_factor"] = kHighFrequencyFactor;
    }
    if (scaling.kind != "linear") json["original_max_position_embeddings"] = scaling.original_context;
  }
  if ((network.features & kHasMixtralExperts) != 0) {
    config["num_local_experts"] = network.size(Size::experts);
    config["num_experts_per_tok"] = network.experts_used;
    config["sliding_window"] = nullptr;
  }
  if ((network.features & kQwenExperts) != 0) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = io::Json::array();
    config["moe_intermediate_size"] = network.size(Size::expert_intermediate);
    config["norm_topk_prob"] = true;
    config["num_experts"] = network.size(Size::experts);
    config["num_experts_per_tok"] = network.experts_used;
  }
  return config;
}

Status set_llama3_scaling(GgufNetwork& network, std::span<const float> factors, std::string_view file_name) {
  RopeScaling& scaling = network.rope_scaling;
  if (!scaling.kind.empty())
    return base::unsupported("{}: has both {} and rope scaling \"{}\"", file_name, kRopeFactorsName, scaling.kind);
  if (scaling.original_context == 0) scaling.original_context = kLlama3Context;
  // The low frequencies are divided by all of it.
  const auto head = static_cast<double>(network.size(Size::head));
  const auto context = static_cast<double>(scaling.original_context);
  scaling.factor = factors.empty() ? 0 : static_cast<double>(factors.back());
  bool same = 2 * factors.size() == network.size(Size::head) && std::isfinite(scaling.factor) && scaling.factor >= 1;
  for (std::size_t i = 0; i < factors.size() && same; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(network.rope_theta, 2 * static_cast<double>(i) / head);
    const double smooth = std::clamp(
        (context / wavelength - kLowFrequencyFactor) / (kHighFrequencyFactor - kLowFrequencyFactor), 0.0, 1.0);
    const double wanted = 1 / ((1 - smooth) / scaling.factor + smooth);
    // They were computed in f32.
    same = std::abs(static_cast<double>(factors[i]) - wanted) <= 1e-3 * wanted;
  }
  if (!same)
    return base::unsupported("{}: the {} factors of {} are not those of Llama 3 for a context of {}", file_name,
                             factors.size(), kRopeFactorsName, scaling.original_context);
  scaling.kind = "llama3";
  return {};
}

}  // namespace kvant::model
