#include "format/quantized_layers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "kvant/element.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using io::printable;

constexpr std::string_view kKey = "quantization_config";
constexpr std::string_view kUnknownKey = "loaders reject keys that they do not know; remove it";

std::string shown(const io::Json& value) { return printable(value.dump(-1, ' ', true)); }

// Reads a tree of JSON that may be anything, and keeps a sentence for everything that is not as it must be.
class ConfigReader {
 public:
  explicit ConfigReader(std::vector<std::string>& problems) : problems_(problems) {}

  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Null for what is absent.
  const io::Json& at(const io::Json& object, std::string_view key) const {
    const auto it = object.find(key);
    return it == object.end() ? null_ : *it;
  }

  bool object(const io::Json& value, std::string_view where) {
    if (value.is_object()) return true;
    problem("{}: is {}, must be an object", where, shown(value));
    return false;
  }

  template <std::size_t kCount>
  void keys(const io::Json& object, std::string_view where, const std::array<std::string_view, kCount>& known) {
    for (const auto& [key, value] : object.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        problem("{}: unknown key '{}'; {}", where, printable(key), kUnknownKey);
  }

  // One of the texts; its place among them.
  std::optional<std::size_t> one_of(const io::Json& object, std::string_view where, std::string_view key,
                                    std::initializer_list<std::string_view> texts) {
    const io::Json& value = at(object, key);
    if (value.is_string()) {
      const auto it = std::find(texts.begin(), texts.end(), value.get_ref<const std::string&>());
      if (it != texts.end()) return static_cast<std::size_t>(it - texts.begin());
    }
    problem("{}: {} is {}, must be \"{}\"", where, key, shown(value), fmt::join(texts, "\" or \""));
    return std::nullopt;
  }

  std::optional<bool> boolean(const io::Json& object, std::string_view where, std::string_view key, bool absent) {
    const io::Json& value = at(object, key);
    if (value.is_null()) return absent;
    if (value.is_boolean()) return value.get<bool>();
    problem("{}: {} is {}, must be true or false", where, key, shown(value));
    return std::nullopt;
  }

  std::optional<std::int64_t> integer(const io::Json& object, std::string_view where, std::string_view key) {
    const io::Json& value = at(object, key);
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= kMost) return value.get<std::int64_t>();
    if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<std::int64_t>();
    problem("{}: {} is {}, must be an integer", where, key, shown(value));
    return std::nullopt;
  }

  std::optional<std::vector<std::string>> strings(const io::Json& object, std::string_view where,
                                                  std::string_view key) {
    const io::Json& value = at(object, key);
    std::vector<std::string> texts;
    bool good = value.is_array();
    if (good)
      for (const io::Json& text : value) {
        good = good && text.is_string();
        if (good) texts.push_back(text.get<std::string>());
      }
    if (good) return texts;
    problem("{}: {} is {}, must be a list of strings", where, key, shown(value));
    return std::nullopt;
  }

  // Things that exist in the layout and that kvant does not know: absent, null or empty.
  void nothing(const io::Json& object, std::string_view where, std::string_view key) {
    const io::Json& value = at(object, key);
    if (value.is_null() || (value.is_object() && value.empty())) return;
    problem("{}: {} is {}, a form that kvant does not know; it must be null", where, key, shown(value));
  }

 private:
  std::vector<std::string>& problems_;
  io::Json null_;
};

// "weights" or "input_activations" of a group.
struct Arguments {
  std::int64_t bits = 0;
  bool symmetric = true;
  bool dynamic = false;
  std::string strategy;
};

