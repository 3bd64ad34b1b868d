// What a model lost: the original and quantized checkpoints run over the same tokens, and their predictions are put
// side by side: model_quality.h has the figures.
//
// Every checkpoint is read block by block. The states of all tokens are kept, in a file where they do not fit, so a
// model needs the memory of its largest block. The numbers are the same for any number of threads and any limit of
// memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "io/json_fwd.h"
#include "kvant/status.h"
#include "measure/model_quality.h"
#include "model/text_job.h"
#include "model/token_text.h"
#include "model/tokenizer/tokenizer.h"

namespace kvant::measure {

struct EvaluateOptions {
  std::filesystem::path original;
  std::vector<std::filesystem::path> quantized;
  model::TokenText text;
  model::RunSettings run = {};
};

struct Evaluation {
  std::string model_type;
  bool is_encoder = false;
  std::uint64_t tokens = 0;  // that were predicted; of encoders: that were read
  std::uint64_t sequences = 0;
  ModelQuality original;
  std::vector<ModelQuality> quantized;
};

Result<Evaluation> evaluate(const EvaluateOptions& options, base::Progress& progress);

// With the text of tokens where there is a tokenizer.
io::Json to_json(const Evaluation& evaluation, const model::Tokenizer* tokenizer);

}  // namespace kvant::measure
