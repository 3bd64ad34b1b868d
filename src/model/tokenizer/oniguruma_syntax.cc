#include "model/tokenizer/oniguruma_syntax.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "base/refuse.h"

namespace kvant::model::tokenizer {
namespace {

using base::unsupported;

// PCRE2 10.42 has neither marks nor connectors in \w, and all numbers; Oniguruma has of these the small ones of
// Latin-1.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";
constexpr std::string_view kBoundary = R"((?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}])))";
constexpr std::string_view kNoBoundary = R"((?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}])))";

// Escapes that stand for other characters in PCRE2: its \s has U+180E, its \h and \v are kinds of space.
struct Escape {
  char letter;
  std::string_view members;  // of a list
  bool is_negated;           // cannot be part of a list
};
constexpr Escape kEscapes[] = {
    {'s', R"(\p{White_Space})", false}, {'S', R"(\P{White_Space})", false}, {'w', kWord, false},    {'W', kWord, true},
    {'h', "0-9A-Fa-f", false},          {'H', "0-9A-Fa-f", true},           {'v', R"(\x0B)", false}};

std::string with_word(std::string_view text) {
  constexpr std::string_view kPlace = "{0}";
  std::string whole(text);
  for (std::size_t at = whole.find(kPlace); at != std::string::npos; at = whole.find(kPlace, at + kWord.size()))
    whole.replace(at, kPlace.size(), kWord);
  return whole;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translation {
 public:
  explicit Translation(std::string_view from) : from_(from) {}

  Result<std::string> run() {
    while (at_ < from_.size())
      if (Status s = step(); !s.ok()) return s;
    return to_;
  }

 private:
  char ahead(std::size_t by) const { return at_ + by < from_.size() ? from_[at_ + by] : '\0'; }
  void copy(std::size_t bytes) {
    to_ += from_.substr(at_, bytes);
    at_ += std::min(bytes, from_.size() - at_);
  }
  void put(std::string_view instead, std::size_t bytes) {
    to_ += instead;
    at_ += bytes;
  }
  Status no(std::string_view what) const { return unsupported("has {} at byte {}, which is not supported", what, at_); }

  Status step() {
    const char c = from_[at_];
    if (c == '\\') return escape();
    if (in_list_) return in_list(c);
    if (c == '[') {
      in_list_ = true;
      copy(ahead(1) == '^' ? 2 : 1);
      if (ahead(0) == ']') copy(1);
    } else if (c == '(') {
      return group();
    } else if (c == '{') {
      return quantifier();
    } else {
      copy(1);
    }
    return {};
  }

  Status in_list(char c) {
    if (c == '[') return no("a list inside a list");
    if (c == '&' && ahead(1) == '&') return no("an intersection of lists");
    if (c == ']') in_list_ = false;
    copy(1);
    return {};
  }

  Status group() {
    if (ahead(1) == '*') return no("a verb '(*'");
    copy(1);
    if (ahead(0) != '?') return {};
    // Options: (?i:…), (?im-x). Those of look-arounds and names begin with no letter or with a sign.
    std::size_t end = at_ + 1;
    while (end < from_.size() && ((from_[end] >= 'a' && from_[end] <= 'z') || from_[end] == '-')) ++end;
    if (end == from_.size() || (from_[end] != ':' && from_[end] != ')')) return {};
    for (copy(1); at_ < end;) {
      if (std::string_view("imx-").find(from_[at_]) == std::string_view::npos) return no("an option of a group");
      // The dot takes line feeds too.
      if (from_[at_] == 'm')
        put("s", 1);
      else
        copy(1);
    }
    return {};
  }

  // {2}, {2,} and {2,3}; anything else in braces is text, for both.
  Status quantifier() {
    if (ahead(1) == ',' && is_digit(ahead(2))) return no("a repetition without its least number");
    std::size_t end = at_ + 1;
    while (end < from_.size() && (is_digit(from_[end]) || from_[end] == ',')) ++end;
    const bool repeats = end > at_ + 1 && end < from_.size() && from_[end] == '}';
    // Another repetition there, and no backtracking here.
    if (repeats && end + 1 < from_.size() && from_[end + 1] == '+') return no("a '+' after a repetition");
    copy(repeats ? end + 1 - at_ : 1);
    return {};
  }

  Status escape() {
    const char letter = ahead(1);
    for (const Escape& known : kEscapes) {
      if (known.letter != letter) continue;
      if (in_list_) {
        if (known.is_negated) return no("a negated class inside a list");
        put(known.members, 2);
      } else {
        to_ += known.is_negated ? "[^" : "[";
        put(known.members, 2);
        to_ += ']';
      }
      return {};
    }
    switch (letter) {
      case '\0':
      case 'Q':
      case 'E': return no("an escape");
      case 'b':
      case 'B':
        if (in_list_) break;
        put(with_word(letter == 'b' ? kBoundary : kNoBoundary), 2);
        return {};
      case 'p':
      case 'P': return property();
      case 'u':
        if (!is_hex(ahead(2)) || !is_hex(ahead(3)) || !is_hex(ahead(4)) || !is_hex(ahead(5))) return no("an escape");
        put(base::text("\\x{{{}}}", from_.substr(at_ + 2, 4)), 6);
        return {};
      default: break;
    }
    copy(2);
    return {};
  }

  // \p{Han} is the script alone in Oniguruma, and what is also used with it in PCRE2.
  Status property() {
    if (ahead(2) != '{') return no("a property without braces");
    const std::size_t end = from_.find('}', at_);
    if (end == std::string_view::npos) return no("a property without an end");
    std::string name(from_.substr(at_ + 3, end - at_ - 3));
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.erase(0, 1);
    const bool is_script = name.size() > 2 && u_getPropertyValueEnum(UCHAR_SCRIPT, name.c_str()) != UCHAR_INVALID_CODE;
    to_ += from_.substr(at_, 3);
    if (is_negated) to_ += '^';
    if (is_script) to_ += "sc:";
    to_ += name;
    to_ += '}';
    at_ = end + 1;
    return {};
  }

  std::string_view from_;
  std::size_t at_ = 0;
  std::string to_;
  bool in_list_ = false;
};

}  // namespace

Result<std::string> pcre2_pattern(std::string_view oniguruma) { return Translation(oniguruma).run(); }

}  // namespace kvant::model::tokenizer
