// Tensors on their way through memory: the same bytes for any size of tiles, and what a plain loop makes of them.
#include "quantize/tensor_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/for_each_part.h"
#include "format/compressed_tensors.h"
#include "format/weight_form.h"
#include "quantize/tensor_ranges.h"
#include "tests/support/checkpoint_fixture.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::Scheme;
using quantize::Action;
using quantize::TensorPlan;
using quantize::TensorStream;
using quantize::TileWorker;

constexpr std::uint64_t kTiles[] = {1, 64, 200, 1000, 4096, 1 << 20};

struct Outputs {
  std::string file;
  TensorStream::Places places;
  std::uint64_t non_finite = 0;
  std::uint64_t tiles = 0;
  float tensor_scale = 1;
};

// Whether the stream writes it: the rest is known before a weight is read, or is one number.
bool is_streamed(format::TensorKind kind, const Scheme& scheme) {
  using format::TensorKind;
  return kind == TensorKind::codes || kind == TensorKind::packed_codes || kind == TensorKind::zero_points ||
         (kind == TensorKind::scales && scheme.weights.strategy != format::Strategy::tensor);
}

// One tensor of a checkpoint through tiles of that size, into a file of codes, scales and zero points. Tiles come in
// any order: from the last to the first, or as threads take them.
Outputs stream_one(const io::Checkpoint& checkpoint, const ScratchFolder& scratch, Action action, const Scheme& scheme,
                   std::span<const float> s, std::uint64_t tile_bytes, int threads = 1) {
  const io::TensorInfo& info = checkpoint.shards()[0].tensors()[0];
  TensorPlan plan{.name = info.name, .action = action, .dtype = info.dtype, .shape = info.shape};
  plan.bytes_before = info.bytes();
  if (info.shape.size() == 2) plan.source = format::WeightSource::of(checkpoint, {0, 0});
  const bool quantizes = action == Action::quantize;
  Outputs made;
  std::uint64_t end = 0;
  if (quantizes) {
    for (const format::LayerOutput& output :
         format::layer_outputs(scheme, "m", info.dtype, info.shape[0], info.shape[1])) {
      if (!is_streamed(output.kind, scheme)) continue;
      if (output.kind == format::TensorKind::scales) made.places.scales = end;
      if (output.kind == format::TensorKind::zero_points) made.places.zero_points = end;
      end += *io::tensor_bytes(output.info.dtype, output.info.shape);
    }
  } else {
    end = info.bytes();
  }
  TensorStream stream(checkpoint, plan, quantizes ? &scheme : nullptr, s, made.places, tile_bytes);
  std::vector<TileWorker> workers(static_cast<std::size_t>(threads));
  const auto over_tiles = [&](const std::function<Status(TileWorker&, std::uint64_t)>& each) {
    must(base::for_each_part(Stream::cpu(threads), 0, stream.tiles(), [&](std::size_t worker, std::uint64_t i) {
      return each(workers[worker], stream.tiles() - 1 - i);
    }));
  };
  if (quantizes && scheme.weights.has_tensor_scale()) {
    double largest = 0;
    std::mutex mutex;
    over_tiles([&](TileWorker& worker, std::uint64_t tile) -> Status {
      const auto found = stream.largest(tile, worker);
      if (!found.ok()) return found.status();
      const std::lock_guard lock(mutex);
      largest = std::max(largest, *found);
      return {};
    });
    stream.set_largest(largest);
    made.tensor_scale = stream.tensor_scale();
  }
  auto file = io::AtomicFile::create(scratch / "out", true);
  must(file.status());
  std::atomic<std::uint64_t> bytes = 0;
  over_tiles([&](TileWorker& worker, std::uint64_t tile) {
    bytes += stream.bytes_of(tile);
    return stream.run(tile, worker, *file);
  });
  EXPECT_EQ(bytes, info.bytes());
  made.file = text_of(io::partial_of(scratch / "out"));  // committing would wait for the disk
  EXPECT_EQ(made.file.size(), end);
  for (const TileWorker& worker : workers) made.non_finite += worker.non_finite;
  made.tiles = stream.tiles();
  return made;
}

std::string text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What the plain loop made of a layer, as the stream writes it.
std::string wanted_file(const FixtureLayer& layer, const Scheme& scheme) {
  std::string wanted;
  const std::vector<FixtureTensor> tensors = quantized_tensors(layer, scheme);
  const auto outputs = format::layer_outputs(scheme, "m", layer.dtype, layer.rows, layer.columns);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    if (is_streamed(outputs[i].kind, scheme)) wanted += text(tensors.at(i).bytes);
  return wanted;
}
double wanted_tensor_scale(const FixtureLayer& layer, const Scheme& scheme) {
  return scheme.weights.strategy == format::Strategy::tensor ? layer.scales.at(0) : layer.global_scale;
}

