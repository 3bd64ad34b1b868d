// The section "added_tokens": tokens that are found in the text itself, before a model sees it. Those that are not
// "normalized" are looked for in the text as it is given, the others in what the normalizer makes of the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pieces.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/seeded_hash.h"
#include "model/tokenizer/token_trie.h"
#include "model/tokenizer/vocabulary.h"

namespace kvant::model::tokenizer {

class AddedTokens {
 public:
  // Refuses a token that is there twice, that is too long, that the normalizer leaves nothing of, or whose id is not
  // the one that `tokenizers` would give it.
  static Result<AddedTokens> read(const Section& file, const Vocabulary& vocabulary, const Normalizer& normalizer);

  // A part of a text: a token, or text between tokens (no id).
  struct Part {
    Range range;
    std::optional<std::int32_t> id;
  };
  std::vector<Part> split_given(std::string_view text) const { return split(text, given_); }
  std::vector<Part> split_normalized(std::string_view text) const { return split(text, normalized_); }

  std::optional<std::int32_t> id_of(std::string_view content) const;
  // nullptr: none has this id.
  const std::string* content(std::int32_t id) const;
  // Above all of their ids, and not below the number of the model's tokens.
  std::int32_t size() const { return size_; }

 private:
  struct Token {
    std::string content;
    std::int32_t id = 0;
    bool is_single_word = false, strips_left = false, strips_right = false, is_normalized = false, is_special = false;
  };
  static Result<Token> read_token(const Section& section);
  Status add(const Section& section, Token token, const Vocabulary& vocabulary);
  Status index(const Section& file, const Normalizer& normalizer);
  std::vector<Part> split(std::string_view text, const TokenTrie& trie) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, std::size_t, SeededHash> by_content_;
  std::unordered_map<std::int32_t, std::size_t> by_id_;
  TokenTrie given_, normalized_;  // of places in tokens_
  std::int32_t size_ = 0;
};

}  // namespace kvant::model::tokenizer