std::optional<Arguments> arguments_of(ConfigReader& reader, const io::Json& value, const std::string& where) {
  constexpr std::array<std::string_view, 12> kKeys = {
      "num_bits",        "type",     "symmetric", "strategy",        "dynamic",     "group_size",
      "block_structure", "actorder", "observer",  "observer_kwargs", "scale_dtype", "zp_dtype"};
  if (!reader.object(value, where)) return std::nullopt;
  reader.keys(value, where, kKeys);
  reader.nothing(value, where, "block_structure");
  reader.nothing(value, where, "actorder");
  reader.one_of(value, where, "type", {"int"});
  const auto bits = reader.integer(value, where, "num_bits");
  const auto symmetric = reader.boolean(value, where, "symmetric", true);
  const auto dynamic = reader.boolean(value, where, "dynamic", false);
  const auto strategy = reader.one_of(value, where, "strategy", {"tensor", "channel", "group", "token"});
  if (!bits || !symmetric || !dynamic || !strategy) return std::nullopt;
  return Arguments{*bits, *symmetric, *dynamic, value["strategy"].get<std::string>()};
}

std::optional<Scheme> scheme_of(ConfigReader& reader, const io::Json& group, const std::string& where,
                                std::string_view format) {
  const std::string weights_where = where + ".weights", inputs_where = where + ".input_activations";
  const auto weights = arguments_of(reader, reader.at(group, "weights"), weights_where);
  if (!weights) return std::nullopt;
  const io::Json& inputs_value = reader.at(group, "input_activations");
  Scheme scheme;
  if (weights->bits != 8 && weights->bits != 4) {
    reader.problem("{}: num_bits is {}, kvant knows 8 and 4", weights_where, weights->bits);
    return std::nullopt;
  }
  const bool four = weights->bits == 4;
  const std::string_view wanted_format = four ? "pack-quantized" : "int-quantized";
  if (format != wanted_format)
    reader.problem("{}: num_bits {} is for format \"{}\", which is \"{}\"", weights_where, weights->bits, wanted_format,
                   format);
  const std::string_view wanted_strategy = four ? "group" : "channel";
  if (weights->strategy != wanted_strategy) {
    reader.problem("{}: strategy is \"{}\", kvant knows \"{}\" for {} bits", weights_where, weights->strategy,
                   wanted_strategy, weights->bits);
    return std::nullopt;
  }
  if (weights->dynamic) reader.problem("{}: dynamic is true, weights must be static", weights_where);
  if (four) {
    scheme.kind = SchemeKind::w4a16;
    scheme.asymmetric = !weights->symmetric;
    const auto size = reader.integer(reader.at(group, "weights"), weights_where, "group_size");
    if (!size) return std::nullopt;
    if (*size <= 0) {
      reader.problem("{}: group_size is {}, must be positive", weights_where, *size);
      return std::nullopt;
    }
    scheme.group_size = *size;
    if (!inputs_value.is_null())
      reader.problem("{}: is {}, must be null for 4-bit weights", inputs_where, shown(inputs_value));
    return scheme;
  }
  if (!weights->symmetric)
    reader.problem("{}: symmetric is false, and vLLM takes symmetric 8-bit weights only", weights_where);
  const auto inputs = arguments_of(reader, inputs_value, inputs_where);
  if (!inputs) return std::nullopt;
  if (inputs->bits != 8) reader.problem("{}: num_bits is {}, must be 8", inputs_where, inputs->bits);
  if (inputs->strategy == "token" && inputs->dynamic) {
    scheme.kind = SchemeKind::w8a8;
    if (!inputs->symmetric)
      reader.problem("{}: symmetric is false, must be true for dynamic activations", inputs_where);
  } else if (inputs->strategy == "tensor" && !inputs->dynamic) {
    scheme.kind = SchemeKind::w8a8_static;
    scheme.asymmetric = !inputs->symmetric;
  } else {
    reader.problem("{}: strategy \"{}\" with dynamic {}; kvant knows \"token\" with true and \"tensor\" with false",
                   inputs_where, inputs->strategy, inputs->dynamic);
    return std::nullopt;
  }
  return scheme;
}

