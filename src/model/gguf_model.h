// A GGUF of a Llama-like network, seen as a Hugging Face checkpoint: its names, its shapes, its order of rows, its
// config.json and its tokenizer.json.
//
// llama.cpp stores the rows of q and k of Llama models in another order, for its form of the rotary embedding; that is
// undone here. A file without output.weight has tied embeddings. rope_freqs.weight becomes Llama 3's rope_scaling.
//
// Refused, with what was found: other architectures; a tensor that is missing, not known or of another shape than the
// metadata say; types that format/gguf_blocks.h does not decode; layers of different sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/gguf.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::model {

class GgufModel {
 public:
  struct Tensor {
    std::string name;  // "model.layers.0.self_attn.q_proj.weight"
    std::vector<std::uint64_t> shape;
    io::GgufType type = io::GgufType::f32;
    std::size_t source = 0;       // in the file's list
    std::uint64_t first_row = 0;  // of an expert, in the tensor of all experts
    std::uint64_t heads = 0;      // whose rows are in llama.cpp's order; 0: all rows are where they belong

    std::uint64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
    std::uint64_t columns() const { return shape.back(); }
    std::uint64_t bytes() const;  // in the file
  };

  static Result<GgufModel> open(const std::filesystem::path& path);

  const io::GgufFile& file() const { return file_; }
  const io::Json& config() const { return *config_; }
  // Null: there is none, and tokenizer_problem() says why.
  const io::Json* tokenizer() const { return tokenizer_.get(); }
  const io::Json& tokenizer_config() const { return *tokenizer_config_; }
  const std::string& tokenizer_problem() const { return tokenizer_problem_; }

  // In the order of the model. A matrix has two dimensions, everything else one.
  std::span<const Tensor> tensors() const { return tensors_; }
  // Rows [first_row, first_row + rows) of a tensor of this model in f32; one of one dimension is one row. May be called
  // from many threads.
  Status read_rows(const Tensor& tensor, std::uint64_t first_row, std::uint64_t rows, float* out) const;

 private:
  explicit GgufModel(io::GgufFile file) : file_(std::move(file)) {}
  // Elements of the source, in its order.
  Status read_elements(const io::GgufTensor& source, std::uint64_t first, std::uint64_t count, float* out) const;

  io::GgufFile file_;
  std::vector<Tensor> tensors_;
  std::shared_ptr<const io::Json> config_;
  std::shared_ptr<const io::Json> tokenizer_;
  std::shared_ptr<const io::Json> tokenizer_config_;
  std::string tokenizer_problem_;
};

}  // namespace kvant::model
