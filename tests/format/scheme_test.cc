// Schemes: their names, what no loader takes, and the very JSON that loaders read.
#include "format/scheme.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "format/quantization_config.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using format::check;
using format::quantization_config;
using format::Scheme;
using format::SchemeKind;
using io::DType;

// Equal as JSON, whatever the order of keys.
testing::AssertionResult is(const io::Json& config, std::string_view wanted) {
  const auto left = nlohmann::json::parse(config.dump());
  const auto right = nlohmann::json::parse(wanted);
  if (left == right) return testing::AssertionSuccess();
  return testing::AssertionFailure() << nlohmann::json::diff(right, left).dump(1);
}

TEST(Scheme, Names) {
  for (const format::SchemeSpec& spec : format::schemes()) {
    EXPECT_EQ(format::scheme_named(spec.name), spec.kind);
    EXPECT_EQ(&format::spec_of(spec.kind), &spec);
    EXPECT_TRUE(check(format::default_scheme(spec.kind)).ok()) << spec.name;
  }
  EXPECT_EQ(name(SchemeKind::w8a8_static), "w8a8-static");
  EXPECT_EQ(format::scheme_named("w8a8"), SchemeKind::w8a8);
  EXPECT_EQ(format::scheme_named("w4a16"), SchemeKind::w4a16);
  for (const std::string_view text : {"", "W8A8", "w8a8_static", "w8a8 ", "int8"})
    EXPECT_FALSE(format::scheme_named(text)) << text;
}

TEST(Scheme, ConfigOfW8A8) {
  const std::vector<std::string> ignore = {"lm_head"};
  EXPECT_TRUE(is(quantization_config({}, ignore), R"(
    {"quant_method": "compressed-tensors", "format": "int-quantized",
      "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": null, "global_compression_ratio": null,
      "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null,
        "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "dynamic": false},
        "input_activations": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true}}}})"));
}

TEST(Scheme, ConfigOfStaticW8A8) {
  for (const bool asymmetric : {false, true}) {
    io::Json config = quantization_config({.kind = SchemeKind::w8a8_static, .asymmetric = asymmetric}, {});
    EXPECT_TRUE(is(config, std::string(R"(
      {"quant_method": "compressed-tensors", "format": "int-quantized",
        "quantization_status": "compressed", "ignore": [], "kv_cache_scheme": null, "global_compression_ratio": null,
        "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null,
          "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "dynamic": false},
          "input_activations": {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": false, "symmetric": )") +
                               (asymmetric ? "false" : "true") + "}}}}"));
  }
}

TEST(Scheme, ConfigOfW4A16) {
  for (const bool asymmetric : {false, true}) {
    io::Json config = quantization_config({.kind = SchemeKind::w4a16, .asymmetric = asymmetric}, {});
    EXPECT_TRUE(is(config, std::string(R"(
      {"quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "ignore": [], "kv_cache_scheme": null, "global_compression_ratio": null,
        "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": null, "input_activations": null,
          "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "dynamic": false,
            "symmetric": )") + (asymmetric ? "false" : "true") +
                               "}}}}"));
  }
  const io::Json other = quantization_config({.kind = SchemeKind::w4a16, .group_size = 64}, {});
  EXPECT_EQ(other["config_groups"]["group_0"]["weights"]["group_size"], 64);
}

TEST(Scheme, OnlyGroupsHaveAGroupSize) {
  for (const SchemeKind kind : {SchemeKind::w8a8, SchemeKind::w8a8_static}) {
    const io::Json config = quantization_config({.kind = kind, .group_size = 32}, {});
    EXPECT_FALSE(config["config_groups"]["group_0"]["weights"].contains("group_size"));
  }
}

TEST(Scheme, ScalesAreNoPartOfTheConfig) {
  EXPECT_EQ(quantization_config({.scale_dtype = DType::f32}, {}), quantization_config({}, {}));
}

TEST(Scheme, IgnoreIsAListInItsOrder) {
  EXPECT_EQ(quantization_config({}, {})["ignore"].dump(), "[]");
  const std::vector<std::string> ignore = {"re:.*gate$", "lm_head", "a\"b"};
  EXPECT_EQ(quantization_config({}, ignore)["ignore"].dump(), R"(["re:.*gate$","lm_head","a\"b"])");
  // Two texts are not a key and its value.
  const std::vector<std::string> two = {"a", "b"};
  EXPECT_EQ(quantization_config({}, two)["ignore"].dump(), R"(["a","b"])");
}

TEST(Scheme, TheMethodComesFirst) { EXPECT_EQ(quantization_config({}, {}).begin().key(), "quant_method"); }

TEST(Scheme, WhatLoadersTakeIsAccepted) {
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({.kind = SchemeKind::w8a8_static}).ok());
  EXPECT_TRUE(check({.kind = SchemeKind::w8a8_static, .asymmetric = true}).ok());
  EXPECT_TRUE(check({.kind = SchemeKind::w4a16}).ok());
  EXPECT_TRUE(check({.kind = SchemeKind::w4a16, .asymmetric = true, .group_size = 8}).ok());
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) EXPECT_TRUE(check({.scale_dtype = dtype}).ok());
  // Of no meaning there.
  EXPECT_TRUE(check({.kind = SchemeKind::w8a8, .group_size = 0}).ok());
}

TEST(Scheme, WhatNoLoaderTakesIsRefused) {
  EXPECT_TRUE(refused(check({.kind = SchemeKind::w4a16, .group_size = 0}), StatusCode::InvalidProblem,
                      {"group size 0 must be a positive multiple of 8"}));
  EXPECT_TRUE(refused(check({.kind = SchemeKind::w4a16, .group_size = -128}), StatusCode::InvalidProblem,
                      {"group size -128 must be a positive multiple of 8"}));
  EXPECT_TRUE(refused(check({.kind = SchemeKind::w8a8, .asymmetric = true}), StatusCode::Unsupported,
                      {"w8a8 has no asymmetric form", "w8a8-static"}));
  for (const DType dtype : {DType::f64, DType::i8, DType::f8_e4m3, DType::boolean})
    EXPECT_TRUE(
        refused(check({.scale_dtype = dtype}), StatusCode::Unsupported, {io::name(dtype), "must be F32, F16 or BF16"}));
}

}  // namespace
}  // namespace kvant::tests
