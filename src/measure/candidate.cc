#include "measure/candidate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <system_error>
#include <utility>

#include "base/refuse.h"
#include "base/text.h"
#include "format/dialects.h"
#include "format/element_dtype.h"
#include "format/module_name.h"
#include "format/quantization_config.h"
#include "model/input_tensors.h"
#include "quantize/output_folder.h"

namespace kvant::measure {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;
using io::printable;

// The weight that a layer was made of.
Result<const format::WeightSource*> original_of(const io::Checkpoint& original, const OriginalWeights& weights,
                                                const format::QuantizedLayer& layer) {
  const auto found = weights.find(layer.module);
  if (found == weights.end()) {
    const std::string tensor = layer.module + ".weight";
    const io::TensorInfo* const info = original.find(tensor);
    if (info != nullptr && !format::element_of(info->dtype))
      return invalid_problem("{}: tensor '{}' holds {}; the original's weights must be F32, F64, F16 or BF16",
                             printable(original.path().string()), printable(tensor), io::name(info->dtype));
    if (info != nullptr)
      return invalid_problem(
          "{}: tensor '{}' has shape [{}], the quantized one [{}, {}]: the two do not belong together",
          printable(original.path().string()), printable(tensor), base::joined(info->shape, ", "), layer.rows,
          layer.columns);
    return invalid_problem("{}: has no tensor '{}', which the quantized checkpoint has: the two do not belong together",
                           printable(original.path().string()), printable(tensor));
  }
  const format::WeightSource& weight = found->second;
  if (weight.rows == layer.rows && weight.columns == layer.columns) return &weight;
  return invalid_problem(
      "{}: tensor '{}.weight' has shape [{}, {}], the quantized one [{}, {}]: the two do not belong "
      "together",
      printable(original.shard_name(weight.place.shard)), printable(layer.module), weight.rows, weight.columns,
      layer.rows, layer.columns);
}

// What the weights were smoothed with; nothing: they were not.
Result<std::optional<format::SmoothingFile>> smoothing_of(const io::Checkpoint& quantized) {
  if (!quantized.is_folder()) return std::optional<format::SmoothingFile>();
  const fs::path path = quantized.path() / quantize::kOwnFolder / quantize::kSmoothingName;
  std::error_code error;
  if (!fs::exists(path, error)) return std::optional<format::SmoothingFile>();
  auto file = format::SmoothingFile::open(path);
  if (!file.ok()) return file.status();
  return std::optional(std::move(file).value());
}

}  // namespace

Result<OriginalWeights> original_weights(const io::Checkpoint& original) {
  auto inputs = model::input_tensors(original);
  if (!inputs.ok()) return inputs.status();
  OriginalWeights weights;
  for (model::InputTensor& tensor : inputs->tensors)
    if (const std::string_view module = format::module_of(tensor.info.name); tensor.source && !module.empty())
      weights.emplace(module, std::move(*tensor.source));
  return weights;
}

Result<Candidate> open_candidate(const io::Checkpoint& original, const OriginalWeights& weights, const fs::path& path,
                                 std::uint64_t& bytes) {
  auto checkpoint = io::Checkpoint::open(path);
  if (!checkpoint.ok()) return checkpoint.status();
  auto found = format::find_quantized_weights(*checkpoint);
  if (!found.ok()) return found.status();
  if (!*found)
    // Says what is missing, and where.
    return format::read_quantization_config(*checkpoint).status();
  auto smoothing = smoothing_of(*checkpoint);
  if (!smoothing.ok()) return smoothing.status();
  Candidate candidate{std::move(checkpoint).value(), std::move((*found)->description), std::move((*found)->layers),
                      std::move(smoothing).value()};
  for (const format::QuantizedLayer& layer : candidate.layers) {
    const auto weight = original_of(original, weights, layer);
    if (!weight.ok()) return weight.status();
    const io::TensorInfo* s = nullptr;
    if (candidate.smoothing) {
      const auto vector = candidate.smoothing->vector_of(layer.module, layer.columns);
      if (!vector.ok()) return vector.status();
      s = *vector;
    }
    bytes += (*weight)->stored_bytes();
    candidate.by_name[layer.module] = {&layer, *weight, s};
  }
  return candidate;
}

Result<InputChannels> inputs_of(const Candidate& candidate, const Candidate::Layer& layer,
                                const std::optional<format::ActivationStats>& stats) {
  std::vector<float> s, absmax;
  if (layer.s != nullptr) {
    s.resize(static_cast<std::size_t>(layer.layer->columns));
    if (Status status = candidate.smoothing->read(*layer.s, 0, s); !status.ok()) return status;
  }
  if (stats && stats->has_absmax(layer.layer->module)) {
    auto read = stats->absmax(layer.layer->module, layer.layer->columns);
    if (!read.ok()) return read.status();
    absmax = std::move(read).value();
  }
  return input_channels(absmax, s);
}

Result<std::optional<InputErrors>> input_errors_of(const Candidate& candidate, const Candidate::Layer& layer,
                                                   const format::ActivationStats& stats) {
  using format::Statistic;
  const std::string& module = layer.layer->module;
  const std::uint64_t columns = layer.layer->columns;
  const auto& activations = layer.layer->scheme.activations;
  const bool of_tokens = activations && activations->dynamic != format::Dynamic::no;
  const Statistic error = format::error_of(activations && activations->asymmetric ? DynamicRangeMode::asymmetric
                                                                                  : DynamicRangeMode::symmetric);
  // What a token's codes cost depends on the token's largest channel, and that on smoothing. Statistics know it of int8
  // only.
  const bool known = activations && activations->code == ElementKind::s8 && stats.has(module, error);
  if (of_tokens && (layer.s != nullptr || !known)) return std::optional<InputErrors>();
  if (!stats.has(module, Statistic::mean_square)) return std::optional<InputErrors>();
  auto squares = stats.channels(module, Statistic::mean_square, columns);
  if (!squares.ok()) return squares.status();
  InputErrors inputs{std::move(squares).value(), std::vector<float>(static_cast<std::size_t>(columns))};
  if (layer.s != nullptr) {
    std::vector<float> s(static_cast<std::size_t>(columns));
    if (Status status = candidate.smoothing->read(*layer.s, 0, s); !status.ok()) return status;
    for (std::size_t i = 0; i < s.size(); ++i) inputs.squares[i] /= s[i] * s[i];
  }
  if (of_tokens) {
    auto errors = stats.channels(module, error, columns);
    if (!errors.ok()) return errors.status();
    inputs.errors = std::move(errors).value();
  } else if (layer.layer->input_scale) {
    float scale = 0;
    std::vector<std::byte> bytes;
    if (Status status = format::read_scales(candidate.checkpoint, *layer.layer->input_scale, 0, {&scale, 1}, bytes);
        !status.ok())
      return status;
    // Rounding spreads errors evenly over a step. A channel that is smaller than that becomes 0: it is its own error.
    // The steps of a floating-point code are a part of the number: an even mantissa of M bits costs 2^-2M / 28 of x².
    if (has_float_grid(activations->code)) {
      const float relative = std::ldexp(1.0f / 28, -2 * info(activations->code).format.mantissa_bits);
      std::ranges::transform(inputs.squares, inputs.errors.begin(), [&](float square) { return square * relative; });
    } else {
      std::ranges::transform(inputs.squares, inputs.errors.begin(),
                             [&](float square) { return std::min(square, scale * scale / 12); });
    }
  }
  return std::optional(std::move(inputs));
}

}  // namespace kvant::measure
