// Patterns that mean something else in PCRE2, and those that mean nothing there.
#include "model/tokenizer/oniguruma_syntax.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "model/tokenizer/regex.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using model::tokenizer::pcre2_pattern;
using model::tokenizer::Range;
using model::tokenizer::Regex;

std::string translated(std::string_view pattern) {
  const auto result = pcre2_pattern(pattern);
  return result.ok() ? *result : std::string(result.status().message());
}

// All matches, with bars between them.
std::string matches(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::compile(pattern, "test");
  if (!regex.ok()) return std::string(regex.status().message());
  std::vector<Range> found;
  if (Status s = regex->find_all(text, found); !s.ok()) return std::string(s.message());
  std::vector<std::string_view> all;
  for (const Range range : found) all.push_back(text.substr(range.begin, range.end - range.begin));
  return base::joined(all, "|");
}

TEST(OnigurumaSyntax, WhatMeansTheSameStays) {
  for (const std::string_view same :
       {"", "a|b", "(?i:'s|'t)", "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", "\\p{N}{1,3}", "a++b*+c?+", "(?=x)(?!y)(?<=z)(?<!w)",
        "(?:a)(?>b)(?<n>c)\\k<n>", "[]a]", "[^]a]", "x{", "{a}", "\\d\\D\\.\\[\\\\", "[!-~\\-\\]]", "一-龥"})
    EXPECT_EQ(translated(same), same);
}

TEST(OnigurumaSyntax, OtherWordsArePutInPcre2s) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"\\s+(?!\\S)", "[\\p{White_Space}]+(?![\\P{White_Space}])"},
      {"[^\\s\\w]", "[^\\p{White_Space}\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE]"},
      {"\\W", "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE]"},
      {"\\h[\\h]\\v", "[0-9A-Fa-f][0-9A-Fa-f][\\x0B]"},
      {"\\p{Han}\\P{Thai}\\p{^Greek}\\p{^L}", "\\p{sc:Han}\\P{sc:Thai}\\p{^sc:Greek}\\p{^L}"},
      {"\\u00e9", "\\x{00e9}"},
      {"(?m:.)(?mi-x)", "(?s:.)(?si-x)"},
  };
  for (const auto& [from, to] : cases) EXPECT_EQ(translated(from), to);
}

TEST(OnigurumaSyntax, RefusesWhatHasNoCounterpart) {
  const std::pair<std::string_view, std::string_view> cases[] = {{"[a[:alpha:]]", "a list inside a list at byte 2"},
                                                                 {"[a&&b]", "an intersection of lists at byte 2"},
                                                                 {"(*ACCEPT)", "a verb '(*' at byte 0"},
                                                                 {"a(?s:.)", "an option of a group at byte 3"},
                                                                 {"a{,3}", "a repetition without its least number"},
                                                                 {"a{2,3}+", "a '+' after a repetition at byte 1"},
                                                                 {"[\\W]", "a negated class inside a list"},
                                                                 {"\\Qa\\E", "an escape at byte 0"},
                                                                 {"a\\", "an escape at byte 1"},
                                                                 {"\\u12", "an escape at byte 0"},
                                                                 {"\\pL", "a property without braces"},
                                                                 {"\\p{L", "a property without an end"}};
  for (const auto& [pattern, part] : cases)
    EXPECT_TRUE(refused(pcre2_pattern(pattern).status(), StatusCode::Unsupported, {part})) << pattern;
}

TEST(OnigurumaSyntax, ClassesAreOnigurumas) {
  EXPECT_EQ(matches("\\s", "a\u180Eb\u2003c"), "\u2003");                  // PCRE2's has U+180E
  EXPECT_EQ(matches("\\w+", "e\u0301\u203Fx y² ⁴"), "e\u0301\u203Fx|y²");  // and no marks or connectors
  EXPECT_EQ(matches("\\b\\w", "ab e\u0301x"), "a|e");
  EXPECT_EQ(matches("\\Bx", "e\u0301x x"), "x");
  EXPECT_EQ(matches("\\p{Hiragana}+", "あー"), "あ");  // ー is used with it, and of no script
  EXPECT_EQ(matches("^a$", "b\na\nb"), "a");
  EXPECT_EQ(matches(".+", "a\nb"), "a|b");
  EXPECT_EQ(matches("(?m:.)+", "a\nb"), "a\nb");
}

TEST(OnigurumaSyntax, EmptyMatchesMoveOn) {
  // Before the first letter, x, and at the end; where x ends there is none.
  EXPECT_EQ(matches("x*", "éxé"), "|x|");
  EXPECT_EQ(matches("x*", ""), "");
}

TEST(OnigurumaSyntax, LiteralsAreThemselves) {
  const auto regex = Regex::compile_literal("a.b|c\\-#(", "test");
  ASSERT_TRUE(regex.ok()) << regex.status().message();
  std::vector<Range> found;
  ASSERT_TRUE(regex->find_all("axb a.b|c\\-#( c", found).ok());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].begin, 4u);
}

}  // namespace
}  // namespace kvant::tests
