#include "model/tokenizer/word_piece.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/limits.h"
#include "model/tokenizer/seeded_hash.h"

namespace kvant::model::tokenizer {
namespace {

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

struct WordPieceOptions {
  std::string unknown;
  std::string prefix;  // of tokens that continue a word
  std::size_t max_characters = 0;
};

class WordPiece final : public WordModel {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options)
      : WordModel(std::move(vocabulary)), options_(std::move(options)) {
    unknown_ = this->vocabulary().id_of(options_.unknown);
    for (std::int32_t id = 0; id < this->vocabulary().size(); ++id)
      if (const std::string* token = this->vocabulary().token(id))
        if (token->starts_with(options_.prefix))
          continuing_.emplace(std::string_view(*token).substr(options_.prefix.size()), id);
  }

  Status encode(std::string_view word, std::vector<std::int32_t>& ids) const override {
    const std::size_t before = ids.size();
    const auto characters = static_cast<std::size_t>(std::count_if(word.begin(), word.end(), begins_character));
    if (characters <= options_.max_characters) {
      std::size_t at = 0;
      while (at < word.size())
        if (const std::size_t taken = take(word.substr(at), at > 0, ids); taken > 0)
          at += taken;
        else
          break;
      if (at == word.size()) return {};
      ids.resize(before);
    }
    if (!unknown_)
      return base::invalid_problem("the word '{}' has no tokens, and the unknown token '{}' is not there either",
                                   io::printable(word), io::printable(options_.unknown));
    ids.push_back(*unknown_);
    return {};
  }

  std::string text_of(std::string_view token) const override {
    return std::string(begins_word(token) ? token : token.substr(options_.prefix.size()));
  }
  bool begins_word(std::string_view token) const override {
    return !token.starts_with(options_.prefix) || token.size() == options_.prefix.size();
  }

 private:
  // The longest token at the front: appends its id, and says how many bytes it takes. 0: there is none.
  std::size_t take(std::string_view rest, bool continues, std::vector<std::int32_t>& ids) const {
    for (std::size_t bytes = std::min(rest.size(), vocabulary().most_bytes()); bytes > 0; --bytes) {
      if (bytes < rest.size() && !begins_character(rest[bytes])) continue;
      if (const auto id = continues ? continuing(rest.substr(0, bytes)) : vocabulary().id_of(rest.substr(0, bytes))) {
        ids.push_back(*id);
        return bytes;
      }
    }
    return 0;
  }
  std::optional<std::int32_t> continuing(std::string_view text) const {
    const auto found = continuing_.find(text);
    return found == continuing_.end() ? std::nullopt : std::optional(found->second);
  }

  WordPieceOptions options_;
  std::optional<std::int32_t> unknown_;
  std::unordered_map<std::string_view, std::int32_t, SeededHash> continuing_;  // without the prefix
};

}  // namespace

Result<std::unique_ptr<const WordModel>> read_word_piece(const Section& model, Vocabulary vocabulary) {
  WordPieceOptions options;
  const auto unknown = model.text_or("unk_token", "[UNK]");
  if (!unknown.ok()) return unknown.status();
  options.unknown = *unknown;
  const auto prefix = model.text_or("continuing_subword_prefix", "##");
  if (!prefix.ok()) return prefix.status();
  options.prefix = *prefix;
  constexpr std::string_view kMost = "max_input_chars_per_word";
  options.max_characters = 100;
  if (const io::Json* most = model.find(kMost)) {
    if (!most->is_number_unsigned() || most->get<std::uint64_t>() > std::uint64_t{kMaxCharactersOfWord})
      return model.wrong(kMost, base::text("a whole number from 0 to {}", kMaxCharactersOfWord));
    options.max_characters = most->get<std::size_t>();
  }
  return std::unique_ptr<const WordModel>(std::make_unique<WordPiece>(std::move(vocabulary), std::move(options)));
}

}  // namespace kvant::model::tokenizer
