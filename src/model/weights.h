// The weights of a model as values, whatever file they are in: a checkpoint of safetensors, quantized or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/quantization_config.h"
#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "io/json_fwd.h"
#include "kvant/element.h"
#include "kvant/status.h"
#include "model/smooth_groups.h"

namespace kvant::model {

class Weights {
 public:
  // Refuses what cannot be run: no config.json, a form of quantization that kvant does not read.
  static Result<Weights> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return checkpoint_.path(); }
  const io::Json& config() const { return *checkpoint_.config(); }
  const Modules& modules() const { return modules_; }  // that have a weight, quantized or not
  const std::optional<format::QuantizationConfig>& quantization() const { return quantization_; }
  const io::Checkpoint& checkpoint() const { return checkpoint_; }

  // Null: the module is not quantized.
  const format::QuantizedLayer* quantized(std::string_view module) const;

  bool has(std::string_view tensor) const { return checkpoint_.find(tensor) != nullptr; }
  // A tensor in floating point. Refuses what is missing, holds something else, or has another shape.
  Result<io::TensorPlace> find(std::string_view tensor, std::vector<std::uint64_t> shape) const;
  // Rows [first, first + count) of a matrix, or of a vector as one row, in f32. f64 is rounded to nearest.
  Status read_rows(const io::TensorPlace& place, std::uint64_t first, std::uint64_t count, float* to) const;
  // A vector of that size.
  Result<std::vector<float>> read_vector(std::string_view tensor, std::int64_t size) const;
  // The same, or nothing where the tensor is missing.
  Result<std::vector<float>> read_vector_if_there(std::string_view tensor, std::int64_t size) const;

 private:
  explicit Weights(io::Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  io::Checkpoint checkpoint_;
  std::optional<format::QuantizationConfig> quantization_;
  std::map<std::string, format::QuantizedLayer, std::less<>> layers_;
  Modules modules_;
};

}  // namespace kvant::model
