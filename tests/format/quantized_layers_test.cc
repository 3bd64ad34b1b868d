// The quantized Linears of a checkpoint and their rows, and everything that does not agree, with its sentence.
#include "format/quantized_layers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
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

TEST(QuantizedLayers, RowsComeBack) {
  for (const Scheme& scheme : {w8a8(), w4a16(4), w4a16(20, true), w4a16(60, true)})
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const std::uint64_t rows = 19, columns = 60;
      const FixtureLayer layer = make_layer("m.l", rows, columns, dtype, scheme);
      ScratchFolder scratch;
      CheckpointFixture model;
      model.add(quantized_tensors(layer, scheme));
      model.config["quantization_config"] = format::quantization_config(scheme, {});
      model.write(scratch / "m");
      const io::Checkpoint checkpoint = opened(scratch / "m");
      const auto config = format::read_quantization_config(checkpoint);
      ASSERT_TRUE(config.ok()) << config.status().message();
      const auto layers = format::find_quantized_layers(checkpoint, *config);
      ASSERT_TRUE(layers.ok()) << layers.status().message();
      ASSERT_EQ(layers->size(), 1u);
      const QuantizedLayer& found = (*layers)[0];
      EXPECT_EQ(found.module, "m.l");
      EXPECT_EQ(found.rows, rows);
      EXPECT_EQ(found.columns, columns);
      EXPECT_EQ(found.group_size, layer.group);
      LayerRows got;
      for (std::uint64_t row = 0; row <= rows; ++row)
        for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, rows - row})
          for (const std::uint64_t column : {0u, 8u, 24u, 56u})
            for (const std::uint64_t width : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4}, columns - column}) {
              if (count > rows - row) continue;
              ASSERT_TRUE(format::read_rows(checkpoint, found, row, count, column, width, got).ok());
              if (width == 0 || count == 0) continue;
              ASSERT_EQ(got.first_group, column / layer.group);
              ASSERT_EQ(got.groups, (column + width - 1) / layer.group - got.first_group + 1);
              for (std::uint64_t r = 0; r < count; ++r) {
                for (std::uint64_t c = 0; c < width; ++c)
                  ASSERT_EQ(got.codes[r * width + c], layer.codes[(row + r) * columns + column + c]);
                for (std::uint64_t g = 0; g < got.groups; ++g) {
                  const std::uint64_t at = (row + r) * layer.groups() + got.first_group + g;
                  ASSERT_EQ(static_cast<double>(got.scales[r * got.groups + g]), layer.scales[at]);
                  ASSERT_EQ(got.zero_points[r * got.groups + g], layer.zero_points[at]);
                }
              }
            }
      ASSERT_TRUE(format::read_rows(checkpoint, found, 0, rows, got).ok());
      EXPECT_TRUE(refused(format::read_rows(checkpoint, found, 18, 2, got), kBad, {"'m.l' of 19 rows", "18 + 2"}));
      EXPECT_FALSE(format::read_rows(checkpoint, found, 0, 1, 4, 8, got).ok());
      EXPECT_FALSE(format::read_rows(checkpoint, found, 0, 1, 56, 8, got).ok());
      EXPECT_FALSE(format::read_rows(checkpoint, found, ~std::uint64_t{0}, 2, got).ok());
    }
}

TEST(QuantizedLayers, RefusesTensorsThatDoNotAgree) {
  const auto outcome = [](const Scheme& scheme, auto&& change) {
    CheckpointFixture model;
    model.add(quantized_tensors(make_layer("a.b", 16, 64, DType::f32, scheme), scheme));
    model.config["quantization_config"] = format::quantization_config(scheme, {});
    change(model);
    return layers_of(model).status();
  };
  using M = CheckpointFixture;
  const auto no_change = [](M&) {};
  for (const Scheme& scheme : {w8a8(), w8a8_static(), w8a8_static(true), w4a16(32), w4a16(16, true)})
    EXPECT_TRUE(outcome(scheme, no_change).ok());

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
  EXPECT_TRUE(refused(shape(16, 60), kBad, {"says in_features 60, which is not a multiple of the group size 32"}));
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
    model.config["quantization_config"] = format::quantization_config(schemes[below(schemes.size())], {});
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
