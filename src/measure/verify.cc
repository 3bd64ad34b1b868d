#include "measure/verify.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "format/compressed_tensors.h"
#include "format/dialects.h"
#include "format/element_dtype.h"
#include "format/kv_cache.h"
#include "format/module_name.h"
#include "format/patterns.h"
#include "format/quantization_config.h"
#include "format/quantized_layers.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "kvant/stream.h"
#include "measure/file_contents.h"
#include "measure/network_shapes.h"
#include "model/families.h"
#include "model/model_facts.h"
#include "model/roles.h"
#include "quantize/output_folder.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using io::printable;

constexpr std::string_view kResume = "continue it with `kvant quantize --resume`";
// Beyond it nobody reads on, and a damaged checkpoint can have a million.
constexpr std::size_t kMaxProblems = 1000;
constexpr std::uint64_t kScalesAtOnce = std::uint64_t{1} << 16;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

void find_partials(const fs::path& folder, std::vector<std::string>& problems) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().ends_with(io::kPartialSuffix)) found.push_back(it->path());
  std::sort(found.begin(), found.end());
  for (const fs::path& path : found)
    problems.push_back(fmt::format("{}: a temporary file of a run that did not finish; {}, or remove the file",
                                   io::printable_path(path), kResume));
}

// What a run that was killed leaves.
void check_leftovers(const fs::path& path, std::vector<std::string>& problems) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const fs::path partial = io::partial_of(path);
    if (is_there(partial))
      problems.push_back(fmt::format("{}: a temporary file of a run that did not finish; {}, or remove the file",
                                     io::printable_path(partial), kResume));
    return;
  }
  find_partials(path, problems);
  if (is_there(path / quantize::own_name(quantize::kManifestName)) && !is_there(path / io::kConfigName))
    problems.push_back(fmt::format("{}: has kvant/manifest.json and no config.json: quantizing did not finish; {}",
                                   io::printable_path(path), kResume));
}

void check_index(const io::Checkpoint& checkpoint, std::vector<std::string>& problems) {
  const io::Json& index = *checkpoint.index();
  const std::string where = io::printable_path(checkpoint.path() / io::kIndexName);
  std::uint64_t bytes = 0;
  bool has_single = false;
  for (std::size_t i = 0; i < checkpoint.shards().size(); ++i) {
    has_single = has_single || checkpoint.shard_name(i) == io::kSingleName;
    for (const io::TensorInfo& tensor : checkpoint.shards()[i].tensors()) bytes += tensor.bytes();
  }
  const auto metadata = index.find("metadata");
  const bool there = metadata != index.end() && metadata->is_object() && metadata->contains("total_size");
  if (!there)
    problems.push_back(fmt::format("{}: has no \"metadata\" with \"total_size\", must be {}", where, bytes));
  else if (const io::Json& total = (*metadata)["total_size"];
           !total.is_number_unsigned() || total.get<std::uint64_t>() != bytes)
    problems.push_back(fmt::format("{}: total_size is {}, the tensors have {} bytes", where,
                                   printable(total.dump(-1, ' ', true)), bytes));
  if (!has_single && is_there(checkpoint.path() / io::kSingleName))
    problems.push_back(
        fmt::format("{}: is next to an index that does not list it, and loaders would read it instead; "
                    "remove it",
                    io::printable_path(checkpoint.path() / io::kSingleName)));
}

// `ignore` or `targets`: exact names, patterns, or the class of the module.
class ModuleList {
 public:
  static std::optional<ModuleList> parse(std::span<const std::string> entries, std::string_view what,
                                         std::vector<std::string>& problems) {
    auto patterns = format::Patterns::parse(entries);
    if (!patterns.ok()) {
      problems.push_back(fmt::format("{}: {}", what, patterns.status().message()));
      return std::nullopt;
    }
    ModuleList list(std::move(patterns).value());
    list.all_linears_ = std::find(entries.begin(), entries.end(), format::kLinearClass) != entries.end();
    return list;
  }