std::string sizes_of(std::span<const std::uint64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

constexpr std::array<std::string_view, 6> kSuffixes = {".weight_packed",     ".weight_scale", ".weight_shape",
                                                       ".weight_zero_point", ".input_scale",  ".input_zero_point"};

// One module of a quantized checkpoint, tensor by tensor.
class LayerFinder {
 public:
  LayerFinder(const io::Checkpoint& checkpoint, const QuantizationConfig& config, std::vector<std::string>& problems)
      : checkpoint_(checkpoint), config_(config), problems_(problems) {}

  std::optional<QuantizedLayer> find(const std::string& module) {
    const std::size_t before = problems_.size();
    QuantizedLayer layer;
    layer.module = module;
    if (config_.scheme.kind == SchemeKind::w4a16)
      find_packed(layer);
    else
      find_int8(layer);
    if (problems_.size() != before) return std::nullopt;
    return layer;
  }

 private:
  struct Found {
    io::TensorPlace place;
    const io::TensorInfo* info;
  };

  template <class... Args>
  void problem(std::size_t shard, fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format("{}: {}", printable(checkpoint_.shard_name(shard)),
                                    fmt::format(format, std::forward<Args>(args)...)));
  }

  std::optional<Found> look(const std::string& name) const {
    const auto it = checkpoint_.tensors().find(name);
    if (it == checkpoint_.tensors().end()) return std::nullopt;
    return Found{it->second, &checkpoint_.shards()[it->second.shard].tensors()[it->second.tensor]};
  }

  std::optional<Found> need(const std::string& module, std::string_view suffix, std::string_view why) {
    auto found = look(fmt::format("{}{}", module, suffix));
    if (!found)
      problems_.push_back(fmt::format("{}: tensor '{}{}' is missing: {}; quantize the checkpoint again",
                                      printable(checkpoint_.path().string()), printable(module), suffix, why));
    return found;
  }

  void absent(const std::string& module, std::string_view suffix, std::string_view why) {
    if (const auto found = look(fmt::format("{}{}", module, suffix)))
      problem(found->place.shard, "tensor '{}' must not be there: {}", printable(found->info->name), why);
  }

  bool check(const Found& found, std::span<const io::DType> dtypes, std::span<const std::uint64_t> shape) {
    const io::TensorInfo& info = *found.info;
    if (std::find(dtypes.begin(), dtypes.end(), info.dtype) == dtypes.end()) {
      std::vector<std::string_view> names;
      for (const io::DType dtype : dtypes) names.push_back(io::name(dtype));
      problem(found.place.shard, "tensor '{}' holds {}, must hold {}", printable(info.name), io::name(info.dtype),
              fmt::join(names, " or "));
      return false;
    }
    if (!std::equal(shape.begin(), shape.end(), info.shape.begin(), info.shape.end())) {
      problem(found.place.shard, "tensor '{}' has shape {}, must have {}", printable(info.name), sizes_of(info.shape),
              sizes_of(shape));
      return false;
    }
    return true;
  }

  bool is_matrix(const Found& found, io::DType dtype) {
    const io::TensorInfo& info = *found.info;
    if (info.dtype == dtype && info.shape.size() == 2) return true;
    problem(found.place.shard, "tensor '{}' is {} {}, must be {} with 2 dimensions", printable(info.name),
            io::name(info.dtype), sizes_of(info.shape), io::name(dtype));
    return false;
  }

  static constexpr std::array<io::DType, 3> kScaleDtypes = {io::DType::f32, io::DType::f16, io::DType::bf16};
  static constexpr std::array<io::DType, 1> kI8 = {io::DType::i8};
  static constexpr std::array<io::DType, 1> kI32 = {io::DType::i32};
  static constexpr std::array<io::DType, 1> kI64 = {io::DType::i64};

  void find_int8(QuantizedLayer& layer) {
    const std::string& module = layer.module;
    absent(module, ".weight_packed", "the format is int-quantized");
    absent(module, ".weight_shape", "the format is int-quantized");
    absent(module, ".weight_zero_point", "the weights are symmetric");
    const auto codes = need(module, ".weight", "a quantized Linear has its codes there");
    const auto scales = need(module, ".weight_scale", "the codes mean nothing without their scales");
    if (codes && is_matrix(*codes, io::DType::i8)) {
      layer.bits = 8;
      layer.rows = codes->info->shape[0];
      layer.columns = codes->info->shape[1];
      layer.group_size = layer.columns;
      layer.codes = codes->place;
      if (scales && check(*scales, kScaleDtypes, std::array<std::uint64_t, 2>{layer.rows, 1}))
        layer.scales = scales->place;
    }
    find_inputs(layer);
  }

  void find_inputs(QuantizedLayer& layer) {
    const std::array<std::uint64_t, 1> one = {1};
    const bool is_static = config_.scheme.kind == SchemeKind::w8a8_static;
    if (!is_static) {
      absent(layer.module, ".input_scale", "the scales of activations are found at run time");
      absent(layer.module, ".input_zero_point", "the scales of activations are found at run time");
      return;
    }
    const auto scale = need(layer.module, ".input_scale", "activations are static");
    if (scale && check(*scale, kScaleDtypes, one)) layer.input_scale = scale->place;
    if (!config_.scheme.asymmetric) {
      absent(layer.module, ".input_zero_point", "activations are symmetric");
      return;
    }
    const auto zero_point = need(layer.module, ".input_zero_point", "activations are static and asymmetric");
    if (zero_point) check(*zero_point, kI8, one);
  }

  // [out, in] as X.weight_shape says.
  std::optional<std::array<std::int64_t, 2>> shape_in(const Found& shape) {
    if (!check(shape, kI64, std::array<std::uint64_t, 1>{2})) return std::nullopt;
    std::array<std::int64_t, 2> sizes = {};
    if (Status s = checkpoint_.read(shape.place, 0, std::as_writable_bytes(std::span(sizes))); !s.ok()) {
      problems_.emplace_back(s.message());
      return std::nullopt;
    }
    return sizes;
  }

  void find_packed(QuantizedLayer& layer) {
    const std::string& module = layer.module;
    absent(module, ".weight", "its codes are in weight_packed");
    absent(module, ".input_scale", "activations are not quantized");
    absent(module, ".input_zero_point", "activations are not quantized");
    const auto codes = need(module, ".weight_packed", "a quantized Linear has its codes there");
    const auto scales = need(module, ".weight_scale", "the codes mean nothing without their scales");
    const auto shape = need(module, ".weight_shape", "loaders take in_features from it");
    std::optional<Found> zero_points;
    if (config_.scheme.asymmetric)
      zero_points = need(module, ".weight_zero_point", "the weights are asymmetric");
    else
      absent(module, ".weight_zero_point", "the weights are symmetric");
    if (!codes || !scales || !shape || (config_.scheme.asymmetric && !zero_points)) return;
    if (!is_matrix(*codes, io::DType::i32)) return;
    const auto sizes = shape_in(*shape);
    if (!sizes) return;
    const std::uint64_t words = codes->info->shape[1];
    const auto in = static_cast<std::uint64_t>((*sizes)[1]);
    if ((*sizes)[0] < 0 || (*sizes)[1] < 0 || static_cast<std::uint64_t>((*sizes)[0]) != codes->info->shape[0] ||
        in / 8 + (in % 8 != 0 ? 1 : 0) != words) {
      problem(shape->place.shard, "tensor '{}' says [{}, {}], which does not fit weight_packed {} of 8 codes a word",
              printable(shape->info->name), (*sizes)[0], (*sizes)[1], sizes_of(codes->info->shape));
      return;
    }
    const auto group = static_cast<std::uint64_t>(config_.scheme.group_size);
    if (in % group != 0) {
      problem(shape->place.shard, "tensor '{}' says in_features {}, no multiple of the group size {}",
              printable(shape->info->name), in, group);
      return;
    }
    layer.bits = 4;
    layer.rows = codes->info->shape[0];
    layer.columns = in;
    layer.group_size = group;
    layer.codes = codes->place;
    layer.scales = scales->place;
    check(*scales, kScaleDtypes, std::array<std::uint64_t, 2>{layer.rows, in / group});
    if (!zero_points) return;
    const std::uint64_t packed_rows = layer.rows / 8 + (layer.rows % 8 != 0 ? 1 : 0);
    if (check(*zero_points, kI32, std::array<std::uint64_t, 2>{packed_rows, in / group}))
      layer.zero_points = zero_points->place;
  }

  const io::Checkpoint& checkpoint_;
  const QuantizationConfig& config_;
  std::vector<std::string>& problems_;
};

