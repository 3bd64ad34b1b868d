#include "model/demo_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "base/float_environment.h"
#include "base/refuse.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace kvant::model {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

// Stands in everything that the demo writes, so that it replaces nothing else.
constexpr std::string_view kMadeBy = "kvant demo";
constexpr std::string_view kTokenizerName = "tokenizer_config.json";
constexpr std::int64_t kCalibrationTokens = 256;
constexpr int kHeads = 8;
constexpr std::uint64_t kMaxSmallFile = 1'000'000;

// splitmix64: a counter, scrambled.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  // Bell-shaped, mean 0 and deviation 1, within ±6: the sum of twelve uniform numbers of 16 bits. An integer of 20 bits
  // times 2^-16, so f32 holds it exactly and no library function has a say.
  float normal() {
    std::int64_t sum = 0;
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t bits = next();
      sum += static_cast<std::int64_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48));
    }
    return static_cast<float>(sum - 6 * 65535) * 0x1p-16f;
  }
  // In [0, 1).
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>((next() >> 32) * limit >> 32); }

 private:
  std::uint64_t state_;
};

// FNV-1a: every tensor has a sequence of its own, whatever is made before it.
std::uint64_t seed_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// 1 % of the channels, at least one.
std::vector<std::size_t> outlier_channels(Random& random, std::size_t width) {
  std::set<std::size_t> channels;
  while (channels.size() < std::max<std::size_t>(1, width / 100)) channels.insert(random.below(width));
  return {channels.begin(), channels.end()};
}

std::vector<BFloat16> normal_weights(std::string_view name, std::int64_t rows, std::int64_t columns, double deviation) {
  Random random(seed_of(name));
  const auto factor = static_cast<float>(deviation);
  std::vector<BFloat16> weights(static_cast<std::size_t>(rows * columns));
  for (BFloat16& w : weights) w = to_bfloat16(random.normal() * factor);
  return weights;
}

// Around 1, a few 20 to 60 times as large: what makes the activations of large models hard to quantize.
std::vector<BFloat16> norm_weights(std::string_view name, std::int64_t width) {
  Random random(seed_of(name));
  std::vector<float> weights(static_cast<std::size_t>(width));
  for (float& w : weights) w = 1.0f + random.normal() * 0.125f;
  for (const std::size_t channel : outlier_channels(random, weights.size()))
    weights[channel] = 20.0f + 40.0f * random.uniform();
  std::vector<BFloat16> rounded;
  for (const float w : weights) rounded.push_back(to_bfloat16(w));
  return rounded;
}

struct DemoTensor {
  io::TensorInfo info;
  std::function<std::vector<BFloat16>()> make;
};

// Layer by layer as transformers writes them.
std::vector<DemoTensor> tensors_of(const DemoModel& model) {
  std::vector<DemoTensor> tensors;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns, double deviation) {
    io::TensorInfo info;
    info.name = name;
    info.dtype = io::DType::bf16;
    info.shape = {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)};
    tensors.push_back({info, [=] { return normal_weights(name, rows, columns, deviation); }});
  };
  const auto add_norm = [&](const std::string& module) {
    io::TensorInfo info;
    info.name = module + ".weight";
    info.dtype = io::DType::bf16;
    info.shape = {static_cast<std::uint64_t>(model.hidden)};
    tensors.push_back({info, [name = info.name, width = model.hidden] { return norm_weights(name, width); }});
  };
  add("model.embed_tokens.weight", model.vocabulary, model.hidden, 1.0);
  std::string norm_before;
  for (const DemoLinear& linear : demo_linears(model)) {
    if (!linear.norm.empty() && linear.norm != norm_before) add_norm(norm_before = linear.norm);
    // A division and a square root: correctly rounded everywhere.
    add(linear.module + ".weight", linear.out, linear.in, 1.0 / std::sqrt(static_cast<double>(linear.in)));
  }
  return tensors;
}

