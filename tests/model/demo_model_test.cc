// The demonstration checkpoint: the same bits every time, and nobody's files replaced.
#include "model/demo_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "io/json.h"
#include "kvant/element.h"
#include "tests/support/scratch.h"

namespace kvant::model {
namespace {

namespace fs = std::filesystem;
using tests::put_text;
using tests::ScratchFolder;
using tests::text_of;

constexpr DemoModel kSmall = {.hidden = 64, .intermediate = 96, .vocabulary = 32, .layers = 2, .shards = 2};

std::uint64_t fnv(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

std::vector<float> values(const io::Checkpoint& checkpoint, const std::string& name) {
  const io::TensorInfo& info = *checkpoint.find(name);
  std::vector<BFloat16> stored(info.bytes() / 2);
  EXPECT_TRUE(
      checkpoint.read(checkpoint.tensors().find(name)->second, 0, std::as_writable_bytes(std::span(stored))).ok());
  std::vector<float> widened;
  for (const BFloat16 v : stored) widened.push_back(to_float(v));
  return widened;
}

TEST(DemoModel, HasTheSameBitsEveryTime) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_demo_model(kSmall, folder / "model", folder / "stats.safetensors").ok());
  const std::map<std::string, std::uint64_t> wanted = {{"model/config.json", 0x7A726AFE35A95EACu},
                                                       {"model/model-00001-of-00002.safetensors", 0x28EBF1CAA3051E97u},
                                                       {"model/model-00002-of-00002.safetensors", 0xB41D774AAA95A666u},
                                                       {"model/model.safetensors.index.json", 0xDF4A9096D752F959u},
                                                       {"model/tokenizer_config.json", 0x6853595A5105E066u},
                                                       {"stats.safetensors", 0x726201D18C0B3EEDu}};
  for (const auto& [name, hash] : wanted) EXPECT_EQ(fnv(text_of(folder / name)), hash) << name;
  // A second run leaves the same files alone, and repairs one that changed.
  const auto before = fs::last_write_time(folder / "model/config.json");
  const Status again = write_demo_model(kSmall, folder / "model", folder / "stats.safetensors");
  ASSERT_TRUE(again.ok()) << again.message();
  for (const auto& [name, hash] : wanted) EXPECT_EQ(fnv(text_of(folder / name)), hash) << name;
  EXPECT_EQ(fs::last_write_time(folder / "model/config.json"), before);
  put_text(folder / "model/tokenizer_config.json", "{}");
  ASSERT_TRUE(write_demo_model(kSmall, folder / "model", folder / "stats.safetensors").ok());
  for (const auto& [name, hash] : wanted) EXPECT_EQ(fnv(text_of(folder / name)), hash) << name;
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"model", "stats.safetensors"}));
}

TEST(DemoModel, IsALlamaWithOutlierChannels) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_demo_model(kSmall, folder / "model", folder / "stats.safetensors").ok());
  const auto checkpoint = io::Checkpoint::open(folder / "model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->shards().size(), 2u);
  EXPECT_EQ(checkpoint->tensors().size(), 2 * 9 + 3u);
  const io::Json& config = *checkpoint->config();
  EXPECT_EQ(config["architectures"][0], "LlamaForCausalLM");
  EXPECT_EQ(config["hidden_size"], 64);
  EXPECT_EQ(config["num_hidden_layers"], 2);

  for (const char* const name :
       {"model.layers.0.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight"}) {
    const std::vector<float> norm = values(*checkpoint, name);
    ASSERT_EQ(norm.size(), 64u);
    EXPECT_EQ(std::count_if(norm.begin(), norm.end(), [](float w) { return w >= 20 && w <= 60; }), 1) << name;
    EXPECT_EQ(std::count_if(norm.begin(), norm.end(), [](float w) { return w > 0.2f && w < 1.8f; }), 63) << name;
  }
  double squares = 0;
  const std::vector<float> down = values(*checkpoint, "model.layers.1.mlp.down_proj.weight");
  ASSERT_EQ(down.size(), 64u * 96u);
  for (const float w : down) squares += static_cast<double>(w) * static_cast<double>(w);
  EXPECT_NEAR(squares / static_cast<double>(down.size()) * 96, 1.0, 0.1);

  const auto stats = io::SafetensorsFile::open(folder / "stats.safetensors");
  ASSERT_TRUE(stats.ok());
  for (const char* const module : {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "lm_head"})
    for (const char* const what : {".absmax", ".min", ".max"}) {
      const io::TensorInfo* const info = stats->find(std::string(module) + what);
      ASSERT_NE(info, nullptr) << module << what;
      EXPECT_EQ(info->dtype, io::DType::f32);
    }
}

TEST(DemoModel, ReplacesNothingOfOthers) {
  const auto refusal = [](const ScratchFolder& folder) {
    const Status s = write_demo_model(kSmall, folder / "model", folder / "stats.safetensors");
    EXPECT_FALSE(s.ok());
    return std::string(s.message());
  };
  {
    const ScratchFolder folder;
    std::filesystem::create_directory(folder / "model");
    put_text(folder / "model/notes.txt", "mine");
    EXPECT_NE(refusal(folder).find("notes.txt: was not written by the demo"), std::string::npos);
    EXPECT_EQ(text_of(folder / "model/notes.txt"), "mine");
  }
  {  // a real model has the same names
    const ScratchFolder folder;
    std::filesystem::create_directory(folder / "model");
    put_text(folder / "model/config.json", R"({"model_type": "llama", "_name_or_path": "meta"})");
    EXPECT_NE(refusal(folder).find("config.json: was not written by the demo"), std::string::npos);
  }
  {
    const ScratchFolder folder;
    std::filesystem::create_directory(folder / "model");
    put_text(folder / "model/model-00001-of-00002.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
    EXPECT_NE(refusal(folder).find("model-00001-of-00002.safetensors: was not written"), std::string::npos);
  }
  {
    const ScratchFolder folder;
    std::filesystem::create_directory(folder / "model");
    put_text(folder / "model/tokenizer_config.json", "{}");
    EXPECT_NE(refusal(folder).find("tokenizer_config.json: was not written"), std::string::npos);
  }
  {
    const ScratchFolder folder;
    put_text(folder / "stats.safetensors", "mine");
    EXPECT_NE(refusal(folder).find("stats.safetensors: was not written"), std::string::npos);
    EXPECT_EQ(folder.names(), std::vector<std::string>{"stats.safetensors"});
  }
}

TEST(DemoModel, GoesOnAfterARunThatWasKilled) {
  const ScratchFolder folder;
  ASSERT_TRUE(write_demo_model(kSmall, folder / "model", folder / "stats.safetensors").ok());
  const std::string config = text_of(folder / "model/config.json");
  std::filesystem::remove(folder / "model/config.json");
  std::filesystem::remove(folder / "model/model-00002-of-00002.safetensors");
  put_text(folder / "model/model-00002-of-00002.safetensors.partial", "half");
  const Status s = write_demo_model(kSmall, folder / "model", folder / "stats.safetensors");
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(text_of(folder / "model/config.json"), config);
  EXPECT_FALSE(std::filesystem::exists(folder / "model/model-00002-of-00002.safetensors.partial"));
}

TEST(DemoModel, RefusesSizesThatAreNone) {
  const ScratchFolder folder;
  DemoModel model = kSmall;
  model.shards = 3;
  EXPECT_FALSE(write_demo_model(model, folder / "model", folder / "stats.safetensors").ok());
  model = kSmall;
  model.hidden = 65;
  EXPECT_FALSE(write_demo_model(model, folder / "model", folder / "stats.safetensors").ok());
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace kvant::model
