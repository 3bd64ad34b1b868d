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

// ---- What the rows of the schemes say ------------------------------------------------------------------------------

constexpr std::array<std::string_view, 1> kMethods = {"compressed-tensors"};
constexpr std::array<std::string_view, 1> kStatuses = {"compressed"};
constexpr std::array kStrategies = {Strategy::tensor, Strategy::channel, Strategy::group, Strategy::token};

std::string_view type_of(ElementKind code) { return is_code(code) ? "int" : "float"; }

// What the rows have, each once, in their order.
template <class Value>
auto each_of(std::span<const SchemeSpec* const> rows, Value value) {
  std::vector<decltype(value(*rows[0]))> values;
  for (const SchemeSpec* row : rows)
    if (std::find(values.begin(), values.end(), value(*row)) == values.end()) values.push_back(value(*row));
  return values;
}

using Rows = std::vector<const SchemeSpec*>;

Rows all_rows() {
  Rows rows;
  for (const SchemeSpec& spec : schemes()) rows.push_back(&spec);
  return rows;
}

std::vector<std::string_view> formats() {
  return each_of(all_rows(), [](const SchemeSpec& row) { return row.format; });
}

template <class Predicate>
Rows filtered(const Rows& rows, Predicate fits) {
  Rows kept;
  for (const SchemeSpec* row : rows)
    if (fits(*row)) kept.push_back(row);
  return kept;
}

// ---- Writing --------------------------------------------------------------------------------------------------------

io::Json arguments(ElementKind code, bool symmetric, Strategy strategy, bool dynamic) {
  return {{"num_bits", bits_per_element(code)},
          {"type", type_of(code)},
          {"symmetric", symmetric},
          {"strategy", name(strategy)},
          {"dynamic", dynamic}};
}

io::Json weights_of(const Scheme& scheme) {
  const WeightSpec& weights = scheme.spec().weights;
  io::Json json = arguments(weights.code, !scheme.has_asymmetric_weights(), weights.strategy, false);
  if (scheme.spec().has_groups()) json["group_size"] = scheme.group_size;
  return json;
}

io::Json activations_of(const Scheme& scheme) {
  const auto& activations = scheme.spec().activations;
  if (!activations) return nullptr;
  return arguments(activations->code, !scheme.has_asymmetric_activations(), activations->strategy,
                   activations->dynamic);
}

// ---- Reading --------------------------------------------------------------------------------------------------------

// "weights" or "input_activations" of a group.
struct Arguments {
  std::int64_t bits = 0;
  bool symmetric = true;
  bool dynamic = false;
  Strategy strategy = Strategy::tensor;
};

std::optional<Arguments> arguments_of(ConfigReader& reader, const io::Json& value, const std::string& where) {
  constexpr std::array<std::string_view, 12> kKeys = {
      "num_bits",        "type",     "symmetric", "strategy",        "dynamic",     "group_size",
      "block_structure", "actorder", "observer",  "observer_kwargs", "scale_dtype", "zp_dtype"};
  if (!reader.object(value, where)) return std::nullopt;
  reader.keys(value, where, kKeys);
  reader.nothing(value, where, "block_structure");
  reader.nothing(value, where, "actorder");
  reader.one_of(value, where, "type",
                each_of(all_rows(), [](const SchemeSpec& row) { return type_of(row.weights.code); }));
  const auto bits = reader.integer(value, where, "num_bits");
  const auto symmetric = reader.boolean(value, where, "symmetric", true);
  const auto dynamic = reader.boolean(value, where, "dynamic", false);
  std::array<std::string_view, kStrategies.size()> names;
  std::transform(kStrategies.begin(), kStrategies.end(), names.begin(), [](Strategy s) { return name(s); });
  const auto strategy = reader.one_of(value, where, "strategy", names);
  if (!bits || !symmetric || !dynamic || !strategy) return std::nullopt;
  return Arguments{*bits, *symmetric, *dynamic, kStrategies[*strategy]};
}