  bool has_linear(std::string_view module) const { return all_linears_ || patterns_.match(module) != nullptr; }

 private:
  explicit ModuleList(format::Patterns patterns) : patterns_(std::move(patterns)) {}
  format::Patterns patterns_;
  bool all_linears_ = false;
};

struct Modules {
  std::set<std::string, std::less<>> quantized;           // also those whose tensors are not right
  std::map<std::string, std::string, std::less<>> plain;  // Linears that are not quantized, with their shards
};

Modules find_modules(const io::Checkpoint& checkpoint) {
  Modules modules;
  const std::string model_type = model::facts_of(checkpoint).model_type;
  for (const auto& [name, place] : checkpoint.tensors()) {
    const io::TensorInfo& info = checkpoint.at(place);
    if (const auto module = format::module_of_codes(info)) {
      modules.quantized.emplace(*module);
    } else if (model::is_linear_module(model::judge(info, model_type).role)) {
      modules.plain.emplace(format::module_of(name), checkpoint.shard_name(place.shard));
    }
  }
  for (const std::string& module : modules.quantized) modules.plain.erase(module);
  return modules;
}

// A Linear is quantized exactly where a loader expects it to be.
void check_lists(const format::QuantizationConfigText& text, const format::QuantizationConfig& config,
                 const Modules& modules, std::vector<std::string>& problems) {
  const auto ignore = ModuleList::parse(config.ignore, text.where + ".ignore", problems);
  const auto schemes = format::SchemesOfModules::of(config);
  if (!ignore || !schemes.ok()) return;
  for (const auto& [module, shard] : modules.plain)
    if (schemes->find(module) != nullptr && !ignore->has_linear(module))
      problems.push_back(
          fmt::format("{}: '{}' is a Linear that is not quantized and not in ignore ({}): loaders expect it quantized; "
                      "add it to ignore",
                      printable(shard), printable(module), text.where));
  for (const std::string& module : modules.quantized) {
    if (ignore->has_linear(module))
      problems.push_back(
          fmt::format("{}: ignore lists '{}', which is quantized: loaders expect its plain weight; take "
                      "it out of ignore",
                      text.where, printable(module)));
  }
}

void check_fused(const Modules& modules, std::vector<std::string>& problems) {
  std::set<std::string> done;
  for (const std::string& module : modules.quantized)
    for (const std::string& sibling : model::fused_siblings(module))
      if (const auto plain = modules.plain.find(sibling); plain != modules.plain.end() && done.insert(sibling).second)
        problems.push_back(
            fmt::format("{}: '{}' is not quantized and '{}' is, but loaders fuse them into one layer with one scheme; "
                        "quantize both or neither",
                        printable(plain->second), printable(sibling), printable(module)));
}

// The first scale of a tensor that is not finite and positive.
Status check_scales(const io::Checkpoint& checkpoint, const io::TensorPlace& place, std::vector<std::string>& problems,
                    base::Progress& progress) {
  const io::TensorInfo& info = checkpoint.at(place);
  const std::uint64_t count = info.bytes() / (static_cast<std::uint64_t>(io::bits(info.dtype)) / 8);
  std::vector<std::byte> bytes;
  std::vector<float> scales(static_cast<std::size_t>(std::min(count, kScalesAtOnce)));
  std::uint64_t bad = 0, first_bad = 0;
  float bad_scale = 0;
  for (std::uint64_t first = 0; first < count; first += kScalesAtOnce) {
    const auto n = static_cast<std::size_t>(std::min(kScalesAtOnce, count - first));
    if (Status s = format::read_scales(checkpoint, place, first, std::span(scales).first(n), bytes); !s.ok()) return s;
    for (std::size_t i = 0; i < n; ++i) {
      if (scales[i] > 0 && std::isfinite(scales[i])) continue;
      if (bad++ != 0) continue;
      first_bad = first + i;
      bad_scale = scales[i];
    }
    progress.advance(n * static_cast<std::uint64_t>(io::bits(info.dtype)) / 8);
  }
  if (bad == 0) return {};
  problems.push_back(fmt::format(
      "{}: tensor '{}' has {} of {} scales that are not finite and positive, the first is element {}: {}; quantize the "
      "checkpoint again",
      printable(checkpoint.shard_name(place.shard)), printable(info.name), bad, count, first_bad, bad_scale));
  return {};
}

