// Small checkpoints for tests: tensors from numbers, files, folders with shards, index and config.json, and Linears
// quantized by a plain loop in double precision.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/quantization_config.h"
#include "format/scheme.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "kvant/element.h"
#include "tests/support/float_grid_reference.h"
#include "tests/support/plain_scales.h"

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

// A new file in the place of an old one. io::AtomicFile would wait for the disk, thousands of times.
inline void write_anew(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts) {
  std::filesystem::remove(path);
  std::ofstream file(path, std::ios::binary);
  for (const std::span<const std::byte> part : parts)
    file.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}
inline void write_anew(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  write_anew(path, {&part, 1});
}

inline void write_safetensors(const std::filesystem::path& path, const std::vector<FixtureTensor>& tensors,
                              const Metadata& metadata = kPt) {
  std::vector<io::TensorInfo> infos;
  for (const FixtureTensor& tensor : tensors) infos.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  auto layout = io::lay_out_safetensors(infos, metadata);
  must(layout.status());
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(layout->header))};
  for (const FixtureTensor& tensor : tensors) parts.emplace_back(tensor.bytes);
  write_anew(path, parts);
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
    if (shards.size() > 1) write_anew(folder / "model.safetensors.index.json", index().dump());
    if (!config.is_null()) write_anew(folder / "config.json", config.dump());
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
  ElementKind code = ElementKind::s8;
  std::uint64_t scale_rows = 1;  // rows that share a scale
  std::uint64_t group = 0;       // columns that do
  std::vector<int> codes;        // of a byte: integers with their sign, floating-point codes as the int8 of their bits
  std::vector<double> scales;    // what codes are multiplied by: rounded to f32 or less, and divided by global_scale
  std::vector<std::uint8_t> scale_bits;  // of scales that are codes
  double global_scale = 1;
  std::vector<int> zero_points;
  io::DType scale_dtype = io::DType::f32;

  // Scales of a row.
  std::uint64_t groups() const { return group == 0 ? 0 : (columns + group - 1) / group; }
  std::uint64_t scale_at(std::uint64_t row, std::uint64_t column) const {
    return row / scale_rows * groups() + column / group;
  }
  // What a code stands for, in steps of its scale.
  double steps(std::uint64_t row, std::uint64_t column) const {
    const int q = codes[row * columns + column];
    return has_float_grid(code) ? grid_reference(code).number_of(static_cast<std::uint8_t>(q))
                                : q - zero_points[scale_at(row, column)];
  }
  double value(std::uint64_t row, std::uint64_t column) const {
    return scales[scale_at(row, column)] * steps(row, column);
  }
  // Whether the code has the largest magnitude that there is.
  bool is_at_end(std::uint64_t i) const {
    if (!has_float_grid(code)) return std::abs(codes[i]) >= code_range(code).max;
    const GridReference& grid = grid_reference(code);
    return std::abs(grid.number_of(static_cast<std::uint8_t>(codes[i]))) == grid.max();
  }
};

inline std::vector<double> random_values(std::size_t count, std::uint32_t seed, io::DType dtype) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 0.05);
  std::vector<double> values(count);
  for (double& value : values) value = rounded(normal(random), dtype);
  return values;
}

// One quotient: in f32 unless the weights are f64.
inline double divided(double weight, double scale, io::DType dtype) {
  if (dtype == io::DType::f64) return weight / scale;
  return static_cast<double>(static_cast<float>(weight) / static_cast<float>(scale));
}

inline void add_symmetric_scale(FixtureLayer& layer, const format::WeightScheme& weights, double largest) {
  if (weights.scale_code) {
    const PlainScale made = weights.scale_code == ElementKind::e8m0
                                ? plain_power(largest, weights.code)
                                : plain_scale_under(static_cast<float>(layer.global_scale), largest, weights.code);
    layer.scale_bits.push_back(made.bits);
    layer.scales.push_back(made.value);
    return;
  }
  const double least = layer.scale_dtype == io::DType::f16 ? 0x1p-14 : 0x1p-126;
  layer.scales.push_back(
      largest == 0 ? 1 : std::max(least, rounded(largest / largest_of(weights.code), layer.scale_dtype)));
}

