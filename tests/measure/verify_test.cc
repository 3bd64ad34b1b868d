// verify: whole checkpoints pass, and for every rule a checkpoint that breaks just that one, with its sentence.
#include "measure/verify.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/compressed_tensors.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"
#include "tests/support/special_numbers.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using io::DType;
using measure::Verification;

const std::string kBlock0 = "model.layers.0.";

Verification verified(const fs::path& path, int threads = 2) {
  base::Silence silence;
  auto result = measure::verify(path, threads, silence);
  must(result.status());
  return std::move(result).value();
}

template <class Change>
Verification verified(CheckpointFixture model, Change&& change) {
  ScratchFolder scratch;
  change(model);
  model.write(scratch / "m");
  return verified(scratch / "m");
}

std::string all_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Exactly one problem, with these parts.
testing::AssertionResult one_problem(const Verification& verification, Parts parts) {
  if (verification.problems.size() != 1)
    return testing::AssertionFailure() << verification.problems.size() << " problems:\n"
                                       << all_of(verification.problems);
  for (const std::string_view part : parts)
    if (verification.problems[0].find(part) == std::string::npos)
      return testing::AssertionFailure() << "\"" << verification.problems[0] << "\" does not contain \"" << part
                                         << "\"";
  return testing::AssertionSuccess();
}

void add_ignore(CheckpointFixture& model, const std::string& pattern) {
  model.config["quantization_config"]["ignore"].push_back(pattern);
}

// A quantized Linear becomes a plain one.
void unquantize(CheckpointFixture& model, const std::string& module) {
  for (const format::TensorSpec& spec : format::tensor_specs()) model.remove(fmt::format("{}{}", module, spec.suffix));
  model.add(bf16_tensor(module + ".weight", {16, 32}, random_values(16 * 32, 3, DType::bf16)));
}

using M = CheckpointFixture;

TEST(Verify, WholeCheckpointsPass) {
  std::vector<Scheme> schemes = all_schemes(16);
  for (const Scheme& scheme : foreign_schemes())
    if (scheme.weights.group_size != 48) schemes.push_back(scheme);
  for (const Scheme& scheme : schemes) {
    SCOPED_TRACE(format::describe(scheme));
    const Verification got = verified(small_model(scheme), [](M&) {});
    EXPECT_TRUE(got.problems.empty()) << all_of(got.problems);
    EXPECT_TRUE(got.quantized);
    const std::string checks = all_of(got.checks);
    EXPECT_NE(checks.find("quantization_config: " + format::describe(scheme)), std::string::npos) << checks;
    for (const std::string_view part :
         {"safetensors format of 2 shards", "index", "scales of 7 layers", "fused", "temporary"})
      EXPECT_NE(checks.find(part), std::string::npos) << checks;
  }
  const Verification plain = verified(small_model(w8a8(), false), [](M&) {});
  EXPECT_TRUE(plain.problems.empty()) << all_of(plain.problems);
  EXPECT_FALSE(plain.quantized);
}

TEST(Verify, ASingleFilePasses) {
  ScratchFolder scratch;
  Metadata metadata = kPt;
  metadata["quantization_config"] = config_json(w4a16(8)).dump();
  write_safetensors(scratch / "m.safetensors",
                    quantized_tensors(make_layer("a", 8, 16, DType::f16, w4a16(8)), w4a16(8)), metadata);
  const Verification got = verified(scratch / "m.safetensors");
  EXPECT_TRUE(got.problems.empty()) << all_of(got.problems);
  EXPECT_TRUE(got.quantized);
  put_text(scratch / "m.safetensors.partial", "");
  EXPECT_TRUE(one_problem(verified(scratch / "m.safetensors"), {"m.safetensors.partial", "kvant quantize --resume"}));
}

TEST(Verify, WhatCannotBeOpenedIsAProblem) {
  ScratchFolder scratch;
  EXPECT_TRUE(one_problem(verified(scratch / "nowhere"), {"nowhere", "no such file or folder"}));
  put_text(scratch / "x.safetensors", "nonsense");
  EXPECT_TRUE(one_problem(verified(scratch / "x.safetensors"), {"x.safetensors"}));
  base::Silence silence;
  EXPECT_FALSE(measure::verify(scratch.path(), -1, silence).ok());
}

