#include "model/weights.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/compressed_tensors.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/widen.h"
#include "io/file.h"

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

Result<Weights> Weights::open(const std::filesystem::path& path) {
  auto checkpoint = io::Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  if (checkpoint->config() == nullptr)
    return invalid_problem("{}: has no {}, which says what the model computes", io::printable_path(path),
                           io::kConfigName);
  Weights weights(std::move(checkpoint).value());
  const auto text = format::find_quantization_config(weights.checkpoint_);
  if (!text.ok()) return text.status();
  if (*text) {
    auto config = format::read_quantization_config(weights.checkpoint_);
    if (!config.ok()) return config.status();
    auto layers = format::find_quantized_layers(weights.checkpoint_, *config);
    if (!layers.ok()) return layers.status();
    weights.quantization_ = std::move(config).value();
    for (format::QuantizedLayer& layer : *layers) {
      weights.modules_.insert(layer.module);
      std::string module = layer.module;
      weights.layers_.emplace(std::move(module), std::move(layer));
    }
  }
  for (const auto& [name, place] : weights.checkpoint_.tensors())
    if (const std::string_view module = format::module_of(name); !module.empty()) weights.modules_.emplace(module);
  return weights;
}

const format::QuantizedLayer* Weights::quantized(std::string_view module) const {
  const auto found = layers_.find(module);
  return found == layers_.end() ? nullptr : &found->second;
}

Result<io::TensorPlace> Weights::find(std::string_view tensor, std::vector<std::uint64_t> shape) const {
  const auto found = checkpoint_.tensors().find(tensor);
  if (found == checkpoint_.tensors().end())
    return invalid_problem("{}: there is no tensor '{}'", io::printable_path(path()), printable(tensor));
  const io::TensorInfo& info = checkpoint_.at(found->second);
  if (!format::element_of(info.dtype))
    return invalid_problem("{}: tensor '{}' holds {}, must be floating point", io::printable_path(path()),
                           printable(tensor), io::name(info.dtype));
  if (info.shape != shape)
    return invalid_problem("{}: tensor '{}' has shape [{}], must be [{}]", io::printable_path(path()),
                           printable(tensor), base::joined(info.shape, ", "), base::joined(shape, ", "));
  return found->second;
}

Status Weights::read_rows(const io::TensorPlace& place, std::uint64_t first, std::uint64_t count, float* to) const {
  const io::TensorInfo& info = checkpoint_.at(place);
  const ElementKind kind = *format::element_of(info.dtype);
  const std::uint64_t columns = info.shape.empty() ? 1 : info.shape.back();
  const auto width = static_cast<std::uint64_t>(bits_per_element(kind) / 8);
  // Pieces, so that a large table needs no second copy of itself.
  constexpr std::uint64_t kPiece = 1 << 20;
  std::vector<std::byte> bytes;
  for (std::uint64_t done = 0, all = count * columns; done < all;) {
    const std::uint64_t elements = std::min(all - done, kPiece);
    bytes.resize(static_cast<std::size_t>(elements * width));
    if (Status s = checkpoint_.read(place, (first * columns + done) * width, bytes); !s.ok()) return s;
    read_values(kind, bytes.data(), static_cast<std::size_t>(elements), to + done);
    done += elements;
  }
  return {};
}

Result<std::vector<float>> Weights::read_vector(std::string_view tensor, std::int64_t size) const {
  const auto place = find(tensor, {static_cast<std::uint64_t>(size)});
  if (!place.ok()) return place.status();
  std::vector<float> values(static_cast<std::size_t>(size));
  if (Status s = read_rows(*place, 0, 1, values.data()); !s.ok()) return s;
  return values;
}

Result<std::vector<float>> Weights::read_vector_if_there(std::string_view tensor, std::int64_t size) const {
  if (!has(tensor)) return std::vector<float>();
  return read_vector(tensor, size);
}

}  // namespace kvant::model
