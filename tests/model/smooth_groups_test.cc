// Which norms are folded into which linears: the families, what is left alone or refused and why, and groups of a file.
#include "model/smooth_groups.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using model::find_smooth_groups;
using model::ModelFacts;
using model::parse_smooth_groups;
using model::smooth_groups_of_family;
using model::SmoothGroup;
using model::SmoothGroups;
using Modules = std::set<std::string, std::less<>>;
using Names = std::vector<std::string>;

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr auto kUnsupported = StatusCode::Unsupported;

Modules& operator+=(Modules& modules, const Modules& more) {
  modules.insert(more.begin(), more.end());
  return modules;
}
Modules operator-(Modules modules, std::string_view name) {
  EXPECT_EQ(modules.erase(std::string(name)), 1u) << name;
  return modules;
}
Modules operator+(Modules modules, std::string name) {
  modules.insert(std::move(name));
  return modules;
}

// Names below "prefix" + layer for each of two layers.
Modules blocks(std::string_view prefix, std::initializer_list<std::string_view> names) {
  Modules modules;
  for (int layer = 0; layer < 2; ++layer)
    for (const std::string_view name : names) modules.insert(fmt::format("{}{}.{}", prefix, layer, name));
  return modules;
}

Modules llama() {
  Modules modules = {"model.embed_tokens", "model.norm", "lm_head"};
  modules += blocks("model.layers.",
                    {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                     "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
  return modules;
}
Modules opt() {
  Modules modules = {"model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.final_layer_norm"};
  modules +=
      blocks("model.decoder.layers.", {"self_attn_layer_norm", "self_attn.q_proj", "self_attn.k_proj",
                                       "self_attn.v_proj", "self_attn.out_proj", "final_layer_norm", "fc1", "fc2"});
  return modules;
}
Modules bloom() {
  Modules modules = {"word_embeddings", "word_embeddings_layernorm", "ln_f"};
  modules += blocks("h.", {"input_layernorm", "self_attention.query_key_value", "self_attention.dense",
                           "post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"});
  return modules;
}
// Gemma 2 has norms behind the attention and the MLP as well.
Modules gemma2() {
  Modules modules = llama();
  modules += blocks("model.layers.", {"pre_feedforward_layernorm", "post_feedforward_layernorm"});
  return modules;
}
// One norm before both: attention and MLP in parallel.
Modules cohere() {
  Modules modules = llama();
  for (const char* layer : {"0", "1"}) modules.erase(fmt::format("model.layers.{}.post_attention_layernorm", layer));
  return modules;
}
Modules mixtral() {
  Modules modules = {"model.norm"};
  modules += blocks("model.layers.",
                    {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                     "post_attention_layernorm", "block_sparse_moe.gate", "block_sparse_moe.experts.0.w1",
                     "block_sparse_moe.experts.0.w2", "block_sparse_moe.experts.0.w3", "block_sparse_moe.experts.1.w1",
                     "block_sparse_moe.experts.1.w2", "block_sparse_moe.experts.1.w3"});
  return modules;
}
Modules qwen2_moe() {
  Modules modules;
  modules +=
      blocks("model.layers.", {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                               "self_attn.o_proj", "post_attention_layernorm", "mlp.gate", "mlp.experts.0.gate_proj",
                               "mlp.experts.0.up_proj", "mlp.experts.0.down_proj", "mlp.shared_expert.gate_proj",
                               "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj", "mlp.shared_expert_gate"});
  return modules;
}

ModelFacts of_type(std::string model_type) {
  ModelFacts facts;
  facts.model_type = std::move(model_type);
  return facts;
}

Names norms_of(const SmoothGroups& found) {
  Names names;
  for (const SmoothGroup& group : found.groups) names.push_back(group.norm);
  return names;
}
Names readers_of(const SmoothGroups& found, std::string_view norm) {
  for (const SmoothGroup& group : found.groups)
    if (group.norm == norm) return group.readers;
  return {"no group"};
}
// The names, each below a prefix.
Names below(std::string_view prefix, std::initializer_list<std::string_view> names) {
  Names full;
  for (const std::string_view name : names) full.push_back(fmt::format("{}{}", prefix, name));
  return full;
}
testing::AssertionResult contains(std::string_view text, Parts parts) {
  for (const std::string_view part : parts)
    if (text.find(part) == std::string_view::npos)
      return testing::AssertionFailure() << "\"" << text << "\" does not contain \"" << part << "\"";
  return testing::AssertionSuccess();
}
// Left alone for a reason with these parts.
testing::AssertionResult alone(const SmoothGroups& found, const std::string& norm, Parts parts) {
  const auto place = found.left_alone.find(norm);
  if (place == found.left_alone.end()) return testing::AssertionFailure() << norm << " is not left alone";
  if (readers_of(found, norm) != Names{"no group"}) return testing::AssertionFailure() << norm << " is in a group too";
  return contains(place->second, parts);
}

// ---- Families by model_type -----------------------------------------------------------------------------------

TEST(SmoothGroups, OfLlama) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "yi", "internlm3"}) {
    const SmoothGroups found = find_smooth_groups(of_type(type), llama());
    EXPECT_EQ(found.refusal, "") << type;
    EXPECT_EQ(found.warning, "");
    EXPECT_EQ(found.family, "llama");
    EXPECT_EQ(found.default_alpha, 0.8);
    EXPECT_TRUE(found.left_alone.empty());
    EXPECT_EQ(norms_of(found), (Names{"model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                                      "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"}));
    EXPECT_EQ(readers_of(found, "model.layers.1.input_layernorm"),
              below("model.layers.1.self_attn.", {"k_proj", "q_proj", "v_proj"}));
    EXPECT_EQ(readers_of(found, "model.layers.0.post_attention_layernorm"),
              below("model.layers.0.mlp.", {"gate_proj", "up_proj"}));
  }
}

TEST(SmoothGroups, OfQwen3WithNormsOfHeads) {
  Modules modules = llama();
  modules += blocks("model.layers.", {"self_attn.q_norm", "self_attn.k_norm"});
  const SmoothGroups found = find_smooth_groups(of_type("qwen3"), modules);
  EXPECT_EQ(found.groups.size(), 4u);
  EXPECT_TRUE(found.left_alone.empty());
  EXPECT_EQ(readers_of(found, "model.layers.0.input_layernorm"),
            below("model.layers.0.self_attn.", {"k_proj", "q_proj", "v_proj"}));
}

TEST(SmoothGroups, OfPhi3WithFusedLinears) {
  const Modules modules = blocks("model.layers.", {"input_layernorm", "self_attn.qkv_proj", "self_attn.o_proj",
                                                   "post_attention_layernorm", "mlp.gate_up_proj", "mlp.down_proj"});
  const SmoothGroups found = find_smooth_groups(of_type("phi3"), modules);
  EXPECT_EQ(readers_of(found, "model.layers.0.input_layernorm"), Names{"model.layers.0.self_attn.qkv_proj"});
  EXPECT_EQ(readers_of(found, "model.layers.0.post_attention_layernorm"), Names{"model.layers.0.mlp.gate_up_proj"});
}

TEST(SmoothGroups, OfExpertsHaveTheRouterToo) {
  const SmoothGroups mixtral_groups = find_smooth_groups(of_type("mixtral"), mixtral());
  EXPECT_EQ(readers_of(mixtral_groups, "model.layers.0.post_attention_layernorm"),
            below("model.layers.0.block_sparse_moe.",
                  {"experts.0.w1", "experts.0.w3", "experts.1.w1", "experts.1.w3", "gate"}));
  const SmoothGroups qwen_groups = find_smooth_groups(of_type("qwen2_moe"), qwen2_moe());
  EXPECT_EQ(readers_of(qwen_groups, "model.layers.0.post_attention_layernorm"),
            below("model.layers.0.mlp.", {"experts.0.gate_proj", "experts.0.up_proj", "gate", "shared_expert.gate_proj",
                                          "shared_expert.up_proj", "shared_expert_gate"}));
}

TEST(SmoothGroups, OfManyExpertsAreAll) {
  Modules modules = mixtral();
  for (int expert = 2; expert < 130; ++expert)
    for (const char* w : {"w1", "w2", "w3"})
      modules.insert(fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}", expert, w));
  const SmoothGroups found = find_smooth_groups(of_type("mixtral"), modules);
  EXPECT_EQ(readers_of(found, "model.layers.0.post_attention_layernorm").size(), 2 * 130u + 1);
}

TEST(SmoothGroups, OfDenseAndSparseBlocksInOneModel) {
  Modules modules = llama();
  for (const std::string& module : qwen2_moe())
    if (module.starts_with("model.layers.1.")) modules.insert("model.layers.2." + module.substr(15));
  const SmoothGroups found = find_smooth_groups(of_type("qwen2_moe"), modules);
  EXPECT_EQ(found.groups.size(), 6u);
  EXPECT_TRUE(found.left_alone.empty());
}

TEST(SmoothGroups, OfOpt) {
  const SmoothGroups found = find_smooth_groups(of_type("opt"), opt());
  EXPECT_EQ(found.family, "opt");
  EXPECT_EQ(found.default_alpha, 0.5);
  EXPECT_EQ(norms_of(found),
            (Names{"model.decoder.layers.0.final_layer_norm", "model.decoder.layers.0.self_attn_layer_norm",
                   "model.decoder.layers.1.final_layer_norm", "model.decoder.layers.1.self_attn_layer_norm"}));
  EXPECT_EQ(readers_of(found, "model.decoder.layers.0.final_layer_norm"), Names{"model.decoder.layers.0.fc1"});
  EXPECT_EQ(readers_of(found, "model.decoder.layers.0.self_attn_layer_norm"),
            below("model.decoder.layers.0.self_attn.", {"k_proj", "q_proj", "v_proj"}));
  // The one behind all blocks has the same name, and feeds the head.
  EXPECT_TRUE(found.left_alone.empty());
}

TEST(SmoothGroups, OfBloom) {
  const SmoothGroups found = find_smooth_groups(of_type("bloom"), bloom());
  EXPECT_EQ(found.family, "bloom");
  EXPECT_EQ(found.default_alpha, 0.5);
  EXPECT_EQ(found.groups.size(), 4u);
  EXPECT_EQ(readers_of(found, "h.0.input_layernorm"), Names{"h.0.self_attention.query_key_value"});
  EXPECT_EQ(readers_of(found, "h.1.post_attention_layernorm"), Names{"h.1.mlp.dense_h_to_4h"});
}

TEST(SmoothGroups, OfLayer1AreNotThoseOfLayer10) {
  Modules modules;
  for (int layer = 0; layer < 12; ++layer)
    for (const std::string& module : llama())
      if (module.starts_with("model.layers.0."))
        modules.insert(fmt::format("model.layers.{}.{}", layer, module.substr(15)));
  const SmoothGroups found = find_smooth_groups(of_type("llama"), modules);
  EXPECT_EQ(found.groups.size(), 24u);
  for (const SmoothGroup& group : found.groups) EXPECT_LE(group.readers.size(), 3u) << group.norm;
}

// ---- What is left alone ---------------------------------------------------------------------------------------

TEST(SmoothGroups, ABlockWithoutAReaderIsLeftAlone) {
  for (const char* reader : {"q_proj", "k_proj", "v_proj"}) {
    const std::string missing = fmt::format("model.layers.0.self_attn.{}", reader);
    const SmoothGroups found = find_smooth_groups(of_type("llama"), llama() - missing);
    EXPECT_TRUE(alone(found, "model.layers.0.input_layernorm", {missing, "is missing"}));
    EXPECT_EQ(found.groups.size(), 3u);
    EXPECT_EQ(found.refusal, "");
  }
  EXPECT_TRUE(alone(find_smooth_groups(of_type("llama"), llama() - "model.layers.1.mlp.gate_proj"),
                    "model.layers.1.post_attention_layernorm", {"'model.layers.1.mlp.gate_proj' is missing"}));
  EXPECT_TRUE(alone(find_smooth_groups(of_type("opt"), opt() - "model.decoder.layers.0.self_attn.v_proj"),
                    "model.decoder.layers.0.self_attn_layer_norm", {"v_proj' is missing"}));
  EXPECT_TRUE(alone(find_smooth_groups(of_type("opt"), opt() - "model.decoder.layers.0.fc1"),
                    "model.decoder.layers.0.final_layer_norm", {"no linear was found that reads it"}));
  EXPECT_TRUE(alone(find_smooth_groups(of_type("bloom"), bloom() - "h.0.mlp.dense_h_to_4h"),
                    "h.0.post_attention_layernorm", {"no linear was found that reads it"}));
}

TEST(SmoothGroups, ABlockWithoutAnExpertIsLeftAlone) {
  const std::string norm = "model.layers.0.post_attention_layernorm";
  for (const char* rest : {"gate", "experts.0.w1", "experts.0.w3", "experts.1.w1", "experts.1.w3"}) {
    const std::string missing = fmt::format("model.layers.0.block_sparse_moe.{}", rest);
    EXPECT_TRUE(alone(find_smooth_groups(of_type("mixtral"), mixtral() - missing), norm, {missing, "is missing"}));
  }
  // All of the first.
  EXPECT_TRUE(alone(find_smooth_groups(of_type("mixtral"), mixtral() - "model.layers.0.block_sparse_moe.experts.0.w1" -
                                                               "model.layers.0.block_sparse_moe.experts.0.w3"),
                    norm, {"experts.0.w1", "is missing"}));
  for (const char* rest : {"gate", "shared_expert_gate", "shared_expert.up_proj", "experts.0.gate_proj"}) {
    const std::string missing = fmt::format("model.layers.0.mlp.{}", rest);
    EXPECT_TRUE(alone(find_smooth_groups(of_type("qwen2_moe"), qwen2_moe() - missing), norm, {missing, "is missing"}));
  }
  // Experts in one tensor, which is no weight of a module.
  Modules fused = qwen2_moe();
  for (const char* rest : {"gate_proj", "up_proj", "down_proj"}) {
    fused.erase(fmt::format("model.layers.0.mlp.experts.0.{}", rest));
    fused.erase(fmt::format("model.layers.0.mlp.shared_expert.{}", rest));
  }
  fused.erase("model.layers.0.mlp.shared_expert_gate");
  EXPECT_TRUE(alone(find_smooth_groups(of_type("qwen3_moe"), fused), norm, {"mlp.experts.0.gate_proj", "is missing"}));
}

TEST(SmoothGroups, ANormThatMayFeedSomethingElseIsLeftAlone) {
  // In the attention: only the norm before that.
  SmoothGroups found = find_smooth_groups(of_type("llama"), llama() + "model.layers.0.self_attn.g_proj");
  EXPECT_TRUE(alone(found, "model.layers.0.input_layernorm", {"'model.layers.0.self_attn.g_proj' may read it too"}));
  EXPECT_EQ(found.left_alone.size(), 1u);
  EXPECT_EQ(found.groups.size(), 3u);
  found = find_smooth_groups(of_type("llama"), llama() + "model.layers.0.mlp.router");
  EXPECT_TRUE(alone(found, "model.layers.0.post_attention_layernorm", {"'model.layers.0.mlp.router' may read it"}));
  EXPECT_EQ(found.left_alone.size(), 1u);
  // At home nowhere: all norms of that block.
  found = find_smooth_groups(of_type("llama"), llama() + "model.layers.1.adapter.down");
  EXPECT_TRUE(alone(found, "model.layers.1.input_layernorm", {"'model.layers.1.adapter.down' may read it too"}));
  EXPECT_TRUE(alone(found, "model.layers.1.post_attention_layernorm", {"adapter.down"}));
  EXPECT_EQ(found.groups.size(), 2u);
  // Below a reader.
  found = find_smooth_groups(of_type("llama"), llama() + "model.layers.0.self_attn.q_proj.lora_A");
  EXPECT_TRUE(alone(found, "model.layers.0.input_layernorm", {"q_proj.lora_A"}));
}

TEST(SmoothGroups, ABlockWithoutTheOtherNormIsLeftAlone) {
  const SmoothGroups found = find_smooth_groups(of_type("llama"), llama() - "model.layers.0.post_attention_layernorm");
  EXPECT_TRUE(alone(found, "model.layers.0.input_layernorm", {"its block has no post_attention_layernorm"}));
  EXPECT_EQ(found.groups.size(), 2u);
}

TEST(SmoothGroups, TwoSetsOfReadersAreLeftAlone) {
  EXPECT_TRUE(alone(find_smooth_groups(of_type("llama"), llama() + "model.layers.0.self_attn.qkv_proj"),
                    "model.layers.0.input_layernorm", {"self_attn.qkv_proj", "which no known model has"}));
}

TEST(SmoothGroups, NamesOfExpertsThatAreNoNumbersAreStrangers) {
  EXPECT_TRUE(alone(find_smooth_groups(of_type("mixtral"), mixtral() + "model.layers.0.block_sparse_moe.experts.x.w1"),
                    "model.layers.0.post_attention_layernorm", {"experts.x.w1", "may read it too"}));
  EXPECT_TRUE(alone(find_smooth_groups(of_type("mixtral"), mixtral() + "model.layers.0.block_sparse_moe.experts.00.w1"),
                    "model.layers.0.post_attention_layernorm", {"experts.2.w1", "is missing"}));
}

TEST(SmoothGroups, NormsOutsideOfBlocksAreNotLookedAt) {
  const SmoothGroups found = find_smooth_groups(
      of_type("llama"),
      {"input_layernorm", "model.input_layernorm", "x0.input_layernorm", "self_attn.q_proj", "model.self_attn.q_proj"});
  EXPECT_TRUE(found.groups.empty());
  EXPECT_TRUE(found.left_alone.empty());
  EXPECT_TRUE(contains(found.refusal, {"no norm can be folded as in a llama model", "none of its norms is there"}));
}

TEST(SmoothGroups, WhereAllIsLeftAloneTheModelIsRefused) {
  const SmoothGroups found = find_smooth_groups(of_type("llama"), cohere());
  EXPECT_TRUE(found.groups.empty());
  EXPECT_EQ(found.left_alone.size(), 2u);
  EXPECT_TRUE(contains(found.refusal, {"'model.layers.0.input_layernorm'", "has no post_attention_layernorm"}));
  EXPECT_FALSE(find_smooth_groups(of_type("llama"), {}).refusal.empty());
}

// ---- Models that are refused ----------------------------------------------------------------------------------

const std::vector<std::string> kOnePlus = {"gemma",      "gemma2",          "gemma3",         "gemma3_text",
                                           "paligemma",  "recurrent_gemma", "recurrentgemma", "t5gemma",
                                           "qwen3_next", "qwen3_5_moe",     "nemotron"};

TEST(SmoothGroups, NormsThatAddOneAreRefusedAlways) {
  const std::string file = R"({"groups": [{"norm": "model.layers.0.input_layernorm",
    "linears": ["model.layers.0.self_attn.q_proj"]}]})";
  for (const std::string& type : kOnePlus) {
    const SmoothGroups found = find_smooth_groups(of_type(type), llama());
    EXPECT_TRUE(contains(found.refusal, {type, "multiply by (1 + weight)"})) << type;
    EXPECT_TRUE(found.groups.empty());
    EXPECT_TRUE(refused(smooth_groups_of_family("llama", of_type(type), llama()).status(), kUnsupported,
                        {type, "multiply by (1 + weight)"}));
    EXPECT_TRUE(refused(parse_smooth_groups(file, "g.json", of_type(type), llama()).status(), kUnsupported,
                        {"g.json", type, "multiply by (1 + weight)"}));
  }
}

