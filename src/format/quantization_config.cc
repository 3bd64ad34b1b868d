#include "format/quantization_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "io/file.h"
#include "io/json.h"

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
                                    std::span<const std::string_view> texts) {
    const io::Json& value = at(object, key);
    if (value.is_string()) {
      const auto it = std::find(texts.begin(), texts.end(), value.get_ref<const std::string&>());
      if (it != texts.end()) return static_cast<std::size_t>(it - texts.begin());
    }
    problem("{}: {} is {}, must be \"{}\"", where, key, shown(value), base::joined(texts, "\" or \""));
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
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= kMax) return value.get<std::int64_t>();
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
    problem("{}: {} is {}, which kvant does not support; it must be null", where, key, shown(value));
  }

 private:
  std::vector<std::string>& problems_;
  io::Json null_;
};

// ---- What the layout's formats say ----------------------------------------------------------------------------------

constexpr std::array<std::string_view, 1> kMethods = {"compressed-tensors"};
constexpr std::array<std::string_view, 1> kStatuses = {"compressed"};
constexpr std::string_view kMixed = "mixed-precision";
constexpr std::string_view kKvCache = "kv_cache_scheme";

// Codes by what config.json calls them.
struct CodeName {
  ElementKind code;
  std::string_view type;
  std::int64_t bits;
};
constexpr CodeName kCodes[] = {{ElementKind::s8, "int", 8},
                               {ElementKind::s4, "int", 4},
                               {ElementKind::e4m3, "float", 8},
                               {ElementKind::e2m1, "float", 4}};
const CodeName& name_of(ElementKind code) {
  return *std::find_if(std::begin(kCodes), std::end(kCodes), [&](const CodeName& c) { return c.code == code; });
}

// What a format holds: codes of which kind, and how they are stored.
struct Format {
  std::string_view name;
  Storage storage;
  std::array<std::optional<ElementKind>, 3> codes;
  std::optional<ElementKind> scale_code = std::nullopt;
};
constexpr Format kFormats[] = {
    {"int-quantized", Storage::elements, {ElementKind::s8, ElementKind::s4}},
    {"float-quantized", Storage::elements, {ElementKind::e4m3}},
    {"naive-quantized", Storage::elements, {ElementKind::s8, ElementKind::s4, ElementKind::e4m3}},
    {"pack-quantized", Storage::words, {ElementKind::s8, ElementKind::s4}},
    {"mxfp8-quantized", Storage::elements, {ElementKind::e4m3}, ElementKind::e8m0},
    {"mxfp4-pack-quantized", Storage::nibbles, {ElementKind::e2m1}, ElementKind::e8m0},
    {"nvfp4-pack-quantized", Storage::nibbles, {ElementKind::e2m1}, ElementKind::e4m3},
};

bool has_code(const Format& format, ElementKind code) {
  return std::find(format.codes.begin(), format.codes.end(), code) != format.codes.end();
}

std::string_view torch_name(ElementKind scale) {
  return scale == ElementKind::e8m0 ? "torch.uint8" : "torch.float8_e4m3fn";
}

// ---- Writing --------------------------------------------------------------------------------------------------------

io::Json dynamic_of(Dynamic dynamic) {
  if (dynamic == Dynamic::local) return "local";
  return dynamic == Dynamic::yes;
}

io::Json arguments(ElementKind code, bool symmetric, Strategy strategy, Dynamic dynamic, std::int64_t group_size,
                   std::optional<ElementKind> scale_code) {
  io::Json json = {{"num_bits", name_of(code).bits},
                   {"type", name_of(code).type},
                   {"symmetric", symmetric},
                   {"strategy", name(strategy)},
                   {"dynamic", dynamic_of(dynamic)}};
  if (group_size > 0) json["group_size"] = group_size;
  if (scale_code) json["scale_dtype"] = torch_name(*scale_code);
  return json;
}

io::Json weights_of(const WeightScheme& weights) {
  io::Json json = arguments(weights.code, !weights.asymmetric, weights.strategy, Dynamic::no, weights.group_size,
                            weights.scale_code);
  if (weights.strategy == Strategy::block) json["block_structure"] = {weights.block_rows, weights.block_columns};
  return json;
}

io::Json activations_of(const std::optional<ActivationScheme>& activations) {
  if (!activations) return nullptr;
  return arguments(activations->code, !activations->asymmetric, activations->strategy, activations->dynamic,
                   activations->group_size, activations->scale_code);
}

