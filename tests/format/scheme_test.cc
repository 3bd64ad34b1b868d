// Schemes: their names, what no loader takes, and the very JSON that loaders read.
#include "format/scheme.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "format/quantization_config.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using format::describe;
using format::Scheme;
using format::SchemeOptions;
using format::SchemeRow;
using io::DType;

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr auto kUnknown = StatusCode::Unsupported;

const SchemeRow& row(std::string_view name) { return *format::scheme_named(name).value(); }
Result<Scheme> with(std::string_view name, const SchemeOptions& options) {
  return format::with_options(row(name), options);
}

// Equal as JSON, whatever the order of keys.
testing::AssertionResult is(const io::Json& config, const nlohmann::json& wanted) {
  const auto got = nlohmann::json::parse(config.dump());
  if (got == wanted) return testing::AssertionSuccess();
  return testing::AssertionFailure() << nlohmann::json::diff(wanted, got).dump(1) << "\nin " << got.dump();
}

// The whole of quantization_config with one group: what loaders are given, written out.
nlohmann::json whole(std::string_view format, std::string_view weights, std::string_view activations) {
  return nlohmann::json::parse(fmt::format(R"(
    {{"quant_method": "compressed-tensors", "format": "{}", "quantization_status": "compressed", "ignore": ["lm_head"],
      "kv_cache_scheme": null, "global_compression_ratio": null,
      "config_groups": {{"group_0": {{"targets": ["Linear"], "output_activations": null, "weights": {},
                                      "input_activations": {}}}}}}})",
                                           format, weights, activations));
}

TEST(Scheme, NamesAreKvantsOrLlmCompressors) {
  for (const SchemeRow& r : format::schemes()) {
    EXPECT_EQ(&row(r.name), &r);
    EXPECT_EQ(describe(r.scheme).substr(0, r.name.size()), r.name);
    if (!r.llm_compressor.empty()) {
      EXPECT_EQ(&row(r.llm_compressor), &r);
    }
  }
  const std::map<std::string_view, std::string_view> theirs = {
      {"W8A8", "w8a8"},       {"W8A16", "w8a16"},         {"W4A16", "w4a16"}, {"W4A8", "w4a8"},
      {"FP8_DYNAMIC", "fp8"}, {"FP8_BLOCK", "fp8-block"}, {"MXFP8", "mxfp8"}, {"MXFP8A16", "mxfp8a16"},
      {"MXFP4", "mxfp4"},     {"MXFP4A16", "mxfp4a16"},   {"NVFP4", "nvfp4"}, {"NVFP4A16", "nvfp4a16"}};
  for (const auto& [name, ours] : theirs) EXPECT_EQ(row(name).name, ours);
  for (const std::string_view text : {"", "w8a8_static", "w8a8 ", "int8", "fp8_dynamic", "NVFP4a16"})
    EXPECT_TRUE(
        refused(format::scheme_named(text).status(), kUnknown,
                {fmt::format("scheme '{}': must be one of w8a8, w8a8-static, w8a16, w4a16", text), "nvfp4a16"}));
}

// The same letters mean another scheme there.
TEST(Scheme, Fp8InCapitalsIsAmbiguous) {
  EXPECT_EQ(row("fp8").llm_compressor, "FP8_DYNAMIC");
  EXPECT_TRUE(refused(format::scheme_named("FP8").status(), kUnknown,
                      {"scheme FP8: llm-compressor's FP8 has one scale for a weight", "which is fp8-static here",
                       "fp8 is its FP8_DYNAMIC"}));
}