TEST(SmoothGroups, BertIsRefusedForItsResidual) {
  for (const char* type : {"bert", "roberta", "xlm-roberta", "distilbert", "albert", "electra", "deberta-v2"}) {
    EXPECT_TRUE(contains(find_smooth_groups(of_type(type), llama()).refusal, {type, "LayerNorm feeds the residual"}));
    EXPECT_TRUE(refused(smooth_groups_of_family("llama", of_type(type), llama()).status(), kUnsupported,
                        {"LayerNorm feeds the residual"}));
    EXPECT_TRUE(refused(parse_smooth_groups("{}", "g.json", of_type(type), llama()).status(), kUnsupported,
                        {"g.json", "LayerNorm feeds the residual"}));
  }
}

TEST(SmoothGroups, OptWithNormsBehindIsRefused) {
  ModelFacts facts = of_type("opt");
  facts.do_layer_norm_before = false;
  EXPECT_TRUE(contains(find_smooth_groups(facts, opt()).refusal, {"do_layer_norm_before is false", "residual"}));
  EXPECT_TRUE(find_smooth_groups(facts, opt()).groups.empty());
  EXPECT_TRUE(refused(smooth_groups_of_family("opt", facts, opt()).status(), kUnsupported, {"do_layer_norm_before"}));
  EXPECT_TRUE(
      refused(parse_smooth_groups("{}", "g.json", facts, opt()).status(), kUnsupported, {"do_layer_norm_before"}));
  facts.model_type = "";
  EXPECT_TRUE(contains(find_smooth_groups(facts, opt()).refusal, {"do_layer_norm_before is false"}));
  // It says nothing about others.
  facts.model_type = "llama";
  EXPECT_EQ(find_smooth_groups(facts, llama()).refusal, "");
}

