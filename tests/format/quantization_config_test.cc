// quantization_config read back, and everything in it that is of another form, with its sentence.
#include "format/quantization_config.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/corpus.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::QuantizationConfig;
using format::Scheme;
using io::DType;

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr auto kUnknown = StatusCode::Unsupported;

Result<QuantizationConfig> config_of(const io::Json& quantization_config) {
  ScratchFolder scratch;
  CheckpointFixture model;
  model.config["quantization_config"] = quantization_config;
  model.write(scratch / "m");
  return format::read_quantization_config(opened(scratch / "m"));
}

TEST(QuantizationConfig, WhatIsWrittenIsReadBack) {
  std::vector<Scheme> schemes = all_schemes(32);
  for (const Scheme& scheme : foreign_schemes()) schemes.push_back(scheme);
  for (const Scheme& scheme : schemes)
    for (const bool fp8_kv_cache : {false, true}) {
      QuantizationConfig config = QuantizationConfig::of(scheme, {"lm_head", "re:.*gate$"});
      config.fp8_kv_cache = fp8_kv_cache;
      const auto read = config_of(format::quantization_json(config));
      ASSERT_TRUE(read.ok()) << format::describe(scheme) << ": " << read.status().message();
      ASSERT_EQ(read->groups.size(), 1u);
      EXPECT_EQ(read->groups[0].scheme, scheme) << format::describe(scheme);
      EXPECT_EQ(read->groups[0].targets, std::vector<std::string>{"Linear"});
      EXPECT_EQ(read->ignore, config.ignore);
      EXPECT_EQ(read->fp8_kv_cache, fp8_kv_cache);
      EXPECT_EQ(format::describe(*read), format::describe(scheme) + (fp8_kv_cache ? ", FP8 keys and values" : ""));
    }
}

// A group of 32 is no power of two by itself: the format says it, or scale_dtype.
TEST(QuantizationConfig, ScalesOfActivationsAreWhatTheFormatSays) {
  Scheme scheme = scheme_of("fp8-block");
  scheme.activations->group_size = 32;
  const auto numbers = config_of(config_json(scheme));
  ASSERT_TRUE(numbers.ok()) << numbers.status().message();
  EXPECT_EQ(numbers->groups[0].scheme, scheme);
  scheme.activations->scale_code = ElementKind::e8m0;
  const auto powers = config_of(config_json(scheme));
  ASSERT_TRUE(powers.ok()) << powers.status().message();
  EXPECT_EQ(powers->groups[0].scheme, scheme);
  io::Json mx = config_json(scheme_of("mxfp8"));
  mx["config_groups"]["group_0"]["input_activations"].erase("scale_dtype");
  const auto unsaid = config_of(mx);
  ASSERT_TRUE(unsaid.ok()) << unsaid.status().message();
  EXPECT_EQ(unsaid->groups[0].scheme, scheme_of("mxfp8"));
}

QuantizationConfig of_two(const Scheme& first, const Scheme& second) {
  QuantizationConfig config = QuantizationConfig::of(first, {"lm_head"});
  config.groups.push_back({.scheme = second, .targets = {"model.layers.0.mlp.down_proj", "re:.*o_proj$"}});
  return config;
}

TEST(QuantizationConfig, GroupsHaveSchemesOfTheirOwn) {
  for (const Scheme& second : all_schemes(32)) {
    const QuantizationConfig config = of_two(scheme_of("fp8"), second);
    const io::Json json = format::quantization_json(config);
    const bool same = second.format == config.groups[0].scheme.format;
    EXPECT_EQ(json["format"], same ? "float-quantized" : "mixed-precision") << format::describe(second);
    EXPECT_EQ(json["config_groups"]["group_0"]["format"], "float-quantized");
    EXPECT_EQ(json["config_groups"]["group_1"]["format"], second.format);
    const auto read = config_of(json);
    ASSERT_TRUE(read.ok()) << format::describe(second) << ": " << read.status().message();
    ASSERT_EQ(read->groups.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(read->groups[i].scheme, config.groups[i].scheme) << format::describe(second);
      EXPECT_EQ(read->groups[i].targets, config.groups[i].targets);
    }
  }
  EXPECT_EQ(format::describe(of_two(scheme_of("fp8"), scheme_of("nvfp4a16"))), "fp8 and nvfp4a16");
}

