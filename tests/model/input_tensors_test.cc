// What a checkpoint holds, whatever it is stored as: stacks of experts cut into Linears, codes of every dialect found,
// and any tile of them the same part of the whole. The values themselves are judged by tests/tool/test_dialects.py.
#include "model/input_tensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/corpus.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::WeightSource;
using io::DType;
using model::InputTensor;

// Tensors of random bytes that are no NaN in any code.
class Bytes {
 public:
  FixtureTensor operator()(std::string name, DType dtype, Sizes shape) {
    std::uint64_t count = static_cast<std::uint64_t>(io::bits(dtype)) / 8;
    for (const std::uint64_t size : shape) count *= size;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_() % 0x77);
    return raw_tensor(std::move(name), dtype, std::move(shape), bytes);
  }
  FixtureTensor numbers(std::string name, DType dtype, Sizes shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t size : shape) count *= size;
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = std::uniform_real_distribution(0.5, 2.0)(random_);
    return float_tensor(std::move(name), dtype, std::move(shape), values);
  }

 private:
  std::mt19937 random_{5};
};

std::vector<std::byte> all_of(const io::Checkpoint& checkpoint, const WeightSource& source) {
  format::SourceScratch scratch;
  std::vector<std::byte> whole;
  must(format::read_tile(checkpoint, source, {0, source.rows, 0, source.columns}, scratch, whole));
  return whole;
}

// Every tile is a part of the whole, in whatever order they are read.
void expect_tiles_agree(const io::Checkpoint& checkpoint, const WeightSource& source) {
  const std::vector<std::byte> whole = all_of(checkpoint, source);
  const std::uint64_t width = source.element_bytes();
  ASSERT_EQ(whole.size(), source.rows * source.columns * width);
  std::mt19937_64 random(9);
  format::SourceScratch scratch;
  std::vector<std::byte> part;
  for (int i = 0; i < 60; ++i) {
    io::Tile tile;
    tile.row = random() % source.rows;
    tile.rows = 1 + random() % (source.rows - tile.row);
    tile.column = random() % source.columns / 8 * 8;
    tile.columns = 1 + random() % (source.columns - tile.column);
    must(format::read_tile(checkpoint, source, tile, scratch, part));
    ASSERT_EQ(part.size(), tile.rows * tile.columns * width);
    for (std::uint64_t r = 0; r < tile.rows; ++r)
      ASSERT_EQ(
          0, std::memcmp(part.data() + r * tile.columns * width,
                         whole.data() + ((tile.row + r) * source.columns + tile.column) * width, tile.columns * width))
          << "rows " << tile.row << " + " << tile.rows << ", columns " << tile.column << " + " << tile.columns
          << ", row " << r;
  }
}

struct Opened {
  ScratchFolder scratch;
  std::optional<io::Checkpoint> checkpoint;
  model::InputTensors inputs;

  explicit Opened(const CheckpointFixture& model) {
    model.write(scratch / "m");
    checkpoint = opened(scratch / "m");
    auto found = model::input_tensors(*checkpoint);
    must(found.status());
    inputs = std::move(found).value();
  }
  const InputTensor& operator[](std::string_view name) const {
    for (const InputTensor& tensor : inputs.tensors)
      if (tensor.info.name == name) return tensor;
    throw std::runtime_error("there is no " + std::string(name));
  }
};

TEST(InputTensors, TilesOfEveryDialectArePartsOfTheWhole) {
  struct Case {
    std::string name;
    io::Json config;
    std::vector<FixtureTensor> tensors;
  };
  Bytes bytes;
  const io::Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 16}, {"sym", false}};
  io::Json gptq8 = gptq;
  gptq8["bits"] = 8;
  io::Json awq = gptq;
  awq["quant_method"] = "awq";
  std::vector<std::uint32_t> groups(48);
  for (std::uint32_t i = 0; i < groups.size(); ++i) groups[i] = i * 7 % 3;
  const std::vector<Case> cases = {
      {"fp8",
       {{"quant_method", "fp8"}, {"weight_block_size", {16, 8}}},
       {bytes("x.weight", DType::f8_e4m3, {40, 60}), bytes.numbers("x.weight_scale_inv", DType::f32, {3, 8})}},
      {"modelopt fp8",
       {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}},
       {bytes("x.weight", DType::f8_e4m3, {40, 60}), bytes.numbers("x.weight_scale", DType::f32, {})}},
      {"modelopt nvfp4",
       {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}},
       {bytes("x.weight", DType::u8, {40, 24}), bytes("x.weight_scale", DType::f8_e4m3, {40, 3}),
        bytes.numbers("x.weight_scale_2", DType::f32, {})}},
      {"gptq",
       gptq,
       {bytes("x.qweight", DType::i32, {6, 40}), bytes("x.qzeros", DType::i32, {3, 5}),
        bytes.numbers("x.scales", DType::f16, {3, 40})}},
      {"gptq, 8 bits",
       gptq8,
       {bytes("x.qweight", DType::i32, {12, 40}), bytes("x.qzeros", DType::i32, {3, 10}),
        bytes.numbers("x.scales", DType::bf16, {3, 40})}},
      {"gptq, groups that are no neighbours",
       gptq,
       {bytes("x.qweight", DType::i32, {6, 40}), bytes("x.qzeros", DType::i32, {3, 5}),
        bytes.numbers("x.scales", DType::f16, {3, 40}), i32_tensor("x.g_idx", {48}, groups)}},
      {"awq",
       awq,
       {bytes("x.qweight", DType::i32, {48, 5}), bytes("x.qzeros", DType::i32, {3, 5}),
        bytes.numbers("x.scales", DType::f16, {3, 40})}},
      {"mxfp4",
       {{"quant_method", "mxfp4"}},
       {bytes("x_blocks", DType::u8, {3, 20, 2, 16}), bytes("x_scales", DType::u8, {3, 20, 2})}}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    CheckpointFixture model;
    model.config["quantization_config"] = each.config;
    model.add(each.tensors);
    model.add(bytes.numbers("norm.weight", DType::f32, {4}));
    const Opened found(model);
    ASSERT_EQ(found.inputs.tensors.size(), 2u);
    const bool is_stack = each.name == "mxfp4";
    const InputTensor& tensor = found[is_stack ? "x" : "x.weight"];
    EXPECT_EQ(tensor.info.dtype, DType::bf16);  // config.json says nothing
    EXPECT_TRUE(tensor.is_decoded());
    EXPECT_EQ(tensor.info.shape.size(), is_stack ? 3u : 2u);
    EXPECT_EQ(tensor.stored_bytes, found.checkpoint->at(tensor.source->place).bytes());
    expect_tiles_agree(*found.checkpoint, *tensor.source);
  }
}

