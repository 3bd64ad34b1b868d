// The text that a model is run over: --text FILE, cut into tokens by the model's own tokenizer, or --tokens FILE.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "kvant/status.h"
#include "model/token_text.h"
#include "model/tokenizer/tokenizer.h"

namespace kvant::cli {

struct TextOptions {
  std::string text;
  std::string tokens;
  int length = 512;
  int max_tokens = 0;
};

std::vector<Argument> text_arguments(TextOptions& options);

// The sequences for a model. Language models: the whole text, cut into sequences. Encoders: a sequence for each line.
Result<model::TokenText> read_text_for(const std::filesystem::path& model, const TextOptions& options);

// The tokenizer of a model.
Result<model::Tokenizer> tokenizer_of(const std::filesystem::path& model);

}  // namespace kvant::cli
