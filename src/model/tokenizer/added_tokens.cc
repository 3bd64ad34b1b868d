#include "model/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/characters.h"
#include "model/tokenizer/limits.h"

namespace kvant::model::tokenizer {
namespace {

// The character that ends at a place of valid UTF-8 that is not its beginning.
base::CodePoint character_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return base::first_code_point(text.substr(begin, end - begin));
}

bool stands_alone(std::string_view text, const TokenTrie::Match& match) {
  const bool after_word = match.begin > 0 && is_word(character_before(text, match.begin).value);
  const bool before_word = match.end < text.size() && is_word(base::first_code_point(text.substr(match.end)).value);
  return !after_word && !before_word;
}

}  // namespace

Result<AddedTokens::Token> AddedTokens::read_token(const Section& section) {
  Token token;
  const auto content = section.text("content");
  if (!content.ok()) return content.status();
  token.content = *content;
  if (token.content.size() > kMaxAddedTokenBytes)
    return section.refuse("\"content\" has {} bytes, the most are {}", token.content.size(), kMaxAddedTokenBytes);
  const io::Json* id = section.find("id");
  if (id == nullptr) return section.wrong("id", "a whole number");
  const auto number = token_id(section, token.content, *id);
  if (!number.ok()) return number.status();
  token.id = *number;
  struct Flag {
    std::string_view key;
    bool Token::*member;
  };
  for (const Flag& flag : {Flag{"single_word", &Token::is_single_word}, Flag{"lstrip", &Token::strips_left},
                           Flag{"rstrip", &Token::strips_right}, Flag{"normalized", &Token::is_normalized},
                           Flag{"special", &Token::is_special}}) {
    const auto value = section.flag_or(flag.key, false);
    if (!value.ok()) return value.status();
    token.*flag.member = *value;
  }
  return token;
}

// `tokenizers` does not look at the file's id: it takes the vocabulary's, or counts on from the largest so far.
Status AddedTokens::add(const Section& section, Token token, const Vocabulary& vocabulary) {
  const auto known = vocabulary.id_of(token.content);
  const std::int32_t id = known ? *known : size_;
  if (id != token.id)
    return section.refuse("'{}' has the id {}, but {}", io::printable(token.content), token.id,
                          known ? base::text("the model's vocabulary gives it {}", id)
                                : base::text("the next id that is free is {}", id));
  if (!by_content_.emplace(token.content, tokens_.size()).second)
    return section.refuse("'{}' is there twice", io::printable(token.content));
  by_id_.emplace(token.id, tokens_.size());
  size_ = std::max(size_, token.id + 1);
  tokens_.push_back(std::move(token));
  return {};
}

Result<AddedTokens> AddedTokens::read(const Section& file, const Vocabulary& vocabulary, const Normalizer& normalizer) {
  AddedTokens added;
  added.size_ = static_cast<std::int32_t>(vocabulary.tokens());
  if (file.find("added_tokens") == nullptr) return added;
  const auto sections = file.sections("added_tokens");
  if (!sections.ok()) return sections.status();
  for (const Section& section : *sections) {
    auto token = read_token(section);
    if (!token.ok()) return token.status();
    if (token->content.empty()) continue;
    if (Status s = added.add(section, std::move(token).value(), vocabulary); !s.ok()) return s;
  }
  if (Status s = added.index(file, normalizer); !s.ok()) return s;
  return added;
}

Status AddedTokens::index(const Section& file, const Normalizer& normalizer) {
  // Of two that the normalizer makes the same, a special one counts, then the first.
  for (const bool special : {true, false})
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const Token& token = tokens_[i];
      if (token.is_special != special) continue;
      if (!token.is_normalized) {
        given_.add(token.content, i);
        continue;
      }
      std::string content = token.content;
      if (Status s = normalizer.apply(content); !s.ok()) return s;
      if (content.empty() || content.size() > kMaxAddedTokenBytes)
        return file.refuse("the added token '{}' has {} bytes after it is normalized, must have 1 to {}",
                           io::printable(token.content), content.size(), kMaxAddedTokenBytes);
      normalized_.add(content, i);
    }
  return {};
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, const TokenTrie& trie) const {
  std::vector<Part> parts;
  std::size_t done = 0;  // all before is in a part
  std::size_t at = 0;
  while (!trie.empty()) {
    const auto match = trie.find(text, at);
    if (!match) break;
    at = match->end;
    const Token& token = tokens_[match->value];
    if (token.is_single_word && !stands_alone(text, *match)) continue;
    Range range{match->begin, match->end};
    if (token.strips_left)
      while (range.begin > done) {
        const base::CodePoint c = character_before(text, range.begin);
        if (!is_space(c.value)) break;
        range.begin -= c.bytes;
      }
    if (token.strips_right) {
      // What the token before stripped is space. (A token may be a space itself.)
      range.end = std::max(range.end, done);
      while (range.end < text.size()) {
        const base::CodePoint c = base::first_code_point(text.substr(range.end));
        if (!is_space(c.value)) break;
        range.end += c.bytes;
      }
    }
    if (done < range.begin) parts.push_back({{done, range.begin}, std::nullopt});
    parts.push_back({range, token.id});
    done = range.end;
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, std::nullopt});
  return parts;
}

std::optional<std::int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? std::nullopt : std::optional(tokens_[found->second].id);
}

const std::string* AddedTokens::content(std::int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second].content;
}

}  // namespace kvant::model::tokenizer