// The row that a group of config.json is of: those that its weights fit, and of them the one that its activations fit.
class SchemeFinder {
 public:
  SchemeFinder(ConfigReader& reader, const io::Json& group, const std::string& where, std::string_view format)
      : reader_(reader),
        group_(group),
        weights_(where + ".weights"),
        inputs_(where + ".input_activations"),
        format_(format) {}

  std::optional<Scheme> find() {
    if (!find_weights()) return std::nullopt;
    const io::Json& inputs = reader_.at(group_, "input_activations");
    const Rows plain = filtered(rows_, [](const SchemeSpec& row) { return !row.activations; });
    if (!plain.empty() && (inputs.is_null() || plain.size() == rows_.size())) {
      if (!inputs.is_null())
        reader_.problem("{}: is {}, must be null for {}-bit weights", inputs_, shown(inputs), bits_);
      scheme_.kind = plain.front()->kind;
    } else if (!find_activations(inputs)) {
      return std::nullopt;
    }
    return scheme_;
  }

 private:
  bool find_weights() {
    const io::Json& value = reader_.at(group_, "weights");
    const auto weights = arguments_of(reader_, value, weights_);
    if (!weights) return false;
    bits_ = weights->bits;
    const auto bits_of = [](const SchemeSpec& row) { return bits_per_element(row.weights.code); };
    rows_ = filtered(all_rows(), [&](const SchemeSpec& row) { return bits_of(row) == weights->bits; });
    if (rows_.empty()) {
      reader_.problem("{}: num_bits is {}, kvant supports {}", weights_, weights->bits,
                      base::joined(each_of(all_rows(), bits_of), " and "));
      return false;
    }
    const Rows of_format = filtered(rows_, [&](const SchemeSpec& row) { return row.format == format_; });
    if (of_format.empty())
      reader_.problem("{}: num_bits {} needs format \"{}\", but it is \"{}\"", weights_, weights->bits,
                      base::joined(each_of(rows_, [](const SchemeSpec& row) { return row.format; }), "\" or \""),
                      format_);
    else
      rows_ = of_format;
    const auto strategies = each_of(rows_, [](const SchemeSpec& row) { return name(row.weights.strategy); });
    rows_ = filtered(rows_, [&](const SchemeSpec& row) { return row.weights.strategy == weights->strategy; });
    if (rows_.empty()) {
      reader_.problem("{}: strategy is \"{}\", kvant supports \"{}\" for {} bits", weights_, name(weights->strategy),
                      base::joined(strategies, "\" or \""), weights->bits);
      return false;
    }
    if (weights->dynamic) reader_.problem("{}: dynamic is true, weights must be static", weights_);
    if (weights->strategy == Strategy::group && !find_group_size(value)) return false;
    if (weights->symmetric) return true;
    const Rows asymmetric = filtered(rows_, [](const SchemeSpec& row) { return row.weights.takes_asymmetric; });
    if (asymmetric.empty()) {
      reader_.problem("{}: symmetric is false, but vLLM accepts only symmetric {}-bit weights", weights_,
                      weights->bits);
    } else {
      rows_ = asymmetric;
      scheme_.asymmetric = true;
    }
    return true;
  }

  bool find_group_size(const io::Json& weights) {
    const auto size = reader_.integer(weights, weights_, "group_size");
    if (!size) return false;
    if (*size <= 0) {
      reader_.problem("{}: group_size is {}, must be positive", weights_, *size);
      return false;
    }
    scheme_.group_size = *size;
    return true;
  }

