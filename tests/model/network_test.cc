// Networks made from config.json and names: steps, sizes, and what is refused.
#include "model/network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "format/module_name.h"
#include "io/json.h"
#include "tests/support/network_fixture.h"

namespace kvant::tests {
namespace {

model::Modules modules_of(const NetworkFixture& fixture) {
  model::Modules modules;
  for (const FixtureTensor& tensor : fixture.files().shards[0])
    if (const auto module = format::module_of(tensor.name); !module.empty()) modules.emplace(module);
  return modules;
}

Result<model::Network> network_of(const NetworkFixture& fixture) {
  return model::make_network(fixture.files().config, modules_of(fixture));
}

// "norm heads rotate …", the steps of the first block.
std::string steps_of(const model::Network& network) {
  constexpr const char* kNames[] = {"norm", "heads", "head_norms", "rotate", "attend", "linear", "mlp", "add"};
  std::string all;
  for (const model::Step& step : network.blocks[0].steps)
    all += std::string(all.empty() ? "" : " ") + kNames[step.index()];
  return all;
}

TEST(Network, OfEveryFamilyHasItsSteps) {
  const auto llama = network_of(llama_model(llama_config()));
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(steps_of(*llama), "norm heads rotate attend linear add norm mlp add");
  EXPECT_EQ(llama->blocks.size(), 2u);
  EXPECT_EQ(llama->blocks[1].prefix, "model.layers.1.");
  EXPECT_EQ(llama->heads, 4);
  EXPECT_EQ(llama->kv_heads, 2);
  EXPECT_EQ(llama->head_size, 8);
  EXPECT_EQ(llama->heads_width(), 64);
  EXPECT_EQ(llama->tokens, "model.embed_tokens");
  EXPECT_EQ(llama->head->module, "lm_head");
  EXPECT_EQ(std::get<model::HeadsStep>(llama->blocks[0].steps[1]).linears[1].out, 16);

  const auto qwen3 = network_of(llama_model(llama_config("qwen3")));
  ASSERT_TRUE(qwen3.ok()) << qwen3.status().message();
  EXPECT_EQ(steps_of(*qwen3), "norm heads head_norms rotate attend linear add norm mlp add");

  const auto gpt2 = network_of(gpt2_model());
  ASSERT_TRUE(gpt2.ok()) << gpt2.status().message();
  EXPECT_EQ(steps_of(*gpt2), "norm heads attend linear add norm mlp add");
  EXPECT_EQ(gpt2->head->module, "transformer.wte");
  EXPECT_EQ(std::get<model::HeadsStep>(gpt2->blocks[0].steps[1]).linears[0].out, 96);
  EXPECT_TRUE(std::get<model::HeadsStep>(gpt2->blocks[0].steps[1]).linears[0].is_conv1d);
  EXPECT_EQ(std::get<model::MlpStep>(gpt2->blocks[0].steps[6]).inner, 128);

  const auto opt = network_of(opt_model(false));
  ASSERT_TRUE(opt.ok()) << opt.status().message();
  EXPECT_EQ(steps_of(*opt), "heads attend linear add norm mlp add norm");
  EXPECT_EQ(opt->final_norm, "");

  const auto bert = network_of(bert_model());
  ASSERT_TRUE(bert.ok()) << bert.status().message();
  EXPECT_EQ(steps_of(*bert), "heads attend linear add norm mlp add norm");
  EXPECT_FALSE(bert->head.has_value());
  EXPECT_EQ(bert->embedding_norm, "embeddings.LayerNorm");
}

TEST(Network, KnowsWhoReadsTheSame) {
  const auto groups_of = [](const model::Network& network) {
    std::string all;
    for (const model::Step& step : network.blocks[0].steps)
      for (const auto& readers : model::readers_of(step)) {
        all += all.empty() ? "" : ", ";
        for (const model::LinearModule* linear : readers)
          all += (linear == readers.front() ? "" : " ") + std::string(format::last_component(linear->module));
      }
    return all;
  };
  const auto llama = network_of(llama_model(llama_config()));
  ASSERT_TRUE(llama.ok()) << llama.status().message();
  EXPECT_EQ(groups_of(*llama), "q_proj k_proj v_proj, o_proj, gate_proj up_proj, down_proj");
  const auto mixtral = network_of(mixtral_model());
  ASSERT_TRUE(mixtral.ok()) << mixtral.status().message();
  EXPECT_EQ(groups_of(*mixtral).substr(0, 51), "q_proj k_proj v_proj, o_proj, gate, w1 w3, w2, w1 w");
}

TEST(Network, LayersSayWhetherTheySeeAWindow) {
  io::Json config = llama_config("qwen2");
  config["sliding_window"] = 7;
  config["use_sliding_window"] = false;
  const auto windows = [](const model::Network& network) {
    std::vector<std::int64_t> all;
    for (const model::Block& block : network.blocks)
      for (const model::Step& step : block.steps)
        if (const auto* attend = std::get_if<model::AttendStep>(&step)) all.push_back(attend->window);
    return all;
  };
  EXPECT_EQ(windows(*network_of(llama_model(config))), (std::vector<std::int64_t>{0, 0}));
  config["use_sliding_window"] = true;
  EXPECT_EQ(windows(*network_of(llama_model(config))), (std::vector<std::int64_t>{7, 7}));
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(windows(*network_of(llama_model(config))), (std::vector<std::int64_t>{0, 7}));
  config["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_NE(network_of(llama_model(config)).status().message().find("for layer 1"), std::string::npos);
}

TEST(Network, RefusesWhatItCannotRun) {
  const NetworkFixture good = llama_model(llama_config());
  const struct {
    const char* key;
    io::Json value;
    const char* sentence;
  } cases[] = {
      {"model_type", nullptr, "config.json: model_type is missing"},
      {"model_type", "bloom", "config.json: kvant cannot run a model of model_type 'bloom'"},
      {"hidden_size", nullptr, "config.json: hidden_size is missing"},
      {"hidden_size", "32", "config.json: hidden_size is \"32\", must be an integer from 1 to 16777216"},
      {"hidden_size", -1, "config.json: hidden_size is -1, must be an integer from 1 to 16777216"},
      {"num_attention_heads", 18446744073709551615u, "config.json: num_attention_heads is 18446744073709551615"},
      {"num_key_value_heads", 3, "config.json: 4 attention heads cannot share 3 key and value heads evenly"},
      {"hidden_act", "mish", "config.json: hidden_act is \"mish\"; known are silu, swish, gelu"},
      {"rms_norm_eps", 0, "config.json: rms_norm_eps is 0, must be a positive number"},
      {"num_hidden_layers", 3, "there is no module 'model.layers.2.input_layernorm', which the model needs"},
      {"rope_scaling", {{"rope_type", "dynamic"}}, "config.json: rope_scaling is of the kind \"dynamic\""},
  };
  for (const auto& each : cases) {
    NetworkFixture changed = good;
    changed.files().config[each.key] = each.value;
    const Status status = network_of(changed).status();
    EXPECT_EQ(std::string(status.message()).substr(0, std::string(each.sentence).size()), each.sentence);
  }
  NetworkFixture shared = good;
  shared.matrix("model.layers.0.mlp.experts.0.gate_proj", 4, 4);
  shared.files().remove("model.layers.0.mlp.gate_proj.weight");
  EXPECT_FALSE(network_of(shared).ok());
}

// Of the formulas that Llama 3 and YaRN published, with numbers that fall into each of their cases.
TEST(Rotary, IsScaledForLongContexts) {
  const auto frequencies = [](io::Json scaling) {
    io::Json config = {{"max_position_embeddings", 8192}, {"rope_theta", 500000.0}};
    if (!scaling.is_null()) config["rope_scaling"] = std::move(scaling);
    const auto rotary = model::read_rotary(model::ConfigFields(config), 64);
    EXPECT_TRUE(rotary.ok()) << rotary.status().message();
    return *rotary;
  };
  const auto plain = frequencies(nullptr);
  ASSERT_EQ(plain.frequencies.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_FLOAT_EQ(plain.frequencies[i], static_cast<float>(std::pow(500000.0, -static_cast<double>(i) / 32)));
  const auto llama3 = frequencies({{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 8192}});
  EXPECT_EQ(llama3.frequencies[0], plain.frequencies[0]);
  EXPECT_FLOAT_EQ(llama3.frequencies[31], plain.frequencies[31] / 8);
  int between = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const double wave = 2 * 3.14159265358979323846 / static_cast<double>(plain.frequencies[i]);
    if (wave < 8192 / 4.0 || wave > 8192) continue;
    ++between;
    const double share = (8192 / wave - 1) / 3;
    EXPECT_NEAR(llama3.frequencies[i], plain.frequencies[i] * ((1 - share) / 8 + share), 1e-6 * plain.frequencies[i]);
  }
  EXPECT_GT(between, 0);
  const auto yarn = frequencies({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 4096}});
  EXPECT_FLOAT_EQ(yarn.factor, static_cast<float>(0.1 * std::log(4.0) + 1));
  EXPECT_EQ(yarn.frequencies[0], plain.frequencies[0]);
  EXPECT_FLOAT_EQ(yarn.frequencies[31], plain.frequencies[31] / 4);
  const auto linear = frequencies({{"type", "linear"}, {"factor", 2.0}});
  EXPECT_FLOAT_EQ(linear.frequencies[5], plain.frequencies[5] / 2);
}

TEST(Rotary, TurnsByTheAngle) {
  model::Rotary rotary{{1.0f, 0.01f}, 1.5f};
  float cosines[2], sines[2];
  model::turn(rotary, 1000, cosines, sines);
  EXPECT_FLOAT_EQ(cosines[0], static_cast<float>(1.5 * std::cos(1000.0)));
  EXPECT_FLOAT_EQ(sines[1], static_cast<float>(1.5 * std::sin(static_cast<double>(1000 * 0.01f))));
}

}  // namespace
}  // namespace kvant::tests
