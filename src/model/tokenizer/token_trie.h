// Finds the longest of many texts at a place of another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace kvant::model::tokenizer {

class TokenTrie {
 public:
  // The text stands for `value`, unless it is there already.
  void add(std::string_view text, std::size_t value);

  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    std::size_t begin, end, value;
  };
  // The leftmost match from `at` on, and the longest there.
  std::optional<Match> find(std::string_view text, std::size_t at) const;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Node {
    std::vector<std::pair<char, std::size_t>> next;
    std::size_t value = kNone;
  };
  std::size_t child(std::size_t node, char byte) const;

  std::vector<Node> nodes_{Node{}};
  std::array<std::size_t, 256> first_ = [] {
    std::array<std::size_t, 256> none{};
    none.fill(kNone);
    return none;
  }();  // children of the first node, which every byte of a text asks for
};

}  // namespace kvant::model::tokenizer