  bool find_activations(const io::Json& value) {
    const auto inputs = arguments_of(reader_, value, inputs_);
    if (!inputs) return false;
    rows_ = filtered(rows_, [](const SchemeSpec& row) { return row.activations.has_value(); });
    const auto bits = each_of(rows_, [](const SchemeSpec& row) { return bits_per_element(row.activations->code); });
    if (std::find(bits.begin(), bits.end(), inputs->bits) == bits.end())
      reader_.problem("{}: num_bits is {}, must be {}", inputs_, inputs->bits, base::joined(bits, " or "));
    const auto known = each_of(rows_, [](const SchemeSpec& row) {
      return fmt::format("\"{}\" with {}", name(row.activations->strategy), row.activations->dynamic);
    });
    rows_ = filtered(rows_, [&](const SchemeSpec& row) {
      return row.activations->strategy == inputs->strategy && row.activations->dynamic == inputs->dynamic;
    });
    if (rows_.empty()) {
      reader_.problem("{}: strategy \"{}\" with dynamic {}; kvant supports {}", inputs_, name(inputs->strategy),
                      inputs->dynamic, base::joined(known, " and "));
      return false;
    }
    scheme_.kind = rows_.front()->kind;
    if (inputs->symmetric) return true;
    if (rows_.front()->activations->takes_asymmetric)
      scheme_.asymmetric = true;
    else
      reader_.problem("{}: symmetric is false, must be true for {} activations", inputs_,
                      inputs->dynamic ? "dynamic" : "static");
    return true;
  }

  ConfigReader& reader_;
  const io::Json& group_;
  std::string weights_, inputs_;  // where they are
  std::string_view format_;
  std::int64_t bits_ = 0;  // of weights
  Rows rows_;              // that fit what was read so far
  Scheme scheme_;
};

}  // namespace

io::Json quantization_config(const Scheme& scheme, std::span<const std::string> ignore) {
  io::Json ignored = io::Json::array();
  for (const std::string& pattern : ignore) ignored.push_back(pattern);
  return {{"quant_method", kMethods.front()},
          {"format", scheme.spec().format},
          {"quantization_status", kStatuses.front()},
          {"ignore", ignored},
          {"kv_cache_scheme", nullptr},
          {"global_compression_ratio", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", io::Json::array({kLinearClass})},
              {"weights", weights_of(scheme)},
              {"input_activations", activations_of(scheme)},
              {"output_activations", nullptr}}}}}};
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
      "quant_method",  "format",          "quantization_status", "ignore",  "kv_cache_scheme",
      "config_groups", "sparsity_config", "transform_config",    "version", "global_compression_ratio"};
  constexpr std::array<std::string_view, 5> kGroupKeys = {"targets", "weights", "input_activations",
                                                          "output_activations", "format"};
  ConfigReader reader(problems);
  const io::Json& value = *text.value;
  if (!reader.object(value, text.where)) return std::nullopt;
  if (!reader.one_of(value, text.where, "quant_method", kMethods)) return std::nullopt;
  reader.keys(value, text.where, kKeys);
  for (const std::string_view key : {"kv_cache_scheme", "sparsity_config", "transform_config"})
    reader.nothing(value, text.where, key);
  if (!reader.at(value, "quantization_status").is_null())
    reader.one_of(value, text.where, "quantization_status", kStatuses);
  const auto format = reader.one_of(value, text.where, "format", formats());
  QuantizationConfig config;
  if (!reader.at(value, "ignore").is_null()) {
    auto ignore = reader.strings(value, text.where, "ignore");
    if (!ignore) return std::nullopt;
    config.ignore = std::move(*ignore);
  }
  const io::Json& groups = reader.at(value, "config_groups");
  if (!reader.object(groups, text.where + ".config_groups") || !format) return std::nullopt;
  if (groups.size() != 1) {
    reader.problem("{}.config_groups: has {} groups, kvant supports one", text.where, groups.size());
    return std::nullopt;
  }
  const io::Json& group = groups.begin().value();
  const std::string where = fmt::format("{}.config_groups.{}", text.where, printable(groups.begin().key()));
  if (!reader.object(group, where)) return std::nullopt;
  reader.keys(group, where, kGroupKeys);
  reader.nothing(group, where, "output_activations");
  const auto& format_text = value["format"].get_ref<const std::string&>();
  if (!reader.at(group, "format").is_null())
    reader.one_of(group, where, "format", std::array<std::string_view, 1>{format_text});
  auto targets = reader.strings(group, where, "targets");
  const auto scheme = SchemeFinder(reader, group, where, format_text).find();
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

}  // namespace kvant::format