TEST(SmoothGroups, BloomWithResidualBehindTheNormIsRefused) {
  ModelFacts facts = of_type("bloom");
  facts.apply_residual_connection_post_layernorm = true;
  EXPECT_TRUE(
      contains(find_smooth_groups(facts, bloom()).refusal, {"apply_residual_connection_post_layernorm", "residual"}));
  EXPECT_TRUE(refused(smooth_groups_of_family("bloom", facts, bloom()).status(), kUnsupported, {"residual"}));
  EXPECT_TRUE(refused(parse_smooth_groups("{}", "g.json", facts, bloom()).status(), kUnsupported, {"residual"}));
  facts.model_type = "";
  EXPECT_TRUE(contains(find_smooth_groups(facts, bloom()).refusal, {"apply_residual_connection_post_layernorm"}));
}

TEST(SmoothGroups, AnUnknownModelTypeIsRefusedWithTheRemedy) {
  for (const char* type : {"granite", "LLAMA", "llama ", "nemotron_h", "cohere"}) {
    const SmoothGroups found = find_smooth_groups(of_type(type), llama());
    EXPECT_TRUE(contains(found.refusal, {fmt::format("model_type '{}' is not known", type), "--smooth-groups llama",
                                         "opt", "bloom", "JSON file"}));
    EXPECT_TRUE(found.groups.empty());
    EXPECT_EQ(found.family, "");
  }
  EXPECT_EQ(find_smooth_groups(of_type("a\x1b[0m"), llama()).refusal.find('\x1b'), std::string::npos);
}

