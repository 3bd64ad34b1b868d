// A text as the ids of its tokens, in sequences that are run each by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "kvant/status.h"

namespace kvant::model {

struct TokenText {
  std::vector<std::int32_t> ids;      // of all sequences, one after the other
  std::vector<std::int64_t> lengths;  // of the sequences

  std::int64_t rows() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t longest() const;  // of the lengths; 0: there are no sequences
};

// Sequences of `length` tokens, the last one shorter. With max_tokens, the rest of the ids is dropped; 0: all are
// taken.
TokenText cut(std::vector<std::int32_t> ids, std::int64_t length, std::int64_t max_tokens);

// Ids in decimal, separated by white space or commas. Refuses anything else with its place.
Result<std::vector<std::int32_t>> read_ids(const std::filesystem::path& path);

// Sequences that are run together, so that their activations fit the memory: whole ones, about `max_rows` rows.
struct Batch {
  std::size_t first;  // sequence
  std::size_t count;
  std::int64_t first_row;
  std::int64_t rows;
};
std::vector<Batch> batches_of(const TokenText& text, std::int64_t max_rows);

}  // namespace kvant::model
