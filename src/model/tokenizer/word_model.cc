#include "model/tokenizer/word_model.h"

#include <utility>

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/word_piece.h"

namespace kvant::model::tokenizer {

Result<std::unique_ptr<const WordModel>> WordModel::read(const Section& file, const Section& model) {
  // Old files of BPE have no type.
  const auto type = model.text_or("type", model.find("merges") != nullptr ? kBpeType : "");
  if (!type.ok()) return type.status();
  if (*type != kBpeType && *type != kWordPieceType)
    return file.unsupported("model type \"{}\" is not supported; supported are {} and {}", io::printable(*type),
                            kBpeType, kWordPieceType);
  auto vocabulary = Vocabulary::read(model);
  if (!vocabulary.ok()) return vocabulary.status();
  return *type == kBpeType ? read_bpe(model, std::move(vocabulary).value())
                           : read_word_piece(model, std::move(vocabulary).value());
}

}  // namespace kvant::model::tokenizer