// ---- By names alone -------------------------------------------------------------------------------------------

TEST(SmoothGroupsByNames, AreTakenWithAWarning) {
  const std::map<std::string, Modules> models = {{"llama", llama()}, {"opt", opt()}, {"bloom", bloom()}};
  for (const auto& [family, modules] : models) {
    const SmoothGroups found = find_smooth_groups({}, modules);
    EXPECT_EQ(found.refusal, "") << family;
    EXPECT_EQ(found.family, family);
    EXPECT_EQ(found.groups.size(), 4u);
    EXPECT_EQ(found.default_alpha, family == "llama" ? 0.8 : 0.5);
    EXPECT_TRUE(contains(
        found.warning, {"config.json has no model_type", fmt::format("treated as {}-like", family), "the same names"}));
  }
  EXPECT_TRUE(contains(find_smooth_groups({}, llama()).warning, {"norms multiply by (1 + weight)"}));
  EXPECT_EQ(find_smooth_groups({}, mixtral()).family, "llama");
  EXPECT_EQ(find_smooth_groups({}, qwen2_moe()).family, "llama");
}

TEST(SmoothGroupsByNames, NormsOfHeadsFit) {
  Modules modules = llama();
  modules += blocks("model.layers.", {"self_attn.q_norm", "self_attn.k_norm"});
  EXPECT_EQ(find_smooth_groups({}, modules).family, "llama");
}

