// What tensors are, and the patterns that name modules.
#include "model/roles.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using io::DType;
using model::judge;
using model::Judgement;
using model::Patterns;
using model::Role;

Judgement judged(std::string name, std::vector<std::uint64_t> shape = {8, 8}, DType dtype = DType::bf16,
                 std::string_view model_type = "llama") {
  return judge({std::move(name), dtype, std::move(shape), 0, 0}, model_type);
}
Role role_of(std::string name) { return judged(std::move(name)).role; }

Result<Patterns> parsed(const std::vector<std::string>& patterns) { return Patterns::parse(patterns); }

// The first that matches, or "none".
std::string match(const std::vector<std::string>& patterns, std::string_view module) {
  const auto list = parsed(patterns);
  EXPECT_TRUE(list.ok()) << list.status().message();
  const std::string* found = list->match(module);
  return found == nullptr ? "none" : *found;
}

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

TEST(Modules, OfTensors) {
  EXPECT_EQ(model::module_of("model.layers.0.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj");
  EXPECT_EQ(model::module_of("a.weight.weight"), "a.weight");
  EXPECT_EQ(model::module_of("a.bias"), "");
  EXPECT_EQ(model::module_of("weight"), "");
  EXPECT_EQ(model::module_of("aweight"), "");
  EXPECT_EQ(model::module_of(""), "");
  EXPECT_EQ(model::last_component("model.layers.0.mlp.up_proj"), "up_proj");
  EXPECT_EQ(model::last_component("up_proj"), "up_proj");
  EXPECT_EQ(model::last_component("a."), "");
  EXPECT_EQ(model::last_component(""), "");
}

TEST(Patterns, ExactNames) {
  EXPECT_EQ(match({"lm_head", "model.norm"}, "model.norm"), "model.norm");
  EXPECT_EQ(match({"lm_head"}, "model.lm_head"), "none");
  EXPECT_EQ(match({"lm_head"}, "lm_head.x"), "none");
  // What would be an expression is a name.
  EXPECT_EQ(match({"lm.head", ".*"}, "lm_head"), "none");
  EXPECT_EQ(match({"a(b"}, "a(b"), "a(b");
}

TEST(Patterns, ExpressionsMatchFromTheStart) {
  EXPECT_EQ(match({"re:model.*gate"}, "model.layers.0.mlp.gate"), "re:model.*gate");
  EXPECT_EQ(match({"re:.*lm_head"}, "model.lm_head"), "re:.*lm_head");
  EXPECT_EQ(match({"re:lm_head"}, "model.lm_head"), "none");
  // As Python's re.match: the end need not be reached.
  EXPECT_EQ(match({"re:model"}, "model.lm_head"), "re:model");
  EXPECT_EQ(match({"re:model$"}, "model.lm_head"), "none");
  EXPECT_EQ(match({"re:^model\\.layers\\.[0-3]\\."}, "model.layers.3.x"), "re:^model\\.layers\\.[0-3]\\.");
  EXPECT_EQ(match({"re:^model\\.layers\\.[0-3]\\."}, "model.layers.31.x"), "none");
  EXPECT_EQ(match({"re:(?!lm_head).*"}, "lm_head"), "none");
  EXPECT_EQ(match({"re:(q|k|v)_proj$"}, "k_proj"), "re:(q|k|v)_proj$");
  EXPECT_EQ(match({"re:"}, "anything"), "re:");
}

TEST(Patterns, TheFirstThatMatchesIsNamed) {
  EXPECT_EQ(match({"x", "re:a.*", "re:ab", "abc"}, "abc"), "re:a.*");
  EXPECT_EQ(match({"x", "abc", "re:a.*"}, "abc"), "abc");
}

TEST(Patterns, NoneMatchesNothing) {
  EXPECT_EQ(match({}, "a"), "none");
  EXPECT_EQ(Patterns().match("a"), nullptr);
}

TEST(Patterns, WhatIsNoExpressionIsRefused) {
  for (const char* text : {"re:(", "re:[a", "re:*", "re:a{2,1}", "re:(?P<n>a)", "re:a\\"})
    EXPECT_TRUE(refused(parsed({"lm_head", text}).status(), StatusCode::InvalidProblem,
                        {"pattern '", io::printable(text), "is no regular expression"}))
        << text;
}

TEST(Patterns, NoPatternTakesLong) {
  const auto start = std::chrono::steady_clock::now();
  const std::string name = std::string(4000, 'a') + "!";
  EXPECT_EQ(match({"re:(a+)+$", "re:(a|aa)+$", "re:(.*)*b", "re:(a*)*(a*)*b"}, name), "none");
  // For ever where the search goes back to try every way.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_TRUE(refused(parsed({R"(re:(a)\1)"}).status(), StatusCode::InvalidProblem, {"is no regular expression"}));
}

TEST(Patterns, NoPatternIsTooDeep) {
  const auto brackets = [](std::size_t count) {
    return "re:" + std::string(count, '(') + "a" + std::string(count, ')');
  };
  EXPECT_EQ(match({brackets(510)}, "a"), brackets(510));
  EXPECT_TRUE(
      refused(parsed({brackets(100'000)}).status(), StatusCode::InvalidProblem, {"pattern", "200004 bytes", "1024"}));
  // A name is compared, however long.
  EXPECT_TRUE(parsed({std::string(100'000, '(')}).ok());
}

TEST(Patterns, NothingMatchesANameOfMoreThan4096Bytes) {
  EXPECT_EQ(match({"re:a*$"}, std::string(4096, 'a')), "re:a*$");
  EXPECT_EQ(match({"re:a*$"}, std::string(4097, 'a')), "none");
  EXPECT_EQ(match({"re:a"}, std::string(10'000'000, 'a')), "none");
  EXPECT_EQ(match({std::string(4097, 'a')}, std::string(4097, 'a')), "none");
}

TEST(Patterns, CopiesShareThem) {
  Patterns copy;
  {
    const auto original = parsed({"re:a+", "b"});
    ASSERT_TRUE(original.ok());
    copy = *original;
  }
  ASSERT_NE(copy.match("aa"), nullptr);
  EXPECT_EQ(*copy.match("b"), "b");
}

}  // namespace
}  // namespace kvant::tests
