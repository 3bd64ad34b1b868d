#include "model/tokenizer/vocabulary.h"

#include <algorithm>
#include <utility>

#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/limits.h"

namespace kvant::model::tokenizer {

Result<Vocabulary> Vocabulary::read(const Section& model) {
  const io::Json* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_object()) return model.wrong("vocab", "an object of tokens and ids");
  if (vocab->empty()) return model.refuse("\"vocab\" is empty");
  Vocabulary vocabulary;
  std::int32_t last = 0;
  for (const auto& [token, value] : vocab->items()) {
    const auto id = token_id(model, token, value);
    if (!id.ok()) return id.status();
    last = std::max(last, *id);
  }
  vocabulary.tokens_.resize(static_cast<std::size_t>(last) + 1);
  vocabulary.ids_.reserve(vocab->size());
  for (const auto& [token, value] : vocab->items()) {
    const auto id = value.get<std::int32_t>();
    std::optional<std::string>& place = vocabulary.tokens_[static_cast<std::size_t>(id)];
    if (place)
      return model.refuse("the tokens '{}' and '{}' both have the id {}", io::printable(*place), io::printable(token),
                          id);
    place = token;
    vocabulary.ids_.emplace(*place, id);
    vocabulary.most_bytes_ = std::max(vocabulary.most_bytes_, token.size());
  }
  return Result<Vocabulary>(std::move(vocabulary));
}

const std::string* Vocabulary::token(std::int32_t id) const {
  if (id < 0 || id >= size()) return nullptr;
  const std::optional<std::string>& token = tokens_[static_cast<std::size_t>(id)];
  return token ? &*token : nullptr;
}

}  // namespace kvant::model::tokenizer
