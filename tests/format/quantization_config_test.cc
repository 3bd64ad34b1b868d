// quantization_config read back, and everything in it that is of another form, with its sentence.
#include "format/quantization_config.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

TEST(QuantizationConfig, WhatKvantWritesIsReadBack) {
  for (const Scheme& scheme : all_schemes(32)) {
    const std::vector<std::string> ignore = {"lm_head", "re:.*gate$"};
    const auto config = config_of(format::quantization_config(scheme, ignore));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->scheme.kind, scheme.kind);
    EXPECT_EQ(config->scheme.asymmetric, scheme.asymmetric);
    if (scheme.spec().has_groups()) {
      EXPECT_EQ(config->scheme.group_size, scheme.group_size);
    }
    EXPECT_EQ(config->ignore, ignore);
    EXPECT_EQ(config->targets, std::vector<std::string>{"Linear"});
  }
  EXPECT_EQ(format::describe(w8a8()), "w8a8");
  EXPECT_EQ(format::describe(w8a8_static(true)), "w8a8-static, asymmetric");
  EXPECT_EQ(format::describe(w4a16(32, true)), "w4a16, groups of 32, asymmetric");
}

TEST(QuantizationConfig, StandsInTheMetadataOfASingleFile) {
  ScratchFolder scratch;
  const FixtureLayer layer = make_layer("a", 2, 8, DType::f32, w8a8());
  Metadata metadata = kPt;
  metadata["quantization_config"] = format::quantization_config(w8a8(), {}).dump();
  write_safetensors(scratch / "m.safetensors", quantized_tensors(layer, w8a8()), metadata);
  const auto config = format::read_quantization_config(opened(scratch / "m.safetensors"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->scheme.kind, format::SchemeKind::w8a8);
  metadata["quantization_config"] = "{";
  write_safetensors(scratch / "m.safetensors", quantized_tensors(layer, w8a8()), metadata);
  EXPECT_TRUE(refused(format::read_quantization_config(opened(scratch / "m.safetensors")).status(), kBad,
                      {"m.safetensors: quantization_config in the metadata"}));
  metadata.erase("quantization_config");
  write_safetensors(scratch / "m.safetensors", quantized_tensors(layer, w8a8()), metadata);
  EXPECT_TRUE(refused(format::read_quantization_config(opened(scratch / "m.safetensors")).status(), kBad,
                      {"m.safetensors", "is not quantized", "in its metadata"}));
}

TEST(QuantizationConfig, RefusesOtherForms) {
  const auto changed = [](const Scheme& scheme, std::string_view pointer, const io::Json& value) {
    io::Json config = format::quantization_config(scheme, {});
    config[io::Json::json_pointer(std::string(pointer))] = value;
    return config_of(config).status();
  };
  const std::string group = "/config_groups/group_0", weights = group + "/weights",
                    inputs = group + "/input_activations";
  EXPECT_TRUE(refused(config_of(7).status(), kUnknown, {"config.json: quantization_config: is 7, must be an object"}));
  EXPECT_TRUE(refused(config_of(nullptr).status(), kBad, {"is not quantized", "in its config.json"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/quant_method", "gptq"), kUnknown,
                      {"quant_method is \\\"gptq\\\", must be \"compressed-tensors\""}));
  EXPECT_TRUE(refused(changed(w8a8(), "/surprise", 1), kUnknown, {"unknown key 'surprise'", "remove it"}));
  EXPECT_TRUE(
      refused(changed(w8a8(), group + "/surprise", 1), kUnknown, {"config_groups.group_0: unknown key 'surprise'"}));
  EXPECT_TRUE(
      refused(changed(w8a8(), weights + "/surprise", 1), kUnknown, {"group_0.weights: unknown key 'surprise'"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/format", "pack-quantized"), kUnknown,
                      {"num_bits 8 needs format \"int-quantized\", but it is \"pack-quantized\""}));
  EXPECT_TRUE(refused(changed(w8a8(), "/format", "marlin"), kUnknown, {"format is", "marlin"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/quantization_status", "frozen"), kUnknown, {"quantization_status", "frozen"}));
  EXPECT_TRUE(
      refused(changed(w8a8(), "/kv_cache_scheme", {{"num_bits", 8}}), kUnknown, {"kv_cache_scheme", "must be null"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/ignore", "lm_head"), kUnknown, {"ignore is", "must be a list of strings"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/ignore", {"lm_head", 5}), kUnknown, {"must be a list of strings"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/config_groups", io::Json::object()), kUnknown, {"has 0 groups"}));
  EXPECT_TRUE(refused(changed(w8a8(), "/config_groups/group_1", io::Json::object()), kUnknown, {"has 2 groups"}));
  EXPECT_TRUE(refused(changed(w8a8(), group + "/output_activations", {{"num_bits", 8}}), kUnknown,
                      {"output_activations", "must be null"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/num_bits", 3), kUnknown, {"num_bits is 3, kvant supports 8 and 4"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/num_bits", 8.0), kUnknown, {"num_bits is 8.0, must be an integer"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/num_bits", std::numeric_limits<std::uint64_t>::max()), kUnknown,
                      {"must be an integer"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/type", "float"), kUnknown, {"type is", "must be \"int\""}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/symmetric", false), kUnknown,
                      {"symmetric is false", "vLLM accepts only symmetric 8-bit weights"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/symmetric", "yes"), kUnknown, {"must be true or false"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/strategy", "tensor"), kUnknown,
                      {"strategy is \"tensor\", kvant supports \"channel\" for 8 bits"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/dynamic", true), kUnknown, {"weights must be static"}));
  EXPECT_TRUE(refused(changed(w8a8(), weights + "/actorder", "group"), kUnknown, {"actorder", "must be null"}));
  EXPECT_TRUE(refused(changed(w8a8(), inputs, nullptr), kUnknown, {"input_activations: is null, must be an object"}));
  EXPECT_TRUE(
      refused(changed(w8a8(), inputs + "/dynamic", false), kUnknown, {"strategy \"token\" with dynamic false"}));
  EXPECT_TRUE(refused(changed(w8a8(), inputs + "/symmetric", false), kUnknown, {"must be true for dynamic"}));
  EXPECT_TRUE(refused(changed(w8a8(), inputs + "/num_bits", 4), kUnknown, {"num_bits is 4, must be 8"}));
  EXPECT_TRUE(refused(changed(w4a16(32), weights + "/group_size", 0), kUnknown, {"group_size is 0, must be positive"}));
  EXPECT_TRUE(refused(changed(w4a16(32), weights + "/group_size", -1), kUnknown, {"group_size is -1"}));
  EXPECT_TRUE(refused(changed(w4a16(32), weights + "/group_size", nullptr), kUnknown, {"group_size is null"}));
  EXPECT_TRUE(refused(changed(w4a16(32), inputs, {{"num_bits", 8}}), kUnknown, {"must be null for 4-bit weights"}));
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
  for (const Scheme& scheme : all_schemes(32)) {
    const io::Json config = format::quantization_config(scheme, std::vector<std::string>{"lm_head"});
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

}  // namespace
}  // namespace kvant::tests