TEST(SmoothGroupsByNames, WhatDoesNotFitIsRefused) {
  const auto none = [](const Modules& modules) {
    const SmoothGroups found = find_smooth_groups({}, modules);
    if (!found.groups.empty() || !found.family.empty() || !found.warning.empty())
      return testing::AssertionFailure() << "treated as " << found.family;
    return contains(found.refusal, {"config.json has no model_type", "fit no known family", "--smooth-groups",
                                    "llama, opt, bloom", "JSON file"});
  };
  EXPECT_TRUE(none({}));
  EXPECT_TRUE(none({"a", "b.0.c"}));
  EXPECT_TRUE(none(gemma2()));
  EXPECT_TRUE(none(cohere()));
  // One block is enough.
  EXPECT_TRUE(none(llama() + "model.layers.1.pre_feedforward_layernorm"));
  EXPECT_TRUE(none(llama() - "model.layers.1.post_attention_layernorm"));
  EXPECT_TRUE(none(llama() - "model.layers.1.input_layernorm"));
  EXPECT_TRUE(none(llama() - "model.layers.1.self_attn.v_proj"));
  EXPECT_TRUE(none(llama() + "model.layers.1.self_attn.attn_sub_norm"));
  EXPECT_TRUE(none(llama() + "model.layers.1.self_attn.linear_attn"));
  // Nemotron's MLP has no gate.
  EXPECT_TRUE(none(llama() - "model.layers.0.mlp.gate_proj" - "model.layers.1.mlp.gate_proj"));
  // OPT whose norms feed the residual has none behind its blocks.
  EXPECT_TRUE(none(opt() - "model.decoder.final_layer_norm"));
  // A decoder that also looks at an encoder, as BART's.
  EXPECT_TRUE(none(opt() + "model.decoder.layers.0.encoder_attn_layer_norm"));
  // Falcon: one norm for both.
  EXPECT_TRUE(none(bloom() - "h.0.post_attention_layernorm" - "h.1.post_attention_layernorm"));
}