// Rows of activations as they leave a normalization, before its weight: each of mean square 1.
std::vector<float> normalized_rows(std::uint64_t seed, std::int64_t tokens, std::int64_t width) {
  Random random(seed);
  std::vector<float> rows(static_cast<std::size_t>(tokens * width));
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* const row = rows.data() + t * width;
    double squares = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      row[i] = random.normal();
      squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    }
    const double root = std::sqrt(squares / static_cast<double>(width));
    for (std::int64_t i = 0; i < width; ++i) row[i] = static_cast<float>(static_cast<double>(row[i]) / root);
  }
  return rows;
}

// Readers of one norm share their input, as in the model.
std::string input_name(const DemoLinear& linear) { return linear.norm.empty() ? linear.module : linear.norm; }

void scale_columns(std::vector<float>& rows, std::span<const BFloat16> factors) {
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] *= to_float(factors[i % factors.size()]);
}

// The input of a linear that no norm feeds: mild outliers, 4 to 10 times as large as the rest.
std::vector<float> plain_rows(const DemoLinear& linear, std::string_view purpose, std::int64_t tokens) {
  std::vector<float> rows = normalized_rows(seed_of(linear.module + std::string(purpose)), tokens, linear.in);
  Random random(seed_of(linear.module + " input"));
  std::vector<BFloat16> factors(static_cast<std::size_t>(linear.in), to_bfloat16(1.0f));
  for (const std::size_t channel : outlier_channels(random, factors.size()))
    factors[channel] = to_bfloat16(4.0f + 6.0f * random.uniform());
  scale_columns(rows, factors);
  return rows;
}

// What arrives at the linear. `norm` is the weight of the norm that feeds it, of whichever checkpoint.
std::vector<float> input_rows(const DemoLinear& linear, std::span<const BFloat16> norm, std::string_view purpose,
                              std::int64_t tokens) {
  if (linear.norm.empty()) return plain_rows(linear, purpose, tokens);
  std::vector<float> rows = normalized_rows(seed_of(linear.norm + std::string(purpose)), tokens, linear.in);
  scale_columns(rows, norm);
  return rows;
}

// A safetensors file is little-endian, and so is every machine that kvant has kernels for.
template <class T>
void append(std::string& text, const std::vector<T>& values) {
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string shard_name(int shard, int shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

io::Json config_of(const DemoModel& model) {
  return {{"_name_or_path", kMadeBy},
          {"architectures", io::Json::array({"LlamaForCausalLM"})},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"head_dim", model.hidden / kHeads},
          {"hidden_act", "silu"},
          {"hidden_size", model.hidden},
          {"initializer_range", 0.02},
          {"intermediate_size", model.intermediate},
          {"max_position_embeddings", 2048},
          {"mlp_bias", false},
          {"model_type", "llama"},
          {"num_attention_heads", kHeads},
          {"num_hidden_layers", model.layers},
          {"num_key_value_heads", kHeads},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-05},
          {"rope_scaling", nullptr},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"use_cache", true},
          {"vocab_size", model.vocabulary}};
}

std::string text_of(const io::Json& document) { return document.dump(2) + "\n"; }

// Whether the demo wrote this safetensors file.
bool is_marked(const fs::path& path) {
  const auto file = io::SafetensorsFile::open(path);
  if (!file.ok()) return false;
  const auto mark = file->metadata().find("made_by");
  return mark != file->metadata().end() && mark->second == kMadeBy;
}

bool is_marked_config(const fs::path& path) {
  const auto text = io::read_text(path, kMaxSmallFile);
  if (!text.ok()) return false;
  const auto config = io::parse_json(*text, path.string());
  return config.ok() && config->is_object() && config->value("_name_or_path", io::Json()) == kMadeBy;
}

Status refuse_foreign(const fs::path& path) {
  return invalid_problem("{}: was not written by the demo, so the demo does not replace it; choose another folder",
                         io::printable(path.string()));
}

