// The tables of families and of module names: no row hides another, and every question finds its row.
#include "model/families.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::tests {
namespace {

using model::FusedSet;
using Components = std::vector<std::string_view>;

TEST(Families, AreFoundByNameAndByModelType) {
  std::set<std::string_view> names, types;
  std::string listed;
  for (const model::Family& family : model::families()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    if (!family.doubt.empty()) listed += (listed.empty() ? "" : ", ") + std::string(family.name);
    EXPECT_EQ(model::family_named(family.name), family.doubt.empty() ? nullptr : &family);
    for (const std::string_view type : family.model_types) {
      EXPECT_TRUE(types.insert(type).second) << type;
      EXPECT_EQ(model::family_of(type), &family) << type;
      EXPECT_EQ(model::against_folding({.model_type = std::string(type)}, &family).empty(), !family.doubt.empty())
          << type;
    }
  }
  EXPECT_EQ(model::names_of_families(), listed);
  EXPECT_EQ(model::family_named("Llama"), nullptr);
  EXPECT_EQ(model::family_of("gemma2"), nullptr);
  EXPECT_EQ(model::family_of(""), nullptr);
}

TEST(Families, StepsSayWhichNormFeedsWhichLinears) {
  const model::BlockNames& llama = model::names_of_block(*model::family_named("llama"));
  ASSERT_EQ(llama.edges.size(), 2u);
  EXPECT_EQ(llama.edges[0].norm, "input_layernorm");
  EXPECT_EQ(
      llama.edges[0].readers,
      (std::vector<Components>{{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {"self_attn.qkv_proj"}}));
  EXPECT_EQ(llama.edges[1].norm, "post_attention_layernorm");
  ASSERT_EQ(llama.edges[1].readers.size(), 5u);
  EXPECT_EQ(llama.edges[1].readers[2], (Components{"mlp.gate", "mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"}));
  EXPECT_EQ(llama.others,
            (Components{"self_attn.q_norm", "self_attn.k_norm", "self_attn.q_layernorm", "self_attn.k_layernorm",
                        "self_attn.o_proj", "mlp.down_proj", "mlp.experts.*.down_proj", "mlp.shared_expert.down_proj",
                        "block_sparse_moe.experts.*.w2"}));
  // Norms that replace the residual feed no linear alone.
  const model::BlockNames& bert = model::names_of_block(*model::family_of("bert"));
  EXPECT_TRUE(bert.edges.empty());
  EXPECT_EQ(bert.others.size(), 8u);
}

TEST(Families, EndsOfModelTypesMayBeAnything) {
  for (const std::string type : {"gemma", "gemma3_text", "paligemma", "qwen3_next", "qwen3_5_moe", "nemotron"})
    EXPECT_NE(model::against_folding({.model_type = type}, nullptr).find("(1 + weight)"), std::string::npos) << type;
  for (const std::string type : {"bert", "xlm-roberta"})
    EXPECT_NE(model::against_folding({.model_type = type}, nullptr).find("feeds the residual"), std::string::npos);
  for (const std::string type : {"", "gem", "a_qwen3_next", "nemotron_h", "bert2", "llama"})
    EXPECT_EQ(model::against_folding({.model_type = type}, nullptr), "") << type;
}

TEST(Families, SayHowTheyStackExperts) {
  for (const std::string_view type : {"llama4", "llama4_text", "qwen3_vl_moe", "qwen3_vl_moe_text"}) {
    ASSERT_TRUE(model::expert_stacks(type)) << type;
    EXPECT_TRUE(model::expert_stacks(type)->turned) << type;
  }
  for (const std::string_view type : {"qwen3_moe", "mixtral", "llama", ""}) {
    ASSERT_TRUE(model::expert_stacks(type)) << type;
    EXPECT_FALSE(model::expert_stacks(type)->turned) << type;
  }
  EXPECT_FALSE(model::expert_stacks("gpt_oss"));
}

TEST(ModuleNames, DependOnWhatTheyAreBelow) {
  ASSERT_NE(model::find_module_name("a.mlp.gate"), nullptr);
  EXPECT_EQ(model::find_module_name("a.mlp.gate")->role, model::Role::router);
  EXPECT_EQ(model::find_module_name("gate"), nullptr);
  EXPECT_EQ(model::find_module_name("a.output"), nullptr);
  EXPECT_EQ(model::find_module_name("output")->role, model::Role::lm_head);
  EXPECT_EQ(model::find_module_name("a.attn.c_proj")->kind, model::LayerKind::o);
  EXPECT_EQ(model::find_module_name("a.mlp.c_proj")->kind, model::LayerKind::down);
  EXPECT_TRUE(model::find_module_name("c_proj")->is_conv1d);
  EXPECT_EQ(model::find_module_name(""), nullptr);
}

TEST(ModuleNames, OfOneSetAreInTheOrderOfTheMatrix) {
  EXPECT_EQ(model::components_of(FusedSet::qkv_proj), (Components{"q_proj", "k_proj", "v_proj"}));
  EXPECT_EQ(model::components_of(FusedSet::w_qkv), (Components{"wq", "wk", "wv"}));
  EXPECT_EQ(model::components_of(FusedSet::query_key_value), (Components{"query", "key", "value"}));
  EXPECT_EQ(model::components_of(FusedSet::gate_up_proj), (Components{"gate_proj", "up_proj"}));
  EXPECT_EQ(model::components_of(FusedSet::w1_w3), (Components{"w1", "w3"}));
  EXPECT_EQ(model::components_of(FusedSet::qkv_a_proj), (Components{"q_a_proj", "kv_a_proj_with_mqa"}));
  EXPECT_TRUE(model::components_of(FusedSet::none).empty());
  EXPECT_EQ(model::fused_siblings("a.0.k_proj"), (std::vector<std::string>{"a.0.q_proj", "a.0.v_proj"}));
  EXPECT_EQ(model::fused_siblings("w3"), std::vector<std::string>{"w1"});
  EXPECT_TRUE(model::fused_siblings("a.o_proj").empty());
  EXPECT_TRUE(model::fused_siblings("a.stranger").empty());
}

}  // namespace
}  // namespace kvant::tests
