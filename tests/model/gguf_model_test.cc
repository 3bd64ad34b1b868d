// A GGUF seen as a Hugging Face checkpoint: names, shapes, order of rows, config.json, and what is refused.
#include "model/gguf_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "tests/support/gguf_model_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using io::GgufType;
using model::GgufModel;

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr auto kUnsupported = StatusCode::Unsupported;

class GgufModelTest : public testing::Test {
 protected:
  Result<GgufModel> open(const GgufWriter& writer) {
    put_text(folder_ / "m.gguf", writer.file());
    return GgufModel::open(folder_ / "m.gguf");
  }
  GgufModel opened(const GgufWriter& writer) {
    auto model = open(writer);
    if (!model.ok()) throw std::runtime_error(std::string(model.status().message()));
    return std::move(model).value();
  }
  testing::AssertionResult refusal(const GgufWriter& writer, Parts parts, StatusCode code = kBad) {
    const Status status = open(writer).status();
    if (!status.ok() && status.message().find("m.gguf: ") == std::string_view::npos)
      return testing::AssertionFailure() << "no file in front: " << status.message();
    return refused(status, code, parts);
  }
  // With one change.
  testing::AssertionResult refusal(const auto& change, Parts parts, StatusCode code = kBad) {
    GgufWriter writer = GgufFixture().writer();
    change(writer);
    return refusal(writer, parts, code);
  }
  ScratchFolder folder_;
};

