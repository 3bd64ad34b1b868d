// The quantized Linears of a checkpoint and their rows, and everything that does not agree, with its sentence.
#include "format/quantized_layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/checkpoint_fixture.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::LayerRows;
using format::QuantizedLayer;
using format::Scheme;
using io::DType;

constexpr auto kBad = StatusCode::InvalidProblem;

Result<std::vector<QuantizedLayer>> layers_of(const CheckpointFixture& model) {
  ScratchFolder scratch;
  model.write(scratch / "m");
  const io::Checkpoint checkpoint = opened(scratch / "m");
  const auto config = format::read_quantization_config(checkpoint);
  must(config.status());
  return format::find_quantized_layers(checkpoint, *config);
}

// One layer in a checkpoint of its own, found again.
struct Stored {
  ScratchFolder scratch;
  FixtureLayer layer;
  std::optional<io::Checkpoint> checkpoint;
  QuantizedLayer found;

  Stored(FixtureLayer of, const Scheme& scheme) : layer(std::move(of)) {
    CheckpointFixture model;
    model.add(quantized_tensors(layer, scheme));
    model.config["quantization_config"] = config_json(scheme);
    model.write(scratch / "m");
    checkpoint = opened(scratch / "m");
    const auto config = format::read_quantization_config(*checkpoint);
    must(config.status());
    const auto layers = format::find_quantized_layers(*checkpoint, *config);
    must(layers.status());
    found = layers->at(0);
  }
};

TEST(QuantizedLayers, RowsAndValuesComeBack) {
  std::vector<Scheme> schemes = all_schemes(16);
  for (const Scheme& scheme : foreign_schemes()) schemes.push_back(scheme);
  for (const Scheme& scheme : {w4a16(4), w4a16(24, true), w4a16(96, true), fp8_blocks(4, 20), fp8_blocks(16, 40)})
    schemes.push_back(scheme);
  for (const Scheme& scheme : schemes)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} of {}", format::describe(scheme), io::name(dtype)));
      const std::uint64_t rows = 19, columns = 96;
      const Stored stored(make_layer("m.l", rows, columns, dtype, scheme), scheme);
      const auto& [scratch, layer, checkpoint, found] = stored;
      EXPECT_EQ(found.module, "m.l");
      EXPECT_EQ(found.rows, rows);
      EXPECT_EQ(found.columns, columns);
      EXPECT_EQ(found.scheme, scheme);
      EXPECT_EQ(found.groups(), layer.groups());
      EXPECT_EQ(found.scale_rows, layer.scale_rows);
      EXPECT_EQ(found.scale_count(), layer.scales.size());
      EXPECT_EQ(static_cast<double>(found.global_scale), layer.global_scale);
      EXPECT_EQ(found.bits(), bits_per_element(scheme.weights.code));
      LayerRows got;
      std::vector<float> values;
      for (const std::uint64_t row : {0u, 1u, 7u, 8u, 15u, 16u, 18u, 19u})
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, rows - row})
          for (const std::uint64_t column : {0u, 8u, 24u, 88u})
            for (const std::uint64_t width : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4}, columns - column}) {
              if (count > rows - row) continue;
              ASSERT_TRUE(format::read_rows(*checkpoint, found, row, count, column, width, got).ok());
              if (width == 0 || count == 0) continue;
              ASSERT_EQ(got.first_group, column / layer.group);
              ASSERT_EQ(got.groups, (column + width - 1) / layer.group - got.first_group + 1);
              for (std::uint64_t r = 0; r < count; ++r) {
                for (std::uint64_t c = 0; c < width; ++c)
                  ASSERT_EQ(got.codes[r * width + c], layer.codes[(row + r) * columns + column + c]);
                for (std::uint64_t g = 0; g < got.groups; ++g) {
                  const std::uint64_t at = (row + r) / layer.scale_rows * layer.groups() + got.first_group + g;
                  ASSERT_EQ(static_cast<double>(got.scales[r * got.groups + g]), layer.scales[at]);
                  ASSERT_EQ(got.zero_points[r * got.groups + g], layer.zero_points[at]);
                }
              }
              values.assign(count * width + 1, 77);
              ASSERT_TRUE(format::read_values(*checkpoint, found, row, count, column, width, got, values.data()).ok());
              for (std::uint64_t r = 0; r < count; ++r)
                for (std::uint64_t c = 0; c < width; ++c)
                  ASSERT_EQ(values[r * width + c], static_cast<float>(layer.value(row + r, column + c)));
              ASSERT_EQ(values.back(), 77);
            }
      ASSERT_TRUE(format::read_rows(*checkpoint, found, 0, rows, got).ok());
      EXPECT_TRUE(refused(format::read_rows(*checkpoint, found, 18, 2, got), kBad, {"'m.l' of 19 rows", "18 + 2"}));
      EXPECT_FALSE(format::read_rows(*checkpoint, found, 0, 1, 4, 8, got).ok());
      EXPECT_FALSE(format::read_rows(*checkpoint, found, 0, 1, 88, 16, got).ok());
      EXPECT_FALSE(format::read_rows(*checkpoint, found, ~std::uint64_t{0}, 2, got).ok());
    }
}

