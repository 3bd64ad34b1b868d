// Tiny models of every family: config.json and random tensors, from a list of modules and their shapes.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/checkpoint_fixture.h"

namespace kvant::tests {

class NetworkFixture {
 public:
  static constexpr std::uint64_t kHidden = 32, kInner = 48, kVocabulary = 61, kLayers = 2, kPositions = 40;

  explicit NetworkFixture(io::Json config, io::DType dtype = io::DType::f32) : dtype_(dtype) {
    files_.config = std::move(config);
  }

  void matrix(const std::string& module, std::uint64_t rows, std::uint64_t columns) {
    std::vector<double> values = random(rows * columns);
    for (double& value : values) value /= std::sqrt(static_cast<double>(columns));
    files_.add(float_tensor(module + ".weight", dtype_, {rows, columns}, values));
  }
  void bias(const std::string& module, std::uint64_t size) {
    files_.add(float_tensor(module + ".bias", dtype_, {size}, random(size, 0.1)));
  }
  void linear(const std::string& module, std::uint64_t out, std::uint64_t in) {
    matrix(module, out, in);
    bias(module, out);
  }
  // A Conv1D is stored as [in, out].
  void conv1d(const std::string& module, std::uint64_t out, std::uint64_t in) {
    matrix(module, in, out);
    bias(module, out);
  }
  void norm(const std::string& module, std::uint64_t size = kHidden, bool with_bias = false) {
    std::vector<double> values = random(size, 0.1);
    for (double& value : values) value += 1;
    files_.add(float_tensor(module + ".weight", dtype_, {size}, values));
    if (with_bias) bias(module, size);
  }

  const CheckpointFixture& files() const { return files_; }
  CheckpointFixture& files() { return files_; }

 private:
  std::vector<double> random(std::uint64_t count, double deviation = 1) {
    std::normal_distribution<double> normal(0, deviation);
    std::vector<double> values(count);
    for (double& value : values) value = normal(random_);
    return values;
  }

