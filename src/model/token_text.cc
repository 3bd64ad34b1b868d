#include "model/token_text.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "base/refuse.h"
#include "io/checkpoint.h"
#include "io/file.h"

namespace kvant::model {

std::int64_t TokenText::longest() const {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

TokenText cut(std::vector<std::int32_t> ids, std::int64_t length, std::int64_t max_tokens) {
  TokenText text;
  text.ids = std::move(ids);
  if (max_tokens > 0 && text.rows() > max_tokens) text.ids.resize(static_cast<std::size_t>(max_tokens));
  for (std::int64_t left = text.rows(); left > 0; left -= length) text.lengths.push_back(std::min(left, length));
  return text;
}

Result<std::vector<std::int32_t>> read_ids(const std::filesystem::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  const auto text = io::read_text(path, kMaxBytes);
  if (!text.ok()) return text.status();
  std::vector<std::int32_t> ids;
  constexpr std::string_view kBetween = " \t\r\n,";
  for (std::size_t at = text->find_first_not_of(kBetween); at != std::string::npos;) {
    std::int32_t id = 0;
    const char* const begin = text->data() + at;
    const auto [end, error] = std::from_chars(begin, text->data() + text->size(), id);
    if (error != std::errc() || id < 0 ||
        (end != text->data() + text->size() && kBetween.find(*end) == std::string_view::npos))
      return base::invalid_problem("{}: byte {}: must be the id of a token, a number of 0 to 2147483647",
                                   io::printable_path(path), at);
    ids.push_back(id);
    at = text->find_first_not_of(kBetween, static_cast<std::size_t>(end - text->data()));
  }
  return ids;
}

std::vector<Batch> batches_of(const TokenText& text, std::int64_t max_rows) {
  std::vector<Batch> batches;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < text.lengths.size(); ++i) {
    if (batches.empty() || batches.back().rows + text.lengths[i] > max_rows) batches.push_back({i, 0, row, 0});
    ++batches.back().count;
    batches.back().rows += text.lengths[i];
    row += text.lengths[i];
  }
  return batches;
}

}  // namespace kvant::model