TEST(SmoothGroupsByNames, TwoFamiliesAreNoFamily) {
  Modules both = llama();
  both += opt();
  EXPECT_TRUE(contains(find_smooth_groups({}, both).refusal, {"fit more than one family"}));
  // The same norms: the blocks of one do not fit the other.
  both = llama();
  both += bloom();
  EXPECT_TRUE(contains(find_smooth_groups({}, both).refusal, {"fit no known family"}));
}

TEST(SmoothGroupsByNames, OptMayBeAtTheTop) {
  Modules modules = blocks("layers.", {"self_attn_layer_norm", "self_attn.q_proj", "self_attn.k_proj",
                                       "self_attn.v_proj", "self_attn.out_proj", "final_layer_norm", "fc1", "fc2"});
  EXPECT_FALSE(find_smooth_groups({}, modules).refusal.empty());
  EXPECT_EQ(find_smooth_groups({}, modules + "final_layer_norm").family, "opt");
}

TEST(SmoothGroupsByNames, BlocksInBlocksTakeNoTime) {
  Modules modules;
  std::string prefix;
  for (int depth = 0; depth < 1000; ++depth) {
    prefix += "0.";
    modules.insert(prefix + "input_layernorm");
  }
  for (int i = 0; i < 10'000; ++i) modules.insert(fmt::format("{}x{}", prefix, i));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(find_smooth_groups({}, modules).refusal.empty());
  // 0.1 s here, half a minute where each of the thousand blocks is gone through.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// ---- A family that the user names -----------------------------------------------------------------------------

TEST(SmoothGroupsOfFamily, AreThoseOfTheFamily) {
  const std::map<std::string, Modules> models = {{"llama", llama()}, {"opt", opt()}, {"bloom", bloom()}};
  for (const auto& [family, modules] : models) {
    for (const std::string type : {"", "granite", family.c_str()}) {
      const auto found = smooth_groups_of_family(family, of_type(type), modules);
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(found->family, family);
      EXPECT_EQ(found->groups.size(), 4u);
      EXPECT_EQ(found->default_alpha, family == "llama" ? 0.8 : 0.5);
      EXPECT_EQ(found->warning, "");
      EXPECT_EQ(found->refusal, "");
    }
  }
}

TEST(SmoothGroupsOfFamily, StillLeaveAlone) {
  const auto found = smooth_groups_of_family("llama", of_type("granite"), llama() - "model.layers.0.self_attn.k_proj");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(alone(*found, "model.layers.0.input_layernorm", {"k_proj' is missing"}));
}

TEST(SmoothGroupsOfFamily, AnUnknownNameIsRefusedWithTheKnownOnes) {
  for (const char* name : {"", "Llama", "gpt2", "given", "\x1b[0m"}) {
    const Status status = smooth_groups_of_family(name, {}, llama()).status();
    EXPECT_TRUE(refused(status, kBad, {"unknown family '", "llama, opt, bloom"}));
    EXPECT_EQ(status.message().find('\x1b'), std::string_view::npos);
  }
}

TEST(SmoothGroupsOfFamily, WithoutAnyGroupIsRefused) {
  EXPECT_TRUE(refused(smooth_groups_of_family("opt", of_type("granite"), llama()).status(), kUnsupported,
                      {"family opt", "none of its norms is there"}));
  EXPECT_TRUE(refused(smooth_groups_of_family("llama", of_type("cohere"), cohere()).status(), kUnsupported,
                      {"family llama", "model.layers.0.input_layernorm", "has no post_attention_layernorm"}));
  EXPECT_TRUE(refused(smooth_groups_of_family("llama", of_type("olmo"), gemma2()).status(), kUnsupported,
                      {"feedforward_layernorm' may read it too"}));
}

// ---- Groups of a file -----------------------------------------------------------------------------------------

Result<SmoothGroups> parsed(std::string_view json, const ModelFacts& facts = of_type("granite")) {
  return parse_smooth_groups(json, "g.json", facts, llama());
}
testing::AssertionResult bad(std::string_view json, Parts parts, const ModelFacts& facts = of_type("granite")) {
  const Status status = parsed(json, facts).status();
  if (!status.ok() && !status.message().starts_with("g.json: "))
    return testing::AssertionFailure() << "no file in front: " << status.message();
  return refused(status, kBad, parts);
}
std::string group(std::string_view norm, std::initializer_list<std::string_view> linears) {
  std::vector<std::string> quoted;
  for (const std::string_view linear : linears) quoted.push_back(fmt::format("\"{}\"", linear));
  return fmt::format(R"({{"norm": "{}", "linears": [{}]}})", norm, base::joined(quoted, ", "));
}
std::string file_of(std::initializer_list<std::string> groups) {
  return fmt::format(R"({{"groups": [{}]}})", base::joined(groups, ", "));
}
constexpr std::string_view kNorm = "model.layers.0.input_layernorm";
constexpr std::string_view kQ = "model.layers.0.self_attn.q_proj";
constexpr std::string_view kK = "model.layers.0.self_attn.k_proj";
constexpr std::string_view kV = "model.layers.0.self_attn.v_proj";

TEST(SmoothGroupsOfAFile, AreTaken) {
  const auto found = parsed(file_of({group(kNorm, {kV, kQ}), group("model.norm", {"lm_head"})}));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->family, "given");
  EXPECT_EQ(norms_of(*found), (Names{std::string(kNorm), "model.norm"}));
  EXPECT_EQ(readers_of(*found, kNorm), (Names{std::string(kV), std::string(kQ)}));
  EXPECT_EQ(found->default_alpha, 0.5);
  EXPECT_EQ(found->refusal, "");
}

TEST(SmoothGroupsOfAFile, APlaceForNumbersStandsForAll) {
  const auto found =
      parsed(file_of({group("model.layers.{i}.input_layernorm", {"model.layers.{i}.self_attn.q_proj"})}));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(norms_of(*found), below("model.layers.", {"0.input_layernorm", "1.input_layernorm"}));
  EXPECT_EQ(readers_of(*found, "model.layers.1.input_layernorm"), Names{"model.layers.1.self_attn.q_proj"});
  EXPECT_TRUE(bad(file_of({group("model.layers.{i}.norm", {"model.layers.{i}.self_attn.q_proj"})}),
                  {"no module matches the norm 'model.layers.{i}.norm'"}));
  EXPECT_TRUE(bad(file_of({group("model.layers.{i}.input_layernorm", {"model.layers.{i}.q"})}),
                  {"there is no module 'model.layers.0.q'"}));
  EXPECT_TRUE(bad(file_of({group(kNorm, {"model.layers.{i}.self_attn.q_proj"})}),
                  {"there is no module 'model.layers.{i}.self_attn.q_proj'"}));
}

TEST(SmoothGroupsOfAFile, AlphaMayBeGiven) {
  const auto with_alpha = [](std::string_view alpha) {
    return fmt::format(R"({{"alpha": {}, "groups": [{}]}})", alpha, group(kNorm, {kQ, kK, kV}));
  };
  EXPECT_EQ(parsed(with_alpha("0.75"))->default_alpha, 0.75);
  EXPECT_EQ(parsed(with_alpha("0"))->default_alpha, 0);
  EXPECT_EQ(parsed(with_alpha("1"), of_type("llama"))->default_alpha, 1);
  for (const char* alpha : {"-0.1", "1.001", "2", "null", "\"0.5\"", "[]", "1e300", "18446744073709551615"})
    EXPECT_TRUE(bad(with_alpha(alpha), {"\"alpha\" is", "must be a number from 0 to 1"})) << alpha;
  // Otherwise the family's.
  EXPECT_EQ(parsed(file_of({group(kNorm, {kQ, kK, kV})}), of_type("llama"))->default_alpha, 0.8);
}

TEST(SmoothGroupsOfAFile, WhatIsNoJsonIsRefused) {
  EXPECT_TRUE(bad("", {"is not JSON"}));
  EXPECT_TRUE(bad("{", {"is not JSON"}));
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ})}) + "x", {"is not JSON"}));
  EXPECT_TRUE(bad(R"({"groups": [], "groups": []})", {"has the key 'groups' twice"}));
}