TEST(InputTensors, StacksOfExpertsAreCut) {
  for (const bool turned : {false, true}) {
    SCOPED_TRACE(turned);
    const std::uint64_t experts = 3, inner = 5, hidden = 16;
    CheckpointFixture model;
    model.config["model_type"] = turned ? "llama4_text" : "qwen3_moe";
    const std::string at = "model.layers.0.mlp.experts.";
    // An element is its own place, so that every one is known again.
    std::vector<double> places(experts * 2 * inner * hidden);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<double>(i);
    const auto shape = [&](std::uint64_t out, std::uint64_t in) {
      return turned ? Sizes{experts, in, out} : Sizes{experts, out, in};
    };
    model.add(f32_tensor(at + "gate_up_proj", shape(2 * inner, hidden), places));
    places.resize(experts * inner * hidden);
    model.add(f32_tensor(at + "down_proj", shape(hidden, inner), places));
    const Opened found(model);
    ASSERT_EQ(found.inputs.tensors.size(), 3 * experts);
    for (std::uint64_t e = 0; e < experts; ++e) {
      struct Part {
        std::string name;
        std::uint64_t rows, columns, first, all;
      };
      for (const Part& part :
           {Part{"gate_proj", inner, hidden, 0, 2 * inner}, Part{"up_proj", inner, hidden, inner, 2 * inner},
            Part{"down_proj", hidden, inner, 0, hidden}}) {
        SCOPED_TRACE(part.name);
        const InputTensor& tensor = found[at + std::to_string(e) + "." + part.name + ".weight"];
        EXPECT_EQ(tensor.info.shape, (Sizes{part.rows, part.columns}));
        EXPECT_FALSE(tensor.is_decoded());
        const std::vector<std::byte> bytes = all_of(*found.checkpoint, *tensor.source);
        for (std::uint64_t r = 0; r < part.rows; ++r)
          for (std::uint64_t c = 0; c < part.columns; ++c) {
            float value;
            std::memcpy(&value, bytes.data() + 4 * (r * part.columns + c), sizeof value);
            const std::uint64_t row = part.first + r;
            const std::uint64_t place =
                e * part.all * part.columns + (turned ? c * part.all + row : row * part.columns + c);
            ASSERT_EQ(value, static_cast<float>(place)) << r << " " << c;
          }
        expect_tiles_agree(*found.checkpoint, *tensor.source);
      }
    }
  }
}

TEST(InputTensors, OtherStacksAreLeftAlone) {
  CheckpointFixture model;
  model.config["model_type"] = "gpt_oss";  // gate and up take turns in it
  model.add(f32_tensor("model.experts.gate_up_proj", {1, 2, 2}, {1, 2, 3, 4}));
  const Opened found(model);
  ASSERT_EQ(found.inputs.tensors.size(), 1u);
  EXPECT_FALSE(found.inputs.tensors[0].source);
}

TEST(InputTensors, CorpusOfDialects) {
  const auto check = [](const fs::path& file, const std::string& bytes) {
    ScratchFolder scratch;
    const std::size_t end = bytes.find('\0');
    write_anew(scratch / "config.json", std::string_view(bytes).substr(0, end));
    write_anew(scratch / "model.safetensors", std::string_view(bytes).substr(end + 1));
    const auto checkpoint = io::Checkpoint::open(scratch / ".");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    EXPECT_EQ(model::input_tensors(*checkpoint).ok(), is_legal(file));
  };
  EXPECT_GE(run_corpus("dialect", check), 20);
}

}  // namespace
}  // namespace kvant::tests