TEST(Scheme, ConfigOfEveryRow) {
  const std::string int8_token =
      R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true})";
  const std::string int8_channel =
      R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel", "dynamic": false})";
  const std::string fp8_token =
      R"({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "token", "dynamic": true})";
  const std::string fp8_tensor =
      R"({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "dynamic": false})";
  const auto groups = [](std::string_view type, int bits, int size, bool dynamic, std::string_view scale = "") {
    return fmt::format(
        R"({{"num_bits": {}, "type": "{}", "symmetric": true, "strategy": "group", "group_size": {}, "dynamic": {}{}}})",
        bits, type, size, dynamic, scale.empty() ? "" : fmt::format(R"(, "scale_dtype": "{}")", scale));
  };
  const auto nvfp4 = [](std::string_view dynamic) {
    return fmt::format(R"({{"num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group",
                            "group_size": 16, "scale_dtype": "torch.float8_e4m3fn", "dynamic": {}}})",
                       dynamic);
  };
  const std::string mx = "torch.uint8";
  const std::map<std::string_view, nlohmann::json> wanted = {
      {"w8a8", whole("int-quantized", int8_channel, int8_token)},
      {"w8a8-static",
       whole("int-quantized", int8_channel,
             R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "tensor", "dynamic": false})")},
      {"w8a16", whole("pack-quantized", groups("int", 8, 128, false), "null")},
      {"w4a16", whole("pack-quantized", groups("int", 4, 128, false), "null")},
      {"w4a8", whole("int-quantized", groups("int", 4, 128, false), int8_token)},
      {"fp8", whole("float-quantized",
                    R"({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel", "dynamic": false})",
                    fp8_token)},
      {"fp8-tensor", whole("float-quantized", fp8_tensor, fp8_token)},
      {"fp8-static", whole("float-quantized", fp8_tensor, fp8_tensor)},
      {"fp8-block", whole("float-quantized",
                          R"({"num_bits": 8, "type": "float", "symmetric": true, "strategy": "block",
                              "block_structure": [128, 128], "dynamic": false})",
                          groups("float", 8, 128, true))},
      {"mxfp8", whole("mxfp8-quantized", groups("float", 8, 32, false, mx), groups("float", 8, 32, true, mx))},
      {"mxfp8a16", whole("mxfp8-quantized", groups("float", 8, 32, false, mx), "null")},
      {"mxfp4", whole("mxfp4-pack-quantized", groups("float", 4, 32, false, mx), groups("float", 4, 32, true, mx))},
      {"mxfp4a16", whole("mxfp4-pack-quantized", groups("float", 4, 32, false, mx), "null")},
      {"nvfp4", whole("nvfp4-pack-quantized", nvfp4("false"), nvfp4("\"local\""))},
      {"nvfp4a16", whole("nvfp4-pack-quantized", nvfp4("false"), "null")},
  };
  EXPECT_EQ(wanted.size(), format::schemes().size());
  for (const SchemeRow& r : format::schemes()) {
    const auto it = wanted.find(r.name);
    ASSERT_NE(it, wanted.end()) << r.name;
    EXPECT_TRUE(is(config_json(r.scheme, {"lm_head"}), it->second)) << r.name;
  }
}

TEST(Scheme, OptionsChangeTheirKeysOnly) {
  const auto config = [](std::string_view name, const SchemeOptions& options) {
    const auto scheme = with(name, options);
    must(scheme.status());
    return nlohmann::json::parse(config_json(*scheme).dump());
  };
  const nlohmann::json::json_pointer weights("/config_groups/group_0/weights"),
      inputs("/config_groups/group_0/input_activations");
  for (const SchemeRow& r : format::schemes()) {
    const nlohmann::json plain = config(r.name, {});
    if (r.takes_asymmetric()) {
      nlohmann::json wanted = plain;
      if (r.takes_asymmetric_weights) wanted[weights]["symmetric"] = false;
      if (r.takes_asymmetric_activations) wanted[inputs]["symmetric"] = false;
      EXPECT_EQ(config(r.name, {.asymmetric = true}), wanted) << r.name;
      EXPECT_NE(wanted, plain);
    }
    if (r.takes_group_size) {
      nlohmann::json wanted = plain;
      wanted[weights]["group_size"] = 64;
      EXPECT_EQ(config(r.name, {.group_size = 64}), wanted) << r.name;
      wanted[weights].erase("group_size");
      wanted[weights]["strategy"] = "channel";
      EXPECT_EQ(config(r.name, {.group_size = -1}), wanted) << r.name;
    }
    // Which dtype scales have is no part of it.
    if (!r.scheme.weights.scale_code) {
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        EXPECT_EQ(config(r.name, {.scale_dtype = dtype}), plain) << r.name;
      }
    }
  }
}