TEST(Verify, TheIndexAgreesWithTheShards) {
  ScratchFolder scratch;
  const CheckpointFixture model = small_model(w8a8());
  const fs::path folder = scratch / "m", index = folder / "model.safetensors.index.json";
  model.write(folder);
  const auto with = [&](auto&& change) {
    io::Json json = model.index();
    change(json);
    put_text(index, json.dump());
    return verified(folder);
  };
  EXPECT_TRUE(one_problem(with([](io::Json& j) { j["metadata"]["total_size"] = 5; }),
                          {"index.json: total_size is 5, the tensors have"}));
  EXPECT_TRUE(one_problem(with([](io::Json& j) { j["metadata"]["total_size"] = "5"; }), {"total_size is"}));
  EXPECT_TRUE(one_problem(with([](io::Json& j) { j.erase("metadata"); }), {"has no \"metadata\" with \"total_size\""}));
  EXPECT_TRUE(one_problem(with([](io::Json& j) { j["metadata"] = 1; }), {"has no \"metadata\" with \"total_size\""}));
  EXPECT_TRUE(one_problem(with([](io::Json& j) { j["weight_map"].erase("lm_head.weight"); }),
                          {"'lm_head.weight'", "is not in the weight_map"}));
  EXPECT_TRUE(one_problem(with([](io::Json& j) { j["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"; }),
                          {"'ghost' is not in model-00001-of-00002.safetensors"}));
  put_text(index, model.index().dump());
  write_safetensors(folder / "model.safetensors", {});
  EXPECT_TRUE(one_problem(verified(folder), {"model.safetensors: is next to an index", "remove it"}));
}

TEST(Verify, LeftOversOfARunThatDidNotFinish) {
  ScratchFolder scratch;
  const fs::path folder = scratch / "m";
  small_model(w8a8()).write(folder);
  fs::create_directory(folder / "kvant");
  put_text(folder / "kvant/manifest.json", "{}");
  EXPECT_TRUE(verified(folder).problems.empty());
  put_text(folder / "model-00002-of-00002.safetensors.partial", "");
  EXPECT_TRUE(one_problem(verified(folder), {"model-00002-of-00002.safetensors.partial", "kvant quantize --resume"}));
  fs::remove(folder / "model-00002-of-00002.safetensors.partial");
  put_text(folder / "kvant/smoothing.safetensors.partial", "");
  EXPECT_TRUE(one_problem(verified(folder), {"kvant/smoothing.safetensors.partial", "--resume"}));
  fs::remove(folder / "kvant/smoothing.safetensors.partial");
  fs::remove(folder / "config.json");
  fs::remove(folder / "model.safetensors.index.json");
  const Verification got = verified(folder);
  ASSERT_FALSE(got.problems.empty());
  EXPECT_NE(got.problems[0].find("did not finish"), std::string::npos) << got.problems[0];
  EXPECT_NE(got.problems[0].find("kvant quantize --resume"), std::string::npos) << got.problems[0];
}

TEST(Verify, CodesNeedAConfiguration) {
  for (const Scheme& scheme : all_schemes(16))
    EXPECT_TRUE(one_problem(verified(small_model(scheme), [](M& m) { m.config.erase("quantization_config"); }),
                            {"holds codes, but there is no quantization_config in config.json"}));
}

TEST(Verify, TheConfigurationIsOneThatLoadersTake) {
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [](M& m) { m.config["quantization_config"]["extra"] = 1; }),
                          {"config.json: quantization_config: unknown key 'extra'"}));
  EXPECT_TRUE(one_problem(
      verified(
          small_model(w8a8()),
          [](M& m) { m.config["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = false; }),
      {"symmetric is false, but loaders accept only symmetric weights in format \"int-quantized\""}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [](M& m) { m.config["quantization_config"] = "w8a8"; }),
                          {"must be an object"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [](M& m) { m.config["quantization_config"]["ignore"] = 3; }),
                          {"ignore is 3, must be a list of strings"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [](M& m) { add_ignore(m, "re:("); }),
                          {"quantization_config.ignore: pattern 're:(' is not a valid regular expression"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8(), false),
                                   [](M& m) { m.config["quantization_config"] = config_json(w8a8(), {"Linear"}); }),
                          {"says w8a8, but no Linear is quantized"}));
  EXPECT_EQ(verified(small_model(w8a8()), [](M& m) { m.metadata.clear(); }).problems.size(), 2u);
  EXPECT_TRUE(verified(small_model(w8a8(), false), [](M& m) { m.metadata.clear(); }).problems.empty());
}

TEST(Verify, ShapesAndDtypesAgree) {
  const std::string q = kBlock0 + "self_attn.q_proj";
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [&](M& m) { m.find(q + ".weight_scale")->shape = {16}; }),
                          {"q_proj.weight_scale' has shape [16], must have [16, 1]"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [&](M& m) { m.remove(q + ".weight_scale"); }),
                          {"q_proj.weight_scale' is missing"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8_static()), [&](M& m) { m.remove(q + ".input_scale"); }),
                          {"q_proj.input_scale' is missing: activations are static"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()),
                                   [&](M& m) {
                                     m.add(i32_tensor(q + ".weight_zero_point", {2, 1}, {0, 0}));
                                   }),
                          {"q_proj.weight_zero_point' must not be there"}));
  EXPECT_TRUE(one_problem(verified(small_model(w4a16(32)),
                                   [&](M& m) {
                                     *m.find(q + ".weight_shape") = i64_tensor(q + ".weight_shape", {2}, {16, 40});
                                   }),
                          {"q_proj.weight_shape' says [16, 40]"}));
  EXPECT_TRUE(one_problem(verified(small_model(w8a8()), [&](M& m) { m.find(q + ".weight_scale")->dtype = DType::i16; }),
                          {"q_proj.weight_scale' holds I16, must hold F32 or F16 or BF16"}));
}

