#include "cli/did_you_mean.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvant::cli {
namespace {

// The work grows with the square of a word's length; no name of ours is half as long.
constexpr std::size_t kMaxLetters = 40;

// How many letters differ; two that changed places count as one.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > kMaxLetters) return {};
  const std::string* best = nullptr;
  // A third of its letters may be wrong.
  std::size_t nearest = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    // The start of a longer word is as good as a word with a letter wrong.
    const std::size_t far = candidate.starts_with(word) && word.size() > 3 ? 1 : distance(word, candidate);
    if (far < nearest) {
      nearest = far;
      best = &candidate;
    }
  }
  return best == nullptr ? std::string() : fmt::format("; did you mean '{}'?", *best);
}

}  // namespace kvant::cli