  io::DType dtype_;
  std::mt19937 random_{11};
  CheckpointFixture files_;
};

inline io::Json llama_config(const std::string& model_type = "llama") {
  using F = NetworkFixture;
  return {{"model_type", model_type},
          {"hidden_size", F::kHidden},
          {"intermediate_size", F::kInner},
          {"num_hidden_layers", F::kLayers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", F::kVocabulary},
          {"max_position_embeddings", F::kPositions},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"}};
}

// Llama, Mistral, Qwen2 (biases of q, k and v) and Qwen3 (norms of heads), by their config.
inline NetworkFixture llama_model(io::Json config, io::DType dtype = io::DType::f32) {
  using F = NetworkFixture;
  const std::string type = config["model_type"];
  F model(std::move(config), dtype);
  model.matrix("model.embed_tokens", F::kVocabulary, F::kHidden);
  for (std::uint64_t i = 0; i < F::kLayers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    model.norm(at + "input_layernorm");
    model.matrix(at + "self_attn.q_proj", F::kHidden, F::kHidden);
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"})
      model.matrix(at + name, F::kHidden / 2, F::kHidden);
    if (type == "qwen2") {
      model.bias(at + "self_attn.q_proj", F::kHidden);
      for (const char* name : {"self_attn.k_proj", "self_attn.v_proj"}) model.bias(at + name, F::kHidden / 2);
    }
    if (type == "qwen3")
      for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) model.norm(at + name, F::kHidden / 4);
    model.matrix(at + "self_attn.o_proj", F::kHidden, F::kHidden);
    model.norm(at + "post_attention_layernorm");
    if (type == "mixtral") {
      model.matrix(at + "block_sparse_moe.gate", 3, F::kHidden);
      for (int e = 0; e < 3; ++e) {
        const std::string expert = fmt::format("{}block_sparse_moe.experts.{}.", at, e);
        model.matrix(expert + "w1", F::kInner, F::kHidden);
        model.matrix(expert + "w3", F::kInner, F::kHidden);
        model.matrix(expert + "w2", F::kHidden, F::kInner);
      }
    } else {
      for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) model.matrix(at + name, F::kInner, F::kHidden);
      model.matrix(at + "mlp.down_proj", F::kHidden, F::kInner);
    }
  }
  model.norm("model.norm");
  model.matrix("lm_head", F::kVocabulary, F::kHidden);
  return model;
}

// Three experts, two for each token.
inline NetworkFixture mixtral_model() {
  io::Json config = llama_config("mixtral");
  config["num_local_experts"] = 3;
  config["num_experts_per_tok"] = 2;
  return llama_model(config);
}

inline NetworkFixture gpt2_model() {
  using F = NetworkFixture;
  F model({{"model_type", "gpt2"},
           {"n_embd", F::kHidden},
           {"n_layer", F::kLayers},
           {"n_head", 4},
           {"vocab_size", F::kVocabulary},
           {"n_positions", F::kPositions},
           {"layer_norm_epsilon", 1e-5},
           {"activation_function", "gelu_new"}});
  model.matrix("transformer.wte", F::kVocabulary, F::kHidden);
  model.matrix("transformer.wpe", F::kPositions, F::kHidden);
  for (std::uint64_t i = 0; i < F::kLayers; ++i) {
    const std::string at = fmt::format("transformer.h.{}.", i);
    model.norm(at + "ln_1", F::kHidden, true);
    model.conv1d(at + "attn.c_attn", 3 * F::kHidden, F::kHidden);
    model.conv1d(at + "attn.c_proj", F::kHidden, F::kHidden);
    model.norm(at + "ln_2", F::kHidden, true);
    model.conv1d(at + "mlp.c_fc", 4 * F::kHidden, F::kHidden);
    model.conv1d(at + "mlp.c_proj", F::kHidden, 4 * F::kHidden);
  }
  model.norm("transformer.ln_f", F::kHidden, true);
  return model;
}

inline NetworkFixture opt_model(bool norm_before) {
  using F = NetworkFixture;
  F model({{"model_type", "opt"},
           {"hidden_size", F::kHidden},
           {"ffn_dim", F::kInner},
           {"num_hidden_layers", F::kLayers},
           {"num_attention_heads", 4},
           {"vocab_size", F::kVocabulary},
           {"max_position_embeddings", F::kPositions},
           {"do_layer_norm_before", norm_before},
           {"word_embed_proj_dim", F::kHidden},
           {"activation_function", "relu"}});
  const std::string stem = "model.decoder.";
  model.matrix(stem + "embed_tokens", F::kVocabulary, F::kHidden);
  model.matrix(stem + "embed_positions", F::kPositions + 2, F::kHidden);
  for (std::uint64_t i = 0; i < F::kLayers; ++i) {
    const std::string at = fmt::format("{}layers.{}.", stem, i);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
      model.linear(at + "self_attn." + name, F::kHidden, F::kHidden);
    model.norm(at + "self_attn_layer_norm", F::kHidden, true);
    model.linear(at + "fc1", F::kInner, F::kHidden);
    model.linear(at + "fc2", F::kHidden, F::kInner);
    model.norm(at + "final_layer_norm", F::kHidden, true);
  }
  if (norm_before) model.norm(stem + "final_layer_norm", F::kHidden, true);
  return model;
}

inline NetworkFixture bert_model() {
  using F = NetworkFixture;
  F model({{"model_type", "bert"},
           {"hidden_size", F::kHidden},
           {"intermediate_size", F::kInner},
           {"num_hidden_layers", F::kLayers},
           {"num_attention_heads", 4},
           {"vocab_size", F::kVocabulary},
           {"max_position_embeddings", F::kPositions},
           {"hidden_act", "gelu"}});
  model.matrix("embeddings.word_embeddings", F::kVocabulary, F::kHidden);
  model.matrix("embeddings.position_embeddings", F::kPositions, F::kHidden);
  model.matrix("embeddings.token_type_embeddings", 2, F::kHidden);
  model.norm("embeddings.LayerNorm", F::kHidden, true);
  for (std::uint64_t i = 0; i < F::kLayers; ++i) {
    const std::string at = fmt::format("encoder.layer.{}.", i);
    for (const char* name : {"query", "key", "value"})
      model.linear(at + "attention.self." + name, F::kHidden, F::kHidden);
    model.linear(at + "attention.output.dense", F::kHidden, F::kHidden);
    model.norm(at + "attention.output.LayerNorm", F::kHidden, true);
    model.linear(at + "intermediate.dense", F::kInner, F::kHidden);
    model.linear(at + "output.dense", F::kHidden, F::kInner);
    model.norm(at + "output.LayerNorm", F::kHidden, true);
  }
  return model;
}

}  // namespace kvant::tests
