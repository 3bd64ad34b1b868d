#include "format/dialects.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/dialect_readers.h"
#include "io/json.h"

namespace kvant::format {
namespace {

using base::invalid_problem;
using base::unsupported;
using io::printable;

Result<QuantizedWeights> read_compressed_tensors(const io::Checkpoint& checkpoint, const io::Json&,
                                                 const std::string&) {
  auto config = read_quantization_config(checkpoint);
  if (!config.ok()) return config.status();
  auto layers = find_quantized_layers(checkpoint, *config);
  if (!layers.ok()) return layers.status();
  QuantizedWeights weights{.description = describe(*config),
                           .layers = std::move(layers).value(),
                           .stacks = {},
                           .tensors = {},
                           .is_compressed_tensors = true,
                           .fp8_kv_cache = config->fp8_kv_cache};
  for (const QuantizedLayer& layer : weights.layers)
    for (const TensorSpec& spec : tensor_specs()) {
      std::string name = fmt::format("{}{}", layer.module, spec.suffix);
      if (checkpoint.find(name) != nullptr) weights.tensors.insert(std::move(name));
    }
  return weights;
}

struct Dialect {
  std::string_view method;
  Result<QuantizedWeights> (*read)(const io::Checkpoint& checkpoint, const io::Json& config, const std::string& where);
};
constexpr std::array<Dialect, 7> kDialects = {{{kCompressedTensors, read_compressed_tensors},
                                               {"fp8", read_deepseek},
                                               {"modelopt", read_modelopt},
                                               {"modelopt_fp4", read_modelopt},
                                               {"mxfp4", read_gpt_oss},
                                               {"gptq", read_gptq},
                                               {"awq", read_awq}}};

// hf_quant_config.json of a folder whose config.json says nothing.
Result<std::optional<QuantizationConfigText>> find_modelopt_file(const io::Checkpoint& checkpoint) {
  constexpr std::uint64_t kMost = std::uint64_t{16} << 20;
  for (const std::filesystem::path& path : checkpoint.other_files()) {
    if (path.filename() != kModelOptName) continue;
    const auto text = io::read_text(path, kMost);
    if (!text.ok()) return text.status();
    const std::string where = io::printable_path(path);
    auto value = io::parse_json(*text, where);
    if (!value.ok()) return value.status();
    if (!value->is_object()) return invalid_problem("{}: must hold an object", where);
    (*value)["quant_method"] = "modelopt";
    return std::optional(QuantizationConfigText{where, std::make_shared<const io::Json>(std::move(value).value())});
  }
  return std::optional<QuantizationConfigText>();
}

}  // namespace

bool is_quantization_file(std::string_view name) {
  // GPTQ's and AWQ's tools write the latter two.
  return name == kModelOptName || name == "quantize_config.json" || name == "quant_config.json";
}

std::string method_of(const QuantizationConfigText& text) {
  const io::Json& value = *text.value;
  if (!value.is_object()) return {};
  const auto method = value.find("quant_method");
  return method != value.end() && method->is_string() ? method->get<std::string>() : std::string();
}

Result<std::optional<QuantizedWeights>> find_quantized_weights(const io::Checkpoint& checkpoint) {
  auto text = find_quantization_config(checkpoint);
  if (!text.ok()) return text.status();
  if (!*text) text = find_modelopt_file(checkpoint);
  if (!text.ok()) return text.status();
  if (!*text) return std::optional<QuantizedWeights>();
  const std::string method = method_of(**text);
  const auto* const dialect =
      std::find_if(kDialects.begin(), kDialects.end(), [&](const Dialect& d) { return d.method == method; });
  if (dialect == kDialects.end()) {
    std::vector<std::string_view> names;
    for (const Dialect& known : kDialects) names.push_back(known.method);
    return unsupported(
        "{}: is already quantized: quant_method is \"{}\", and kvant reads {}; give the original checkpoint",
        (*text)->where, printable(method), base::joined(names, ", "));
  }
  auto found = dialect->read(checkpoint, *(*text)->value, (*text)->where);
  if (!found.ok()) return found.status();
  return std::optional(std::move(found).value());
}

Result<io::TensorPlace> part_of(const io::Checkpoint& checkpoint, const std::string& name,
                                std::initializer_list<io::DType> dtypes,
                                std::initializer_list<std::vector<std::uint64_t>> shapes) {
  const auto found = checkpoint.tensors().find(name);
  if (found == checkpoint.tensors().end())
    return invalid_problem("{}: tensor '{}' is missing, which the layer's codes need",
                           printable(checkpoint.path().string()), printable(name));
  const io::TensorInfo& info = checkpoint.at(found->second);
  if (std::find(dtypes.begin(), dtypes.end(), info.dtype) != dtypes.end() &&
      std::find(shapes.begin(), shapes.end(), info.shape) != shapes.end())
    return found->second;
  std::vector<std::string> wanted;
  for (const io::DType dtype : dtypes) wanted.emplace_back(io::name(dtype));
  std::vector<std::string> sizes;
  for (const auto& shape : shapes) sizes.push_back(base::bracketed(shape));
  return invalid_problem("{}: tensor '{}' is {} {}, must be {} {}",
                         printable(checkpoint.shard_name(found->second.shard)), printable(name), io::name(info.dtype),
                         base::bracketed(info.shape), base::joined(wanted, " or "), base::joined(sizes, " or "));
}

const Scheme& scheme_of_table(std::string_view name) {
  const auto rows = schemes();
  return std::find_if(rows.begin(), rows.end(), [&](const SchemeRow& row) { return row.name == name; })->scheme;
}

}  // namespace kvant::format
