// What tensors are.
#include "model/roles.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::tests {
namespace {

using io::DType;
using model::judge;
using model::Judgement;
using model::Role;

Judgement judged(std::string name, std::vector<std::uint64_t> shape = {8, 8}, DType dtype = DType::bf16,
                 std::string_view model_type = "llama") {
  return judge({std::move(name), dtype, std::move(shape), 0, 0}, model_type);
}
Role role_of(std::string name) { return judged(std::move(name)).role; }

TEST(Roles, WeightsOfLinears) {
  for (const char* module :
       {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.experts.3.up_proj",
        "model.decoder.layers.0.fc1", "transformer.h.0.self_attention.query_key_value", "up", "gate",
        "encoder.layer.0.attention.output.dense", "model.layers.0.attention.output", "classifier",
        "model.layers.0.mlp.gate_up_proj", "vision.norm1.linear", "model.layers.0.lnear"}) {
    const Judgement judgement = judged(std::string(module) + ".weight");
    EXPECT_EQ(judgement.role, Role::linear) << module;
    EXPECT_EQ(judgement.reason, "a 2-D weight");
  }
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    EXPECT_EQ(judged("a.weight", {3, 5}, dtype).role, Role::linear) << io::name(dtype);
}

TEST(Roles, Heads) {
  for (const char* module :
       {"lm_head", "model.lm_head", "embed_out", "output_projection", "score", "output", "transformer.output_layer"})
    EXPECT_EQ(role_of(std::string(module) + ".weight"), Role::lm_head) << module;
  EXPECT_EQ(judged("lm_head.weight").reason, "the output projection");
}

TEST(Roles, Embeddings) {
  for (const char* module :
       {"model.embed_tokens", "model.decoder.embed_positions", "gpt_neox.embed_in", "transformer.wte", "wpe",
        "transformer.word_embeddings", "bert.embeddings.position_embeddings", "bert.embeddings.token_type_embeddings",
        "model.tok_embeddings", "shared", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "backbone.embeddings"})
    EXPECT_EQ(role_of(std::string(module) + ".weight"), Role::embedding) << module;
}

TEST(Roles, Routers) {
  for (const char* module :
       {"model.layers.0.mlp.gate", "model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.shared_expert_gate",
        "model.layers.0.ffn.router", "encoder.block.1.layer.1.mlp.router.classifier"})
    EXPECT_EQ(role_of(std::string(module) + ".weight"), Role::router) << module;
}

TEST(Roles, Norms) {
  for (const char* module : {"model.norm", "model.layers.0.input_layernorm", "model.layers.0.self_attn.q_norm",
                             "model.decoder.layers.0.self_attn_layer_norm", "transformer.h.0.ln_1", "transformer.ln_f",
                             "blocks.0.ln2", "ln", "bert.encoder.layer.0.attention.output.LayerNorm"}) {
    EXPECT_EQ(judged(std::string(module) + ".weight", {8}).role, Role::norm) << module;
    EXPECT_EQ(judged(std::string(module) + ".bias", {8}).role, Role::norm) << module;
  }
  // A scale for each head.
  EXPECT_EQ(judged("model.layers.0.self_attn.q_norm.weight", {32, 128}).role, Role::norm);
}

TEST(Roles, Biases) {
  EXPECT_EQ(judged("model.layers.0.self_attn.q_proj.bias", {8}).role, Role::bias);
  EXPECT_EQ(judged("model.layers.0.self_attn.q_proj.bias", {8}).reason, "a bias");
  EXPECT_EQ(judged("bias", {8}).role, Role::other);
}

TEST(Roles, Conv1dOfGpt2) {
  for (const std::string_view type : {"gpt2", "imagegpt", "decision_transformer"})
    for (const char* module : {"h.0.attn.c_attn", "h.0.attn.c_proj", "h.0.mlp.c_fc", "h.0.crossattention.q_attn"})
      EXPECT_EQ(judged(std::string(module) + ".weight", {8, 24}, DType::f32, type).role, Role::conv1d) << module;
  // StarCoder's is a Linear of the same name.
  for (const std::string_view type : {"gpt_bigcode", "starcoder2", "llama", ""})
    EXPECT_EQ(judged("h.0.attn.c_attn.weight", {8, 24}, DType::f32, type).role, Role::linear) << type;
  EXPECT_EQ(judged("h.0.attn.other.weight", {8, 24}, DType::f32, "gpt2").role, Role::linear);
}

TEST(Roles, EverythingElse) {
  EXPECT_EQ(judged("a.weight", {}).reason, "has 0 dimensions, a Linear has 2");
  EXPECT_EQ(judged("a.weight", {8}).reason, "has 1 dimension, a Linear has 2");
  EXPECT_EQ(judged("a.conv.weight", {8, 8, 3}).reason, "has 3 dimensions, a Linear has 2");
  EXPECT_EQ(judged("lm_head.weight", {8}).role, Role::other);
  EXPECT_EQ(judged("a.weight", {8, 8}, DType::i8).reason, "holds I8, not floating point");
  EXPECT_EQ(judged("a.weight", {8, 8}, DType::f8_e4m3).reason, "holds F8_E4M3, not floating point");
  for (const char* name : {"a.weight_scale", "a.qweight", "weight", ".weight", "a.rotary_emb.inv_freq", "",
                           "model.layers.0.mlp.experts.gate_up_proj", "a.weights", "a.weight "}) {
    EXPECT_EQ(judged(name).role, Role::other) << name;
    EXPECT_EQ(judged(name).reason, "its name does not end in .weight") << name;
  }
}

TEST(Roles, HaveNames) {
  std::set<std::string_view> names;
  for (const Role role :
       {Role::linear, Role::lm_head, Role::embedding, Role::router, Role::norm, Role::bias, Role::conv1d, Role::other})
    names.insert(name(role));
  EXPECT_EQ(names, (std::set<std::string_view>{"linear", "lm_head", "embedding", "router", "norm", "bias", "conv1d",
                                               "other"}));
}

}  // namespace
}  // namespace kvant::tests