TEST(Scheme, IgnoreIsAListInItsOrder) {
  EXPECT_EQ(config_json(w8a8())["ignore"].dump(), "[]");
  EXPECT_EQ(config_json(w8a8(), {"re:.*gate$", "lm_head", "a\"b"})["ignore"].dump(),
            R"(["re:.*gate$","lm_head","a\"b"])");
  // Two texts are not a key and its value.
  EXPECT_EQ(config_json(w8a8(), {"a", "b"})["ignore"].dump(), R"(["a","b"])");
}

TEST(Scheme, TheMethodComesFirst) { EXPECT_EQ(config_json(w8a8()).begin().key(), "quant_method"); }

TEST(Scheme, OptionsThatNoLoaderTakesAreRefused) {
  constexpr std::string_view kSizes = "w8a16, w4a16, w4a8 do";
  for (const SchemeRow& r : format::schemes()) {
    const auto sized = format::with_options(r, {.group_size = 64});
    if (r.takes_group_size)
      EXPECT_TRUE(sized.ok()) << r.name;
    else
      EXPECT_TRUE(refused(sized.status(), kUnknown, {fmt::format("{} does not take a group size", r.name), kSizes}));
    const auto asymmetric = format::with_options(r, {.asymmetric = true});
    if (r.takes_asymmetric())
      EXPECT_TRUE(asymmetric.ok()) << r.name;
    else
      EXPECT_TRUE(refused(asymmetric.status(), kUnknown,
                          {fmt::format("{} has no asymmetric form that loaders accept", r.name),
                           "w8a8, w8a8-static, w8a16, w4a16, w4a8 have one"}));
    const auto scales = format::with_options(r, {.scale_dtype = DType::f16});
    if (!r.scheme.weights.scale_code)
      EXPECT_TRUE(scales.ok()) << r.name;
    else
      EXPECT_TRUE(refused(scales.status(), kUnknown,
                          {fmt::format("{} stores its scales as {}: it takes no other dtype of scales", r.name,
                                       name(*r.scheme.weights.scale_code))}));
  }
  for (const std::int64_t size : {0, -2, -128, 4, 12})
    EXPECT_TRUE(refused(with("w4a16", {.group_size = size}).status(), kBad,
                        {fmt::format("group size {} must be a positive multiple of 8: eight codes share a word", size),
                         "-1 is one group for each channel"}));
  for (const std::int64_t size : {0, -4, 6})
    EXPECT_TRUE(
        refused(with("w8a16", {.group_size = size}).status(), kBad,
                {fmt::format("group size {} must be a positive multiple of 4: four codes share a word", size)}));
  EXPECT_TRUE(with("w8a16", {.group_size = 4}).ok());
  // Its codes have bytes of their own.
  EXPECT_TRUE(with("w4a8", {.group_size = 5}).ok());
  for (const std::int64_t size : {0, -5})
    EXPECT_TRUE(refused(with("w4a8", {.group_size = size}).status(), kBad,
                        {fmt::format("group size {} must be positive, or -1", size)}));
  for (const DType dtype : {DType::f64, DType::i8, DType::f8_e4m3, DType::boolean})
    EXPECT_TRUE(refused(with("w8a8", {.scale_dtype = dtype}).status(), kUnknown,
                        {fmt::format("scales of {}: must be F32, F16 or BF16", io::name(dtype))}));
}