inline int code_of(const FixtureLayer& layer, double weight, double scale, int zero_point) {
  if (has_float_grid(layer.code))
    return static_cast<std::int8_t>(grid_reference(layer.code).code_of(divided(weight, scale, layer.dtype), true));
  if (std::isnan(weight)) return zero_point;
  const auto [least, most] = code_range(layer.code);
  return static_cast<int>(
      std::clamp<double>(std::nearbyint(divided(weight, scale, layer.dtype)) + zero_point, least, most));
}

inline void quantize_plainly(FixtureLayer& layer, const format::Scheme& scheme) {
  const format::WeightScheme& weights = scheme.weights;
  layer.code = weights.code;
  layer.scale_rows = weights.strategy == format::Strategy::tensor  ? std::max<std::uint64_t>(layer.rows, 1)
                     : weights.strategy == format::Strategy::block ? static_cast<std::uint64_t>(weights.block_rows)
                                                                   : 1;
  layer.group = weights.has_groups()                          ? static_cast<std::uint64_t>(weights.group_size)
                : weights.strategy == format::Strategy::block ? static_cast<std::uint64_t>(weights.block_columns)
                                                              : layer.columns;
  layer.scale_dtype = scheme.scale_dtype.value_or(layer.dtype == io::DType::f64 ? io::DType::f32 : layer.dtype);
  layer.codes.assign(layer.quantized.size(), 0);
  layer.scales.clear();
  layer.scale_bits.clear();
  layer.zero_points.clear();
  const auto range_of = [&](std::uint64_t row, std::uint64_t rows, std::uint64_t column, std::uint64_t columns) {
    std::pair<double, double> range(0, 0);
    for (std::uint64_t r = row; r < std::min(row + rows, layer.rows); ++r)
      for (std::uint64_t c = column; c < std::min(column + columns, layer.columns); ++c)
        if (const double w = layer.quantized[r * layer.columns + c]; std::isfinite(w))
          range = {std::min(range.first, w), std::max(range.second, w)};
    return range;
  };
  if (weights.strategy == format::Strategy::tensor_group) {
    const auto [low, high] = range_of(0, layer.rows, 0, layer.columns);
    const double largest = std::max(high, -low);
    layer.global_scale = largest == 0 ? 1 : rounded(448 * grid_reference(weights.code).max() / largest, io::DType::f32);
  }
  if (layer.group == 0) return;
  for (std::uint64_t row = 0; row < layer.rows; row += layer.scale_rows)
    for (std::uint64_t column = 0; column < layer.columns; column += layer.group) {
      const auto [low, high] = range_of(row, layer.scale_rows, column, layer.group);
      int zero_point = 0;
      if (weights.asymmetric) {
        const auto [least, most] = code_range(weights.code);
        layer.scales.push_back(low == high ? 1 : rounded((high - low) / (most - least), layer.scale_dtype));
        const double at_zero = least - std::nearbyint(divided(low, layer.scales.back(), layer.dtype));
        if (low != high) zero_point = static_cast<int>(std::clamp<double>(at_zero, least, most));
      } else {
        add_symmetric_scale(layer, weights, std::max(high, -low));
      }
      layer.zero_points.push_back(zero_point);
      for (std::uint64_t r = row; r < std::min(row + layer.scale_rows, layer.rows); ++r)
        for (std::uint64_t c = column; c < std::min(column + layer.group, layer.columns); ++c) {
          const std::uint64_t i = r * layer.columns + c;
          layer.codes[i] = code_of(layer, layer.quantized[i], layer.scales.back(), zero_point);
        }
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

// Codes or zero points in words: those of a column one after the other, from the lowest bits of the first row on where
// they are packed `along_rows`, else those of a row.
inline std::vector<std::uint32_t> in_words(const std::vector<int>& values, std::uint64_t columns, ElementKind code,
                                           bool along_rows) {
  const auto bits = static_cast<unsigned>(bits_per_element(code));
  const std::uint64_t rows = columns == 0 ? 0 : values.size() / columns, per_word = 32 / bits;
  const std::uint64_t words_in_row = along_rows ? columns : (columns + per_word - 1) / per_word;
  std::vector<std::uint32_t> words((along_rows ? (rows + per_word - 1) / per_word : rows) * words_in_row);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t c = 0; c < columns; ++c) {
      const std::uint64_t at = along_rows ? r : c;
      std::uint32_t& word = along_rows ? words[r / per_word * columns + c] : words[r * words_in_row + c / per_word];
      const auto u = static_cast<std::uint32_t>(values[r * columns + c] + (1 << (bits - 1)));
      word |= u << (bits * static_cast<unsigned>(at % per_word));
    }
  return words;
}

// What the layer is stored as, in the order in which kvant writes it.
inline std::vector<FixtureTensor> quantized_tensors(const FixtureLayer& layer, const format::Scheme& scheme) {
  using format::Storage;
  using format::Strategy;
  std::vector<FixtureTensor> tensors;
  const format::WeightScheme& weights = scheme.weights;
  const std::uint64_t rows = layer.rows, columns = layer.columns, groups = std::max<std::uint64_t>(layer.groups(), 1);
  const std::uint64_t per_word = 32 / static_cast<std::uint64_t>(bits_per_element(weights.code));
  const auto name = [&](std::string_view suffix) { return fmt::format("{}.{}", layer.module, suffix); };
  switch (weights.storage) {
    case Storage::elements:
      tensors.push_back(raw_tensor(name("weight"), has_float_grid(weights.code) ? io::DType::f8_e4m3 : io::DType::i8,
                                   {rows, columns}, std::vector<std::int8_t>(layer.codes.begin(), layer.codes.end())));
      break;
    case Storage::words:
      tensors.push_back(i32_tensor(name("weight_packed"), {rows, (columns + per_word - 1) / per_word},
                                   in_words(layer.codes, columns, weights.code, false)));
      break;
    case Storage::nibbles: {
      std::vector<std::uint8_t> bytes(rows * columns / 2);
      for (std::size_t i = 0; i < 2 * bytes.size(); ++i)
        bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] | (layer.codes[i] & 15) << (i % 2 == 0 ? 0 : 4));
      tensors.push_back(raw_tensor(name("weight_packed"), io::DType::u8, {rows, columns / 2}, bytes));
    }
  }
  Sizes shape = {(rows + layer.scale_rows - 1) / layer.scale_rows, groups};
  if (weights.strategy == Strategy::tensor) shape = {1};
  if (weights.scale_code)
    tensors.push_back(raw_tensor(name("weight_scale"),
                                 weights.scale_code == ElementKind::e8m0 ? io::DType::u8 : io::DType::f8_e4m3, shape,
                                 layer.scale_bits));
  else
    tensors.push_back(float_tensor(name("weight_scale"), layer.scale_dtype, shape, layer.scales));
  if (weights.strategy == Strategy::tensor_group)
    tensors.push_back(f32_tensor(name("weight_global_scale"), {1}, {layer.global_scale}));
  if (weights.storage == Storage::words)
    tensors.push_back(
        i64_tensor(name("weight_shape"), {2}, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)}));
  if (weights.asymmetric)
    tensors.push_back(i32_tensor(name("weight_zero_point"), {(rows + per_word - 1) / per_word, groups},
                                 in_words(layer.zero_points, groups, weights.code, true)));
  if (!scheme.activations) return tensors;
  if (scheme.activations->dynamic == format::Dynamic::no) {
    tensors.push_back(f32_tensor(name("input_scale"), {1}, {0.02}));
    if (scheme.activations->asymmetric) tensors.push_back(i8_tensor(name("input_zero_point"), {1}, {-3}));
  }
  if (scheme.activations->dynamic == format::Dynamic::local)
    tensors.push_back(f32_tensor(name("input_global_scale"), {1}, {650}));
  return tensors;
}