TEST(QuantizationConfig, ManyGroupsKeepTheirOrder) {
  QuantizationConfig config = QuantizationConfig::of(w8a8());
  for (int i = 1; i < 12; ++i) config.groups.push_back({.scheme = w4a16(8 * i), .targets = {fmt::format("m.{}", i)}});
  const auto read = config_of(format::quantization_json(config));
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->groups.size(), config.groups.size());
  for (std::size_t i = 0; i < config.groups.size(); ++i) EXPECT_EQ(read->groups[i].targets, config.groups[i].targets);
}

TEST(QuantizationConfig, AModuleHasTheSchemeOfTheClosestTarget) {
  QuantizationConfig config = QuantizationConfig::of(w8a8());
  config.groups.push_back({.scheme = scheme_of("fp8"), .targets = {"re:.*mlp.*"}});
  config.groups.push_back({.scheme = scheme_of("nvfp4a16"), .targets = {"a.mlp.down", "re:.*q$"}});
  const auto schemes = format::SchemesOfModules::of(config);
  ASSERT_TRUE(schemes.ok()) << schemes.status().message();
  const auto of = [&](std::string_view module) { return format::describe(*schemes->find(module)); };
  EXPECT_EQ(of("a.mlp.down"), "nvfp4a16");
  EXPECT_EQ(of("a.mlp.up"), "fp8");
  EXPECT_EQ(of("a.q"), "nvfp4a16");
  EXPECT_EQ(of("a.o"), "w8a8");
  config.groups[0].targets = {"a.o"};
  const auto without = format::SchemesOfModules::of(config);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->find("b.o"), nullptr);
  config.groups[0].targets = {"re:("};
  EXPECT_TRUE(refused(format::SchemesOfModules::of(config).status(), kBad, {"'re:('", "regular expression"}));
  EXPECT_TRUE(refused(config_of(format::quantization_json(config)).status(), kUnknown,
                      {"quantization_config: targets: pattern 're:(' is not a valid regular expression"}));
}

