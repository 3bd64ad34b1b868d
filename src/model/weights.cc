#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/dialects.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/scheme.h"
#include "format/widen.h"
#include "io/file.h"
#include "io/fingerprint.h"
#include "io/json.h"
#include "model/input_tensors.h"

namespace kvant::model {
namespace {

using base::invalid_problem;
using io::printable;

// f32 of any floating-point element.
void read_values(ElementKind kind, const std::byte* from, std::size_t count, float* to) {
  if (kind != ElementKind::f64) return format::widen(kind, from, count, to);
  for (std::size_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    to[i] = static_cast<float>(value);
  }
}

}  // namespace

std::uint64_t StoredTensor::elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) count *= size;
  return count;
}

Result<Weights> Weights::open(const std::filesystem::path& path) {
  if (io::is_gguf(path)) {
    auto model = GgufModel::open(path);
    if (!model.ok()) return model.status();
    Weights weights(path, std::move(model).value());
    const auto tensors = weights.gguf()->tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      weights.gguf_tensors_.emplace(tensors[i].name, i);
      if (const std::string_view module = format::module_of(tensors[i].name); !module.empty())
        weights.modules_.emplace(module);
    }
    return weights;
  }
  auto checkpoint = io::Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  if (checkpoint->config() == nullptr)
    return invalid_problem("{}: has no {}, which says what the model computes", io::printable_path(path),
                           io::kConfigName);
  Weights weights(path, std::move(checkpoint).value());
  if (Status s = weights.find_quantized_layers(); !s.ok()) return s;
  if (Status s = weights.find_parts_of_stacks(); !s.ok()) return s;
  for (const auto& [name, place] : weights.checkpoint().tensors())
    if (const std::string_view module = format::module_of(name); !module.empty()) weights.modules_.emplace(module);
  return weights;
}

Status Weights::find_quantized_layers() {
  auto found = format::find_quantized_weights(checkpoint());
  if (!found.ok()) return found.status();
  if (!*found) return {};
  if (!(*found)->stacks.empty())
    return base::unsupported(
        "{}: holds its experts as {}, which kvant does not run; convert it first: kvant convert "
        "--to bf16",
        io::printable_path(path_), (*found)->description);
  quantized_as_ = std::move((*found)->description);
  fp8_kv_cache_ = (*found)->fp8_kv_cache;
  for (format::QuantizedLayer& layer : (*found)->layers) {
    modules_.insert(layer.module);
    std::string module = layer.module;
    layers_.emplace(std::move(module), std::move(layer));
  }
  return {};
}

Status Weights::find_parts_of_stacks() {
  auto inputs = input_tensors(checkpoint());
  if (!inputs.ok()) return inputs.status();
  std::map<std::string, Part, std::less<>> parts;
  for (InputTensor& tensor : inputs->tensors) {
    if (!tensor.source || tensor.is_decoded() || checkpoint().find(tensor.info.name) != nullptr) continue;
    modules_.emplace(format::module_of(tensor.info.name));
    parts.emplace(std::move(tensor.info.name), Part{std::move(tensor.info.shape), std::move(*tensor.source)});
  }
  parts_ = std::make_shared<const std::map<std::string, Part, std::less<>>>(std::move(parts));
  return {};
}

const io::Json& Weights::config() const { return gguf() ? gguf()->config() : *checkpoint().config(); }

std::string Weights::scheme() const {
  if (is_quantized()) return quantized_as_;
  if (!gguf()) return {};
  std::map<io::GgufType, std::uint64_t> elements;
  for (const GgufModel::Tensor& tensor : gguf()->tensors()) elements[tensor.type] += tensor.rows() * tensor.columns();
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return base::text("GGUF {}", io::info(most->first).name);
}

std::uint64_t Weights::stored_bytes() const {
  if (!gguf()) return checkpoint().tensor_bytes();
  std::uint64_t bytes = 0;
  for (const GgufModel::Tensor& tensor : gguf()->tensors()) bytes += tensor.bytes();
  return bytes;
}

std::uint64_t Weights::stored_bytes(std::string_view tensor) const {
  if (gguf()) {
    const auto found = gguf_tensors_.find(tensor);
    return found == gguf_tensors_.end() ? 0 : gguf()->tensors()[found->second].bytes();
  }
  if (const auto part = parts_->find(tensor); part != parts_->end()) return part->second.source.stored_bytes();
  const io::TensorInfo* const info = checkpoint().find(tensor);
  return info == nullptr ? 0 : info->bytes();
}

Result<io::Json> Weights::fingerprints() const {
  return gguf() ? io::fingerprint(gguf()->file().file()) : io::fingerprints(checkpoint());
}

const format::QuantizedLayer* Weights::quantized(std::string_view module) const {
  const auto found = layers_.find(module);
  return found == layers_.end() ? nullptr : &found->second;
}

