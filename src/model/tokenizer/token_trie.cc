#include "model/tokenizer/token_trie.h"

#include <algorithm>

namespace kvant::model::tokenizer {

std::size_t TokenTrie::child(std::size_t node, char byte) const {
  if (node == 0) return first_[static_cast<unsigned char>(byte)];
  const auto& next = nodes_[node].next;
  const auto found = std::lower_bound(next.begin(), next.end(), byte,
                                      [](const auto& entry, char wanted) { return entry.first < wanted; });
  return found != next.end() && found->first == byte ? found->second : kNone;
}

void TokenTrie::add(std::string_view text, std::size_t value) {
  std::size_t node = 0;
  for (const char byte : text) {
    std::size_t next = child(node, byte);
    if (next == kNone) {
      next = nodes_.size();
      if (node == 0) {
        first_[static_cast<unsigned char>(byte)] = next;
      } else {
        auto& entries = nodes_[node].next;
        entries.insert(std::lower_bound(entries.begin(), entries.end(), std::pair(byte, next),
                                        [](const auto& a, const auto& b) { return a.first < b.first; }),
                       {byte, next});
      }
      nodes_.emplace_back();
    }
    node = next;
  }
  if (nodes_[node].value == kNone) nodes_[node].value = value;
}

std::optional<TokenTrie::Match> TokenTrie::find(std::string_view text, std::size_t at) const {
  for (; at < text.size(); ++at) {
    std::optional<Match> longest;
    std::size_t node = 0;
    for (std::size_t end = at; end < text.size();) {
      node = child(node, text[end++]);
      if (node == kNone) break;
      if (nodes_[node].value != kNone) longest = Match{at, end, nodes_[node].value};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace kvant::model::tokenizer