// As loaders want the scales of keys and values.
io::Json kv_cache_json() { return arguments(ElementKind::e4m3, true, Strategy::tensor, Dynamic::no, 0, std::nullopt); }

// ---- Reading --------------------------------------------------------------------------------------------------------

// "weights" or "input_activations" of a group.
struct Arguments {
  ElementKind code = ElementKind::s8;
  bool symmetric = true;
  Dynamic dynamic = Dynamic::no;
  Strategy strategy = Strategy::tensor;
  std::int64_t group_size = 0;
};

// One group of config.json. What it says goes into a scheme, what is wrong into sentences.
class GroupReader {
 public:
  GroupReader(ConfigReader& reader, const io::Json& group, const std::string& where, const Format& format)
      : reader_(reader),
        group_(group),
        weights_(where + ".weights"),
        inputs_(where + ".input_activations"),
        format_(format) {}

  std::optional<Scheme> read() {
    scheme_.format = format_.name;
    const io::Json& inputs = reader_.at(group_, "input_activations");
    const bool good = read_weights(reader_.at(group_, "weights"));
    scheme_.activations.reset();
    if (!inputs.is_null() && !read_activations(inputs)) return std::nullopt;
    if (!good) return std::nullopt;
    return scheme_;
  }

 private:
  std::optional<Arguments> arguments_of(const io::Json& value, const std::string& where) {
    constexpr std::array<std::string_view, 12> kKeys = {
        "num_bits",        "type",     "symmetric", "strategy",        "dynamic",     "group_size",
        "block_structure", "actorder", "observer",  "observer_kwargs", "scale_dtype", "zp_dtype"};
    if (!reader_.object(value, where)) return std::nullopt;
    reader_.keys(value, where, kKeys);
    constexpr std::array<std::string_view, 2> kTypes = {"int", "float"};
    const auto type = reader_.one_of(value, where, "type", kTypes);
    const auto bits = reader_.integer(value, where, "num_bits");
    const auto symmetric = reader_.boolean(value, where, "symmetric", true);
    const auto dynamic = dynamic_in(value, where);
    std::vector<std::string_view> names;
    for (const Strategy strategy : strategies()) names.push_back(name(strategy));
    const auto strategy = reader_.one_of(value, where, "strategy", names);
    if (!type || !bits || !symmetric || !dynamic || !strategy) return std::nullopt;
    Arguments arguments{.symmetric = *symmetric, .dynamic = *dynamic, .strategy = strategies()[*strategy]};
    const auto code = std::find_if(std::begin(kCodes), std::end(kCodes),
                                   [&](const CodeName& c) { return c.type == kTypes[*type] && c.bits == *bits; });
    if (code == std::end(kCodes)) {
      reader_.problem("{}: num_bits is {}, kvant supports 8 and 4", where, *bits);
      return std::nullopt;
    }
    arguments.code = code->code;
    const bool groups = arguments.strategy == Strategy::group || arguments.strategy == Strategy::tensor_group;
    if (groups) {
      const auto size = reader_.integer(value, where, "group_size");
      if (!size) return std::nullopt;
      if (*size <= 0) {
        reader_.problem("{}: group_size is {}, must be positive", where, *size);
        return std::nullopt;
      }
      arguments.group_size = *size;
    }
    return arguments;
  }

  std::optional<Dynamic> dynamic_in(const io::Json& value, const std::string& where) {
    const io::Json& dynamic = reader_.at(value, "dynamic");
    if (dynamic == "local") return Dynamic::local;
    const auto flag = reader_.boolean(value, where, "dynamic", false);
    if (!flag) return std::nullopt;
    return *flag ? Dynamic::yes : Dynamic::no;
  }

  // The scales' dtype, where it is given, is that of the format.
  void check_scale_dtype(const io::Json& value, const std::string& where, std::optional<ElementKind> scale) {
    const io::Json& dtype = reader_.at(value, "scale_dtype");
    if (dtype.is_null()) return;
    if (scale && dtype == torch_name(*scale)) return;
    if (!scale && dtype.is_string()) {
      constexpr std::array<std::string_view, 3> kNumbers = {"torch.float32", "torch.float16", "torch.bfloat16"};
      if (std::find(kNumbers.begin(), kNumbers.end(), dtype.get_ref<const std::string&>()) != kNumbers.end()) return;
    }
    reader_.problem("{}: scale_dtype is {}, must be {}", where, shown(dtype),
                    scale ? fmt::format("\"{}\"", torch_name(*scale)) : std::string("null"));
  }