TEST(Verify, ScalesAreFiniteAndPositive) {
  const std::string name = kBlock0 + "mlp.up_proj.weight_scale";
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const double bad : {0.0, -0.5, kInf, kNan}) {
      std::vector<double> scales(16, 0.25);
      scales[9] = bad;
      scales[11] = bad;
      EXPECT_TRUE(one_problem(
          verified(small_model(w8a8()),
                   [&](M& m) {
                     *m.find(name) = float_tensor(name, dtype, {16, 1}, scales);
                   }),
          {"model-00002-of-00002.safetensors", "up_proj.weight_scale' has 2 of 16 scales", "the first is element 9"}));
    }
  // Scales that are codes: NaN of either, and 0 and -1 of e4m3.
  const auto with_byte = [&](const char* scheme, unsigned bad) {
    return verified(small_model(scheme_of(scheme)),
                    [&](M& m) { m.find(name)->bytes[9] = static_cast<std::byte>(bad); });
  };
  EXPECT_TRUE(one_problem(with_byte("mxfp4", 0xFF),
                          {"up_proj.weight_scale' has 1 of 16 scales", "the first is element 9: nan"}));
  EXPECT_TRUE(with_byte("mxfp4", 0).problems.empty());
  EXPECT_TRUE(with_byte("mxfp8", 0xFE).problems.empty());
  for (const unsigned bad : {0u, 0x7Fu, 0xB8u})
    EXPECT_TRUE(one_problem(with_byte("nvfp4a16", bad), {"up_proj.weight_scale' has 1 of 32 scales", "element 9"}));
  for (const double bad : {0.0, kInf}) {
    const std::string global = kBlock0 + "mlp.up_proj.weight_global_scale";
    EXPECT_TRUE(one_problem(
        verified(small_model(scheme_of("nvfp4")), [&](M& m) { *m.find(global) = f32_tensor(global, {1}, {bad}); }),
        {"up_proj.weight_global_scale' is", "must be finite and positive"}));
    const std::string input = kBlock0 + "mlp.up_proj.input_global_scale";
    EXPECT_TRUE(one_problem(
        verified(small_model(scheme_of("nvfp4")), [&](M& m) { *m.find(input) = f32_tensor(input, {1}, {bad}); }),
        {"up_proj.input_global_scale' has 1 of 1 scales that are not finite and positive"}));
  }
  const std::string input = kBlock0 + "mlp.up_proj.input_scale";
  EXPECT_TRUE(
      one_problem(verified(small_model(w8a8_static()), [&](M& m) { *m.find(input) = f32_tensor(input, {1}, {kNan}); }),
                  {"up_proj.input_scale' has 1 of 1 scales that are not finite and positive", "nan"}));
}

TEST(Verify, EveryLinearThatIsNotQuantizedIsIgnored) {
  const std::string down = kBlock0 + "mlp.down_proj";
  const auto unquantized = [&](const std::string& pattern) {
    return verified(small_model(w8a8()), [&](M& m) {
      unquantize(m, down);
      if (!pattern.empty()) add_ignore(m, pattern);
    });
  };
  EXPECT_TRUE(one_problem(unquantized(""), {"'model.layers.0.mlp.down_proj' is a Linear that is not quantized and not "
                                            "in ignore",
                                            "add it to ignore"}));
  EXPECT_TRUE(unquantized(down).problems.empty());
  EXPECT_TRUE(unquantized("re:.*down_proj$").problems.empty());
  EXPECT_FALSE(unquantized("re:down_proj").problems.empty());
  EXPECT_FALSE(unquantized("down_proj").problems.empty());
  // The lm_head, if there is one, and routers.
  EXPECT_TRUE(one_problem(
      verified(small_model(w8a8()), [](M& m) { m.config["quantization_config"]["ignore"] = io::Json::array(); }),
      {"'lm_head' is a Linear that is not quantized"}));
  EXPECT_TRUE(verified(small_model(w8a8()), [](M& m) { m.remove("lm_head.weight"); }).problems.empty());
  EXPECT_TRUE(
      one_problem(verified(small_model(w8a8()),
                           [](M& m) {
                             m.add(bf16_tensor("model.layers.0.mlp.gate.weight", {4, 2}, std::vector<double>(8, 1)));
                           }),
                  {"'model.layers.0.mlp.gate' is a Linear that is not quantized"}));
}

