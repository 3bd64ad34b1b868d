// An imatrix as statistics: the names of every linear that GGUF's table has, and rows of experts.
#include "model/imatrix.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/gguf_network.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::Statistic;

std::string f32_bytes(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += little_endian(value);
  return bytes;
}

struct ImatrixFixture {
  GgufWriter writer;

  ImatrixFixture() { writer.set("general.type", gguf_value("imatrix")); }
  void add(const std::string& name, const std::vector<float>& sums, const std::vector<float>& counts) {
    const std::uint64_t rows = counts.size();
    writer.add(name + ".in_sum2", io::GgufType::f32, {rows, sums.size() / rows}, f32_bytes(sums));
    writer.add(name + ".counts", io::GgufType::f32, {rows, 1}, f32_bytes(counts));
  }
  Result<format::ActivationStats> open(std::string_view model_type = {}) const {
    const ScratchFolder scratch;
    must(io::write_file(scratch / "i.gguf", writer.file(), false));
    return model::open_statistics(scratch / "i.gguf", model_type);
  }
};

TEST(Imatrix, HasTheNamesOfACheckpoint) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
      {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight"},
      {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"},
      {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"},
      {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"},
      {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"},
      {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"},
      {"output.weight", "lm_head.weight"},
  };
  for (const auto& [gguf, name] : names)
    for (const char* model_type : {"", "llama", "mixtral", "gemma2"}) {
      EXPECT_EQ(model::name_of_gguf_linear(gguf, model_type).name, name) << model_type;
      EXPECT_FALSE(model::needs_model_type(gguf));
    }
  for (const char* none : {"", "blk.", "blk.x.attn_q.weight", "blk.01.attn_q.weight", "blk.1024.attn_q.weight", "blk.0",
                           "blk.0.", "blk.0attn_q.weight", "blk.-1.attn_q.weight", "blk.0.attn_norm.weight",
                           "blk.0.attn_q.bias", "output_norm.weight", "token_embd.weight", "attn_q.weight"}) {
    EXPECT_EQ(model::name_of_gguf_linear(none, "llama").name, "") << none;
    EXPECT_FALSE(model::needs_model_type(none));
  }
  EXPECT_EQ(model::name_of_gguf_linear("blk.3.ffn_down_exps.weight", "mixtral").name,
            "model.layers.3.block_sparse_moe.experts.{}.w2.weight");
  EXPECT_EQ(model::name_of_gguf_linear("blk.3.ffn_down_exps.weight", "qwen3_moe").name,
            "model.layers.3.mlp.experts.{}.down_proj.weight");
  EXPECT_EQ(model::name_of_gguf_linear("blk.3.ffn_gate_inp.weight", "mixtral").name,
            "model.layers.3.block_sparse_moe.gate.weight");
  EXPECT_EQ(model::name_of_gguf_linear("blk.3.ffn_down_exps.weight", "llama").name, "");
  EXPECT_TRUE(model::needs_model_type("blk.3.ffn_down_exps.weight"));
  EXPECT_TRUE(model::needs_model_type("blk.3.ffn_gate_inp.weight"));
  EXPECT_EQ(model::model_types_with_experts(), (std::vector<std::string>{"mixtral", "qwen3_moe"}));
}

TEST(Imatrix, IsStatistics) {
  ImatrixFixture fixture;
  fixture.add("blk.0.attn_q.weight", {1, 2, 6}, {3});
  fixture.add("blk.0.ffn_up_exps.weight", {1, 2, 0, 0, 4, 5}, {1, 0, 2});
  const auto stats = fixture.open("mixtral");
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  EXPECT_EQ(stats->modules(),
            (std::vector<std::string>{"model.layers.0.self_attn.q_proj", experts + "0.w3", experts + "2.w3"}));
  EXPECT_EQ(stats->channels("model.layers.0.self_attn.q_proj", Statistic::mean_square, 3).value(),
            (std::vector<float>{1.0F / 3, 2.0F / 3, 2}));
  EXPECT_EQ(stats->channels(experts + "2.w3", Statistic::mean_square, 2).value(), (std::vector<float>{2, 2.5}));
  EXPECT_EQ(stats->count(experts + "0.w3").value(), 1);
  EXPECT_EQ(stats->in_features(experts + "0.w3"), 2u);
  EXPECT_FALSE(stats->has_ranges());
  // A checkpoint of a family whose experts are not known.
  const auto dense = fixture.open("llama");
  ASSERT_TRUE(dense.ok()) << dense.status().message();
  EXPECT_EQ(dense->modules().size(), 1u);
}

TEST(Imatrix, RefusesSizesThatCannotBe) {
  ImatrixFixture empty;
  empty.writer.add("blk.0.attn_q.weight.in_sum2", io::GgufType::f32, {1, 0}, "");
  empty.writer.add("blk.0.attn_q.weight.counts", io::GgufType::f32, {1, 1}, f32_bytes({1}));
  EXPECT_TRUE(invalid(empty.open().status(), {"'blk.0.attn_q.weight.in_sum2' is [1, 0]", "for one matrix"}));
  ImatrixFixture counts;
  counts.writer.add("blk.0.ffn_up_exps.weight.in_sum2", io::GgufType::f32, {2, 1}, f32_bytes({1, 2}));
  counts.writer.add("blk.0.ffn_up_exps.weight.counts", io::GgufType::f32, {3, 1}, f32_bytes({1, 2, 3}));
  EXPECT_TRUE(invalid(counts.open("mixtral").status(), {"is [2, 1]", "counts' [3, 1]", "for each expert"}));
  ImatrixFixture many;
  many.add("blk.0.ffn_up_exps.weight", std::vector<float>(1025, 1), std::vector<float>(1025, 1));
  EXPECT_TRUE(invalid(many.open("mixtral").status(), {"is [1025, 1]", "for each expert"}));
  ImatrixFixture large;
  large.add("blk.0.attn_q.weight", {1}, {0x1p53F});
  EXPECT_TRUE(invalid(large.open().status(), {"must be a whole number below 2^53"}));
  ImatrixFixture scalar;
  scalar.writer.add("blk.0.attn_q.weight.in_sum2", io::GgufType::f32, {}, f32_bytes({1}));
  scalar.writer.add("blk.0.attn_q.weight.counts", io::GgufType::f32, {1}, f32_bytes({1}));
  EXPECT_TRUE(invalid(scalar.open().status(), {"in_sum2' is F32 [], must be F32 with a row for each matrix"}));
}

}  // namespace
}  // namespace kvant::tests
