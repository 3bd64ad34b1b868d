// The weights of a model as values, whatever file they are in: a checkpoint of safetensors, quantized or not, or a
// GGUF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "format/kv_cache.h"
#include "format/quantized_layers.h"
#include "format/weight_source.h"
#include "io/checkpoint.h"
#include "io/json_fwd.h"
#include "kvant/element.h"
#include "kvant/status.h"
#include "model/gguf_model.h"
#include "model/smooth_groups.h"

namespace kvant::model {

// A tensor in floating point.
struct StoredTensor {
  std::size_t file = 0;   // of several
  std::size_t index = 0;  // in its list
  std::vector<std::uint64_t> shape;
  ElementKind kind = ElementKind::f32;  // as read() gives it; blocks of a GGUF are f32
  // Of a Linear that is a part of a stack of experts: where it is. It lives as long as the Weights.
  const format::WeightSource* part = nullptr;

  std::uint64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::uint64_t elements() const;
};

class Weights {
 public:
  // Refuses what cannot be run: no config.json, a form of quantization that kvant does not read.
  static Result<Weights> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const io::Json& config() const;
  const Modules& modules() const { return modules_; }  // that have a weight, quantized or not
  bool is_quantized() const { return !quantized_as_.empty(); }
  // "w8a8", "GGUF Q4_1" (its most frequent type); empty: not quantized.
  std::string scheme() const;
  std::uint64_t stored_bytes() const;                         // of all tensors
  std::uint64_t stored_bytes(std::string_view tensor) const;  // of one; 0: there is none
  // Tells these files from others and from these after a change.
  Result<io::Json> fingerprints() const;

  // Keys and values of attention are FP8, with scales that are stored (format/kv_cache.h).
  bool fp8_kv_cache() const { return fp8_kv_cache_; }
  // One of them. Refuses what is missing, is not one number in floating point, or no scale: not finite and positive.
  Result<float> cache_scale(std::string_view attention, format::CacheHalf half) const;

  // Null: the module is not quantized.
  const format::QuantizedLayer* quantized(std::string_view module) const;
  // Where the tensors of quantized() are. Not of a GGUF, which has none.
  const io::Checkpoint& checkpoint() const { return std::get<io::Checkpoint>(source_); }
  // Null: the files are safetensors.
  const GgufModel* gguf() const { return std::get_if<GgufModel>(&source_); }

  bool has(std::string_view tensor) const { return shape_of(tensor) != nullptr; }
  const std::vector<std::uint64_t>* shape_of(std::string_view tensor) const;  // null: there is none
  // A tensor in floating point. Refuses what is missing, holds something else, or has another shape.
  Result<StoredTensor> find(std::string_view tensor, std::vector<std::uint64_t> shape) const;
  // All elements, of the tensor's kind.
  Status read(const StoredTensor& tensor, std::span<std::byte> to) const;
  // Rows [first, first + count) of a matrix, or of a vector as one row, in f32. f64 is rounded to nearest.
  Status read_rows(const StoredTensor& tensor, std::uint64_t first, std::uint64_t count, float* to) const;
  // A vector of that size.
  Result<std::vector<float>> read_vector(std::string_view tensor, std::int64_t size) const;
  // The same, or nothing where the tensor is missing.
  Result<std::vector<float>> read_vector_if_there(std::string_view tensor, std::int64_t size) const;

 private:
  Weights(std::filesystem::path path, std::variant<io::Checkpoint, GgufModel> source)
      : path_(std::move(path)), source_(std::move(source)) {}
  Status find_quantized_layers();
  Status find_parts_of_stacks();

  std::filesystem::path path_;
  std::variant<io::Checkpoint, GgufModel> source_;
  std::map<std::string, std::size_t, std::less<>> gguf_tensors_;  // by name
  std::string quantized_as_;
  bool fp8_kv_cache_ = false;
  struct Part {
    std::vector<std::uint64_t> shape;
    format::WeightSource source;
  };
  // Linears that are cut from stacks of experts (input_tensors.h), by the name of their weight.
  std::shared_ptr<const std::map<std::string, Part, std::less<>>> parts_;
  std::map<std::string, format::QuantizedLayer, std::less<>> layers_;
  Modules modules_;
};

}  // namespace kvant::model