  bool read_weights(const io::Json& value) {
    const auto read = arguments_of(value, weights_);
    if (!read) return false;
    WeightScheme& weights = scheme_.weights;
    weights = {.code = read->code,
               .strategy = read->strategy,
               .storage = format_.storage,
               .asymmetric = !read->symmetric,
               .group_size = read->group_size,
               .scale_code = format_.scale_code};
    constexpr std::array<std::string_view, 2> kOrders = {"weight", "static"};
    if (!reader_.at(value, "actorder").is_null()) reader_.one_of(value, weights_, "actorder", kOrders);
    if (!has_code(format_, weights.code)) {
      std::vector<std::string_view> formats;
      for (const Format& format : kFormats)
        if (has_code(format, weights.code)) formats.push_back(format.name);
      const CodeName& code = name_of(weights.code);
      reader_.problem("{}: num_bits {} of type {} needs format \"{}\", but it is \"{}\"", weights_, code.bits,
                      code.type, base::joined(formats, "\" or \""), format_.name);
      return false;
    }
    check_scale_dtype(value, weights_, format_.scale_code);
    if (!fits_strategy()) {
      reader_.problem("{}: strategy is \"{}\", which format \"{}\" does not have", weights_, name(weights.strategy),
                      format_.name);
      return false;
    }
    if (read->dynamic != Dynamic::no)
      reader_.problem("{}: dynamic is {}, weights must be static", weights_, shown(dynamic_of(read->dynamic)));
    if (weights.asymmetric && weights.storage != Storage::words) {
      reader_.problem("{}: symmetric is false, but loaders accept only symmetric weights in format \"{}\"", weights_,
                      format_.name);
      weights.asymmetric = false;
    }
    return weights.strategy == Strategy::block ? read_block(value) : true;
  }

  bool fits_strategy() const {
    const WeightScheme& weights = scheme_.weights;
    if (format_.scale_code == ElementKind::e4m3) return weights.strategy == Strategy::tensor_group;
    if (format_.scale_code == ElementKind::e8m0) return weights.strategy == Strategy::group;
    if (weights.storage == Storage::words)
      return weights.strategy == Strategy::group || weights.strategy == Strategy::channel;
    return weights.strategy != Strategy::token && weights.strategy != Strategy::tensor_group;
  }

  bool read_block(const io::Json& value) {
    const io::Json& block = reader_.at(value, "block_structure");
    const auto side = [&](std::size_t i) -> std::int64_t {
      if (!block.is_array() || block.size() != 2 || !block[i].is_number_unsigned()) return 0;
      constexpr std::uint64_t kMax = 1u << 30;
      return static_cast<std::int64_t>(std::min(block[i].get<std::uint64_t>(), kMax));
    };
    scheme_.weights.block_rows = side(0);
    scheme_.weights.block_columns = side(1);
    if (side(0) > 0 && side(1) > 0) return true;
    reader_.problem("{}: block_structure is {}, must be two positive integers", weights_, shown(block));
    return false;
  }

  bool read_activations(const io::Json& value) {
    const auto read = arguments_of(value, inputs_);
    if (!read) return false;
    struct Pair {
      Strategy strategy;
      Dynamic dynamic;
    };
    constexpr Pair kPairs[] = {{Strategy::token, Dynamic::yes},
                               {Strategy::tensor, Dynamic::no},
                               {Strategy::tensor, Dynamic::yes},
                               {Strategy::group, Dynamic::yes},
                               {Strategy::tensor_group, Dynamic::local}};
    if (std::none_of(std::begin(kPairs), std::end(kPairs), [&](const Pair& pair) {
          return pair.strategy == read->strategy && pair.dynamic == read->dynamic;
        })) {
      std::vector<std::string> known;
      for (const Pair& pair : kPairs)
        known.push_back(fmt::format("\"{}\" with {}", name(pair.strategy), shown(dynamic_of(pair.dynamic))));
      reader_.problem("{}: strategy \"{}\" with dynamic {}; kvant supports {}", inputs_, name(read->strategy),
                      shown(dynamic_of(read->dynamic)), base::joined(known, ", "));
      return false;
    }
    // Powers of two where the format has them for weights, or where it is said.
    const bool powers =
        read->strategy == Strategy::group &&
        (format_.scale_code == ElementKind::e8m0 || reader_.at(value, "scale_dtype") == torch_name(ElementKind::e8m0));
    const auto scale = read->strategy == Strategy::tensor_group ? std::optional(ElementKind::e4m3)
                       : powers                                 ? std::optional(ElementKind::e8m0)
                                                                : std::nullopt;
    check_scale_dtype(value, inputs_, scale);
    if (!read->symmetric && has_float_grid(read->code))
      reader_.problem("{}: symmetric is false, must be true for type float", inputs_);
    scheme_.activations = ActivationScheme{.code = read->code,
                                           .strategy = read->strategy,
                                           .dynamic = read->dynamic,
                                           .asymmetric = !read->symmetric && !has_float_grid(read->code),
                                           .group_size = read->group_size,
                                           .scale_code = scale};
    return true;
  }

