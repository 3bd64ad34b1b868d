// Small checkpoints for tests: tensors from numbers, files, folders with shards, index and config.json, and Linears
// quantized by a plain loop in double precision.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/quantization_config.h"
#include "format/scheme.h"
#include "format/weight_form.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kvant/element.h"

namespace kvant::tests {

struct FixtureTensor {
  std::string name;
  io::DType dtype = io::DType::f32;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
};
using Sizes = std::vector<std::uint64_t>;

template <class T>
FixtureTensor raw_tensor(std::string name, io::DType dtype, Sizes shape, const std::vector<T>& elements) {
  const auto bytes = std::as_bytes(std::span(elements));
  return {std::move(name), dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}
inline FixtureTensor i8_tensor(std::string name, Sizes shape, const std::vector<std::int8_t>& elements) {
  return raw_tensor(std::move(name), io::DType::i8, std::move(shape), elements);
}
inline FixtureTensor i32_tensor(std::string name, Sizes shape, const std::vector<std::uint32_t>& elements) {
  return raw_tensor(std::move(name), io::DType::i32, std::move(shape), elements);
}
inline FixtureTensor i64_tensor(std::string name, Sizes shape, const std::vector<std::int64_t>& elements) {
  return raw_tensor(std::move(name), io::DType::i64, std::move(shape), elements);
}

// Rounded to F32, F16, BF16 or F64.
inline FixtureTensor float_tensor(std::string name, io::DType dtype, Sizes shape, const std::vector<double>& values) {
  if (dtype == io::DType::f64) return raw_tensor(std::move(name), dtype, std::move(shape), values);
  if (dtype == io::DType::f32)
    return raw_tensor(std::move(name), dtype, std::move(shape), std::vector<float>(values.begin(), values.end()));
  std::vector<std::uint16_t> bits;
  for (const double value : values) {
    const auto f = static_cast<float>(value);
    bits.push_back(dtype == io::DType::f16 ? to_half(f).bits : to_bfloat16(f).bits);
  }
  return raw_tensor(std::move(name), dtype, std::move(shape), bits);
}
inline FixtureTensor f32_tensor(std::string name, Sizes shape, const std::vector<double>& values) {
  return float_tensor(std::move(name), io::DType::f32, std::move(shape), values);
}
inline FixtureTensor f16_tensor(std::string name, Sizes shape, const std::vector<double>& values) {
  return float_tensor(std::move(name), io::DType::f16, std::move(shape), values);
}
inline FixtureTensor bf16_tensor(std::string name, Sizes shape, const std::vector<double>& values) {
  return float_tensor(std::move(name), io::DType::bf16, std::move(shape), values);
}

// What a value becomes in that dtype.
inline double rounded(double value, io::DType dtype) {
  const auto f = static_cast<float>(value);
  switch (dtype) {
    case io::DType::f64: return value;
    case io::DType::f16: return static_cast<double>(to_float(to_half(f)));
    case io::DType::bf16: return static_cast<double>(to_float(to_bfloat16(f)));
    default: return static_cast<double>(f);
  }
}

using Metadata = std::map<std::string, std::string>;
inline const Metadata kPt = {{"format", "pt"}};

inline void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

inline void write_safetensors(const std::filesystem::path& path, const std::vector<FixtureTensor>& tensors,
                              const Metadata& metadata = kPt) {
  std::vector<io::TensorInfo> infos;
  for (const FixtureTensor& tensor : tensors) infos.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  auto layout = io::lay_out_safetensors(infos, metadata);
  must(layout.status());
  auto file = io::AtomicFile::create(path, true);
  must(file.status());
  must(file->write(std::as_bytes(std::span(layout->header))));
  for (const FixtureTensor& tensor : tensors) must(file->write(tensor.bytes));
  must(file->commit(true));
}

// A folder with model.safetensors, or with shards and their index.
struct CheckpointFixture {
  std::vector<std::vector<FixtureTensor>> shards = {{}};
  io::Json config = {{"model_type", "llama"}};
  Metadata metadata = kPt;

  void add(FixtureTensor tensor) { shards.back().push_back(std::move(tensor)); }
  void add(const std::vector<FixtureTensor>& tensors) {
    for (const FixtureTensor& tensor : tensors) add(tensor);
  }
  // Null: none.
  FixtureTensor* find(std::string_view name) {
    for (auto& shard : shards)
      for (FixtureTensor& tensor : shard)
        if (tensor.name == name) return &tensor;
    return nullptr;
  }
  void remove(std::string_view name) {
    for (auto& shard : shards) std::erase_if(shard, [&](const FixtureTensor& t) { return t.name == name; });
  }

  std::string shard_name(std::size_t i) const {
    if (shards.size() == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  io::Json index() const {
    std::uint64_t bytes = 0;
    io::Json map = io::Json::object();
    for (std::size_t i = 0; i < shards.size(); ++i)
      for (const FixtureTensor& tensor : shards[i]) {
        bytes += tensor.bytes.size();
        map[tensor.name] = shard_name(i);
      }
    return {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  }
  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    for (std::size_t i = 0; i < shards.size(); ++i) write_safetensors(folder / shard_name(i), shards[i], metadata);
    if (shards.size() > 1) must(io::write_file(folder / "model.safetensors.index.json", index().dump(), true));
    if (!config.is_null()) must(io::write_file(folder / "config.json", config.dump(), true));
  }
};

// A Linear and what a plain quantizer makes of it.
struct FixtureLayer {
  std::string module;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  io::DType dtype = io::DType::f32;
  std::vector<double> weights;    // as the original has them
  std::vector<double> quantized;  // what was quantized: smoothed, if it was
  std::uint64_t group = 0;
  std::vector<int> codes;
  std::vector<double> scales;  // rounded to f32 or less
  std::vector<int> zero_points;
  io::DType scale_dtype = io::DType::f32;

  std::uint64_t groups() const { return group == 0 ? 0 : columns / group; }
};

inline std::vector<double> random_values(std::size_t count, std::uint32_t seed, io::DType dtype) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 0.05);
  std::vector<double> values(count);
  for (double& value : values) value = rounded(normal(random), dtype);
  return values;
}

inline void quantize_plainly(FixtureLayer& layer, const format::Scheme& scheme) {
  const bool asymmetric = scheme.has_asymmetric_weights();
  layer.group = format::columns_of_a_scale(scheme, layer.columns);
  layer.scale_dtype = layer.dtype == io::DType::f64 ? io::DType::f32 : layer.dtype;
  const auto [least, most] = code_range(scheme.spec().weights.code);
  layer.codes.assign(layer.quantized.size(), 0);
  layer.scales.clear();
  layer.zero_points.clear();
  for (std::uint64_t first = 0; first < layer.quantized.size(); first += layer.group) {
    double low = 0, high = 0;
    for (std::uint64_t i = first; i < first + layer.group; ++i)
      if (std::isfinite(layer.quantized[i])) {
        low = std::min(low, layer.quantized[i]);
        high = std::max(high, layer.quantized[i]);
      }
    double scale = asymmetric ? (high - low) / (most - least) : std::max(-low, high) / most;
    scale = scale == 0 ? 1 : rounded(scale, layer.scale_dtype);
    const int zero_point =
        asymmetric ? std::clamp(static_cast<int>(least - std::nearbyint(low / scale)), least, most) : 0;
    for (std::uint64_t i = first; i < first + layer.group; ++i) {
      const double w = layer.quantized[i];
      const double code = std::isnan(w) ? zero_point : std::nearbyint(w / scale) + zero_point;
      layer.codes[i] = static_cast<int>(std::clamp<double>(code, least, most));
    }
    layer.scales.push_back(scale);
    layer.zero_points.push_back(zero_point);
  }
}

inline FixtureLayer make_layer(std::string module, std::uint64_t rows, std::uint64_t columns, io::DType dtype,
                               const format::Scheme& scheme, std::uint32_t seed = 1) {
  FixtureLayer layer;
  layer.module = std::move(module);
  layer.rows = rows;
  layer.columns = columns;
  layer.dtype = dtype;
  layer.weights = random_values(rows * columns, seed, dtype);
  layer.quantized = layer.weights;
  quantize_plainly(layer, scheme);
  return layer;
}

inline FixtureTensor original_tensor(const FixtureLayer& layer) {
  return float_tensor(layer.module + ".weight", layer.dtype, {layer.rows, layer.columns}, layer.weights);
}

inline std::vector<FixtureTensor> quantized_tensors(const FixtureLayer& layer, const format::Scheme& scheme) {
  std::vector<FixtureTensor> tensors;
  const std::uint64_t rows = layer.rows, columns = layer.columns;
  if (scheme.spec().weights.storage == format::Storage::elements) {
    tensors.push_back(i8_tensor(layer.module + ".weight", {rows, columns},
                                std::vector<std::int8_t>(layer.codes.begin(), layer.codes.end())));
    tensors.push_back(float_tensor(layer.module + ".weight_scale", layer.scale_dtype, {rows, 1}, layer.scales));
    if (scheme.spec().needs_statistics()) {
      tensors.push_back(f32_tensor(layer.module + ".input_scale", {1}, {0.02}));
      if (scheme.asymmetric) tensors.push_back(i8_tensor(layer.module + ".input_zero_point", {1}, {-3}));
    }
    return tensors;
  }
  const std::uint64_t words = (columns + 7) / 8, groups = layer.groups();
  std::vector<std::uint32_t> packed(rows * words);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t c = 0; c < columns; ++c)
      packed[r * words + c / 8] |= static_cast<std::uint32_t>(layer.codes[r * columns + c] + 8) << (4 * (c % 8));
  tensors.push_back(i32_tensor(layer.module + ".weight_packed", {rows, words}, packed));
  tensors.push_back(float_tensor(layer.module + ".weight_scale", layer.scale_dtype, {rows, groups}, layer.scales));
  tensors.push_back(i64_tensor(layer.module + ".weight_shape", {2},
                               {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)}));
  if (!scheme.asymmetric) return tensors;
  std::vector<std::uint32_t> zero_points((rows + 7) / 8 * groups);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t g = 0; g < groups; ++g)
      zero_points[r / 8 * groups + g] |= static_cast<std::uint32_t>(layer.zero_points[r * groups + g] + 8)
                                         << (4 * (r % 8));
  tensors.push_back(i32_tensor(layer.module + ".weight_zero_point", {(rows + 7) / 8, groups}, zero_points));
  return tensors;
}