Status check_all_scales(const io::Checkpoint& checkpoint, const std::vector<format::QuantizedLayer>& layers,
                        const Stream& stream, Verification& verification, base::Progress& progress) {
  std::vector<io::TensorPlace> places;
  std::uint64_t bytes = 0;
  for (const format::QuantizedLayer& layer : layers) {
    places.push_back(layer.scales);
    for (const auto& place : {layer.input_scale, layer.input_global_scale})
      if (place) places.push_back(*place);
  }
  for (const io::TensorPlace& place : places) bytes += checkpoint.at(place).bytes();
  progress.begin("reading scales", bytes);
  std::vector<std::vector<std::string>> problems(places.size());
  Status done = base::for_each_part(stream, 0, places.size(), [&](std::size_t, std::uint64_t i) {
    return check_scales(checkpoint, places[i], problems[i], progress);
  });
  if (!done.ok()) return done;
  for (std::vector<std::string>& of_one : problems)
    for (std::string& sentence : of_one) verification.problems.push_back(std::move(sentence));
  verification.checks.push_back(fmt::format("scales of {} layers", layers.size()));
  return {};
}

// Layers of attention whose keys and values loaders expect scales of: all, in models that kvant knows to be read so.
// Elsewhere (a model that sees pictures has layers of that name without a cache) those that have one of the two.
std::set<std::string, std::less<>> cached_attentions(const io::Checkpoint& checkpoint) {
  const bool all = model::against_cache_scales(model::facts_of(checkpoint).model_type).empty();
  std::set<std::string, std::less<>> attentions;
  for (const auto& [name, place] : checkpoint.tensors()) {
    if (const auto scale = format::cache_scale_of(name)) attentions.emplace(scale->attention);
    if (const std::string_view attention = format::cached_attention_of(name); all && !attention.empty())
      attentions.emplace(attention);
  }
  return attentions;
}

// FP8 keys and values have both scales in every layer of attention, and others have none.
Status check_cache_scales(const io::Checkpoint& checkpoint, const std::string& where, bool fp8_kv_cache,
                          Verification& verification, base::Progress& progress) {
  std::vector<std::string>& problems = verification.problems;
  if (!fp8_kv_cache) {
    for (const auto& [name, place] : checkpoint.tensors())
      if (format::cache_scale_of(name))
        problems.push_back(
            fmt::format("{}: tensor '{}' is a scale of FP8 keys or values, which {} does not speak of: loaders have no "
                        "place for it",
                        printable(checkpoint.shard_name(place.shard)), printable(name), where));
    return {};
  }
  const std::set<std::string, std::less<>> attentions = cached_attentions(checkpoint);
  if (attentions.empty())
    problems.push_back(fmt::format("{}: keys and values are FP8, but no layer of attention has scales of them", where));
  for (const std::string& attention : attentions)
    for (const format::CacheHalf half : format::kCacheHalves) {
      const io::TensorPlace* const place = format::find_cache_scale(checkpoint, attention, half);
      if (place == nullptr) {
        problems.push_back(
            fmt::format("{}: keys and values are FP8, but there is no tensor '{}': loaders would take 1; "
                        "quantize the checkpoint again with --kv-fp8",
                        where, printable(format::cache_scale_name(attention, half))));
        continue;
      }
      const io::TensorInfo& info = checkpoint.at(*place);
      const bool is_one = info.shape.empty() || info.shape == std::vector<std::uint64_t>{1};
      if (!is_one || !format::is_scale_dtype(info.dtype)) {
        problems.push_back(fmt::format("{}: tensor '{}' is {} {}, must be F32, F16 or BF16 [1]",
                                       printable(checkpoint.shard_name(place->shard)), printable(info.name),
                                       io::name(info.dtype), base::bracketed(info.shape)));
        continue;
      }
      if (Status s = check_scales(checkpoint, *place, problems, progress); !s.ok()) return s;
    }
  verification.checks.push_back(fmt::format("scales of keys and values of {} attention layers", attentions.size()));
  return {};
}