// The shards are written first and config.json last. So a folder of an earlier demo has a marked config.json, or marked
// shards and no config.json, or nothing whole.
Status check_folder(const fs::path& folder, const std::set<std::string>& names) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) return {};
  if (!fs::is_directory(status)) return refuse_foreign(folder);
  bool has_config = false, has_shard = false;
  std::vector<fs::path> small;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path path = entries->path();
    std::string name = path.filename().string();
    const bool partial = name.ends_with(io::kPartialSuffix);
    if (partial) name.resize(name.size() - io::kPartialSuffix.size());
    std::error_code ignored;
    if (!names.contains(name) || !fs::is_regular_file(fs::symlink_status(path, ignored))) return refuse_foreign(path);
    if (partial) continue;
    if (name == io::kConfigName) {
      has_config = true;
      if (!is_marked_config(path)) return refuse_foreign(path);
    } else if (name.ends_with(".safetensors")) {
      has_shard = true;
      if (!is_marked(path)) return refuse_foreign(path);
    } else {
      small.push_back(path);
    }
  }
  if (error) return invalid_problem("{}: {}", io::printable(folder.string()), error.message());
  if (!small.empty() && !has_config && !has_shard) return refuse_foreign(small.front());
  return {};
}

Status check_stats(const fs::path& stats) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(stats, error);
  if (!fs::exists(status)) return {};
  return fs::is_regular_file(status) && is_marked(stats) ? Status() : refuse_foreign(stats);
}

Status make_folders(const fs::path& folder) {
  if (folder.empty()) return {};
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return invalid_problem("{}: cannot be made: {}", io::printable(folder.string()), error.message());
  return {};
}

// What a file is to hold.
struct Document {
  fs::path path;
  std::string text;
};

// `append_values` is called for every tensor in turn.
Result<Document> safetensors_document(const fs::path& path, std::vector<io::TensorInfo> tensors,
                                      const std::function<void(std::string&, std::size_t)>& append_values) {
  const std::size_t count = tensors.size();
  auto layout = io::lay_out_safetensors(std::move(tensors), {{"format", "pt"}, {"made_by", std::string(kMadeBy)}});
  if (!layout.ok()) return layout.status();
  Document document{path, std::move(layout->header)};
  document.text.reserve(static_cast<std::size_t>(layout->file_bytes));
  for (std::size_t i = 0; i < count; ++i) append_values(document.text, i);
  return document;
}

// Whether the file is there already, whole and with these very bytes.
bool is_written(const Document& document) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(io::partial_of(document.path), error))) return false;
  const auto text = io::read_text(document.path, document.text.size());
  return text.ok() && *text == document.text;
}

Result<Document> stats_document(const DemoModel& model, const fs::path& path) {
  std::vector<io::TensorInfo> infos;
  std::vector<std::vector<float>> values;
  std::string input_before;
  std::vector<float> low, high, magnitude;
  for (const DemoLinear& linear : demo_linears(model)) {
    const auto width = static_cast<std::size_t>(linear.in);
    if (input_name(linear) != input_before) {
      input_before = input_name(linear);
      const auto norm =
          linear.norm.empty() ? std::vector<BFloat16>() : norm_weights(linear.norm + ".weight", linear.in);
      const std::vector<float> rows = input_rows(linear, norm, " calibration", kCalibrationTokens);
      low.assign(rows.begin(), rows.begin() + linear.in);
      high = low;
      for (std::size_t i = width; i < rows.size(); ++i) {
        low[i % width] = std::min(low[i % width], rows[i]);
        high[i % width] = std::max(high[i % width], rows[i]);
      }
      magnitude.resize(width);
      for (std::size_t i = 0; i < width; ++i) magnitude[i] = std::max(-low[i], high[i]);
    }
    for (const auto& [what, vector] : {std::pair{".absmax", &magnitude}, {".max", &high}, {".min", &low}}) {
      io::TensorInfo info;
      info.name = linear.module + what;
      info.dtype = io::DType::f32;
      info.shape = {width};
      infos.push_back(info);
      values.push_back(*vector);
    }
  }
  return safetensors_document(path, std::move(infos),
                              [&](std::string& text, std::size_t i) { append(text, values[i]); });
}

}  // namespace

Status check(const DemoModel& model) {
  if (model.hidden < kHeads || model.hidden % kHeads != 0 || model.intermediate < 1 || model.vocabulary < 1 ||
      model.layers < 1 || model.shards < 1 || model.shards > model.layers)
    return invalid_problem(
        "demo model: hidden {}, intermediate {}, vocabulary {}, {} layers, {} shards: hidden must be "
        "a multiple of {}, the others positive, and no more shards than layers",
        model.hidden, model.intermediate, model.vocabulary, model.layers, model.shards, kHeads);
  return {};
}

