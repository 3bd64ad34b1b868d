// The tokens of a model and their ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/seeded_hash.h"

namespace kvant::model::tokenizer {

class Vocabulary {
 public:
  // The object "vocab" of the model. Refuses an id that two tokens have, and one that is out of bounds.
  static Result<Vocabulary> read(const Section& model);

  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::optional<std::int32_t> id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  // nullptr: no token has this id.
  const std::string* token(std::int32_t id) const;
  // All ids are below; there may be holes.
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::size_t tokens() const { return ids_.size(); }
  // Of the longest token.
  std::size_t most_bytes() const { return most_bytes_; }

 private:
  Vocabulary() = default;

  std::vector<std::optional<std::string>> tokens_;                      // by id
  std::unordered_map<std::string_view, std::int32_t, SeededHash> ids_;  // views of tokens_
  std::size_t most_bytes_ = 0;
};

}  // namespace kvant::model::tokenizer