// The layer as its `weights` are in files, and as its `quantized` are after smoothing by `s`.
void expect_plain_bytes(const FixtureLayer& layer, const Scheme& scheme, std::span<const float> s = {}) {
  const ScratchFolder scratch;
  write_safetensors(scratch / "in.safetensors", {original_tensor(layer)});
  const io::Checkpoint checkpoint = opened(scratch / "in.safetensors");
  const std::string wanted = wanted_file(layer, scheme);
  const auto not_finite =
      std::count_if(layer.weights.begin(), layer.weights.end(), [](double weight) { return !std::isfinite(weight); });
  for (const std::uint64_t tile_bytes : kTiles)
    for (int threads = 1; threads <= (tile_bytes == 64 ? 3 : 1); threads += 2) {
      const Outputs made = stream_one(checkpoint, scratch, Action::quantize, scheme, s, tile_bytes, threads);
      EXPECT_EQ(made.file, wanted) << "tiles of " << tile_bytes << " bytes, " << threads << " threads";
      EXPECT_EQ(made.non_finite, static_cast<std::uint64_t>(not_finite)) << tile_bytes;
      if (scheme.weights.has_tensor_scale()) {
        EXPECT_EQ(static_cast<double>(made.tensor_scale), wanted_tensor_scale(layer, scheme)) << tile_bytes;
      }
      const std::uint64_t rows_together = scheme.weights.asymmetric                            ? 8
                                          : scheme.weights.strategy == format::Strategy::block ? layer.scale_rows
                                                                                               : 1;
      if (tile_bytes == 1 && layer.rows > rows_together) {
        EXPECT_GT(made.tiles, 1u);
      }
    }
}

// All that weights can be, and blocks that end inside a layer.
std::vector<Scheme> streamed_schemes(std::int64_t group_size) {
  std::vector<Scheme> schemes;
  for (const Scheme& scheme : all_schemes(group_size))
    if (std::none_of(schemes.begin(), schemes.end(), [&](const Scheme& s) { return s.weights == scheme.weights; }))
      schemes.push_back(scheme);
  for (const Scheme& scheme : {fp8_blocks(4, 20), fp8_blocks(16, 32), fp8_blocks(3, 200)}) schemes.push_back(scheme);
  return schemes;
}

class Streams : public testing::TestWithParam<io::DType> {};

TEST_P(Streams, QuantizeLikeAPlainLoopInTilesOfAnySize) {
  std::vector<Scheme> schemes = streamed_schemes(8);
  for (const Scheme& scheme : {w4a16(24), w4a16(48, true), scheme_of("w8a16", 12, true), scheme_of("w4a8", 6)})
    schemes.push_back(scheme);
  for (const Scheme& scheme : schemes)
    for (const auto& [rows, columns] : {std::pair{1, 96}, {8, 288}, {17, 96}, {40, 192}}) {
      SCOPED_TRACE(fmt::format("{} [{}, {}]", format::describe(scheme), rows, columns));
      expect_plain_bytes(make_layer("m", static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                                    GetParam(), scheme, static_cast<std::uint32_t>(rows)),
                         scheme);
    }
}

// Weights whose scales are far apart, tiny and large, and zeros: powers of two at their ends, and e4m3 scales that
// become 0.
TEST_P(Streams, TakeWeightsOfAnySize) {
  const io::DType dtype = GetParam();
  for (const Scheme& scheme : streamed_schemes(32)) {
    if (scheme.weights.storage == format::Storage::words && scheme.weights.asymmetric) continue;
    SCOPED_TRACE(format::describe(scheme));
    FixtureLayer layer = make_layer("m", 12, 96, dtype, scheme);
    for (std::size_t i = 0; i < layer.weights.size(); ++i) {
      const std::uint64_t group = i / 32;
      const int power =
          dtype == io::DType::f16 ? static_cast<int>(group % 12) - 6 : static_cast<int>(group % 36) * 3 - 54;
      layer.weights[i] = group % 5 == 4 ? 0 : rounded(std::ldexp(layer.weights[i], power), dtype);
    }
    layer.quantized = layer.weights;
    quantize_plainly(layer, scheme);
    expect_plain_bytes(layer, scheme);
  }
}

TEST_P(Streams, ClipWhatIsNotFinite) {
  for (const Scheme& scheme : streamed_schemes(32)) {
    SCOPED_TRACE(format::describe(scheme));
    FixtureLayer layer = make_layer("m", 9, 96, GetParam(), scheme);
    layer.weights[3] = layer.weights[700] = std::numeric_limits<double>::quiet_NaN();
    layer.weights[5] = std::numeric_limits<double>::infinity();
    layer.weights[333] = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 384; i < 480; ++i) layer.weights[i] = std::numeric_limits<double>::quiet_NaN();  // a row
    layer.quantized = layer.weights;
    quantize_plainly(layer, scheme);
    expect_plain_bytes(layer, scheme);
  }
}

