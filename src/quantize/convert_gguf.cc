#include "quantize/convert_gguf.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/for_each_part.h"
#include "base/refuse.h"
#include "base/text.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "kvant/element.h"
#include "kvant/stream.h"
#include "model/gguf_model.h"
#include "quantize/checksums.h"
#include "quantize/manifest.h"
#include "quantize/output_folder.h"
#include "quantize/shard_layout.h"

namespace kvant::quantize {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;
using model::GgufModel;

// Of a tile; one row may be more, a row has at most 2^20.
constexpr std::uint64_t kTileElements = std::uint64_t{1} << 20;
constexpr std::string_view kTokenizerName = "tokenizer.json", kTokenizerConfigName = "tokenizer_config.json";

struct Shard {
  std::string name;
  std::size_t first_tensor = 0;
  io::SafetensorsLayout layout;
};

// What one thread works with.
struct Worker {
  std::vector<float> values;
  std::vector<std::uint16_t> narrow;
  std::uint64_t rounded = 0;
};

class Converter {
 public:
  Converter(const ConvertOptions& options, GgufModel model)
      : options_(options),
        model_(std::move(model)),
        stream_(options.threads == 0 ? Stream::cpu() : Stream::cpu(options.threads)),
        workers_(static_cast<std::size_t>(std::max(stream_.threads(), 1))) {}

  Result<ConvertOutcome> run(base::Progress& progress) {
    const auto begin = std::chrono::steady_clock::now();
    if (!stream_.status().ok()) return stream_.status();
    if (Status s = lay_out(); !s.ok()) return s;
    if (Status s = write_folder(progress); !s.ok()) return s;
    outcome_.model_type = model_.config()["model_type"].get<std::string>();
    outcome_.tensors = model_.tensors().size();
    for (const Worker& worker : workers_) outcome_.rounded += worker.rounded;
    if (model_.tokenizer() == nullptr)
      outcome_.warnings.push_back(base::text("no {} was written: {}", kTokenizerName, model_.tokenizer_problem()));
    outcome_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return outcome_;
  }

 private:
  // Tensors in their order, as many in a shard as it may hold, and one at least.
  Status lay_out() {
    std::vector<std::vector<io::TensorInfo>> shards(1);
    std::uint64_t bytes = 0;
    for (const GgufModel::Tensor& tensor : model_.tensors()) {
      io::TensorInfo info{tensor.name, options_.dtype, tensor.shape, 0, 0};
      const std::uint64_t more = *io::tensor_bytes(info.dtype, info.shape);
      if (bytes > 0 && more > options_.max_shard_bytes - std::min(bytes, options_.max_shard_bytes)) {
        shards.emplace_back();
        bytes = 0;
      }
      bytes += more;
      shards.back().push_back(std::move(info));
    }
    std::size_t first = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::size_t count = shards[i].size();
      auto layout = io::lay_out_safetensors(std::move(shards[i]), {{"format", "pt"}});
      if (!layout.ok()) return layout.status();
      std::string name = shards.size() == 1 ? std::string(io::kSingleName)
                                            : base::text("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      shards_.push_back({std::move(name), first, std::move(layout).value()});
      first += count;
    }
    return {};
  }

  fs::path path(std::string_view name) const { return options_.output / name; }
  bool overwrite() const { return options_.resume || options_.force; }

  Result<OutputFolder::Request> request() const {
    OutputFolder::Request request{.path = options_.output,
                                  .resume = options_.resume,
                                  .force = options_.force,
                                  .manifest = {},
                                  .files = {},
                                  .protected_files = {options_.input}};
    for (const Shard& shard : shards_) request.files.push_back(shard.name);
    if (model_.tokenizer() != nullptr) request.files.emplace_back(kTokenizerName);
    request.files.emplace_back(kTokenizerConfigName);
    if (shards_.size() > 1) request.files.emplace_back(io::kIndexName);
    request.files.push_back(own_name(kChecksumsName));
    request.files.emplace_back(io::kConfigName);
    auto manifest = make_manifest(
        model_.file().file(),
        {{"command", "convert"}, {"dtype", io::name(options_.dtype)}, {"max_shard_bytes", options_.max_shard_bytes}},
        request.files);
    if (!manifest.ok()) return manifest.status();
    request.manifest = std::move(manifest).value();
    return request;
  }

