#include "quantize/manifest.h"

#include <filesystem>

#include "base/refuse.h"
#include "format/dialects.h"
#include "io/fingerprint.h"
#include "io/json.h"
#include "kvant/version.h"

namespace kvant::quantize {

io::Json options_json(const QuantizeOptions& options) {
  const format::Scheme& scheme = options.scheme;
  io::Json json = {{"scheme", format::describe(scheme)},
                   {"scale_dtype", scheme.scale_dtype ? io::Json(io::name(*scheme.scale_dtype)) : io::Json()},
                   {"scale", format::name(scheme.scale_choice)},
                   {"fits_group_size", options.fits_group_size},
                   {"overrides", io::Json::array()},
                   {"gptq", options.feedback ? io::Json{{"damping", options.feedback->damping},
                                                        {"by_size", options.feedback->by_size}}
                                             : io::Json()},
                   {"activation_range", options.activation_range == ActivationRange::mse ? "mse" : "minmax"},
                   {"least_input_db", options.least_input_db ? io::Json(*options.least_input_db) : io::Json()},
                   {"kv_fp8", options.fp8_kv_cache},
                   {"smooth", options.smooth},
                   {"alpha", options.alpha ? io::Json(*options.alpha) : io::Json()},
                   {"smooth_groups", options.smooth_groups ? io::json_name(*options.smooth_groups) : io::Json()},
                   {"ignore", io::Json::array()},
                   {"include", io::Json::array()}};
  if (options.conversion)
    json["to"] = options.conversion->values ? io::name(*options.conversion->values) : format::kCompressedTensors;
  for (const SchemeOverride& override : options.overrides)
    json["overrides"].push_back(
        {{"pattern", io::json_name(override.pattern)},
         {"scheme", override.scheme ? format::describe(*override.scheme) : "none"},
         {"scale", override.scheme ? io::Json(format::name(override.scheme->scale_choice)) : io::Json()}});
  for (const std::string& pattern : options.ignore) json["ignore"].push_back(io::json_name(pattern));
  for (const std::string& pattern : options.include) json["include"].push_back(io::json_name(pattern));
  return json;
}

namespace {

io::Json manifest_of(const io::Json& options, const io::Json& files, std::span<const std::string> outputs) {
  io::Json names = io::Json::array();
  for (const std::string& name : outputs) names.push_back(io::json_name(name));
  return {{"format", "kvant-manifest-1"},
          {"kvant", KVANT_VERSION},
          {"options", options},
          {"input", files},
          {"outputs", names}};
}

std::string shortened(const io::Json& value) { return value.dump(-1, ' ', true).substr(0, 80); }

}  // namespace

Result<io::Json> make_manifest(const io::Checkpoint& checkpoint, const QuantizeOptions& options,
                               std::span<const std::string> outputs) {
  auto files = io::fingerprints(checkpoint);
  if (!files.ok()) return files;
  const auto add = [&](const std::filesystem::path& path) -> Status {
    const auto made = io::fingerprint(path);
    if (!made.ok()) return made.status();
    files->push_back(*made);
    return {};
  };
  if (options.stats)
    if (Status s = add(*options.stats); !s.ok()) return s;
  std::error_code ignored;
  if (options.smooth_groups && std::filesystem::is_regular_file(*options.smooth_groups, ignored))
    if (Status s = add(*options.smooth_groups); !s.ok()) return s;
  return manifest_of(options_json(options), *files, outputs);
}

Result<io::Json> make_manifest(const io::InputFile& input, const io::Json& options,
                               std::span<const std::string> outputs) {
  const auto made = io::fingerprint(input);
  if (!made.ok()) return made.status();
  return manifest_of(options, io::Json::array({*made}), outputs);
}

std::string manifest_difference(const io::Json& before, const io::Json& now) {
  if (before == now) return {};
  const auto at = [](const io::Json& object, std::string_view key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found == object.end() ? io::Json() : *found;
  };
  if (at(before, "kvant") != at(now, "kvant"))
    return fmt::format("it was started by version {} of kvant, this is {}", shortened(at(before, "kvant")),
                       shortened(at(now, "kvant")));
  const io::Json options = at(now, "options");
  for (const auto& [key, value] : options.items())
    if (at(at(before, "options"), key) != value)
      return fmt::format("{} was {} and is now {}", key, shortened(at(at(before, "options"), key)), shortened(value));
  const io::Json files_before = at(before, "input"), files = at(now, "input");
  if (!files_before.is_array() || files_before.size() != files.size()) return "the files of the input are not the same";
  for (std::size_t i = 0; i < files.size(); ++i)
    if (files_before[i] != files[i])
      return fmt::format("the input file {} has changed", shortened(at(files[i], "name")));
  return "its manifest differs";
}

}  // namespace kvant::quantize