TEST_P(Streams, SmoothTheColumnsOfTheirTile) {
  const io::DType dtype = GetParam();
  std::vector<float> s;
  for (int j = 0; j < 96; ++j) s.push_back(0.01f + 0.37f * static_cast<float>(j));
  for (const Scheme& scheme : streamed_schemes(32)) {
    SCOPED_TRACE(format::describe(scheme));
    FixtureLayer layer = make_layer("m", 9, 96, dtype, scheme);
    for (std::size_t i = 0; i < layer.quantized.size(); ++i) {
      const double wide = layer.weights[i] * static_cast<double>(s[i % 96]);
      layer.quantized[i] =
          dtype == io::DType::f64 ? wide : rounded(static_cast<double>(static_cast<float>(wide)), dtype);
    }
    quantize_plainly(layer, scheme);
    expect_plain_bytes(layer, scheme, s);
    if (scheme != w8a8()) continue;
    const ScratchFolder scratch;
    write_safetensors(scratch / "in.safetensors", {original_tensor(layer)});
    const io::Checkpoint checkpoint = opened(scratch / "in.safetensors");
    const std::string wanted_weights = text(float_tensor("m.weight", dtype, {9, 96}, layer.quantized).bytes);
    for (const std::uint64_t tile_bytes : kTiles)
      EXPECT_EQ(stream_one(checkpoint, scratch, Action::smooth, scheme, s, tile_bytes).file, wanted_weights)
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

// A worker has room for what a tile takes: a block, and all that shares a scale which is searched for.
TEST(TensorStreamTest, WhatSharesAScaleFitsATile) {
  const auto least = [](std::string_view name, io::DType dtype, std::optional<format::ScaleChoice> choice = {}) {
    const format::SchemeRow& row = *format::scheme_named(name).value();
    const format::Scheme scheme = format::with_options(row, {.scale_choice = choice}).value();
    return quantize::least_tile_bytes(format::weight_form(scheme, dtype), 1000);
  };
  EXPECT_EQ(least("fp8-block", io::DType::bf16), 128u * 128u * 2u);
  EXPECT_EQ(least("fp8-block", io::DType::f64), 128u * 128u * 8u);
  for (const std::string_view name : {"w8a8", "fp8-tensor", "fp8"}) EXPECT_EQ(least(name, io::DType::f32), 0u);
  EXPECT_EQ(least("w4a16", io::DType::f32, format::ScaleChoice::minmax), 0u);
  EXPECT_EQ(least("w4a16", io::DType::f32), 128u * 4u);
  EXPECT_EQ(least("nvfp4a16", io::DType::bf16), 16u * 2u);
  EXPECT_EQ(least("w8a8", io::DType::f32, format::ScaleChoice::search), 1000u * 4u);
}

// Weights that loaders join share the largest of all of them, after smoothing; others have their own.
TEST(TensorRanges, AreThoseOfTheirGroup) {
  const ScratchFolder scratch;
  std::vector<double> a(9 * 16, 0.25), b(5 * 16, -0.5), c(3 * 16, 0.125);
  a[37] = -3;
  a[38] = std::numeric_limits<double>::infinity();
  b[79] = 2;
  c[5] = 4;
  write_safetensors(scratch / "in.safetensors",
                    {f32_tensor("a.weight", {9, 16}, a), f32_tensor("b.weight", {5, 16}, b),
                     f32_tensor("c.weight", {3, 16}, c), f32_tensor("norm.weight", {16}, std::vector<double>(16, 9))});
  const io::Checkpoint checkpoint = opened(scratch / "in.safetensors");
  quantize::CheckpointPlan plan;
  plan.schemes = {scheme_of("fp8-tensor"), scheme_of("nvfp4a16"), w8a8()};
  plan.scale_groups = 2;
  for (const io::TensorInfo& info : checkpoint.shards()[0].tensors()) {
    TensorPlan& tensor = plan.tensors.emplace_back(
        TensorPlan{.name = info.name, .action = Action::quantize, .dtype = info.dtype, .shape = info.shape});
    tensor.bytes_before = info.bytes();
    if (info.shape.size() == 2)
      tensor.source = format::WeightSource::of(checkpoint, checkpoint.tensors().find(info.name)->second);
  }
  plan.tensors[0].scale_group = plan.tensors[1].scale_group = 0;
  plan.tensors[1].smooth_group = 0;
  plan.tensors[2].scale_group = 1;
  plan.tensors[2].scheme = 1;
  plan.tensors[3].action = Action::copy;
  const quantize::SmoothingVectors vectors = {std::vector<float>(16, 4)};
  for (const int threads : {1, 3})
    for (const std::uint64_t tile_bytes : kTiles) {
      std::vector<TileWorker> workers(static_cast<std::size_t>(threads));
      base::Silence silence;
      const auto largest =
          quantize::find_tensor_ranges(checkpoint, plan, vectors, Stream::cpu(threads), workers, tile_bytes, silence);
      ASSERT_TRUE(largest.ok()) << largest.status().message();
      EXPECT_EQ(*largest, (std::vector<double>{8, 4})) << tile_bytes;
    }
}

}  // namespace
}  // namespace kvant::tests
