// Tensors on their way through memory: the same bytes for any size of tiles, and what a plain loop makes of them.
#include "quantize/tensor_stream.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/compressed_tensors.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using quantize::Action;
using quantize::TensorPlan;
using quantize::TensorStream;
using quantize::TileWorker;

constexpr std::uint64_t kTiles[] = {1, 16, 64, 200, 1000, 4096, 1 << 20};

struct Outputs {
  std::string file;
  TensorStream::Places places;
  std::uint64_t non_finite = 0;
  std::uint64_t tiles = 0;
};

// One tensor of a checkpoint through tiles of that size, into a file of codes, scales and zero points.
Outputs stream_one(const io::Checkpoint& checkpoint, const ScratchFolder& scratch, Action action, const Scheme& scheme,
                   std::span<const float> s, std::uint64_t tile_bytes) {
  const io::TensorInfo& info = checkpoint.shards()[0].tensors()[0];
  TensorPlan plan{.name = info.name, .action = action, .dtype = info.dtype, .shape = info.shape};
  plan.bytes_before = info.bytes();
  Outputs made;
  std::uint64_t end = 0;
  if (action == Action::quantize) {
    for (const format::LayerOutput& output :
         format::layer_outputs(scheme, "m", info.dtype, info.shape[0], info.shape[1])) {
      const std::uint64_t bytes = *io::tensor_bytes(output.info.dtype, output.info.shape);
      if (output.kind == format::TensorKind::scales) made.places.scales = end;
      if (output.kind == format::TensorKind::zero_points) made.places.zero_points = end;
      if (output.kind == format::TensorKind::weight_shape) continue;
      end += bytes;
    }
  } else {
    end = info.bytes();
  }
  const TensorStream stream(checkpoint, plan, scheme, s, made.places, tile_bytes);
  auto file = io::AtomicFile::create(scratch / "out", true);
  must(file.status());
  TileWorker worker;
  std::uint64_t bytes = 0;
  for (std::uint64_t tile = stream.tiles(); tile-- > 0;) {  // their order does not matter
    must(stream.run(tile, worker, *file));
    bytes += stream.bytes_of(tile);
  }
  EXPECT_EQ(bytes, info.bytes());
  must(file->commit(true));
  made.file = text_of(scratch / "out");
  EXPECT_EQ(made.file.size(), end);
  made.non_finite = worker.non_finite;
  made.tiles = stream.tiles();
  return made;
}

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Streams : public testing::TestWithParam<io::DType> {};

TEST_P(Streams, QuantizeLikeAPlainLoopInTilesOfAnySize) {
  const io::DType dtype = GetParam();
  for (const Scheme& scheme : {w8a8(), w4a16(8), w4a16(24), w4a16(8, true), w4a16(48, true)}) {
    for (const auto& [rows, columns] : {std::pair{1, 48}, {7, 48}, {8, 144}, {17, 48}, {40, 96}}) {
      SCOPED_TRACE(fmt::format("{} asymmetric {} group {} [{}, {}]", name(scheme.kind), scheme.asymmetric,
                               scheme.group_size, rows, columns));
      FixtureLayer layer = make_layer("m", static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), dtype,
                                      scheme, static_cast<std::uint32_t>(rows));
      const ScratchFolder scratch;
      write_safetensors(scratch / "in.safetensors", {original_tensor(layer)});
      auto checkpoint = io::Checkpoint::open(scratch / "in.safetensors");
      must(checkpoint.status());
      std::string wanted;
      for (const FixtureTensor& tensor : quantized_tensors(layer, scheme))
        if (!tensor.name.ends_with("weight_shape")) wanted += text(tensor.bytes);
      for (const std::uint64_t tile_bytes : kTiles) {
        const Outputs made = stream_one(*checkpoint, scratch, Action::quantize, scheme, {}, tile_bytes);
        EXPECT_EQ(made.file, wanted) << "tiles of " << tile_bytes << " bytes";
        EXPECT_EQ(made.non_finite, 0u);
        if (tile_bytes == 1 && rows > 8) {
          EXPECT_GT(made.tiles, 1u);
        }
      }
    }
  }
}