// Codes in another dialect than kvant's own: its tensors must agree, and its scales must be numbers.
Status check_dialect(const io::Checkpoint& checkpoint, const Stream& stream, Verification& verification,
                     base::Progress& progress) {
  std::vector<std::string>& problems = verification.problems;
  const auto found = format::find_quantized_weights(checkpoint);
  if (!found.ok()) {
    if (found.status().code() == StatusCode::Internal) return found.status();
    problems.emplace_back(found.status().message());
    return {};
  }
  const format::QuantizedWeights& weights = **found;
  verification.checks.push_back(fmt::format("quantization_config: {}", weights.description));
  std::vector<format::QuantizedLayer> layers = weights.layers;
  for (const format::QuantizedStack& stack : weights.stacks) layers.push_back(stack.layer);
  if (layers.empty())
    problems.push_back(fmt::format("{}: says {}, but no Linear is quantized", io::printable_path(checkpoint.path()),
                                   weights.description));
  verification.checks.push_back(fmt::format("shapes and dtypes of {} layers", layers.size()));
  if (Status s = check_all_scales(checkpoint, layers, stream, verification, progress); !s.ok()) {
    if (s.code() == StatusCode::Internal) return s;
    problems.emplace_back(s.message());
  }
  if (Status s = check_cache_scales(checkpoint, weights.description, weights.fp8_kv_cache, verification, progress);
      !s.ok())
    return s;
  check_network_shapes(checkpoint, weights.layers, verification);
  verification.not_checked.emplace_back(
      "which Linears a loader expects to be quantized: that is for kvant's own layout");
  verification.not_checked.emplace_back(
      "values of the weights against the original: 'kvant compare ORIGINAL QUANTIZED' does that");
  return {};
}

// A config.json that is a model's, and not only what kvant adds, names the model.
void check_model_type(const io::Checkpoint& checkpoint, std::vector<std::string>& problems) {
  const io::Json* const config = checkpoint.config();
  if (config == nullptr || config->size() < 2) return;
  if (const auto type = config->find("model_type"); type == config->end() || !type->is_string())
    problems.push_back(fmt::format("{}: has no \"model_type\", without which loaders do not know the model",
                                   io::printable_path(checkpoint.path() / io::kConfigName)));
}

