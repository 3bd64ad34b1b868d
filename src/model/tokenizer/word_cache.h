// The ids of words that were seen lately: most words of a text come again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/seeded_hash.h"

namespace kvant::model::tokenizer {

class WordCache {
 public:
  // Appends the ids of a word: those it remembers, or those that `make(word, ids)` appends.
  template <class Make>
  Status encode(std::string_view word, std::vector<std::int32_t>& ids, const Make& make) {
    if (word.size() > kMaxWordBytes) return make(word, ids);
    // One place for each word: a word that falls on another takes its place, so nothing grows.
    Entry& entry = entries_[hash_of(word) % entries_.size()];
    if (entry.word == word) {
      ids.insert(ids.end(), entry.ids.begin(), entry.ids.end());
      return {};
    }
    const std::size_t before = ids.size();
    Status status = make(word, ids);
    if (status.ok()) {
      entry.word = word;
      entry.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
    }
    return status;
  }

 private:
  // Longer ones are rare, and would make the memory large that 32,768 of them take: 10 MB at most.
  static constexpr std::size_t kMaxWordBytes = 64;
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  struct Entry {
    std::string word;  // never empty once it is taken: words are not
    std::vector<std::int32_t> ids;
  };
  std::vector<Entry> entries_{kEntries};
};

}  // namespace kvant::model::tokenizer