TEST_P(Streams, SmoothTheColumnsOfTheirTile) {
  const io::DType dtype = GetParam();
  FixtureLayer layer = make_layer("m", 9, 48, dtype, w8a8());
  std::vector<float> s;
  for (int j = 0; j < 48; ++j) s.push_back(0.01f + 0.37f * static_cast<float>(j));
  std::vector<double> smoothed = layer.weights;
  for (std::size_t i = 0; i < smoothed.size(); ++i) {
    const double wide = smoothed[i] * static_cast<double>(s[i % 48]);
    smoothed[i] = dtype == io::DType::f64 ? wide : rounded(static_cast<double>(static_cast<float>(wide)), dtype);
  }
  layer.quantized = smoothed;
  quantize_plainly(layer, w8a8());
  const ScratchFolder scratch;
  write_safetensors(scratch / "in.safetensors", {original_tensor(layer)});
  auto checkpoint = io::Checkpoint::open(scratch / "in.safetensors");
  must(checkpoint.status());
  std::string wanted;
  for (const FixtureTensor& tensor : quantized_tensors(layer, w8a8())) wanted += text(tensor.bytes);
  const std::string wanted_weights = text(float_tensor("m.weight", dtype, {9, 48}, smoothed).bytes);
  for (const std::uint64_t tile_bytes : kTiles) {
    EXPECT_EQ(stream_one(*checkpoint, scratch, Action::quantize, w8a8(), s, tile_bytes).file, wanted) << tile_bytes;
    EXPECT_EQ(stream_one(*checkpoint, scratch, Action::smooth, w8a8(), s, tile_bytes).file, wanted_weights)
        << tile_bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Streams,
                         testing::Values(io::DType::f32, io::DType::f64, io::DType::f16, io::DType::bf16),
                         [](const auto& dtype) { return std::string(io::name(dtype.param)); });

TEST(TensorStreamTest, CopiesBytesAndFoldsNorms) {
  const ScratchFolder scratch;
  const std::vector<double> norm = {1, -2, 0.5, 3, 0, 7, 1e-3, 2};
  write_safetensors(scratch / "in.safetensors", {bf16_tensor("n.weight", {8}, norm)});
  auto checkpoint = io::Checkpoint::open(scratch / "in.safetensors");
  must(checkpoint.status());
  const std::vector<float> s = {2, 0.5f, 3, 1, 7, 1.5f, 0.001f, 4};
  std::vector<double> folded;
  for (std::size_t j = 0; j < 8; ++j)
    folded.push_back(static_cast<double>(to_float(to_bfloat16(static_cast<float>(norm[j]))) / s[j]));
  for (const std::uint64_t tile_bytes : kTiles) {
    EXPECT_EQ(stream_one(*checkpoint, scratch, Action::copy, {}, {}, tile_bytes).file,
              text(bf16_tensor("n.weight", {8}, norm).bytes));
    EXPECT_EQ(stream_one(*checkpoint, scratch, Action::fold_norm, {}, s, tile_bytes).file,
              text(bf16_tensor("n.weight", {8}, folded).bytes));
  }
}

TEST(TensorStreamTest, CountsWhatIsNotFiniteOnceAndClipsIt) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const io::DType dtype : {io::DType::f32, io::DType::f64, io::DType::f16, io::DType::bf16}) {
    const ScratchFolder scratch;
    std::vector<double> values(2 * 16, 0.25);
    values[3] = nan;
    values[5] = inf;
    values[20] = -inf;
    write_safetensors(scratch / "in.safetensors", {float_tensor("m.weight", dtype, {2, 16}, values)});
    auto checkpoint = io::Checkpoint::open(scratch / "in.safetensors");
    must(checkpoint.status());
    for (const std::uint64_t tile_bytes : kTiles) {
      const Outputs made = stream_one(*checkpoint, scratch, Action::quantize, {}, {}, tile_bytes);
      EXPECT_EQ(made.non_finite, 3u) << tile_bytes;
      EXPECT_EQ(made.file[3], 0);
      EXPECT_EQ(made.file[5], 127);
      EXPECT_EQ(made.file[20], -128);
      EXPECT_EQ(made.file[0], 127);
    }
  }
}

}  // namespace
}  // namespace kvant::tests