  Result<bool> is_whole(const Shard& shard) const {
    return is_shard_there(path(shard.name), shard.layout.header, shard.layout.file_bytes);
  }

  // Has nothing been taken away from a run that had finished?
  Result<bool> is_all_there(std::span<const std::string> names) const {
    std::error_code error;
    for (const std::string& name : names)
      if (!fs::exists(path(name), error)) return false;
    for (const Shard& shard : shards_) {
      auto whole = is_whole(shard);
      if (!whole.ok() || !*whole) return whole;
    }
    return true;
  }

  Status write_folder(base::Progress& progress) {
    const auto wanted = request();
    if (!wanted.ok()) return wanted.status();
    const auto state = OutputFolder::look(*wanted);
    if (!state.ok()) return state.status();
    if (*state == OutputFolder::State::finished) {
      const auto whole = is_all_there(wanted->files);
      if (!whole.ok()) return whole.status();
      if (*whole) {
        outcome_.shards_kept = shards_.size();
        return {};
      }
    }
    const auto folder = OutputFolder::open(*wanted);
    if (!folder.ok()) return folder.status();
    std::vector<bool> whole;
    std::uint64_t bytes = 0;
    for (const Shard& shard : shards_) {
      const auto found = folder->state() == OutputFolder::State::unfinished ? is_whole(shard) : Result<bool>(false);
      if (!found.ok()) return found.status();
      whole.push_back(*found);
      outcome_.shards_kept += *found ? 1 : 0;
      if (!*found) bytes += shard.layout.file_bytes - shard.layout.header.size();
    }
    progress.begin("converting", bytes);
    Checksums checksums;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (!whole[i]) {
        if (Status s = write_shard(shards_[i], progress); !s.ok()) return s;
        progress.note(base::text("wrote {}", io::printable_path(path(shards_[i].name))));
      }
      // Now, while the system has it in memory.
      if (Status s = add_checksum(options_.output, shards_[i].name, stream_, checksums); !s.ok()) return s;
    }
    return write_small_files(std::move(checksums));
  }