// Eight codes u = q + 8 of a word, each in its byte as q.
std::uint64_t spread(std::uint32_t word) {
  std::uint64_t x = word;
  x = (x | x << 16) & 0x0000FFFF0000FFFFu;
  x = (x | x << 8) & 0x00FF00FF00FF00FFu;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Fu;
  x ^= 0x0808080808080808u;                     // four bits in two's complement
  return x | (x & 0x0808080808080808u) * 0x1E;  // and their sign in the upper four
}

void unpack(const std::byte* words, std::uint64_t count, std::int8_t* codes) {
  const auto load = [&](std::uint64_t i) {
    std::uint32_t word;
    std::memcpy(&word, words + 4 * i, sizeof word);
    return spread(word);
  };
  for (std::uint64_t i = 0; i < count / 8; ++i) {
    const std::uint64_t eight = load(i);
    std::memcpy(codes + 8 * i, &eight, sizeof eight);
  }
  if (count % 8 == 0) return;
  const std::uint64_t eight = load(count / 8);
  std::memcpy(codes + (count - count % 8), &eight, static_cast<std::size_t>(count % 8));
}

template <class T>
T* fit(std::vector<T>& buffer, std::uint64_t count) {
  if (buffer.size() < count) buffer.resize(static_cast<std::size_t>(count));
  return buffer.data();
}

