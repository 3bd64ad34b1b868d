// The report of an evaluation: one HTML file that shows what the model lost as a whole. It has no script.
#pragma once

#include <string>

#include "measure/evaluate.h"

namespace kvant::cli {

// What the evaluation itself does not know.
struct EvaluationFacts {
  std::string command;                          // "kvant eval ./Llama ./Llama-w8a8 --text held-out.txt"
  const model::Tokenizer* tokenizer = nullptr;  // null: tokens are shown by their ids
};

// The whole page. Names and tokens are escaped: nothing in a checkpoint or a text can become markup.
std::string evaluation_page(const measure::Evaluation& evaluation, const EvaluationFacts& facts);

}  // namespace kvant::cli