  ConfigReader& reader_;
  const io::Json& group_;
  std::string weights_, inputs_;  // where they are
  const Format& format_;
  Scheme scheme_;
};

// The format of a group: its own, or that of all.
const Format* format_of(ConfigReader& reader, const io::Json& value, const io::Json& group, const std::string& above,
                        const std::string& where) {
  std::vector<std::string_view> names;
  for (const Format& format : kFormats) names.push_back(format.name);
  const bool mixed = reader.at(value, "format") == kMixed;
  if (mixed || !reader.at(group, "format").is_null()) {
    const auto own = reader.one_of(group, where, "format", names);
    if (!own) return nullptr;
    if (!mixed)
      if (const auto all = reader.one_of(value, above, "format", names); all && *all != *own) {
        reader.problem("{}: format is \"{}\", must be \"{}\" as above", where, names[*own], names[*all]);
        return nullptr;
      }
    return &kFormats[*own];
  }
  const auto all = reader.one_of(value, above, "format", names);
  return all ? &kFormats[*all] : nullptr;
}

// The one form of keys and values that loaders take.
bool is_kv_cache(const io::Json& value) {
  if (!value.is_object()) return false;
  const io::Json wanted = kv_cache_json();
  for (const auto& [key, want] : wanted.items())
    if (const auto found = value.find(key); found == value.end() || *found != want) return false;
  return true;
}

}  // namespace

io::Json quantization_json(const QuantizationConfig& config) {
  io::Json ignored = io::Json::array();
  for (const std::string& pattern : config.ignore) ignored.push_back(pattern);
  bool mixed = false;
  for (const SchemeGroup& group : config.groups) mixed = mixed || group.scheme.format != config.groups[0].scheme.format;
  io::Json groups = io::Json::object();
  for (std::size_t i = 0; i < config.groups.size(); ++i) {
    const SchemeGroup& group = config.groups[i];
    io::Json targets = io::Json::array();
    for (const std::string& target : group.targets) targets.push_back(target);
    io::Json json = {{"targets", std::move(targets)},
                     {"weights", weights_of(group.scheme.weights)},
                     {"input_activations", activations_of(group.scheme.activations)},
                     {"output_activations", nullptr}};
    if (config.groups.size() > 1) json["format"] = group.scheme.format;
    groups[fmt::format("group_{}", i)] = std::move(json);
  }
  return {{"quant_method", kMethods.front()},
          {"format", mixed ? kMixed : config.groups[0].scheme.format},
          {"quantization_status", kStatuses.front()},
          {"ignore", ignored},
          {kKvCache, config.fp8_kv_cache ? kv_cache_json() : io::Json()},
          {"global_compression_ratio", nullptr},
          {"config_groups", std::move(groups)}};
}

std::string describe(const QuantizationConfig& config) {
  std::vector<std::string> schemes;
  for (const SchemeGroup& group : config.groups) schemes.push_back(describe(group.scheme));
  return base::joined(schemes, " and ") + (config.fp8_kv_cache ? ", FP8 keys and values" : "");
}

Result<SchemesOfModules> SchemesOfModules::of(const QuantizationConfig& config) {
  SchemesOfModules all;
  for (const SchemeGroup& from : config.groups) {
    Group group{.scheme = from.scheme, .names = {}, .patterns = {}};
    std::vector<std::string> patterns;
    for (const std::string& target : from.targets) {
      if (target == kLinearClass)
        group.all_linears = true;
      else if (target.starts_with("re:"))
        patterns.push_back(target);
      else
        group.names.insert(target);
    }
    auto parsed = Patterns::parse(patterns);
    if (!parsed.ok()) return parsed.status();
    group.patterns = std::move(parsed).value();
    all.groups_.push_back(std::move(group));
  }
  return all;
}