TEST(Scheme, IsDescribedByItsRowAndOptions) {
  EXPECT_EQ(describe(w8a8()), "w8a8");
  EXPECT_EQ(describe(w8a8_static(true)), "w8a8-static, asymmetric");
  EXPECT_EQ(describe(w4a16(64)), "w4a16, groups of 64");
  EXPECT_EQ(describe(w4a16(32, true)), "w4a16, groups of 32, asymmetric");
  EXPECT_EQ(describe(w4a16(-1)), "w4a16, a scale for each channel");
  EXPECT_EQ(describe(scheme_of("w4a8", 128, true)), "w4a8, groups of 128, asymmetric");
  EXPECT_EQ(describe(scheme_of("w8a16", -1)), "w8a16, a scale for each channel");
  for (const SchemeRow& r : format::schemes()) {
    Scheme scheme = r.scheme;
    scheme.scale_dtype = DType::f16;
    EXPECT_EQ(describe(scheme), r.takes_group_size ? fmt::format("{}, groups of 128", r.name) : std::string(r.name));
  }
}

TEST(Scheme, OfOthersIsDescribedInWords) {
  std::vector<std::string> texts;
  for (const Scheme& scheme : foreign_schemes()) texts.push_back(describe(scheme));
  EXPECT_EQ(texts, (std::vector<std::string>{"s8 weights per tensor, s8 activations per token",
                                             "s8 weights per channel, s8 activations per tensor",
                                             "s8 weights in groups of 16, s8 activations per token",
                                             "e4m3 weights per channel, activations as they are",
                                             "e4m3 weights in groups of 48, e4m3 activations per token",
                                             "e4m3 weights in blocks of 3 x 20, e4m3 activations per group"}));
}

TEST(Scheme, OfExpertsThatLoadersDoNotTake) {
  std::vector<std::string_view> refused;
  for (const SchemeRow& row : format::schemes()) {
    if (!format::against_experts(row.scheme).empty()) refused.push_back(row.name);
    if (!row.takes_asymmetric_activations || !row.against_experts.empty()) continue;
    const auto asymmetric = format::with_options(row, {.asymmetric = true});
    ASSERT_TRUE(asymmetric.ok());
    EXPECT_EQ(format::against_experts(*asymmetric), "vLLM quantizes the activations of experts without zero points")
        << row.name;
  }
  EXPECT_EQ(refused, (std::vector<std::string_view>{"w8a8-static", "fp8-tensor"}));
}

TEST(Scheme, WhatSharesAScale) {
  const auto span = [](const Scheme& scheme) {
    const auto [rows, columns] = format::span_of(scheme.weights, 300, 512);
    return std::vector<std::uint64_t>{rows, columns};
  };
  using Span = std::vector<std::uint64_t>;
  EXPECT_EQ(span(w8a8()), (Span{1, 512}));
  EXPECT_EQ(span(w4a16(64)), (Span{1, 64}));
  EXPECT_EQ(span(w4a16(-1)), (Span{1, 512}));
  EXPECT_EQ(span(scheme_of("fp8-tensor")), (Span{300, 512}));
  EXPECT_EQ(span(scheme_of("fp8-block")), (Span{128, 128}));
  EXPECT_EQ(span(scheme_of("mxfp4")), (Span{1, 32}));
  EXPECT_EQ(span(scheme_of("nvfp4")), (Span{1, 16}));
}

TEST(Scheme, ColumnsComeInUnits) {
  const std::map<std::string_view, std::int64_t> units = {{"w8a8", 1},   {"w4a16", 128}, {"fp8-block", 1},
                                                          {"mxfp8", 32}, {"mxfp4", 32},  {"nvfp4", 16}};
  for (const auto& [name, unit] : units) EXPECT_EQ(format::column_unit(row(name).scheme.weights), unit) << name;
  EXPECT_EQ(format::column_unit(w4a16(-1).weights), 8);
  EXPECT_EQ(format::column_unit(scheme_of("w8a16", -1).weights), 4);
  EXPECT_EQ(format::column_unit(scheme_of("w4a8", -1).weights), 1);
}

}  // namespace
}  // namespace kvant::tests