Status read_codes(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                  std::uint64_t column, std::uint64_t columns, LayerRows& rows) {
  std::int8_t* codes = fit(rows.codes, count * columns);
  const bool whole = columns == layer.columns;
  if (layer.bits == 8) {
    // Whole rows follow each other in the file.
    const std::uint64_t reads = whole ? 1 : count, length = whole ? count * columns : columns;
    for (std::uint64_t r = 0; r < reads; ++r)
      if (Status s = checkpoint.read(layer.codes, (row + r) * layer.columns + column,
                                     std::as_writable_bytes(std::span(codes + r * columns, length)));
          !s.ok())
        return s;
    return {};
  }
  const std::uint64_t row_words = layer.columns / 8 + (layer.columns % 8 != 0 ? 1 : 0);
  const std::uint64_t words = columns / 8 + (columns % 8 != 0 ? 1 : 0);
  std::byte* bytes = fit(rows.bytes, 4 * words * (whole ? count : 1));
  if (whole)
    if (Status s = checkpoint.read(layer.codes, 4 * row * row_words, std::span(bytes, 4 * words * count)); !s.ok())
      return s;
  for (std::uint64_t r = 0; r < count; ++r) {
    if (!whole)
      if (Status s =
              checkpoint.read(layer.codes, 4 * ((row + r) * row_words + column / 8), std::span(bytes, 4 * words));
          !s.ok())
        return s;
    unpack(bytes + (whole ? 4 * words * r : 0), columns, codes + r * columns);
  }
  return {};
}

Status read_zero_points(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row,
                        std::uint64_t count, LayerRows& rows) {
  std::int8_t* zero_points = fit(rows.zero_points, count * rows.groups);
  if (!layer.zero_points) {
    std::fill_n(zero_points, count * rows.groups, std::int8_t{0});
    return {};
  }
  std::byte* bytes = fit(rows.bytes, 4 * rows.groups);
  for (std::uint64_t r = 0; r < count; ++r) {
    // Eight rows share a row of words.
    if (r == 0 || (row + r) % 8 == 0)
      if (Status s = checkpoint.read(*layer.zero_points, 4 * ((row + r) / 8 * layer.groups() + rows.first_group),
                                     std::span(bytes, 4 * rows.groups));
          !s.ok())
        return s;
    for (std::uint64_t g = 0; g < rows.groups; ++g) {
      std::uint32_t word;
      std::memcpy(&word, bytes + 4 * g, sizeof word);
      const std::uint32_t u = word >> (4 * ((row + r) % 8)) & 15u;
      zero_points[r * rows.groups + g] = static_cast<std::int8_t>(static_cast<int>(u) - 8);
    }
  }
  return {};
}

}  // namespace

