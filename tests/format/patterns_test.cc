// The patterns that name modules.
#include "format/patterns.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using format::Patterns;

Result<Patterns> parsed(const std::vector<std::string>& patterns) { return Patterns::parse(patterns); }

// The first that matches, or "none".
std::string match(const std::vector<std::string>& patterns, std::string_view module) {
  const auto list = parsed(patterns);
  EXPECT_TRUE(list.ok()) << list.status().message();
  const std::string* found = list->match(module);
  return found == nullptr ? "none" : *found;
}

TEST(Patterns, ExactNames) {
  EXPECT_EQ(match({"lm_head", "model.norm"}, "model.norm"), "model.norm");
  EXPECT_EQ(match({"lm_head"}, "model.lm_head"), "none");
  EXPECT_EQ(match({"lm_head"}, "lm_head.x"), "none");
  // What would be an expression is a name.
  EXPECT_EQ(match({"lm.head", ".*"}, "lm_head"), "none");
  EXPECT_EQ(match({"a(b"}, "a(b"), "a(b");
}

TEST(Patterns, ExpressionsMatchFromTheStart) {
  EXPECT_EQ(match({"re:model.*gate"}, "model.layers.0.mlp.gate"), "re:model.*gate");
  EXPECT_EQ(match({"re:.*lm_head"}, "model.lm_head"), "re:.*lm_head");
  EXPECT_EQ(match({"re:lm_head"}, "model.lm_head"), "none");
  // As Python's re.match: the end need not be reached.
  EXPECT_EQ(match({"re:model"}, "model.lm_head"), "re:model");
  EXPECT_EQ(match({"re:model$"}, "model.lm_head"), "none");
  EXPECT_EQ(match({"re:^model\\.layers\\.[0-3]\\."}, "model.layers.3.x"), "re:^model\\.layers\\.[0-3]\\.");
  EXPECT_EQ(match({"re:^model\\.layers\\.[0-3]\\."}, "model.layers.31.x"), "none");
  EXPECT_EQ(match({"re:(?!lm_head).*"}, "lm_head"), "none");
  EXPECT_EQ(match({"re:(q|k|v)_proj$"}, "k_proj"), "re:(q|k|v)_proj$");
  EXPECT_EQ(match({"re:"}, "anything"), "re:");
}

TEST(Patterns, TheFirstThatMatchesIsNamed) {
  EXPECT_EQ(match({"x", "re:a.*", "re:ab", "abc"}, "abc"), "re:a.*");
  EXPECT_EQ(match({"x", "abc", "re:a.*"}, "abc"), "abc");
}

TEST(Patterns, NoneMatchesNothing) {
  EXPECT_EQ(match({}, "a"), "none");
  EXPECT_EQ(Patterns().match("a"), nullptr);
}

TEST(Patterns, WhatIsNoExpressionIsRefused) {
  for (const char* text : {"re:(", "re:[a", "re:*", "re:a{2,1}", "re:(?P<n>a)", "re:a\\"})
    EXPECT_TRUE(refused(parsed({"lm_head", text}).status(), StatusCode::InvalidProblem,
                        {"pattern '", io::printable(text), "is not a valid regular expression"}))
        << text;
}

TEST(Patterns, NoPatternTakesLong) {
  const auto start = std::chrono::steady_clock::now();
  const std::string name = std::string(4000, 'a') + "!";
  EXPECT_EQ(match({"re:(a+)+$", "re:(a|aa)+$", "re:(.*)*b", "re:(a*)*(a*)*b"}, name), "none");
  // For ever where the search goes back to try every way.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_TRUE(
      refused(parsed({R"(re:(a)\1)"}).status(), StatusCode::InvalidProblem, {"is not a valid regular expression"}));
}

TEST(Patterns, NoPatternIsTooDeep) {
  const auto brackets = [](std::size_t count) {
    return "re:" + std::string(count, '(') + "a" + std::string(count, ')');
  };
  EXPECT_EQ(match({brackets(510)}, "a"), brackets(510));
  EXPECT_TRUE(
      refused(parsed({brackets(100'000)}).status(), StatusCode::InvalidProblem, {"pattern", "200004 bytes", "1024"}));
  // A name is compared, however long.
  EXPECT_TRUE(parsed({std::string(100'000, '(')}).ok());
}

TEST(Patterns, NothingMatchesANameOfMoreThan4096Bytes) {
  EXPECT_EQ(match({"re:a*$"}, std::string(4096, 'a')), "re:a*$");
  EXPECT_EQ(match({"re:a*$"}, std::string(4097, 'a')), "none");
  EXPECT_EQ(match({"re:a"}, std::string(10'000'000, 'a')), "none");
  EXPECT_EQ(match({std::string(4097, 'a')}, std::string(4097, 'a')), "none");
}

TEST(Patterns, CopiesShareThem) {
  Patterns copy;
  {
    const auto original = parsed({"re:a+", "b"});
    ASSERT_TRUE(original.ok());
    copy = *original;
  }
  ASSERT_NE(copy.match("aa"), nullptr);
  EXPECT_EQ(*copy.match("b"), "b");
}

}  // namespace
}  // namespace kvant::tests
