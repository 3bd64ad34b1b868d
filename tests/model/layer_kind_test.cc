// What part of a block a Linear is, and the order of modules in a model.
#include "model/layer_kind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::tests {
namespace {

using model::block_of;
using model::kind_of;
using model::LayerKind;
using model::stands_before;

TEST(LayerKind, EveryKindHasAName) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < model::kLayerKinds; ++i) names.insert(name(static_cast<LayerKind>(i)));
  EXPECT_EQ(names, (std::set<std::string_view>{"q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "other"}));
  EXPECT_EQ(name(LayerKind::gate_up), "gate_up");
}

TEST(LayerKind, NamesOfTheFamilies) {
  struct Case {
    LayerKind kind;
    std::vector<std::string_view> modules;
  };
  const std::vector<Case> cases = {
      {LayerKind::q,
       {"model.layers.0.self_attn.q_proj", "layers.3.attention.wq", "encoder.layer.0.attention.self.query",
        "encoder.block.0.layer.0.SelfAttention.q", "q_proj"}},
      {LayerKind::k,
       {"model.layers.0.self_attn.k_proj", "layers.3.attention.wk", "encoder.layer.0.attention.self.key",
        "decoder.block.0.layer.1.EncDecAttention.k"}},
      {LayerKind::v,
       {"model.layers.0.self_attn.v_proj", "layers.3.attention.wv", "encoder.layer.0.attention.self.value",
        "encoder.block.0.layer.0.SelfAttention.v"}},
      {LayerKind::qkv,
       {"model.layers.0.self_attn.qkv_proj", "transformer.h.0.self_attention.query_key_value",
        "gpt_neox.layers.0.attention.query_key_value", "transformer.h.0.attn.c_attn", "transformer.blocks.0.attn.Wqkv",
        "model.layers.0.attention.wqkv", "model.layers.0.self_attn.W_pack"}},
      {LayerKind::o,
       {"model.layers.0.self_attn.o_proj", "model.decoder.layers.0.self_attn.out_proj", "transformer.h.0.attn.c_proj",
        "transformer.h.0.self_attention.dense", "gpt_neox.layers.0.attention.dense",
        "encoder.layer.0.attention.output.dense", "layers.3.attention.wo", "model.layers.0.attention.wo",
        "encoder.block.0.layer.0.SelfAttention.o", "transformer.blocks.0.attn.out_proj"}},
      {LayerKind::gate,
       {"model.layers.0.mlp.gate_proj", "model.layers.0.block_sparse_moe.experts.3.w1", "layers.3.feed_forward.w1",
        "encoder.block.0.layer.1.DenseReluDense.wi_0", "model.layers.0.mlp.experts.11.gate_proj"}},
      {LayerKind::up,
       {"model.layers.0.mlp.up_proj", "model.layers.0.block_sparse_moe.experts.3.w3", "model.decoder.layers.0.fc1",
        "transformer.h.0.mlp.dense_h_to_4h", "transformer.h.0.mlp.c_fc", "encoder.layer.0.intermediate.dense",
        "encoder.block.0.layer.1.DenseReluDense.wi", "encoder.block.0.layer.1.DenseReluDense.wi_1"}},
      {LayerKind::gate_up, {"model.layers.0.mlp.gate_up_proj"}},
      {LayerKind::down,
       {"model.layers.0.mlp.down_proj", "model.layers.0.block_sparse_moe.experts.3.w2", "model.decoder.layers.0.fc2",
        "transformer.h.0.mlp.dense_4h_to_h", "transformer.h.0.mlp.c_proj", "encoder.layer.0.output.dense",
        "encoder.block.0.layer.1.DenseReluDense.wo"}},
      {LayerKind::other,
       {"lm_head", "", ".", "model.layers.0.mlp.gate", "pooler.dense", "dense", "c_proj", "model.embed_tokens",
        "a.q_projection", "a.Q_PROJ", "a.fc3", "q_proj.", "12", "a.attention.output.dense.x"}},
  };
  for (const Case& c : cases)
    for (const std::string_view module : c.modules)
      EXPECT_EQ(name(kind_of(module)), name(c.kind)) << "'" << module << "'";
}

TEST(LayerKind, TheBlockIsTheFirstNumber) {
  EXPECT_EQ(block_of("model.layers.12.mlp.up_proj"), 12u);
  EXPECT_EQ(block_of("model.layers.7.experts.3.w1"), 7u);
  EXPECT_EQ(block_of("0"), 0u);
  EXPECT_EQ(block_of("5.a"), 5u);
  EXPECT_EQ(block_of("a.007"), 7u);
  EXPECT_EQ(block_of("a.18446744073709551615.b"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(block_of("a.000000000000000000000000000000000003.b"), 3u);
  for (const std::string_view module : {"", ".", "..", "lm_head", "layer3.fc1", "a.-1.b", "a.+1.b", "a.1x.b", "a. 1.b",
                                        "a.18446744073709551616.b", "a.99999999999999999999999999999999.3.b"})
    EXPECT_EQ(block_of(module), std::nullopt) << "'" << module << "'";
}

TEST(LayerKind, TheOrderIsThatOfTheModel) {
  const std::vector<std::string> want = {
      "model.layers.0.self_attn.q_proj",
      "model.layers.0.self_attn.k_proj",
      "model.layers.0.self_attn.v_proj",
      "model.layers.0.self_attn.o_proj",
      "model.layers.0.mlp.gate_proj",
      "model.layers.0.mlp.up_proj",
      "model.layers.0.mlp.down_proj",
      "model.layers.0.mlp.gate",
      "model.layers.2.self_attn.q_proj",
      "model.layers.2.experts.2.w1",
      "model.layers.2.experts.10.w1",
      "model.layers.2.experts.2.w2",
      "model.layers.2.experts.10.w2",
      "model.layers.10.self_attn.qkv_proj",
      "model.layers.10.mlp.gate_up_proj",
      "q_proj",
      "a",
      "lm_head",
  };
  std::vector<std::string> got(want.rbegin(), want.rend());
  std::sort(got.begin(), got.end(), stands_before);
  EXPECT_EQ(got, want);
}

TEST(LayerKind, NumbersOfAnyLength) {
  const std::string nines(40, '9'), one = "1" + std::string(40, '0');
  EXPECT_TRUE(stands_before("x.e" + nines, "x.e" + one));
  EXPECT_FALSE(stands_before("x.e" + one, "x.e" + nines));
  EXPECT_TRUE(stands_before("x.e" + std::string(50, '0') + "2", "x.e3"));
  EXPECT_TRUE(stands_before("x.e2", "x.e" + std::string(50, '0') + "3"));
  // Beyond 64 bits it is no block: such names come last.
  EXPECT_TRUE(stands_before("x.3.w1", "x." + nines + ".w1"));
  EXPECT_TRUE(stands_before("x." + nines + ".w1", "x." + one + ".w1"));
  // Equal numbers, written differently: one of the two comes first.
  EXPECT_NE(stands_before("x.e07", "x.e7"), stands_before("x.e7", "x.e07"));
}

TEST(LayerKind, TheOrderIsStrictAndWeak) {
  const std::string nines(25, '9');
  const std::vector<std::string> names = {"",
                                          ".",
                                          "a",
                                          "a.",
                                          "lm_head",
                                          "q_proj",
                                          "0",
                                          "00",
                                          "1",
                                          "01.x",
                                          "1.x",
                                          "a.1.q_proj",
                                          "a.01.q_proj",
                                          "a.1.k_proj",
                                          "a.2.q_proj",
                                          "a.10.q_proj",
                                          "a.1.e2.w1",
                                          "a.1.e02.w1",
                                          "a.1.e10.w1",
                                          "a.1.e.w1",
                                          "a.1.e2x.w1",
                                          "a.1.w1",
                                          "b.1.w1",
                                          "a.1.\xC3\xA4.w1",
                                          "a.1.0.w1",
                                          "a.1." + nines + ".w1",
                                          "a.1.0" + nines + ".w1",
                                          "a." + nines + ".w1",
                                          "a.1" + nines + ".w1",
                                          "a.0" + nines + ".w1",
                                          "<script>",
                                          "a.1.<script>"};
  EXPECT_EQ(model::stack_of("model.layers.12.mlp.experts.3.w1"), "model.layers.");
  EXPECT_EQ(model::stack_of("3.q_proj"), "");
  EXPECT_EQ(model::stack_of("lm_head"), "");
  EXPECT_EQ(model::stack_of(""), "");
  // One stack after the other.
  EXPECT_TRUE(stands_before("language.layers.9.o_proj", "vision.layers.0.q_proj"));
  EXPECT_TRUE(stands_before("vision.layers.0.q_proj", "vision.layers.1.q_proj"));
  for (const std::string& a : names)
    for (const std::string& b : names) {
      // Only equal names are equivalent.
      EXPECT_EQ(int{stands_before(a, b)} + int{stands_before(b, a)}, a == b ? 0 : 1) << a << " and " << b;
      for (const std::string& c : names)
        EXPECT_TRUE(!stands_before(a, b) || !stands_before(b, c) || stands_before(a, c)) << a << ", " << b << ", " << c;
    }
}

}  // namespace
}  // namespace kvant::tests