TEST(SmoothGroupsOfAFile, WhatHasAnotherShapeIsRefused) {
  for (const char* text : {"[]", "1", "{}", R"({"alpha": 0.5})", R"({"groups": {}})", R"({"groups": null})"})
    EXPECT_TRUE(bad(text, {"must be an object with an array \"groups\""})) << text;
  EXPECT_TRUE(bad(R"({"groups": []})", {"\"groups\" is empty"}));
  EXPECT_TRUE(bad(R"({"groups": [], "Groups": []})", {"unknown key 'Groups'", "groups, alpha"}));
  EXPECT_TRUE(bad(R"({"groups": [{"norm": "a", "linears": ["b"], "linear": "c"}]})",
                  {"unknown key 'linear' in a group", "norm, linears"}));
  for (const char* one :
       {"1", "[]", "{}", R"({"norm": "a"})", R"({"linears": ["a"]})", R"({"norm": 1, "linears": ["a"]})",
        R"({"norm": "a", "linears": "b"})", R"({"norm": "a", "linears": []})", R"({"norm": "a", "linears": [1]})",
        R"({"norm": "a", "linears": ["b", null]})"})
    EXPECT_TRUE(bad(file_of({one}), {"a group is", "must be an object with a string \"norm\""})) << one;
}

TEST(SmoothGroupsOfAFile, NamesMustExist) {
  EXPECT_TRUE(bad(file_of({group("model.x", {kQ})}), {"there is no module 'model.x'"}));
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ, "y"})}), {"there is no module 'y'", kNorm}));
  EXPECT_TRUE(bad(file_of({group("", {kQ})}), {"there is no module ''"}));
  EXPECT_TRUE(bad(file_of({group("\\u001b[0m", {kQ})}), {R"(there is no module '\x1b[0m')"}));
}