std::vector<DemoLinear> demo_linears(const DemoModel& model) {
  std::vector<DemoLinear> linears;
  const std::int64_t h = model.hidden, m = model.intermediate;
  for (int layer = 0; layer < model.layers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    const std::string first = at + "input_layernorm", second = at + "post_attention_layernorm";
    for (const char* const part : {"q_proj", "k_proj", "v_proj"})
      linears.push_back({at + "self_attn." + part, first, h, h});
    linears.push_back({at + "self_attn.o_proj", "", h, h});
    for (const char* const part : {"gate_proj", "up_proj"}) linears.push_back({at + "mlp." + part, second, m, h});
    linears.push_back({at + "mlp.down_proj", "", h, m});
  }
  linears.push_back({"lm_head", "model.norm", model.vocabulary, h});
  return linears;
}

std::vector<float> demo_test_rows(const DemoLinear& linear, std::span<const BFloat16> norm) {
  return input_rows(linear, norm, " test", kDemoTestTokens);
}

Status write_demo_model(const DemoModel& model, const fs::path& folder, const fs::path& stats) {
  if (Status s = check(model); !s.ok()) return s;
  const base::DefaultFloatEnvironment environment;
  std::set<std::string> names = {std::string(io::kConfigName), std::string(io::kIndexName),
                                 std::string(kTokenizerName)};
  for (int shard = 0; shard < model.shards; ++shard) names.insert(shard_name(shard, model.shards));
  if (Status s = check_folder(folder, names); !s.ok()) return s;
  if (Status s = check_stats(stats); !s.ok()) return s;
  if (Status s = make_folders(folder); !s.ok()) return s;
  if (Status s = make_folders(stats.parent_path()); !s.ok()) return s;

  // As many bytes in each shard, more or less.
  const std::vector<DemoTensor> tensors = tensors_of(model);
  std::uint64_t total = 0;
  for (const DemoTensor& tensor : tensors) total += *io::tensor_bytes(tensor.info.dtype, tensor.info.shape);
  std::vector<std::vector<const DemoTensor*>> shards(static_cast<std::size_t>(model.shards));
  std::uint64_t placed = 0;
  for (const DemoTensor& tensor : tensors) {
    shards[static_cast<std::size_t>(placed * shards.size() / total)].push_back(&tensor);
    placed += *io::tensor_bytes(tensor.info.dtype, tensor.info.shape);
  }
  std::vector<Document> documents;
  io::Json weight_map = io::Json::object();
  for (int shard = 0; shard < model.shards; ++shard) {
    const auto& members = shards[static_cast<std::size_t>(shard)];
    std::vector<io::TensorInfo> infos;
    for (const DemoTensor* const tensor : members) {
      infos.push_back(tensor->info);
      weight_map[tensor->info.name] = shard_name(shard, model.shards);
    }
    auto document = safetensors_document(folder / shard_name(shard, model.shards), std::move(infos),
                                         [&](std::string& text, std::size_t i) { append(text, members[i]->make()); });
    if (!document.ok()) return document.status();
    documents.push_back(std::move(document).value());
  }
  auto statistics = stats_document(model, stats);
  if (!statistics.ok()) return statistics.status();
  documents.push_back(std::move(statistics).value());
  const io::Json tokenizer = {{"model_max_length", 2048}, {"tokenizer_class", "LlamaTokenizer"}};
  documents.push_back({folder / kTokenizerName, text_of(tokenizer)});
  const io::Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  documents.push_back({folder / io::kIndexName, text_of(index)});
  documents.push_back({folder / io::kConfigName, text_of(config_of(model))});

  // Files that were written anew are other files to the manifest of a quantized checkpoint, whatever is in them.
  if (std::all_of(documents.begin(), documents.end(), is_written)) return {};
  // An older config.json must not vouch for shards that are half replaced.
  std::error_code ignored;
  fs::remove(folder / io::kConfigName, ignored);
  for (const Document& document : documents)
    if (Status s = io::write_file(document.path, document.text, true); !s.ok()) return s;
  return {};
}

}  // namespace kvant::model
