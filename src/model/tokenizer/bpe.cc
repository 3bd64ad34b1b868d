#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "base/utf8.h"
#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/byte_token.h"
#include "model/tokenizer/merges.h"

namespace kvant::model::tokenizer {
namespace {

std::optional<char> byte_of(std::string_view token) {
  if (token.size() != byte_token(0).size()) return std::nullopt;
  for (std::size_t byte = 0; byte < 256; ++byte)
    if (byte_token(byte) == token) return static_cast<char>(static_cast<unsigned char>(byte));
  return std::nullopt;
}

struct BpeOptions {
  std::string unknown;  // the token for characters that have none; empty: they are left out
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

// A part of a word, in a list that runs both ways.
struct Symbol {
  std::int32_t id;
  std::int32_t previous, next;  // -1: none
};
constexpr std::int32_t kMerged = -1;

// A pair that may be merged. It may be gone when its turn comes.
struct Candidate {
  std::int32_t rank, place, result;
  // The lowest rank first, the leftmost of equal ones.
  bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
};

class Bpe final : public WordModel {
 public:
  Bpe(Vocabulary vocabulary, Merges merges, BpeOptions options)
      : WordModel(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
    unknown_ = this->vocabulary().id_of(options_.unknown);
    for (std::size_t byte = 0; byte < bytes_.size(); ++byte) bytes_[byte] = this->vocabulary().id_of(byte_token(byte));
  }

  Status encode(std::string_view word, std::vector<std::int32_t>& ids) const override {
    if (options_.ignore_merges)
      if (const auto id = vocabulary().id_of(word)) {
        ids.push_back(*id);
        return {};
      }
    std::vector<Symbol> symbols;
    if (Status s = take_apart(word, symbols); !s.ok()) return s;
    merge(symbols);
    for (const Symbol& symbol : symbols)
      if (symbol.id != kMerged) ids.push_back(symbol.id);
    return {};
  }

  std::string text_of(std::string_view token) const override {
    if (options_.byte_fallback)
      if (const auto byte = byte_of(token)) return {*byte};
    return std::string(token);
  }
  bool begins_word(std::string_view /*token*/) const override { return false; }

 private:
  static void put(std::vector<Symbol>& symbols, std::int32_t id) {
    const auto place = static_cast<std::int32_t>(symbols.size());
    if (place > 0) symbols.back().next = place;
    symbols.push_back({id, place - 1, -1});
  }

  // The word as characters, bytes and unknown ones.
  Status take_apart(std::string_view word, std::vector<Symbol>& symbols) const {
    symbols.reserve(word.size());
    // An unknown character waits for the next known one, which bytes are not.
    bool unknown_waits = false;
    for (std::size_t at = 0; at < word.size();) {
      const std::string_view character = word.substr(at, base::first_code_point(word.substr(at)).bytes);
      at += character.size();
      if (const auto id = vocabulary().id_of(character)) {
        if (unknown_waits) put(symbols, *unknown_);
        unknown_waits = false;
        put(symbols, *id);
      } else if (!put_bytes(character, symbols) && !options_.unknown.empty()) {
        if (!unknown_)
          return base::invalid_problem(
              "the character '{}' has no token, and the unknown token '{}' is not there either",
              io::printable(character), io::printable(options_.unknown));
        if (unknown_waits && !options_.fuse_unknown) put(symbols, *unknown_);
        unknown_waits = true;
      }
    }
    if (unknown_waits) put(symbols, *unknown_);
    return {};
  }

  // False: not all bytes have a token.
  bool put_bytes(std::string_view character, std::vector<Symbol>& symbols) const {
    if (!options_.byte_fallback) return false;
    const auto id = [&](char byte) { return bytes_[static_cast<unsigned char>(byte)]; };
    if (!std::all_of(character.begin(), character.end(), [&](char byte) { return id(byte).has_value(); })) return false;
    for (const char byte : character) put(symbols, *id(byte));
    return true;
  }

  // A heap: a word of n characters takes n log n steps.
  void merge(std::vector<Symbol>& symbols) const {
    std::vector<Candidate> heap;
    const auto candidate = [&](std::int32_t place) -> std::optional<Candidate> {
      const Symbol& left = symbols[static_cast<std::size_t>(place)];
      if (left.next < 0) return std::nullopt;
      const auto found = merges_.find(left.id, symbols[static_cast<std::size_t>(left.next)].id);
      if (!found) return std::nullopt;
      return Candidate{found->rank, place, found->result};
    };
    for (std::size_t place = 0; place + 1 < symbols.size(); ++place)
      if (const auto found = candidate(static_cast<std::int32_t>(place))) heap.push_back(*found);
    std::make_heap(heap.begin(), heap.end());
    const auto push = [&](std::int32_t place) {
      if (const auto found = candidate(place)) {
        heap.push_back(*found);
        std::push_heap(heap.begin(), heap.end());
      }
    };
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const Candidate top = heap.back();
      heap.pop_back();
      Symbol& left = symbols[static_cast<std::size_t>(top.place)];
      if (left.id == kMerged || left.next < 0) continue;
      // Either neighbour may be another one by now; what counts is that they still make the same.
      const auto now = candidate(top.place);
      if (!now || now->result != top.result) continue;
      Symbol& right = symbols[static_cast<std::size_t>(left.next)];
      left.id = top.result;
      left.next = right.next;
      right.id = kMerged;
      if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = top.place;
      if (left.previous >= 0) push(left.previous);
      push(top.place);
    }
  }

  Merges merges_;
  BpeOptions options_;
  std::optional<std::int32_t> unknown_;
  std::array<std::optional<std::int32_t>, 256> bytes_;
};

Result<BpeOptions> read_options(const Section& model) {
  if (const io::Json* dropout = model.find("dropout"))
    if (!dropout->is_number() || dropout->get<double>() != 0)
      return model.unsupported("\"dropout\" is {}, which makes ids random; must be null or 0",
                               io::printable(dropout->dump(-1, ' ', true)));
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto text = model.text_or(key, "");
    if (!text.ok()) return text.status();
    if (!text->empty())
      return model.unsupported("\"{}\" is '{}', which is not supported; must be empty", key, io::printable(*text));
  }
  BpeOptions options;
  const auto unknown = model.text_or("unk_token", "");
  if (!unknown.ok()) return unknown.status();
  options.unknown = *unknown;
  struct Flag {
    std::string_view key;
    bool BpeOptions::*member;
  };
  for (const Flag& flag :
       {Flag{"fuse_unk", &BpeOptions::fuse_unknown}, Flag{"byte_fallback", &BpeOptions::byte_fallback},
        Flag{"ignore_merges", &BpeOptions::ignore_merges}}) {
    const auto value = model.flag_or(flag.key, false);
    if (!value.ok()) return value.status();
    options.*flag.member = *value;
  }
  return options;
}

}  // namespace

Result<std::unique_ptr<const WordModel>> read_bpe(const Section& model, Vocabulary vocabulary) {
  auto options = read_options(model);
  if (!options.ok()) return options.status();
  auto merges = Merges::read(model, vocabulary);
  if (!merges.ok()) return merges.status();
  return std::unique_ptr<const WordModel>(
      std::make_unique<Bpe>(std::move(vocabulary), std::move(merges).value(), std::move(options).value()));
}

}  // namespace kvant::model::tokenizer