Result<std::optional<QuantizationConfigText>> find_quantization_config(const io::Checkpoint& checkpoint) {
  if (checkpoint.config()) {
    const auto it = checkpoint.config()->find(kKey);
    if (it != checkpoint.config()->end() && !it->is_null())
      return std::optional(QuantizationConfigText{
          fmt::format("{}: {}", printable((checkpoint.path() / io::kConfigName).string()), kKey), *it});
  }
  if (checkpoint.shards().size() != 1) return std::optional<QuantizationConfigText>();
  const auto& metadata = checkpoint.shards()[0].metadata();
  const auto it = metadata.find(std::string(kKey));
  if (it == metadata.end()) return std::optional<QuantizationConfigText>();
  const std::string where =
      fmt::format("{}: {} in the metadata", printable(checkpoint.shards()[0].file().path().string()), kKey);
  auto value = io::parse_json(it->second, where);
  if (!value.ok()) return value.status();
  return std::optional(QuantizationConfigText{where, std::move(value).value()});
}

std::optional<QuantizationConfig> parse_quantization_config(const QuantizationConfigText& text,
                                                            std::vector<std::string>& problems) {
  constexpr std::array<std::string_view, 10> kKeys = {
      "quant_method",  "format",          "quantization_status", "ignore",  "kv_cache_scheme",
      "config_groups", "sparsity_config", "transform_config",    "version", "global_compression_ratio"};
  constexpr std::array<std::string_view, 5> kGroupKeys = {"targets", "weights", "input_activations",
                                                          "output_activations", "format"};
  ConfigReader reader(problems);
  const io::Json& value = text.value;
  if (!reader.object(value, text.where)) return std::nullopt;
  if (!reader.one_of(value, text.where, "quant_method", {"compressed-tensors"})) return std::nullopt;
  reader.keys(value, text.where, kKeys);
  for (const std::string_view key : {"kv_cache_scheme", "sparsity_config", "transform_config"})
    reader.nothing(value, text.where, key);
  if (!reader.at(value, "quantization_status").is_null())
    reader.one_of(value, text.where, "quantization_status", {"compressed"});
  const auto format = reader.one_of(value, text.where, "format", {"int-quantized", "pack-quantized"});
  QuantizationConfig config;
  if (!reader.at(value, "ignore").is_null()) {
    auto ignore = reader.strings(value, text.where, "ignore");
    if (!ignore) return std::nullopt;
    config.ignore = std::move(*ignore);
  }
  const io::Json& groups = reader.at(value, "config_groups");
  if (!reader.object(groups, text.where + ".config_groups") || !format) return std::nullopt;
  if (groups.size() != 1) {
    reader.problem("{}.config_groups: has {} groups, kvant knows one", text.where, groups.size());
    return std::nullopt;
  }
  const io::Json& group = groups.begin().value();
  const std::string where = fmt::format("{}.config_groups.{}", text.where, printable(groups.begin().key()));
  if (!reader.object(group, where)) return std::nullopt;
  reader.keys(group, where, kGroupKeys);
  reader.nothing(group, where, "output_activations");
  const auto& format_text = value["format"].get_ref<const std::string&>();
  if (!reader.at(group, "format").is_null()) reader.one_of(group, where, "format", {format_text});
  auto targets = reader.strings(group, where, "targets");
  const auto scheme = scheme_of(reader, group, where, format_text);
  if (!targets || !scheme) return std::nullopt;
  config.targets = std::move(*targets);
  config.scheme = *scheme;
  return config;
}

Result<QuantizationConfig> read_quantization_config(const io::Checkpoint& checkpoint) {
  auto text = find_quantization_config(checkpoint);
  if (!text.ok()) return text.status();
  if (!*text)
    return invalid_problem("{}: is not quantized: there is no {} in {}", printable(checkpoint.path().string()), kKey,
                           checkpoint.is_folder() ? "its config.json" : "its metadata");
  std::vector<std::string> problems;
  auto config = parse_quantization_config(**text, problems);
  if (!problems.empty()) return base::unsupported("{}", problems[0]);
  if (!config) return base::refuse(StatusCode::Internal, "{}: was not understood", (*text)->where);
  return std::move(*config);
}