// NaN, infinities and zeros on their way there and back.
TEST(QuantizedLayers, OddNumbersComeBack) {
  for (const Scheme& scheme : all_schemes(16)) {
    SCOPED_TRACE(format::describe(scheme));
    FixtureLayer layer = make_layer("m.l", 4, 96, DType::f32, scheme);
    layer.quantized[0] = layer.quantized[200] = std::numeric_limits<double>::quiet_NaN();
    layer.quantized[1] = layer.quantized[100] = std::numeric_limits<double>::infinity();
    layer.quantized[2] = -layer.quantized[1];
    for (std::size_t i = 288; i < 384; ++i) layer.quantized[i] = i % 2 == 0 ? 0.0 : -0.0;
    quantize_plainly(layer, scheme);
    const Stored stored(layer, scheme);
    std::vector<float> values(4 * 96);
    LayerRows rows;
    ASSERT_TRUE(format::read_values(*stored.checkpoint, stored.found, 0, 4, 0, 96, rows, values.data()).ok());
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      const auto wanted = static_cast<float>(layer.value(i / 96, i % 96));
      EXPECT_TRUE(values[i] == wanted || (std::isnan(values[i]) && std::isnan(wanted))) << i << " " << values[i];
    }
    // e4m3 has a NaN; other codes make 0 of it.
    if (scheme.weights.code == ElementKind::e4m3)
      EXPECT_TRUE(std::isnan(values[0]));
    else
      EXPECT_EQ(values[0], 0);
  }
}

