// WordPiece: the longest token that a word begins with, then the longest that continues it, and so on.
#pragma once

#include <memory>
#include <string_view>

#include "kvant/status.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/word_model.h"

namespace kvant::model::tokenizer {

inline constexpr std::string_view kWordPieceType = "WordPiece";

Result<std::unique_ptr<const WordModel>> read_word_piece(const Section& model, Vocabulary vocabulary);

}  // namespace kvant::model::tokenizer
