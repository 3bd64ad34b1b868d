// Byte-pair encoding: the characters of a word are merged, pair by pair, in the order of a list.
#pragma once

#include <memory>
#include <string_view>

#include "kvant/status.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/word_model.h"

namespace kvant::model::tokenizer {

inline constexpr std::string_view kBpeType = "BPE";

// Refuses merges of tokens that the vocabulary does not have, dropout, and prefixes or suffixes of subwords.
Result<std::unique_ptr<const WordModel>> read_bpe(const Section& model, Vocabulary vocabulary);

}  // namespace kvant::model::tokenizer