TEST(Verify, NoQuantizedLinearIsIgnored) {
  const std::string down = kBlock0 + "mlp.down_proj";
  for (const std::string& pattern : {down, std::string("re:.*down")})
    EXPECT_TRUE(one_problem(verified(small_model(w4a16(32)), [&](M& m) { add_ignore(m, pattern); }),
                            {"ignore lists 'model.layers.0.mlp.down_proj', which is quantized", "take it out"}));
  EXPECT_EQ(verified(small_model(w8a8()), [](M& m) { add_ignore(m, "Linear"); }).problems.size(), 7u);
  const auto targets = [&](const io::Json& list) {
    return verified(small_model(w8a8()),
                    [&](M& m) { m.config["quantization_config"]["config_groups"]["group_0"]["targets"] = list; });
  };
  EXPECT_TRUE(targets({"re:.*_proj"}).problems.empty());
  EXPECT_TRUE(one_problem(targets({"re:.*self_attn", "re:.*(gate|up)_proj"}),
                          {"targets do not list 'model.layers.0.mlp.down_proj'", "add it to targets"}));
}

TEST(Verify, FusedLayersAreUnderOneScheme) {
  const auto mixed = [](const std::string& module) {
    return verified(small_model(w8a8()), [&](M& m) {
      unquantize(m, module);
      add_ignore(m, module);
    });
  };
  EXPECT_TRUE(
      one_problem(mixed(kBlock0 + "self_attn.v_proj"),
                  {"'model.layers.0.self_attn.v_proj' is not quantized and 'model.layers.0.self_attn.k_proj' is",
                   "into one layer", "one scheme"}));
  EXPECT_TRUE(one_problem(mixed(kBlock0 + "mlp.gate_proj"), {"gate_proj' is not quantized", "up_proj' is"}));
  EXPECT_TRUE(mixed(kBlock0 + "self_attn.o_proj").problems.empty());
  const std::string experts = "model.layers.0.block_sparse_moe.experts.3.";
  EXPECT_TRUE(
      one_problem(verified(small_model(w8a8()),
                           [&](M& m) {
                             m.add(quantized_tensors(make_layer(experts + "w1", 4, 8, DType::bf16, w8a8()), w8a8()));
                             m.add(original_tensor(make_layer(experts + "w3", 4, 8, DType::bf16, w8a8())));
                             add_ignore(m, experts + "w3");
                           }),
                  {"experts.3.w3' is not quantized", "w1' is"}));
}

// Two schemes side by side: each module has its own, and one that no group names has none.
TEST(Verify, MixedPrecision) {
  const std::string down = kBlock0 + "mlp.down_proj";
  const Scheme other = scheme_of("nvfp4a16");
  const auto mixed = [&](const Scheme& of_down, std::vector<std::string> targets) {
    return verified(small_model(scheme_of("fp8")), [&](M& m) {
      unquantize(m, down);
      m.remove(down + ".weight");
      m.add(quantized_tensors(make_layer(down, 16, 32, DType::bf16, of_down), of_down));
      format::QuantizationConfig config = format::QuantizationConfig::of(scheme_of("fp8"), {"lm_head"});
      config.groups.push_back({.scheme = other, .targets = std::move(targets)});
      m.config["quantization_config"] = format::quantization_json(config);
    });
  };
  const Verification good = mixed(other, {down});
  EXPECT_TRUE(good.problems.empty()) << all_of(good.problems);
  EXPECT_NE(all_of(good.checks).find("quantization_config: fp8 and nvfp4a16"), std::string::npos);
  EXPECT_TRUE(mixed(other, {"re:.*down_proj$"}).problems.empty());
  const Verification wrong = mixed(other, {"re:.*up_proj$"});
  EXPECT_NE(all_of(wrong.problems).find("down_proj.weight' is missing"), std::string::npos) << all_of(wrong.problems);
  EXPECT_NE(all_of(wrong.problems).find("up_proj.weight' must not be there"), std::string::npos);
}

TEST(Verify, ProblemsAreCounted) {
  const Verification got = verified(small_model(w8a8()), [](M& m) {
    for (int i = 0; i < 1500; ++i) m.add(i8_tensor(fmt::format("layer{}.weight", i), {1, 1}, {0}));
  });
  EXPECT_EQ(got.problems.size(), 1001u);
  EXPECT_EQ(got.problems.back(), "and 500 more");
}

TEST(Verify, NamesAreEscaped) {
  const Verification got = verified(small_model(w8a8()), [](M& m) {
    m.add(bf16_tensor("evil\x1b[2J.weight", {2, 2}, std::vector<double>(4, 1)));
  });
  EXPECT_TRUE(one_problem(got, {"'evil\\x1b[2J' is a Linear"}));
}

}  // namespace
}  // namespace kvant::tests
