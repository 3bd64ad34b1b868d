// The section "pre_tokenizer": where a text is cut before the model sees the words.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/pieces.h"
#include "model/tokenizer/section.h"

namespace kvant::model::tokenizer {

class PreTokenizer {
 public:
  using Step = std::function<Status(Pieces& pieces)>;

  // Does nothing: all of the text is one word.
  PreTokenizer() = default;
  static Result<PreTokenizer> read(const Section& section);

  Status apply(Pieces& pieces) const;
  // Words are bytes in GPT-2's alphabet.
  bool is_byte_level() const { return is_byte_level_; }
  // What a step puts in the place of spaces; empty where none does.
  const std::string& space_marker() const { return space_marker_; }

 private:
  Status add(const Section& section);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
  std::string space_marker_;
};

}  // namespace kvant::model::tokenizer
