#include "format/patterns.h"

#include <optional>
#include <regex>

#include "base/refuse.h"
#include "io/file.h"

namespace kvant::format {
namespace {

constexpr std::size_t kMaxPatternBytes = 1024;

// config.json of any checkpoint may hold "re:(a+)+$", for which libstdc++'s usual search takes time that doubles with
// each letter of a name. The other search has no back-references, and no pattern for names of modules needs them.
#ifdef __GLIBCXX__
constexpr auto kFlags = std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kFlags = std::regex::ECMAScript;
#endif

}  // namespace

struct Patterns::Pattern {
  std::optional<std::regex> expression;  // nothing: the text itself
};

Result<Patterns> Patterns::parse(std::span<const std::string> patterns) {
  Patterns parsed;
  auto compiled = std::make_shared<std::vector<Pattern>>();
  for (const std::string& text : patterns) {
    Pattern pattern;
    if (text.starts_with("re:")) {
      // libstdc++ compiles by recursion: 20,000 brackets, which only an attacker writes, would end the program.
      if (text.size() > kMaxPatternBytes)
        return base::invalid_problem("pattern '{}' has {} bytes, the max is {}", io::printable(text), text.size(),
                                     kMaxPatternBytes);
      try {
        pattern.expression.emplace(text.substr(3), kFlags);
      } catch (const std::regex_error& e) {
        return base::invalid_problem("pattern '{}' is not a valid regular expression: {}", io::printable(text),
                                     e.what());
      }
    }
    parsed.patterns_.push_back(text);
    compiled->push_back(std::move(pattern));
  }
  parsed.compiled_ = std::move(compiled);
  return parsed;
}

bool Patterns::fits(std::size_t pattern, std::string_view module) const {
  // The time grows with the pattern and the name, and only an attacker writes such names.
  constexpr std::size_t kMaxNameBytes = 4096;
  if (module.size() > kMaxNameBytes) return false;
  const std::optional<std::regex>& expression = (*compiled_)[pattern].expression;
  if (!expression) return patterns_[pattern] == module;
  return std::regex_search(module.begin(), module.end(), *expression, std::regex_constants::match_continuous);
}

const std::string* Patterns::match(std::string_view module) const {
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (fits(i, module)) return &patterns_[i];
  return nullptr;
}

std::vector<const std::string*> Patterns::matches(std::string_view module) const {
  std::vector<const std::string*> found;
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (fits(i, module)) found.push_back(&patterns_[i]);
  return found;
}

}  // namespace kvant::format
