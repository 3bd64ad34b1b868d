// The merges of byte-pair encoding: which two ids become which, and how early.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/section.h"
#include "model/tokenizer/vocabulary.h"

namespace kvant::model::tokenizer {

struct Merge {
  std::int32_t rank = 0;
  std::int32_t result = 0;
};

class Merges {
 public:
  // The list "merges": "a b", or ["a", "b"]. Of a pair that is twice in it, the last counts.
  static Result<Merges> read(const Section& model, const Vocabulary& vocabulary);

  std::optional<Merge> find(std::int32_t left, std::int32_t right) const {
    const Slot& slot = slots_[place_of(left, right)];
    return slot.left < 0 ? std::nullopt : std::optional(slot.merge);
  }

 private:
  struct Slot {
    std::int32_t left = -1, right = -1;  // -1: empty
    Merge merge;
  };
  // Where a pair is, or belongs.
  std::size_t place_of(std::int32_t left, std::int32_t right) const;

  // A power of two of them, fewer than half of them taken.
  std::vector<Slot> slots_{Slot{}};
};

}  // namespace kvant::model::tokenizer