inline format::Scheme w8a8() { return {}; }
inline format::Scheme w8a8_static(bool asymmetric = false) {
  return {.kind = format::SchemeKind::w8a8_static, .asymmetric = asymmetric, .group_size = 128, .scale_dtype = {}};
}
inline format::Scheme w4a16(std::int64_t group_size, bool asymmetric = false) {
  return {.kind = format::SchemeKind::w4a16, .asymmetric = asymmetric, .group_size = group_size, .scale_dtype = {}};
}

// Every scheme, plainly and asymmetric where it can be, with groups of `group_size` where it has some.
inline std::vector<format::Scheme> all_schemes(std::int64_t group_size) {
  std::vector<format::Scheme> schemes;
  for (const format::SchemeSpec& spec : format::schemes())
    for (const bool asymmetric : {false, true})
      if (!asymmetric || spec.takes_asymmetric())
        schemes.push_back({.kind = spec.kind, .asymmetric = asymmetric, .group_size = group_size, .scale_dtype = {}});
  return schemes;
}

inline io::Checkpoint opened(const std::filesystem::path& path) {
  auto checkpoint = io::Checkpoint::open(path);
  must(checkpoint.status());
  return std::move(checkpoint).value();
}

// A small Llama: one block with attention and MLP, norms, an embedding and an lm_head that is ignored.
inline CheckpointFixture small_model(const format::Scheme& scheme, bool quantized = true) {
  CheckpointFixture model;
  const auto plain = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    model.add(bf16_tensor(name, {rows, columns}, random_values(rows * columns, 7, io::DType::bf16)));
  };
  plain("model.embed_tokens.weight", 24, 32);
  std::uint32_t seed = 1;
  for (const std::string_view name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                      "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    const FixtureLayer layer =
        make_layer(fmt::format("model.layers.0.{}", name), 16, 32, io::DType::bf16, scheme, seed++);
    if (quantized)
      model.add(quantized_tensors(layer, scheme));
    else
      model.add(original_tensor(layer));
    if (name == "self_attn.o_proj") model.shards.emplace_back();
  }
  model.add(bf16_tensor("model.layers.0.input_layernorm.weight", {32}, std::vector<double>(32, 1)));
  plain("lm_head.weight", 24, 32);
  if (quantized)
    model.config["quantization_config"] = format::quantization_config(scheme, std::vector<std::string>{"lm_head"});
  return model;
}

}  // namespace kvant::tests