TEST(SmoothGroupsOfAFile, ANormHasOneGroup) {
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ}), group(kNorm, {kK})}), {"the norm", kNorm, "has two groups"}));
  EXPECT_TRUE(bad(
      file_of({group("model.layers.{i}.input_layernorm", {"model.layers.{i}.self_attn.q_proj"}), group(kNorm, {kK})}),
      {kNorm, "has two groups"}));
}

TEST(SmoothGroupsOfAFile, ALinearIsInOneGroup) {
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ}), group("model.norm", {"lm_head", kQ})}),
                  {"the linear", kQ, "is in two groups", kNorm, "model.norm"}));
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ, kK, kQ})}), {kNorm, kQ, "twice"}));
  // The same for every number.
  EXPECT_TRUE(bad(file_of({group("model.layers.{i}.input_layernorm", {kQ})}), {kQ, "is in two groups"}));
}

TEST(SmoothGroupsOfAFile, ALinearIsNoNorm) {
  EXPECT_TRUE(bad(file_of({group(kNorm, {kNorm})}), {kNorm, "one of its own linears"}));
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ, "model.norm"}), group("model.norm", {"lm_head"})}),
                  {"'model.norm' is a norm and also a linear of the norm", kNorm}));
}

TEST(SmoothGroupsOfAFile, AReaderThatTheFamilyKnowsMayNotBeLeftOut) {
  const ModelFacts facts = of_type("llama");
  EXPECT_TRUE(parsed(file_of({group(kNorm, {kQ, kK, kV})}), facts).ok());
  EXPECT_TRUE(
      bad(file_of({group(kNorm, {kQ, kK})}), {"the norm", kNorm, "also feeds", kV, "add it to the group"}, facts));
  EXPECT_TRUE(bad(file_of({group("model.layers.{i}.post_attention_layernorm", {"model.layers.{i}.mlp.up_proj"})}),
                  {"also feeds 'model.layers.0.mlp.gate_proj'"}, facts));
  // A router.
  const std::string file = file_of(
      {group("model.layers.0.post_attention_layernorm",
             {"model.layers.0.block_sparse_moe.experts.0.w1", "model.layers.0.block_sparse_moe.experts.0.w3",
              "model.layers.0.block_sparse_moe.experts.1.w1", "model.layers.0.block_sparse_moe.experts.1.w3"})});
  EXPECT_TRUE(refused(parse_smooth_groups(file, "g.json", of_type("mixtral"), mixtral()).status(), kBad,
                      {"also feeds 'model.layers.0.block_sparse_moe.gate'"}));
  // Nothing is known of the norm behind all blocks.
  EXPECT_TRUE(parsed(file_of({group("model.norm", {"lm_head"})}), facts).ok());
}

TEST(SmoothGroupsOfAFile, ALinearThatTheFamilyKnowsToReadSomethingElseIsRefused) {
  const ModelFacts facts = of_type("llama");
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ, kK, kV, "model.layers.0.self_attn.o_proj"})}),
                  {"'model.layers.0.self_attn.o_proj' does not read the norm", kNorm, "take it out"}, facts));
  EXPECT_TRUE(bad(file_of({group(kNorm, {kQ, kK, kV, "model.layers.0.mlp.up_proj"})}),
                  {"'model.layers.0.mlp.up_proj' does not read the norm"}, facts));
  // One that only the user knows.
  const std::string file = file_of({group(kNorm, {kQ, kK, kV, "model.layers.0.self_attn.g_proj"})});
  EXPECT_TRUE(parse_smooth_groups(file, "g.json", facts, llama() + "model.layers.0.self_attn.g_proj").ok());
}

}  // namespace
}  // namespace kvant::tests