std::string describe(const Scheme& scheme) {
  std::string text(name(scheme.kind));
  if (scheme.kind == SchemeKind::w4a16) text += fmt::format(", groups of {}", scheme.group_size);
  if (scheme.asymmetric) text += ", asymmetric";
  return text;
}

std::vector<QuantizedLayer> find_quantized_layers(const io::Checkpoint& checkpoint, const QuantizationConfig& config,
                                                  std::vector<std::string>& problems) {
  std::set<std::string, std::less<>> modules;
  for (const auto& [name, place] : checkpoint.tensors()) {
    for (const std::string_view suffix : kSuffixes)
      if (name.ends_with(suffix)) modules.emplace(name.substr(0, name.size() - suffix.size()));
    const io::TensorInfo& info = checkpoint.shards()[place.shard].tensors()[place.tensor];
    if (info.dtype == io::DType::i8 && !module_of(name).empty()) modules.emplace(module_of(name));
  }
  std::vector<QuantizedLayer> layers;
  LayerFinder finder(checkpoint, config, problems);
  for (const std::string& module : modules)
    if (auto layer = finder.find(module)) layers.push_back(std::move(*layer));
  return layers;
}

Result<std::vector<QuantizedLayer>> find_quantized_layers(const io::Checkpoint& checkpoint,
                                                          const QuantizationConfig& config) {
  std::vector<std::string> problems;
  auto layers = find_quantized_layers(checkpoint, config, problems);
  if (!problems.empty()) return invalid_problem("{}", problems[0]);
  return layers;
}

Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 LayerRows& rows) {
  return read_rows(checkpoint, layer, row, count, 0, layer.columns, rows);
}

Status read_rows(const io::Checkpoint& checkpoint, const QuantizedLayer& layer, std::uint64_t row, std::uint64_t count,
                 std::uint64_t column, std::uint64_t columns, LayerRows& rows) {
  if (row > layer.rows || count > layer.rows - row || column % 8 != 0 || column > layer.columns ||
      columns > layer.columns - column)
    return invalid_problem("layer '{}' of {} rows and {} columns: rows {} + {} and columns {} + {} are not in it",
                           printable(layer.module), layer.rows, layer.columns, row, count, column, columns);
  rows.first_group = 0;
  rows.groups = count == 0 || columns == 0 ? 0 : 1;
  if (rows.groups == 0) return {};
  if (Status s = read_codes(checkpoint, layer, row, count, column, columns, rows); !s.ok()) return s;
  if (layer.bits != 8) {
    rows.first_group = column / layer.group_size;
    rows.groups = (column + columns - 1) / layer.group_size - rows.first_group + 1;
  }
  float* scales = fit(rows.scales, count * rows.groups);
  const bool whole = rows.groups == layer.groups();
  for (std::uint64_t r = 0; r < (whole ? 1 : count); ++r)
    if (Status s =
            read_scales(checkpoint, layer.scales, (row + r) * layer.groups() + rows.first_group,
                        std::span(scales + r * rows.groups, whole ? count * rows.groups : rows.groups), rows.bytes);
        !s.ok())
      return s;
  return read_zero_points(checkpoint, layer, row, count, rows);
}

Status read_scales(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::uint64_t first,
                   std::span<float> to, std::vector<std::byte>& bytes) {
  const io::TensorInfo& info = checkpoint.shards()[place.shard].tensors()[place.tensor];
  if (!is_scale_dtype(info.dtype))
    return invalid_problem("{}: tensor '{}' holds {}, scales must be F32, F16 or BF16",
                           printable(checkpoint.shard_name(place.shard)), printable(info.name), io::name(info.dtype));
  if (info.dtype == io::DType::f32) return checkpoint.read(place, 4 * first, std::as_writable_bytes(to));
  std::byte* narrow = fit(bytes, 2 * to.size());
  if (Status s = checkpoint.read(place, 2 * first, std::span(narrow, 2 * to.size())); !s.ok()) return s;
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, narrow + 2 * i, sizeof bits);
    to[i] = info.dtype == io::DType::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
  }
  return {};
}

}  // namespace kvant::format