  Status write_shard(const Shard& shard, base::Progress& progress) {
    auto file = io::AtomicFile::create(path(shard.name), overwrite());
    if (!file.ok()) return file.status();
    if (Status s = file->write_at(0, std::as_bytes(std::span(shard.layout.header))); !s.ok()) return s;
    const std::size_t count = shard.layout.tensors.size();
    std::vector<std::uint64_t> begins;  // of each tensor, in tiles of the shard
    std::uint64_t tiles = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const GgufModel::Tensor& tensor = model_.tensors()[shard.first_tensor + i];
      begins.push_back(tiles);
      tiles += (tensor.rows() + rows_of_tile(tensor) - 1) / rows_of_tile(tensor);
    }
    const auto run_tile = [&](std::size_t worker, std::uint64_t tile) {
      const auto i =
          static_cast<std::size_t>(std::upper_bound(begins.begin(), begins.end(), tile) - begins.begin()) - 1;
      return convert_tile(shard, i, tile - begins[i], workers_[worker], *file, progress);
    };
    if (Status s = base::for_each_part(stream_, 0, tiles, run_tile); !s.ok()) return s;
    if (Status s = model_.file().file().check_unchanged(); !s.ok()) return s;
    if (Status s = file->commit(overwrite()); !s.ok()) return s;
    ++outcome_.shards_written;
    outcome_.bytes_written += shard.layout.file_bytes;
    for (std::size_t i = 0; i < count; ++i) outcome_.bytes_read += model_.tensors()[shard.first_tensor + i].bytes();
    return {};
  }

  static std::uint64_t rows_of_tile(const GgufModel::Tensor& tensor) {
    return std::max<std::uint64_t>(1, kTileElements / tensor.columns());
  }

  Status convert_tile(const Shard& shard, std::size_t index, std::uint64_t tile, Worker& worker, io::AtomicFile& file,
                      base::Progress& progress) const {
    const GgufModel::Tensor& tensor = model_.tensors()[shard.first_tensor + index];
    const std::uint64_t first = tile * rows_of_tile(tensor);
    const std::uint64_t rows = std::min(rows_of_tile(tensor), tensor.rows() - first);
    worker.values.resize(rows * tensor.columns());
    if (Status s = model_.read_rows(tensor, first, rows, worker.values.data()); !s.ok()) return s;
    std::span<const std::byte> bytes = std::as_bytes(std::span(worker.values));
    if (options_.dtype != io::DType::f32) {
      if (Status s = narrow(tensor, worker); !s.ok()) return s;
      bytes = std::as_bytes(std::span(worker.narrow));
    }
    const std::uint64_t width = static_cast<std::uint64_t>(io::bits(options_.dtype)) / 8;
    const std::uint64_t at = shard.layout.header.size() + shard.layout.tensors[index].begin;
    progress.advance(bytes.size());
    return file.write_at(at + first * tensor.columns() * width, bytes);
  }

  Status narrow(const GgufModel::Tensor& tensor, Worker& worker) const {
    const bool half = options_.dtype == io::DType::f16;
    worker.narrow.resize(worker.values.size());
    for (std::size_t i = 0; i < worker.values.size(); ++i) {
      const float value = worker.values[i];
      worker.narrow[i] = half ? to_half(value).bits : to_bfloat16(value).bits;
      const float back = half ? to_float(Half{worker.narrow[i]}) : to_float(BFloat16{worker.narrow[i]});
      if (back == value || std::isnan(value)) continue;
      if (std::isinf(back))
        return invalid_problem("{}: tensor \"{}\": the value {} is infinite in {}; choose another dtype",
                               io::printable_path(options_.input), tensor.name, value, io::name(options_.dtype));
      ++worker.rounded;
    }
    return {};
  }

  Status write_json(std::string_view name, const io::Json& document, Checksums& checksums) {
    const std::string text = document.dump(2) + "\n";
    checksums.insert_or_assign(std::string(name), io::checksum(text));
    outcome_.bytes_written += text.size();
    return io::write_file(path(name), text, overwrite());
  }

  Status write_small_files(Checksums checksums) {
    if (model_.tokenizer() != nullptr)
      if (Status s = write_json(kTokenizerName, *model_.tokenizer(), checksums); !s.ok()) return s;
    if (Status s = write_json(kTokenizerConfigName, model_.tokenizer_config(), checksums); !s.ok()) return s;
    if (shards_.size() > 1)
      if (Status s = write_json(io::kIndexName, index(), checksums); !s.ok()) return s;
    io::Json config = model_.config();
    config["torch_dtype"] = io::torch_name(options_.dtype);
    const std::string text = config.dump(2) + "\n";
    if (Status s = write_checksums(options_.output, std::move(checksums), text, overwrite()); !s.ok()) return s;
    outcome_.bytes_written += text.size();
    return io::write_file(path(io::kConfigName), text, overwrite());
  }

  io::Json index() const {
    std::uint64_t total = 0;
    // Straight into the vector that the object is made of: operator[] looks through all keys, each time.
    io::Json::object_t map;
    for (const Shard& shard : shards_)
      for (const io::TensorInfo& tensor : shard.layout.tensors) {
        total += tensor.bytes();
        map.Container::emplace_back(tensor.name, shard.name);
      }
    return {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  }

  const ConvertOptions& options_;
  GgufModel model_;
  Stream stream_;
  std::vector<Worker> workers_;
  std::vector<Shard> shards_;
  ConvertOutcome outcome_;
};

}  // namespace

Result<ConvertOutcome> convert_gguf(const ConvertOptions& options, base::Progress& progress) {
  if (options.dtype != io::DType::f32 && options.dtype != io::DType::f16 && options.dtype != io::DType::bf16)
    return invalid_problem("convert: dtype {} must be F32, F16 or BF16", io::name(options.dtype));
  if (options.output.empty()) return invalid_problem("the output has no name");
  auto model = GgufModel::open(options.input);
  if (!model.ok()) return model.status();
  return Converter(options, std::move(model).value()).run(progress);
}

}  // namespace kvant::quantize