TEST(QuantizedLayers, EachModuleHasTheSchemeOfItsGroup) {
  format::QuantizationConfig config = format::QuantizationConfig::of(scheme_of("fp8"));
  config.groups.push_back({.scheme = scheme_of("nvfp4a16"), .targets = {"b"}});
  config.groups.push_back({.scheme = w4a16(32, true), .targets = {"re:c.*"}});
  CheckpointFixture model;
  model.add(quantized_tensors(make_layer("a", 16, 64, DType::bf16, scheme_of("fp8")), scheme_of("fp8")));
  model.add(quantized_tensors(make_layer("b", 16, 64, DType::bf16, scheme_of("nvfp4a16")), scheme_of("nvfp4a16")));
  model.add(quantized_tensors(make_layer("c.d", 16, 64, DType::bf16, w4a16(32, true)), w4a16(32, true)));
  model.config["quantization_config"] = format::quantization_json(config);
  const auto layers = layers_of(model);
  ASSERT_TRUE(layers.ok()) << layers.status().message();
  ASSERT_EQ(layers->size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ((*layers)[i].scheme, config.groups[i].scheme) << i;
  config.groups[0].targets = {"a.b"};
  model.config["quantization_config"] = format::quantization_json(config);
  EXPECT_TRUE(refused(layers_of(model).status(), kBad,
                      {"targets do not list 'a', which is quantized", "add it to targets of quantization_config"}));
}

TEST(QuantizedLayers, HowCoarseAGridIs) {
  EXPECT_EQ(format::coarsest_step(ElementKind::s8), 1);
  EXPECT_EQ(format::coarsest_step(ElementKind::e4m3), 32);
  EXPECT_EQ(format::coarsest_step(ElementKind::e2m1), 2);
  EXPECT_EQ(format::coarse_levels(ElementKind::s8), 127);
  EXPECT_EQ(format::coarse_levels(ElementKind::s4), 7);
  EXPECT_EQ(format::coarse_levels(ElementKind::e4m3), 14);
  EXPECT_EQ(format::coarse_levels(ElementKind::e2m1), 3);
}

TEST(QuantizedLayers, RefusesTensorsThatDoNotAgree) {
  const auto outcome = [](const Scheme& scheme, auto&& change) {
    CheckpointFixture model;
    model.add(quantized_tensors(make_layer("a.b", 16, 64, DType::f32, scheme), scheme));
    model.config["quantization_config"] = config_json(scheme);
    change(model);
    return layers_of(model).status();
  };
  using M = CheckpointFixture;
  const auto no_change = [](M&) {};
  for (const Scheme& scheme : all_schemes(32)) EXPECT_TRUE(accepted(outcome(scheme, no_change)));

  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.remove("a.b.weight_scale"); }), kBad,
                      {"'a.b.weight_scale' is missing", "quantize the checkpoint again"}));
  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.remove("a.b.weight"); }), kBad, {"'a.b.weight' is missing"}));
  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.find("a.b.weight_scale")->shape = {16}; }), kBad,
                      {"model.safetensors: tensor 'a.b.weight_scale' has shape [16], must have [16, 1]"}));
  EXPECT_TRUE(refused(outcome(w8a8(),
                              [](M& m) {
                                m.find("a.b.weight_scale")->shape = {8, 2};
                              }),
                      kBad, {"has shape [8, 2], must have [16, 1]"}));
  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.find("a.b.weight_scale")->dtype = DType::i32; }), kBad,
                      {"'a.b.weight_scale' holds I32, must hold F32 or F16 or BF16"}));
  EXPECT_TRUE(refused(outcome(w8a8(),
                              [](M& m) {
                                m.find("a.b.weight")->shape = {16, 8, 8};
                              }),
                      kBad, {"'a.b.weight' is I8 [16, 8, 8], must be I8 with 2 dimensions"}));
  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.find("a.b.weight")->dtype = DType::u8; }), kBad,
                      {"'a.b.weight' is U8 [16, 64], must be I8"}));
  EXPECT_TRUE(refused(outcome(w8a8(),
                              [](M& m) {
                                m.add(i32_tensor("a.b.weight_zero_point", {2, 1}, {0, 0}));
                              }),
                      kBad, {"'a.b.weight_zero_point' must not be there: the weights are symmetric"}));
  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.add(f32_tensor("a.b.input_scale", {1}, {1})); }), kBad,
                      {"'a.b.input_scale' must not be there", "run time"}));
  EXPECT_TRUE(refused(outcome(w8a8_static(), [](M& m) { m.remove("a.b.input_scale"); }), kBad,
                      {"'a.b.input_scale' is missing: activations are static"}));
  EXPECT_TRUE(refused(outcome(w8a8_static(), [](M& m) { m.find("a.b.input_scale")->shape = {}; }), kBad,
                      {"'a.b.input_scale' has shape [], must have [1]"}));
  EXPECT_TRUE(refused(outcome(w8a8_static(), [](M& m) { m.add(i8_tensor("a.b.input_zero_point", {1}, {0})); }), kBad,
                      {"'a.b.input_zero_point' must not be there: activations are symmetric"}));
  EXPECT_TRUE(refused(outcome(w8a8_static(true), [](M& m) { m.remove("a.b.input_zero_point"); }), kBad,
                      {"'a.b.input_zero_point' is missing"}));
  EXPECT_TRUE(refused(outcome(w8a8_static(true), [](M& m) { m.find("a.b.input_zero_point")->dtype = DType::u8; }), kBad,
                      {"'a.b.input_zero_point' holds U8, must hold I8"}));

  const auto shape = [&](std::int64_t rows, std::int64_t columns) {
    return outcome(w4a16(32), [&](M& m) {
      *m.find("a.b.weight_shape") = i64_tensor("a.b.weight_shape", {2}, {rows, columns});
    });
  };
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(
      refused(shape(-16, 64), kBad, {"'a.b.weight_shape' says [-16, 64], which does not fit weight_packed [16, 8]"}));
  EXPECT_TRUE(refused(shape(16, -64), kBad, {"says [16, -64]"}));
  EXPECT_TRUE(refused(shape(kMax, kMax), kBad, {"9223372036854775807"}));
  EXPECT_TRUE(refused(shape(16, kMax), kBad, {"9223372036854775807"}));
  EXPECT_TRUE(refused(shape(16, std::numeric_limits<std::int64_t>::min()), kBad, {"does not fit"}));
  // Without rows a checkpoint can have as many words as a negative number has, taken for a size.
  EXPECT_TRUE(refused(outcome(w4a16(32),
                              [](M& m) {
                                m.find("a.b.weight_packed")->shape = {0, std::uint64_t{1} << 60};
                                m.find("a.b.weight_packed")->bytes.clear();
                                *m.find("a.b.weight_shape") =
                                    i64_tensor("a.b.weight_shape", {2}, {0, std::numeric_limits<std::int64_t>::min()});
                              }),
                      kBad, {"does not fit"}));
  EXPECT_TRUE(refused(shape(16, 56), kBad, {"says [16, 56]"}));
  EXPECT_TRUE(refused(shape(16, 60), kBad, {"has in_features 60, which is not a multiple of the group size 32"}));
  EXPECT_TRUE(refused(shape(15, 64), kBad, {"says [15, 64]"}));
  EXPECT_TRUE(
      refused(outcome(w4a16(32), [](M& m) { m.remove("a.b.weight_shape"); }), kBad, {"'a.b.weight_shape' is missing"}));
  EXPECT_TRUE(refused(outcome(w4a16(32), [](M& m) { m.find("a.b.weight_shape")->dtype = DType::u64; }), kBad,
                      {"'a.b.weight_shape' holds U64, must hold I64"}));
  EXPECT_TRUE(refused(outcome(w4a16(32), [](M& m) { m.remove("a.b.weight_packed"); }), kBad,
                      {"'a.b.weight_packed' is missing"}));
  EXPECT_TRUE(refused(outcome(w4a16(32), [](M& m) { m.find("a.b.weight_packed")->shape = {128}; }), kBad,
                      {"'a.b.weight_packed' is I32 [128], must be I32 with 2 dimensions"}));
  EXPECT_TRUE(refused(outcome(w4a16(32),
                              [](M& m) {
                                m.find("a.b.weight_scale")->shape = {2, 16};
                              }),
                      kBad, {"'a.b.weight_scale' has shape [2, 16], must have [16, 2]"}));
  EXPECT_TRUE(refused(outcome(w4a16(32), [](M& m) { m.add(f32_tensor("a.b.weight", {1}, {1})); }), kBad,
                      {"'a.b.weight' must not be there: its codes are in weight_packed"}));
  EXPECT_TRUE(refused(outcome(w4a16(16, true), [](M& m) { m.remove("a.b.weight_zero_point"); }), kBad,
                      {"'a.b.weight_zero_point' is missing: the weights are asymmetric"}));
  EXPECT_TRUE(refused(outcome(w4a16(16, true),
                              [](M& m) {
                                m.find("a.b.weight_zero_point")->shape = {4, 2};
                              }),
                      kBad, {"'a.b.weight_zero_point' has shape [4, 2], must have [2, 4]"}));
  EXPECT_TRUE(refused(outcome(w4a16(16), [](M& m) { m.add(i32_tensor("a.b.weight_zero_point", {1}, {0})); }), kBad,
                      {"'a.b.weight_zero_point' must not be there: the weights are symmetric"}));

  // Formats of floating-point codes.
  const Scheme fp8 = scheme_of("fp8"), tensor = scheme_of("fp8-static"), block = fp8_blocks(12, 40),
               mxfp4 = scheme_of("mxfp4"), nvfp4 = scheme_of("nvfp4");
  EXPECT_TRUE(refused(outcome(fp8, [](M& m) { m.find("a.b.weight")->dtype = DType::i8; }), kBad,
                      {"'a.b.weight' is I8 [16, 64], must be F8_E4M3 with 2 dimensions"}));
  EXPECT_TRUE(refused(outcome(w8a8(), [](M& m) { m.find("a.b.weight")->dtype = DType::f8_e4m3; }), kBad,
                      {"'a.b.weight' is F8_E4M3 [16, 64], must be I8"}));
  EXPECT_TRUE(refused(outcome(tensor,
                              [](M& m) {
                                m.find("a.b.weight_scale")->shape = {1, 1};
                              }),
                      kBad, {"'a.b.weight_scale' has shape [1, 1], must have [1]"}));
  EXPECT_TRUE(refused(outcome(tensor, [](M& m) { m.remove("a.b.input_scale"); }), kBad,
                      {"'a.b.input_scale' is missing: activations are static"}));
  EXPECT_TRUE(refused(outcome(fp8,
                              [](M& m) {
                                m.add(i64_tensor("a.b.weight_shape", {2}, {16, 64}));
                              }),
                      kBad, {"'a.b.weight_shape' must not be there: the format is float-quantized"}));
  EXPECT_TRUE(refused(outcome(block,
                              [](M& m) {
                                m.find("a.b.weight_scale")->shape = {4, 1};
                              }),
                      kBad, {"'a.b.weight_scale' has shape [4, 1], must have [2, 2]"}));
  EXPECT_TRUE(refused(outcome(mxfp4, [](M& m) { m.find("a.b.weight_scale")->dtype = DType::i8; }), kBad,
                      {"'a.b.weight_scale' holds I8, must hold U8 or F8_E8M0"}));
  EXPECT_TRUE(outcome(mxfp4, [](M& m) { m.find("a.b.weight_scale")->dtype = DType::f8_e8m0; }).ok());
  EXPECT_TRUE(refused(outcome(mxfp4, [](M& m) { m.find("a.b.weight_packed")->dtype = DType::i8; }), kBad,
                      {"'a.b.weight_packed' is I8 [16, 32], must be U8 with 2 dimensions"}));
  EXPECT_TRUE(refused(outcome(mxfp4,
                              [](M& m) {
                                m.find("a.b.weight_packed")->shape = {32, 16};
                              }),
                      kBad, {"'a.b.weight_scale' has shape [16, 2], must have [32, 1]"}));
  EXPECT_TRUE(refused(outcome(mxfp4,
                              [](M& m) {
                                m.find("a.b.weight_packed")->shape = {64, 8};
                              }),
                      kBad, {"'a.b.weight_packed' has in_features 16, which is not a multiple of the group size 32"}));
  EXPECT_TRUE(refused(outcome(mxfp4, [](M& m) { m.add(f32_tensor("a.b.weight_global_scale", {1}, {1})); }), kBad,
                      {"'a.b.weight_global_scale' must not be there: no global scale belongs to its scales"}));
  EXPECT_TRUE(refused(outcome(nvfp4, [](M& m) { m.find("a.b.weight_scale")->dtype = DType::u8; }), kBad,
                      {"'a.b.weight_scale' holds U8, must hold F8_E4M3"}));
  EXPECT_TRUE(refused(outcome(nvfp4, [](M& m) { m.remove("a.b.weight_global_scale"); }), kBad,
                      {"'a.b.weight_global_scale' is missing: the scales are meant under it"}));
  EXPECT_TRUE(refused(outcome(nvfp4, [](M& m) { m.find("a.b.weight_global_scale")->shape = {}; }), kBad,
                      {"'a.b.weight_global_scale' has shape [], must have [1]"}));
  EXPECT_TRUE(refused(outcome(nvfp4, [](M& m) { m.find("a.b.weight_global_scale")->dtype = DType::i32; }), kBad,
                      {"'a.b.weight_global_scale' holds I32, must hold F32"}));
  for (const double bad : {0.0, -3.0, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_TRUE(refused(
        outcome(nvfp4,
                [&](M& m) { *m.find("a.b.weight_global_scale") = f32_tensor("a.b.weight_global_scale", {1}, {bad}); }),
        kBad, {fmt::format("'a.b.weight_global_scale' is {}, must be finite and positive", static_cast<float>(bad))}));
  EXPECT_TRUE(refused(outcome(nvfp4, [](M& m) { m.remove("a.b.input_global_scale"); }), kBad,
                      {"'a.b.input_global_scale' is missing: scales of activations are found under it"}));
  EXPECT_TRUE(
      refused(outcome(scheme_of("nvfp4a16"), [](M& m) { m.add(f32_tensor("a.b.input_global_scale", {1}, {1})); }), kBad,
              {"'a.b.input_global_scale' must not be there: activations are not quantized"}));
  EXPECT_TRUE(refused(outcome(fp8, [](M& m) { m.add(f32_tensor("a.b.input_global_scale", {1}, {1})); }), kBad,
                      {"'a.b.input_global_scale' must not be there: no global scale belongs to activations"}));
}

// Tensors of a checkpoint with names, dtypes and shapes mixed up at random: layers or sentences, never a crash.
TEST(QuantizedLayers, SurvivesRandomDamage) {
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return random() % n; };
  const std::vector<Scheme> schemes = all_schemes(32);
  ScratchFolder scratch;
  for (int round = 0; round < 100; ++round) {
    const Scheme scheme = schemes[below(schemes.size())];
    CheckpointFixture model;
    model.add(quantized_tensors(make_layer("a", 8, 128, DType::f32, scheme), scheme));
    model.add(quantized_tensors(make_layer("b", 16, 128, DType::bf16, scheme), scheme));
    model.config["quantization_config"] = config_json(schemes[below(schemes.size())]);
    std::vector<FixtureTensor>& tensors = model.shards[0];
    for (std::size_t change = below(4); change > 0; --change) {
      FixtureTensor& tensor = tensors[below(tensors.size())];
      switch (below(4)) {
        case 0:
          std::swap(tensor.bytes, tensors[0].bytes);
          std::swap(tensor.shape, tensors[0].shape);
          std::swap(tensor.dtype, tensors[0].dtype);
          break;
        case 1: tensor.shape = {1, tensor.bytes.size() / static_cast<std::size_t>(io::bits(tensor.dtype) / 8)}; break;
        case 2:
          tensor.dtype = DType::i8;
          tensor.shape = {tensor.bytes.size(), 1};
          break;
        default:
          for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
      }
    }
    model.write(scratch / "m");
    const io::Checkpoint checkpoint = opened(scratch / "m");
    const auto config = format::read_quantization_config(checkpoint);
    ASSERT_TRUE(config.ok());
    std::vector<std::string> problems;
    const auto layers = format::find_quantized_layers(checkpoint, *config, problems);
    EXPECT_TRUE(layers.size() == 2 || !problems.empty());
    LayerRows rows;
    for (const QuantizedLayer& layer : layers)
      EXPECT_TRUE(format::read_rows(checkpoint, layer, 0, layer.rows, rows).ok());
  }
}

}  // namespace
}  // namespace kvant::tests
