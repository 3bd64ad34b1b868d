#include "quantize/gather_warnings.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>

#include "base/text.h"

namespace kvant::quantize {
namespace {

constexpr std::size_t kMaxAlike = 3;
constexpr std::size_t kNamesShown = 3;

// "'model.norm'" of "'model.norm' is not smoothed: …"; empty: it does not begin so. Names are escaped, and a quote in
// one has a backslash before it.
std::string_view name_of(std::string_view sentence) {
  if (!sentence.starts_with('\'')) return {};
  for (std::size_t i = 1; i < sentence.size(); ++i) {
    if (sentence[i] == '\\')
      ++i;
    else if (sentence[i] == '\'')
      return sentence.substr(0, i + 1);
  }
  return {};
}

// What sentences that are alike share.
std::string kind_of(std::string_view sentence) {
  std::string kind;
  bool quoted = false;
  for (const char c : sentence.substr(name_of(sentence).size())) {
    if (c == '\'') quoted = !quoted;
    const bool number = quoted && c >= '0' && c <= '9';
    if (!number)
      kind += c;
    else if (!kind.ends_with('#'))
      kind += '#';
  }
  return kind;
}

}  // namespace

std::vector<std::string> gather_warnings(const std::vector<std::string>& warnings) {
  std::map<std::string, std::vector<std::string_view>> names;  // by kind
  for (const std::string& warning : warnings)
    if (const std::string_view name = name_of(warning); !name.empty()) names[kind_of(warning)].push_back(name);
  std::vector<std::string> gathered;
  for (const std::string& warning : warnings) {
    const std::string_view name = name_of(warning);
    const auto alike = name.empty() ? names.end() : names.find(kind_of(warning));
    if (alike == names.end() || alike->second.size() <= kMaxAlike) {
      gathered.push_back(warning);
      continue;
    }
    const std::vector<std::string_view>& all = alike->second;
    if (name.data() != all.front().data()) continue;
    const std::vector<std::string_view> shown(
        all.begin() + 1, all.begin() + 1 + static_cast<std::ptrdiff_t>(std::min(kNamesShown, all.size() - 1)));
    gathered.push_back(base::text("{}; the same of {} more: {}{}", warning, all.size() - 1, base::joined(shown, ", "),
                                  all.size() - 1 > shown.size() ? " …" : ""));
  }
  return gathered;
}

}  // namespace kvant::quantize