// A scheme of the table, with groups of `group_size` where it takes one (-1: a scale for each channel; here readers
// decide what goes, not the options of the tool), and asymmetric where it can be.
inline format::Scheme scheme_of(std::string_view name, std::optional<std::int64_t> group_size = std::nullopt,
                                bool asymmetric = false) {
  const auto row = format::scheme_named(name);
  must(row.status());
  format::Scheme scheme = (*row)->scheme;
  if (group_size && (*row)->takes_group_size) {
    if (*group_size < 0) scheme.weights.strategy = format::Strategy::channel;
    scheme.weights.group_size = std::max<std::int64_t>(*group_size, 0);
  }
  if (asymmetric && (*row)->takes_asymmetric_weights) scheme.weights.asymmetric = true;
  if (asymmetric && (*row)->takes_asymmetric_activations) scheme.activations->asymmetric = true;
  return scheme;
}
inline format::Scheme w8a8() { return scheme_of("w8a8"); }
inline format::Scheme w8a8_static(bool asymmetric = false) { return scheme_of("w8a8-static", {}, asymmetric); }
inline format::Scheme w4a16(std::int64_t group_size, bool asymmetric = false) {
  return scheme_of("w4a16", group_size, asymmetric);
}
// Blocks that small layers have several of, the last of them cut.
inline format::Scheme fp8_blocks(std::int64_t rows, std::int64_t columns) {
  format::Scheme scheme = scheme_of("fp8-block");
  scheme.weights.block_rows = rows;
  scheme.weights.block_columns = columns;
  return scheme;
}