Result<float> Weights::cache_scale(std::string_view attention, format::CacheHalf half) const {
  const io::TensorPlace* const place = format::find_cache_scale(checkpoint(), attention, half);
  if (place == nullptr)
    return invalid_problem("{}: keys and values are FP8, but there is no tensor '{}'", io::printable_path(path()),
                           printable(format::cache_scale_name(attention, half)));
  const io::TensorInfo& info = checkpoint().at(*place);
  // ModelOpt writes it without a dimension.
  const auto found = find(info.name, info.shape.empty() ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>{1});
  if (!found.ok()) return found.status();
  float scale = 0;
  if (Status s = read_rows(*found, 0, 1, &scale); !s.ok()) return s;
  if (!(scale > 0) || !std::isfinite(scale))
    return invalid_problem("{}: '{}' is {}, must be finite and positive", io::printable_path(path()),
                           printable(info.name), scale);
  return scale;
}

const std::vector<std::uint64_t>* Weights::shape_of(std::string_view tensor) const {
  if (gguf()) {
    const auto found = gguf_tensors_.find(tensor);
    return found == gguf_tensors_.end() ? nullptr : &gguf()->tensors()[found->second].shape;
  }
  if (const auto part = parts_->find(tensor); part != parts_->end()) return &part->second.shape;
  const io::TensorInfo* const info = checkpoint().find(tensor);
  return info == nullptr ? nullptr : &info->shape;
}

Result<StoredTensor> Weights::find(std::string_view tensor, std::vector<std::uint64_t> shape) const {
  const std::vector<std::uint64_t>* const stored = shape_of(tensor);
  if (stored == nullptr)
    return invalid_problem("{}: there is no tensor '{}'", io::printable_path(path()), printable(tensor));
  StoredTensor found{.shape = *stored};
  if (gguf()) {
    found.index = gguf_tensors_.find(tensor)->second;
  } else if (const auto part = parts_->find(tensor); part != parts_->end()) {
    found.part = &part->second.source;
    found.kind = found.part->kind;
  } else {
    const io::TensorPlace place = checkpoint().tensors().find(tensor)->second;
    const io::DType dtype = checkpoint().at(place).dtype;
    const auto kind = format::element_of(dtype);
    if (!kind)
      return invalid_problem("{}: tensor '{}' holds {}, must be floating point", io::printable_path(path()),
                             printable(tensor), io::name(dtype));
    found.file = place.shard;
    found.index = place.tensor;
    found.kind = *kind;
  }
  if (*stored != shape)
    return invalid_problem("{}: tensor '{}' has shape [{}], must be [{}]", io::printable_path(path()),
                           printable(tensor), base::joined(*stored, ", "), base::joined(shape, ", "));
  return found;
}

Status Weights::read(const StoredTensor& tensor, std::span<std::byte> to) const {
  if (tensor.part != nullptr) {
    format::SourceScratch scratch;
    std::vector<std::byte> bytes;
    if (Status s = format::read_tile(checkpoint(), *tensor.part, {0, tensor.part->rows, 0, tensor.part->columns},
                                     scratch, bytes);
        !s.ok())
      return s;
    std::copy(bytes.begin(), bytes.end(), to.begin());
    return {};
  }
  if (!gguf()) return checkpoint().read({tensor.file, tensor.index}, 0, to);
  const GgufModel::Tensor& stored = gguf()->tensors()[tensor.index];
  return gguf()->read_rows(stored, 0, stored.rows(), reinterpret_cast<float*>(to.data()));
}

Status Weights::read_rows(const StoredTensor& tensor, std::uint64_t first, std::uint64_t count, float* to) const {
  if (gguf()) return gguf()->read_rows(gguf()->tensors()[tensor.index], first, count, to);
  const std::uint64_t columns = tensor.columns();
  if (tensor.part != nullptr) {
    format::SourceScratch scratch;
    std::vector<std::byte> tile;
    if (Status s = format::read_tile(checkpoint(), *tensor.part, {first, count, 0, columns}, scratch, tile); !s.ok())
      return s;
    read_values(tensor.kind, tile.data(), static_cast<std::size_t>(count * columns), to);
    return {};
  }
  const auto width = static_cast<std::uint64_t>(bits_per_element(tensor.kind) / 8);
  // Pieces, so that a large table needs no second copy of itself.
  constexpr std::uint64_t kPiece = 1 << 20;
  std::vector<std::byte> bytes;
  for (std::uint64_t done = 0, all = count * columns; done < all;) {
    const std::uint64_t elements = std::min(all - done, kPiece);
    bytes.resize(static_cast<std::size_t>(elements * width));
    if (Status s = checkpoint().read({tensor.file, tensor.index}, (first * columns + done) * width, bytes); !s.ok())
      return s;
    read_values(tensor.kind, bytes.data(), static_cast<std::size_t>(elements), to + done);
    done += elements;
  }
  return {};
}

Result<std::vector<float>> Weights::read_vector(std::string_view tensor, std::int64_t size) const {
  const auto found = find(tensor, {static_cast<std::uint64_t>(size)});
  if (!found.ok()) return found.status();
  std::vector<float> values(static_cast<std::size_t>(size));
  if (Status s = read_rows(*found, 0, 1, values.data()); !s.ok()) return s;
  return values;
}

Result<std::vector<float>> Weights::read_vector_if_there(std::string_view tensor, std::int64_t size) const {
  if (!has(tensor)) return std::vector<float>();
  return read_vector(tensor, size);
}

}  // namespace kvant::model
