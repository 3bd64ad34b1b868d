#include "cli/smooth_argument.h"

#include <charconv>

namespace kvant::cli {
namespace {

bool is_number(std::string_view word) {
  if (word.starts_with('+')) word.remove_prefix(1);
  const std::size_t first = word.starts_with('-') ? 1 : 0;
  // from_chars would take "inf" and "nan", which may be folders.
  if (first >= word.size() || ((word[first] < '0' || word[first] > '9') && word[first] != '.')) return false;
  double value = 0;
  const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error != std::errc::invalid_argument && rest == word.data() + word.size();
}

}  // namespace

std::vector<std::string> join_smooth_argument(const std::vector<std::string>& words) {
  std::vector<std::string> joined;
  bool in_quantize = false, only_positionals = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    only_positionals = only_positionals || words[i] == "--";
    in_quantize = in_quantize || words[i] == "quantize";
    if (words[i] != "--smooth" || only_positionals || !in_quantize) {
      joined.push_back(words[i]);
    } else if (i + 1 < words.size() && is_number(words[i + 1])) {
      joined.push_back("--smooth=" + words[++i]);
    } else {
      joined.push_back("--smooth=" + std::string(kFamilyAlpha));
    }
  }
  return joined;
}

}  // namespace kvant::cli