// Every scheme, plainly and asymmetric where it can be, with groups of `group_size` and with a scale for each channel
// where it takes a size. Groups of 32 and 16 that no option changes, and blocks of 128 x 128, are what they are.
inline std::vector<format::Scheme> all_schemes(std::int64_t group_size) {
  std::vector<format::Scheme> schemes;
  for (const format::SchemeRow& row : format::schemes())
    for (const bool asymmetric : {false, true})
      for (const std::int64_t size : {group_size, std::int64_t{-1}})
        if ((!asymmetric || row.takes_asymmetric()) && (size > 0 || row.takes_group_size))
          schemes.push_back(scheme_of(row.name, size, asymmetric));
  return schemes;
}

// What no row of the table is, and others write: kvant reads it.
inline std::vector<format::Scheme> foreign_schemes() {
  using format::Strategy;
  const auto with = [](std::string_view name, std::string_view format, auto&& change) {
    format::Scheme scheme = scheme_of(name);
    scheme.format = format;
    change(scheme);
    return scheme;
  };
  return {
      with("w8a8", "int-quantized", [](format::Scheme& s) { s.weights.strategy = Strategy::tensor; }),
      with("w8a8", "naive-quantized", [](format::Scheme& s) { s.activations->strategy = Strategy::tensor; }),
      with("w8a8", "int-quantized",
           [](format::Scheme& s) {
             s.weights.strategy = Strategy::group;
             s.weights.group_size = 16;
           }),
      with("fp8", "naive-quantized", [](format::Scheme& s) { s.activations.reset(); }),
      with("fp8", "float-quantized",
           [](format::Scheme& s) {
             s.weights.strategy = Strategy::group;
             s.weights.group_size = 48;
           }),
      with("fp8-block", "float-quantized",
           [](format::Scheme& s) {
             s.weights.block_rows = 3;
             s.weights.block_columns = 20;
           }),
  };
}

// At least `columns`, and whole groups.
inline std::uint64_t whole_groups(const format::Scheme& scheme, std::uint64_t columns) {
  const std::uint64_t group = scheme.weights.has_groups() ? static_cast<std::uint64_t>(scheme.weights.group_size) : 1;
  return (columns + group - 1) / group * group;
}

// For the names of test cases: "w4a16, groups of 24" is w4a16_groups_of_24.
inline std::string identifier(const format::Scheme& scheme) {
  std::string name;
  for (const char c : format::describe(scheme))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      name += c;
    else if (c != ',')
      name += '_';
  return name;
}

// quantization_config of one scheme for all Linears.
inline io::Json config_json(const format::Scheme& scheme, std::vector<std::string> ignore = {}) {
  return format::quantization_json(format::QuantizationConfig::of(scheme, std::move(ignore)));
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
  if (quantized) model.config["quantization_config"] = config_json(scheme, {"lm_head"});
  return model;
}

}  // namespace kvant::tests