const GgufModel::Tensor* find(const GgufModel& model, std::string_view name) {
  for (const GgufModel::Tensor& tensor : model.tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

std::vector<float> all_of(const GgufModel& model, std::string_view name) {
  const GgufModel::Tensor* const tensor = find(model, name);
  if (tensor == nullptr) throw std::runtime_error(std::string(name));
  std::vector<float> values(tensor->rows() * tensor->columns());
  const Status status = model.read_rows(*tensor, 0, tensor->rows(), values.data());
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  return values;
}

std::vector<float> stored(GgufWriter& writer, std::string_view name) {
  const std::string& data = writer.find(name)->data;
  std::vector<float> values(data.size() / sizeof(float));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

// What llama.cpp's converter does to q and k: reshape(heads, 2, head / 2, columns), the two middle axes swapped.
std::vector<float> permuted(const std::vector<float>& hf, std::size_t heads, std::size_t columns) {
  std::vector<float> gguf(hf.size());
  const std::size_t half = hf.size() / columns / heads / 2;
  for (std::size_t h = 0; h < heads; ++h)
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = 0; j < half; ++j)
        std::copy_n(hf.begin() + static_cast<std::ptrdiff_t>(((h * 2 + i) * half + j) * columns), columns,
                    gguf.begin() + static_cast<std::ptrdiff_t>(((h * half + j) * 2 + i) * columns));
  return gguf;
}

TEST_F(GgufModelTest, NamesAndShapes) {
  const GgufModel model = opened(GgufFixture{.layers = 1}.writer());
  std::vector<std::string> got;
  for (const GgufModel::Tensor& tensor : model.tensors())
    got.push_back(base::text("{} {}", tensor.name, base::joined(tensor.shape, "x")));
  EXPECT_EQ(got, (std::vector<std::string>{
                     "model.embed_tokens.weight 40x64", "model.layers.0.input_layernorm.weight 64",
                     "model.layers.0.self_attn.q_proj.weight 64x64", "model.layers.0.self_attn.k_proj.weight 32x64",
                     "model.layers.0.self_attn.v_proj.weight 32x64", "model.layers.0.self_attn.o_proj.weight 64x64",
                     "model.layers.0.post_attention_layernorm.weight 64", "model.layers.0.mlp.gate_proj.weight 96x64",
                     "model.layers.0.mlp.up_proj.weight 96x64", "model.layers.0.mlp.down_proj.weight 64x96",
                     "model.norm.weight 64", "lm_head.weight 40x64"}));
}

TEST_F(GgufModelTest, ValuesAndTheOrderOfRows) {
  GgufWriter writer = GgufFixture{.qkv_bias = true, .output_bias = true}.writer();
  const GgufModel model = opened(writer);
  for (const auto& [name, gguf] : {std::pair{"model.embed_tokens.weight", "token_embd.weight"},
                                   {"model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight"},
                                   {"model.layers.1.self_attn.v_proj.bias", "blk.1.attn_v.bias"},
                                   {"model.layers.0.self_attn.o_proj.bias", "blk.0.attn_output.bias"},
                                   {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"},
                                   {"lm_head.weight", "output.weight"},
                                   {"model.norm.weight", "output_norm.weight"}})
    EXPECT_EQ(all_of(model, name), stored(writer, gguf)) << name;
  for (const auto& [name, gguf, heads, columns] :
       {std::tuple{"model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight", 4, 64},
        {"model.layers.1.self_attn.k_proj.weight", "blk.1.attn_k.weight", 2, 64},
        {"model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias", 4, 1},
        {"model.layers.0.self_attn.k_proj.bias", "blk.0.attn_k.bias", 2, 1}}) {
    const std::vector<float> got = all_of(model, name), original = stored(writer, gguf);
    EXPECT_NE(got, original) << name;
    EXPECT_EQ(permuted(got, static_cast<std::size_t>(heads), static_cast<std::size_t>(columns)), original) << name;
  }
  EXPECT_EQ(model.config()["attention_bias"], true);
}

TEST_F(GgufModelTest, PartsOfAMatrix) {
  const GgufModel model = opened(GgufFixture().writer());
  for (const char* const name : {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"}) {
    const std::vector<float> whole = all_of(model, name);
    std::vector<float> part(7 * 64);
    ASSERT_TRUE(model.read_rows(*find(model, name), 11, 7, part.data()).ok());
    EXPECT_EQ(part, std::vector<float>(whole.begin() + 11 * 64, whole.begin() + 18 * 64)) << name;
    EXPECT_TRUE(refused(model.read_rows(*find(model, name), ~std::uint64_t{0}, 2, part.data()), kBad,
                        {name, "wanted 2 from 18446744073709551615"}));
  }
}

TEST_F(GgufModelTest, BlocksAreDecoded) {
  GgufWriter writer = GgufFixture().writer();
  GgufWriter again;
  again.metadata = writer.metadata;
  for (const GgufWriter::Tensor& tensor : writer.tensors) {
    if (tensor.name != "blk.0.attn_v.weight") {
      again.add(tensor.name, GgufType::f32, tensor.shape, tensor.data);
      continue;
    }
    // 32 rows of two blocks: d = 1 and codes 0 to 31, so that row r begins with r.
    std::string blocks;
    for (int block = 0; block < 64; ++block) {
      blocks += std::string("\0\x3c", 2);
      for (int i = 0; i < 32; ++i) blocks += static_cast<char>(block / 2 + i);
    }
    again.add(tensor.name, GgufType::q8_0, tensor.shape, blocks);
  }
  const GgufModel model = opened(again);
  EXPECT_EQ(find(model, "model.layers.0.self_attn.v_proj.weight")->type, GgufType::q8_0);
  const std::vector<float> values = all_of(model, "model.layers.0.self_attn.v_proj.weight");
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(i / 64 + i % 32)) << i;
}

TEST_F(GgufModelTest, Config) {
  const GgufModel model = opened(GgufFixture().writer());
  const io::Json& config = model.config();
  EXPECT_EQ(config["architectures"], io::Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["intermediate_size"], 96);
  EXPECT_EQ(config["num_hidden_layers"], 2);
  EXPECT_EQ(config["num_attention_heads"], 4);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["rms_norm_eps"].dump(), "1e-05");
  EXPECT_EQ(config["rope_theta"], 100000.0);
  EXPECT_EQ(config["rope_scaling"], nullptr);
  EXPECT_EQ(config["vocab_size"], 40);
  EXPECT_EQ(config["max_position_embeddings"], 512);
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["attention_bias"], false);
  EXPECT_EQ(model.tokenizer(), nullptr);
  EXPECT_NE(model.tokenizer_problem().find("has no tokenizer"), std::string::npos) << model.tokenizer_problem();
}

TEST_F(GgufModelTest, TiedEmbeddings) {
  const GgufModel model = opened(GgufFixture{.output = false}.writer());
  EXPECT_EQ(model.config()["tie_word_embeddings"], true);
  EXPECT_EQ(find(model, "lm_head.weight"), nullptr);
}

TEST_F(GgufModelTest, Qwen) {
  GgufWriter second = GgufFixture{.architecture = "qwen2", .qkv_bias = true}.writer();
  const GgufModel qwen2 = opened(second);
  EXPECT_EQ(qwen2.config()["model_type"], "qwen2");
  EXPECT_EQ(all_of(qwen2, "model.layers.0.self_attn.q_proj.weight"), stored(second, "blk.0.attn_q.weight"));
  EXPECT_EQ(all_of(qwen2, "model.layers.0.self_attn.q_proj.bias"), stored(second, "blk.0.attn_q.bias"));
  EXPECT_TRUE(refusal(GgufFixture{.architecture = "qwen2"}.writer(), {"\"blk.0.attn_q.bias\" is missing"}));
  GgufWriter third = GgufFixture{.architecture = "qwen3", .head_norms = true}.writer();
  const GgufModel qwen3 = opened(third);
  EXPECT_EQ(qwen3.config()["architectures"][0], "Qwen3ForCausalLM");
  EXPECT_EQ(all_of(qwen3, "model.layers.1.self_attn.k_norm.weight"), stored(third, "blk.1.attn_k_norm.weight"));
}

TEST_F(GgufModelTest, Experts) {
  GgufWriter writer = GgufFixture{.experts = 3}.writer();
  const GgufModel mixtral = opened(writer);
  EXPECT_EQ(mixtral.config()["model_type"], "mixtral");
  EXPECT_EQ(mixtral.config()["num_local_experts"], 3);
  EXPECT_EQ(mixtral.config()["num_experts_per_tok"], 2);
  for (const auto& [name, gguf] : {std::pair{"w1", "ffn_gate_exps"}, {"w2", "ffn_down_exps"}, {"w3", "ffn_up_exps"}}) {
    std::vector<float> all;
    for (int expert = 0; expert < 3; ++expert) {
      const auto one =
          all_of(mixtral, base::text("model.layers.1.block_sparse_moe.experts.{}.{}.weight", expert, name));
      EXPECT_EQ(one.size(), 96u * 64);
      all.insert(all.end(), one.begin(), one.end());
    }
    EXPECT_EQ(all, stored(writer, base::text("blk.1.{}.weight", gguf))) << name;
  }
  GgufWriter other = GgufFixture{.architecture = "qwen3moe", .experts = 4, .head_norms = true}.writer();
  const GgufModel qwen = opened(other);
  EXPECT_EQ(qwen.config()["moe_intermediate_size"], 32);
  EXPECT_EQ(qwen.config()["num_experts"], 4);
  const auto down = stored(other, "blk.0.ffn_down_exps.weight");
  EXPECT_EQ(all_of(qwen, "model.layers.0.mlp.experts.3.down_proj.weight"),
            std::vector<float>(down.begin() + 3 * 64 * 32, down.end()));
  EXPECT_EQ(all_of(qwen, "model.layers.0.mlp.gate.weight"), stored(other, "blk.0.ffn_gate_inp.weight"));
}

std::vector<float> llama3_factors(double theta, double factor) {
  std::vector<float> factors;
  for (int i = 0; i < 8; ++i) {
    const double wavelength = 2 * std::numbers::pi / std::pow(theta, -2.0 * i / 16);
    if (wavelength < 8192.0 / 4)
      factors.push_back(1);
    else if (wavelength > 8192.0 / 1)
      factors.push_back(static_cast<float>(factor));
    else
      factors.push_back(
          static_cast<float>(1 / ((1 - (8192 / wavelength - 1) / 3) / factor + (8192 / wavelength - 1) / 3)));
  }
  return factors;
}

TEST_F(GgufModelTest, RopeScaling) {
  GgufWriter writer = GgufFixture().writer();
  writer.set("llama.rope.freq_base", gguf_value(500000.0f));
  std::vector<float> factors = llama3_factors(500000, 32);
  writer.add("rope_freqs.weight", GgufType::f32, {8}, GgufFixture::bytes_of(factors));
  const io::Json wanted = {{"rope_type", "llama3"},
                           {"factor", 32.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(opened(writer).config()["rope_scaling"], wanted);
  factors[5] *= 1.1f;
  writer.find("rope_freqs.weight")->data = GgufFixture::bytes_of(factors);
  EXPECT_TRUE(refusal(writer, {"8 factors of rope_freqs.weight", "Llama 3"}, kUnsupported));

  GgufWriter linear = GgufFixture().writer();
  linear.set("llama.rope.scaling.type", gguf_value("linear"));
  linear.set("llama.rope.scaling.factor", gguf_value(4.0f));
  EXPECT_EQ(opened(linear).config()["rope_scaling"], (io::Json{{"rope_type", "linear"}, {"factor", 4.0}}));
  linear.set("llama.rope.scaling.type", gguf_value("longrope"));
  EXPECT_TRUE(refusal(linear, {"rope scaling \"longrope\"", "linear and yarn"}, kUnsupported));
}

TEST_F(GgufModelTest, Refusals) {
  EXPECT_TRUE(refusal(GgufFixture{.architecture = "gpt2"}.writer(),
                      {"architecture \"gpt2\" is not known, only llama, qwen2, qwen3, qwen3moe"}, kUnsupported));
  EXPECT_TRUE(refusal(GgufFixture{.architecture = "qwen2", .experts = 2}.writer(),
                      {"\"qwen2\" with experts is not known"}, kUnsupported));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.remove("general.architecture"); }, {"general.architecture", "missing"}));
  for (const char* const key : {"block_count", "embedding_length", "feed_forward_length", "context_length",
                                "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    const std::string name = base::text("llama.{}", key);
    EXPECT_TRUE(refusal([&](GgufWriter& w) { w.remove(name); }, {name}));
    EXPECT_TRUE(refusal([&](GgufWriter& w) { w.set(name, gguf_value("x")); }, {name, "of type string"}));
  }
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.set("llama.block_count", gguf_value(std::uint32_t{3})); },
                      {"\"blk.2.attn_norm.weight\" is missing"}));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.set("llama.block_count", gguf_value(std::uint32_t{1})); },
                      {"\"blk.1.", "has no place"}, kUnsupported));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.set("llama.block_count", gguf_value(std::uint32_t{4000000000})); },
                      {"llama.block_count", "4000000000", "from 1 to 1024"}));
  EXPECT_TRUE(refusal(
      [](GgufWriter& w) {
        w.set("llama.attention.head_count_kv", gguf_value(std::vector<std::int32_t>{2, 1}));
      },
      {"head_count_kv", "an array of i32"}));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.set("llama.attention.head_count_kv", gguf_value(std::uint32_t{3})); },
                      {"4 heads of 16 with 3"}));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.set("llama.attention.head_count", gguf_value(std::uint32_t{0})); },
                      {"head_count", "is 0", "from 1"}));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.set("llama.rope.dimension_count", gguf_value(std::uint32_t{8})); },
                      {"rope.dimension_count\" is 8, heads have 16"}, kUnsupported));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.find("output_norm.weight")->name = "strange"; },
                      {"\"output_norm.weight\" is missing"}));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.add("strange", GgufType::f32, {1}, "abcd"); },
                      {"tensor \"strange\" has no place"}, kUnsupported));
  EXPECT_TRUE(refusal(
      [](GgufWriter& w) {
        w.find("blk.0.attn_k.weight")->shape = {64, 32};
      },
      {"blk.0.attn_k.weight", "[64, 32] is not the [32, 64]"}));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.find("blk.1.ffn_norm.weight")->type = 26; },
                      {"blk.1.ffn_norm.weight", "type I32 is not decoded, only F32, F16"}, kUnsupported));
  EXPECT_TRUE(refusal([](GgufWriter& w) { w.find("token_embd.weight")->shape = {2560}; },
                      {"token_embd.weight", "shape [2560]", "two dimensions"}));
  EXPECT_TRUE(refusal(GgufFixture{.qkv_bias = true}.writer(), {"\"blk.0.attn_output.bias\" is missing"}));
}

}  // namespace
}  // namespace kvant::tests