// The configuration of a quantized checkpoint, and every tensor that it speaks of.
Status check_quantized(const io::Checkpoint& checkpoint, const format::QuantizationConfigText& text,
                       const Stream& stream, Verification& verification, base::Progress& progress) {
  std::vector<std::string>& problems = verification.problems;
  for (std::size_t i = 0; i < checkpoint.shards().size(); ++i) {
    const auto& metadata = checkpoint.shards()[i].metadata();
    const auto format = metadata.find("format");
    if (format == metadata.end() || format->second != "pt")
      problems.push_back(fmt::format("{}: its metadata does not say \"format\": \"pt\", which loaders ask for",
                                     printable(checkpoint.shard_name(i))));
  }
  const auto config = format::parse_quantization_config(text, problems);
  verification.checks.push_back(config ? fmt::format("quantization_config: {}", format::describe(*config))
                                       : std::string("quantization_config"));
  if (!config) return {};
  const std::vector<format::QuantizedLayer> layers = format::find_quantized_layers(checkpoint, *config, problems);
  const Modules modules = find_modules(checkpoint);
  if (modules.quantized.empty())
    problems.push_back(fmt::format("{}: says {}, but no Linear is quantized", text.where, format::describe(*config)));
  verification.checks.push_back(fmt::format("shapes and dtypes of {} layers", modules.quantized.size()));
  if (Status s = check_all_scales(checkpoint, layers, stream, verification, progress); !s.ok()) {
    if (s.code() == StatusCode::Internal) return s;
    problems.emplace_back(s.message());
  }
  check_lists(text, *config, modules, problems);
  verification.checks.push_back(fmt::format("ignore list against {} unquantized Linear{}", modules.plain.size(),
                                            modules.plain.size() == 1 ? "" : "s"));
  if (Status s = check_cache_scales(checkpoint, text.where, config->fp8_kv_cache, verification, progress); !s.ok())
    return s;
  check_fused(modules, problems);
  verification.checks.emplace_back("fused layers under one scheme");
  check_model_type(checkpoint, problems);
  check_network_shapes(checkpoint, layers, verification);
  verification.not_checked.emplace_back(
      "values of the weights against the original: 'kvant compare ORIGINAL QUANTIZED' does that");
  return {};
}

void limit(std::vector<std::string>& problems) {
  if (problems.size() <= kMaxProblems) return;
  const std::size_t more = problems.size() - kMaxProblems;
  problems.resize(kMaxProblems);
  problems.push_back(fmt::format("and {} more", more));
}

}  // namespace

Result<Verification> verify(const fs::path& path, int threads, base::Progress& progress) {
  const Stream stream = threads == 0 ? Stream::cpu() : Stream::cpu(threads);
  if (!stream.status().ok()) return stream.status();
  Verification verification;
  std::vector<std::string>& problems = verification.problems;
  check_leftovers(path, problems);
  verification.checks.emplace_back("no temporary files");
  if (is_there(path))
    if (Status s = check_file_contents(path, stream, verification, progress); !s.ok()) return s;
  const auto checkpoint = io::Checkpoint::open(path);
  if (!checkpoint.ok()) {
    if (checkpoint.status().code() == StatusCode::Internal) return checkpoint.status();
    problems.emplace_back(checkpoint.status().message());
    limit(problems);
    return verification;
  }
  verification.checks.push_back(fmt::format("safetensors format of {} {}", checkpoint->shards().size(),
                                            checkpoint->shards().size() == 1 ? "file" : "shards"));
  if (checkpoint->index()) {
    check_index(*checkpoint, problems);
    verification.checks.push_back(fmt::format("index against {} tensors", checkpoint->tensors().size()));
  }
  const auto text = format::find_quantization_config(*checkpoint);
  if (!text.ok()) {
    verification.quantized = true;
    problems.emplace_back(text.status().message());
  } else if (*text) {
    verification.quantized = true;
    const std::string method = format::method_of(**text);
    const bool is_other = !method.empty() && method != format::kCompressedTensors;
    if (Status s = is_other ? check_dialect(*checkpoint, stream, verification, progress)
                            : check_quantized(*checkpoint, **text, stream, verification, progress);
        !s.ok())
      return s;
  } else {
    for (const auto& [name, place] : checkpoint->tensors())
      if (format::module_of_codes(checkpoint->at(place))) {
        problems.push_back(
            fmt::format("{}: tensor '{}' holds codes, but there is no quantization_config in {}; loaders would read it "
                        "as a weight",
                        printable(checkpoint->shard_name(place.shard)), printable(name),
                        checkpoint->is_folder() ? "config.json" : "the metadata"));
        break;
      }
    if (checkpoint->is_folder()) check_network_shapes(*checkpoint, {}, verification);
    verification.not_checked.emplace_back("values of the weights: 'kvant inspect --stats' looks at them");
  }
  limit(problems);
  return verification;
}

}  // namespace kvant::measure