const Scheme* SchemesOfModules::find(std::string_view module) const {
  for (const Group& group : groups_)
    if (group.names.contains(module)) return &group.scheme;
  for (const Group& group : groups_)
    if (group.patterns.match(module) != nullptr) return &group.scheme;
  for (const Group& group : groups_)
    if (group.all_linears) return &group.scheme;
  return nullptr;
}

Result<std::optional<QuantizationConfigText>> find_quantization_config(const io::Checkpoint& checkpoint) {
  if (checkpoint.config()) {
    const auto it = checkpoint.config()->find(kKey);
    if (it != checkpoint.config()->end() && !it->is_null())
      return std::optional(
          QuantizationConfigText{fmt::format("{}: {}", printable((checkpoint.path() / io::kConfigName).string()), kKey),
                                 std::make_shared<const io::Json>(*it)});
  }
  if (checkpoint.shards().size() != 1) return std::optional<QuantizationConfigText>();
  const auto& metadata = checkpoint.shards()[0].metadata();
  const auto it = metadata.find(std::string(kKey));
  if (it == metadata.end()) return std::optional<QuantizationConfigText>();
  const std::string where =
      fmt::format("{}: {} in the metadata", printable(checkpoint.shards()[0].file().path().string()), kKey);
  auto value = io::parse_json(it->second, where);
  if (!value.ok()) return value.status();
  return std::optional(QuantizationConfigText{where, std::make_shared<const io::Json>(std::move(value).value())});
}

std::optional<QuantizationConfig> parse_quantization_config(const QuantizationConfigText& text,
                                                            std::vector<std::string>& problems) {
  constexpr std::array<std::string_view, 10> kKeys = {
      "quant_method",  "format",          "quantization_status", "ignore",  kKvCache,
      "config_groups", "sparsity_config", "transform_config",    "version", "global_compression_ratio"};
  constexpr std::array<std::string_view, 5> kGroupKeys = {"targets", "weights", "input_activations",
                                                          "output_activations", "format"};
  ConfigReader reader(problems);
  const io::Json& value = *text.value;
  if (!reader.object(value, text.where)) return std::nullopt;
  if (!reader.one_of(value, text.where, "quant_method", kMethods)) return std::nullopt;
  reader.keys(value, text.where, kKeys);
  for (const std::string_view key : {"sparsity_config", "transform_config"}) reader.nothing(value, text.where, key);
  if (!reader.at(value, "quantization_status").is_null())
    reader.one_of(value, text.where, "quantization_status", kStatuses);
  QuantizationConfig config;
  const io::Json& kv_cache = reader.at(value, kKvCache);
  config.fp8_kv_cache = is_kv_cache(kv_cache);
  if (!config.fp8_kv_cache && !kv_cache.is_null())
    reader.problem("{}: {} is {}, must be null or {}", text.where, kKvCache, shown(kv_cache), shown(kv_cache_json()));
  if (!reader.at(value, "ignore").is_null()) {
    auto ignore = reader.strings(value, text.where, "ignore");
    if (!ignore) return std::nullopt;
    config.ignore = std::move(*ignore);
  }
  const io::Json& groups = reader.at(value, "config_groups");
  if (!reader.object(groups, text.where + ".config_groups")) return std::nullopt;
  if (groups.empty()) reader.problem("{}.config_groups: has 0 groups, must have one at least", text.where);
  config.groups.clear();
  for (const auto& [key, group] : groups.items()) {
    const std::string where = fmt::format("{}.config_groups.{}", text.where, printable(key));
    if (!reader.object(group, where)) return std::nullopt;
    reader.keys(group, where, kGroupKeys);
    reader.nothing(group, where, "output_activations");
    auto targets = reader.strings(group, where, "targets");
    const Format* const format = format_of(reader, value, group, text.where, where);
    if (format == nullptr) return std::nullopt;
    const auto scheme = GroupReader(reader, group, where, *format).read();
    if (!targets || !scheme) return std::nullopt;
    config.groups.push_back({.scheme = *scheme, .targets = std::move(*targets)});
  }
  if (config.groups.empty()) return std::nullopt;
  if (const auto schemes = SchemesOfModules::of(config); !schemes.ok()) {
    reader.problem("{}: targets: {}", text.where, schemes.status().message());
    return std::nullopt;
  }
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

}  // namespace kvant::format