TEST(QuantizationConfig, StandsInTheMetadataOfASingleFile) {
  ScratchFolder scratch;
  const FixtureLayer layer = make_layer("a", 2, 8, DType::f32, w8a8());
  Metadata metadata = kPt;
  metadata["quantization_config"] = config_json(w8a8()).dump();
  write_safetensors(scratch / "m.safetensors", quantized_tensors(layer, w8a8()), metadata);
  const auto config = format::read_quantization_config(opened(scratch / "m.safetensors"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->groups.at(0).scheme, w8a8());
  metadata["quantization_config"] = "{";
  write_safetensors(scratch / "m.safetensors", quantized_tensors(layer, w8a8()), metadata);
  EXPECT_TRUE(refused(format::read_quantization_config(opened(scratch / "m.safetensors")).status(), kBad,
                      {"m.safetensors: quantization_config in the metadata"}));
  metadata.erase("quantization_config");
  write_safetensors(scratch / "m.safetensors", quantized_tensors(layer, w8a8()), metadata);
  EXPECT_TRUE(refused(format::read_quantization_config(opened(scratch / "m.safetensors")).status(), kBad,
                      {"m.safetensors", "is not quantized", "in its metadata"}));
}

const std::string group = "/config_groups/group_0", weights = group + "/weights", inputs = group + "/input_activations";

// What comes of a configuration with one value changed.
Status changed(const Scheme& scheme, std::string_view pointer, const io::Json& value) {
  io::Json config = config_json(scheme);
  config[io::Json::json_pointer(std::string(pointer))] = value;
  return config_of(config).status();
}

TEST(QuantizationConfig, RefusesOtherForms) {
  EXPECT_TRUE(refused(config_of(7).status(), kUnknown, {"config.json: quantization_config: is 7, must be an object"}));
  EXPECT_TRUE(refused(config_of(nullptr).status(), kBad, {"is not quantized", "in its config.json"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/quant_method", "gptq"), kUnknown,
                      {"quant_method is \\\"gptq\\\", must be \"compressed-tensors\""}));
  EXPECT_TRUE(refused(changed(w8a8(), "/surprise", 1), kUnknown, {"unknown key 'surprise'", "remove it"}));
  EXPECT_TRUE(
      refused(changed(w8a8(), group + "/surprise", 1), kUnknown, {"config_groups.group_0: unknown key 'surprise'"}));
  EXPECT_TRUE(
      refused(changed(w8a8(), weights + "/surprise", 1), kUnknown, {"group_0.weights: unknown key 'surprise'"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/format", "marlin"), kUnknown,
                      {"quantization_config: format is", "marlin", "\"int-quantized\"", "\"nvfp4-pack-quantized\""}));
  EXPECT_TRUE(refused(changed(w8a8(), "/quantization_status", "frozen"), kUnknown, {"quantization_status", "frozen"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/kv_cache_scheme", {{"num_bits", 8}}), kUnknown,
                      {"kv_cache_scheme is", "must be null or", "float"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/sparsity_config", {{"format", "dense"}}), kUnknown,
                      {"sparsity_config is", "kvant does not support", "must be null"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/transform_config", 7), kUnknown, {"transform_config is 7"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/ignore", "lm_head"), kUnknown, {"ignore is", "must be a list of strings"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/ignore", {"lm_head", 5}), kUnknown, {"must be a list of strings"}));
  EXPECT_TRUE(refused(changed(w8a8(), group + "/targets", nullptr), kUnknown,
                      {"group_0: targets is null, must be a list of strings"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/config_groups", io::Json::object()), kUnknown,
                      {"has 0 groups, must have one at least"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/config_groups/group_1", io::Json::object()), kUnknown,
                      {"config_groups.group_1", "targets is null"}));
  EXPECT_TRUE(refused(changed(w8a8(), group + "/output_activations", {{"num_bits", 8}}), kUnknown,
                      {"output_activations", "must be null"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights, nullptr), kUnknown, {"group_0.weights: is null, must be an object"}));
  EXPECT_TRUE(refused(changed(w8a8(), inputs, 5), kUnknown, {"input_activations: is 5, must be an object"}));
  for (const std::string& where : {weights, inputs}) {
    EXPECT_TRUE(refused(changed(w8a8(), where + "/num_bits", 3), kUnknown, {"num_bits is 3, kvant supports 8 and 4"}));
    EXPECT_TRUE(refused(changed(w8a8(), where + "/num_bits", 8.0), kUnknown, {"num_bits is 8.0, must be an integer"}));
    EXPECT_TRUE(refused(changed(w8a8(), where + "/num_bits", std::numeric_limits<std::uint64_t>::max()), kUnknown,
                        {"must be an integer"}));
    EXPECT_TRUE(
        refused(changed(w8a8(), where + "/type", "complex"), kUnknown, {"type is", "must be \"int\" or \"float\""}));
    EXPECT_TRUE(refused(changed(w8a8(), where + "/symmetric", "yes"), kUnknown, {"must be true or false"}));
    EXPECT_TRUE(refused(changed(w8a8(), where + "/dynamic", 1), kUnknown, {"dynamic is 1, must be true or false"}));
    EXPECT_TRUE(refused(changed(w8a8(), where + "/strategy", "row"), kUnknown,
                        {"strategy is", "must be \"tensor\" or \"channel\"", "\"tensor_group\""}));
    EXPECT_TRUE(
        refused(changed(w8a8(), where + "/strategy", "group"), kUnknown, {"group_size is null, must be an integer"}));
  }
  for (const std::int64_t size : {0, -1})
    EXPECT_TRUE(refused(changed(w4a16(32), weights + "/group_size", size), kUnknown,
                        {fmt::format("group_size is {}, must be positive", size)}));
  EXPECT_TRUE(
      refused(changed(w8a8(), weights + "/dynamic", true), kUnknown, {"dynamic is true, weights must be static"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/dynamic", "local"), kUnknown,
                      {"dynamic is \\\"local\\\", weights must be static"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/actorder", "group"), kUnknown,
                      {"actorder is", "must be \"weight\" or \"static\""}));
  EXPECT_TRUE(changed(w8a8(), weights + "/actorder", "static").ok());
}

// What a format holds, and what it does not.
TEST(QuantizationConfig, RefusesWhatAFormatDoesNotHave) {
  EXPECT_TRUE(refused(changed(scheme_of("fp8"), "/format", "pack-quantized"), kUnknown,
                      {"num_bits 8 of type float needs format \"float-quantized\" or \"naive-quantized\" or "
                       "\"mxfp8-quantized\", but it is \"pack-quantized\""}));
  EXPECT_TRUE(refused(changed(scheme_of("mxfp4"), "/format", "mxfp8-quantized"), kUnknown,
                      {"num_bits 4 of type float needs format \"mxfp4-pack-quantized\" or \"nvfp4-pack-quantized\""}));
  EXPECT_TRUE(
      refused(changed(w8a8(), weights + "/type", "float"), kUnknown, {"num_bits 8 of type float", "but it is"}));
  // Strategies.
  EXPECT_TRUE(refused(changed(scheme_of("mxfp4"), "/format", "nvfp4-pack-quantized"), kUnknown,
                      {"scale_dtype is", "torch.uint8", "must be \"torch.float8_e4m3fn\""}));
  EXPECT_TRUE(refused(changed(scheme_of("nvfp4"), weights + "/strategy", "group"), kUnknown,
                      {"strategy is \"group\", which format \"nvfp4-pack-quantized\" does not have"}));
  EXPECT_TRUE(refused(changed(scheme_of("mxfp8"), weights + "/strategy", "channel"), kUnknown,
                      {"strategy is \"channel\", which format \"mxfp8-quantized\" does not have"}));
  EXPECT_TRUE(refused(changed(w4a16(32), weights + "/strategy", "tensor"), kUnknown,
                      {"strategy is \"tensor\", which format \"pack-quantized\" does not have"}));
  for (const std::string_view strategy : {"token", "tensor_group"}) {
    io::Json config = config_json(w8a8());
    config[io::Json::json_pointer(weights)]["strategy"] = strategy;
    config[io::Json::json_pointer(weights)]["group_size"] = 16;
    EXPECT_TRUE(refused(config_of(config).status(), kUnknown,
                        {fmt::format("strategy is \"{}\", which format \"int-quantized\" does not have", strategy)}));
  }
  // Zero points.
  for (const std::string_view name : {"w8a8", "fp8", "mxfp4", "nvfp4"})
    EXPECT_TRUE(refused(changed(scheme_of(name), weights + "/symmetric", false), kUnknown,
                        {"symmetric is false, but loaders accept only symmetric weights in format"}));
  EXPECT_TRUE(changed(w4a16(32), weights + "/symmetric", false).ok());
  EXPECT_TRUE(refused(changed(scheme_of("fp8"), inputs + "/symmetric", false), kUnknown,
                      {"input_activations: symmetric is false, must be true for type float"}));
  EXPECT_TRUE(changed(w8a8(), inputs + "/symmetric", false).ok());
  // Scales.
  for (const std::string_view name : {"torch.float32", "torch.float16", "torch.bfloat16"})
    EXPECT_TRUE(changed(w8a8(), weights + "/scale_dtype", name).ok());
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/scale_dtype", "torch.uint8"), kUnknown,
                      {"weights: scale_dtype is", "must be null"}));
  EXPECT_TRUE(refused(changed(scheme_of("mxfp4"), weights + "/scale_dtype", "torch.float32"), kUnknown,
                      {"weights: scale_dtype is", "must be \"torch.uint8\""}));
  EXPECT_TRUE(refused(changed(scheme_of("nvfp4"), inputs + "/scale_dtype", 5), kUnknown,
                      {"input_activations: scale_dtype is 5, must be \"torch.float8_e4m3fn\""}));
  EXPECT_TRUE(changed(scheme_of("nvfp4"), weights + "/scale_dtype", nullptr).ok());
  // Blocks.
  for (const io::Json& block :
       {io::Json(nullptr), io::Json(128), io::Json::array({128}), io::Json::array({128, 0}), io::Json::array({-1, 128}),
        io::Json::array({128, 128, 128}), io::Json::array({1.5, 2})})
    EXPECT_TRUE(refused(changed(scheme_of("fp8-block"), weights + "/block_structure", block), kUnknown,
                        {"weights: block_structure is", "must be two positive integers"}));
  // Activations.
  EXPECT_TRUE(refused(changed(w8a8(), inputs + "/dynamic", false), kUnknown,
                      {"strategy \"token\" with dynamic false; kvant supports \"token\" with true, \"tensor\" with "
                       "false"}));
  EXPECT_TRUE(refused(changed(scheme_of("nvfp4"), inputs + "/dynamic", true), kUnknown,
                      {"strategy \"tensor_group\" with dynamic true"}));
  EXPECT_TRUE(changed(w8a8(), inputs, nullptr).ok());
}

TEST(QuantizationConfig, RefusesGroupsWhoseFormatsContradict) {
  const io::Json mixed = format::quantization_json(of_two(scheme_of("fp8"), scheme_of("nvfp4a16")));
  const auto with = [&](std::string_view pointer, const io::Json& value) {
    io::Json config = mixed;
    config[io::Json::json_pointer(std::string(pointer))] = value;
    return config_of(config).status();
  };
  EXPECT_TRUE(with("/ignore", nullptr).ok());
  EXPECT_TRUE(refused(with("/config_groups/group_1/format", nullptr), kUnknown, {"group_1: format is null, must be"}));
  EXPECT_TRUE(refused(with("/config_groups/group_1/format", "mixed-precision"), kUnknown,
                      {"group_1: format is", "mixed-precision"}));
  EXPECT_TRUE(refused(with("/format", "float-quantized"), kUnknown,
                      {"group_1: format is \"nvfp4-pack-quantized\", must be \"float-quantized\" as above"}));
}

// Every value of a configuration replaced by every kind of JSON: a sentence, or a configuration; never a crash.
TEST(QuantizationConfig, SurvivesWrongTypesEverywhere) {
  const std::vector<io::Json> wrong = {nullptr,
                                       true,
                                       -1,
                                       std::numeric_limits<std::uint64_t>::max(),
                                       1e300,
                                       "text",
                                       io::Json::array(),
                                       io::Json::array({1, nullptr}),
                                       io::Json::object(),
                                       {{"a", {{"b", 1}}}}};
  std::vector<io::Json> configs;
  for (const Scheme& scheme : all_schemes(32)) configs.push_back(config_json(scheme, {"lm_head"}));
  QuantizationConfig mixed = of_two(scheme_of("fp8-block"), scheme_of("nvfp4"));
  mixed.fp8_kv_cache = true;
  configs.push_back(format::quantization_json(mixed));
  for (const io::Json& config : configs) {
    const io::Json flat = config.flatten();
    for (const auto& [pointer, value] : flat.items())
      for (std::string path = pointer; !path.empty(); path.resize(path.rfind('/')))
        for (const io::Json& other : wrong) {
          io::Json changed = config;
          changed[io::Json::json_pointer(path)] = other;
          std::vector<std::string> problems;
          const auto read =
              format::parse_quantization_config({"here", std::make_shared<const io::Json>(changed)}, problems);
          EXPECT_TRUE(read || !problems.empty()) << path << " " << other;
          for (const std::string& problem : problems) EXPECT_TRUE(problem.starts_with("here")) << problem;
        }
  }
}

TEST(QuantizationConfig, CorpusOfConfigs) {
  const auto check = [](const fs::path& path, const std::string& bytes) {
    const auto config = io::parse_json(bytes, "config.json");
    if (!config.ok() || !config->contains("quantization_config")) return;
    std::vector<std::string> problems;
    const auto value = std::make_shared<const io::Json>(config->at("quantization_config"));
    (void)format::parse_quantization_config({"config.json", value}, problems);
    EXPECT_EQ(problems.empty(), !path.filename().string().starts_with("refused"));
  };
  EXPECT_GE(run_corpus("config", check), 15);
}

}  // namespace
}  // namespace kvant::tests
