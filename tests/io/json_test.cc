// JSON documents: what is refused and with which sentence, what is kept, and that size costs no more than it must.
#include "io/json.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/refusals.h"

namespace kvant::tests {
namespace {

using io::Json;

constexpr auto kBad = StatusCode::InvalidProblem;

Result<Json> parse(std::string_view text) { return io::parse_json(text, "config.json"); }

// Refused as the content of that file, with these parts in the sentence.
testing::AssertionResult bad(std::string_view text, Parts parts) {
  const Status status = parse(text).status();
  if (!status.ok() && !status.message().starts_with("config.json: "))
    return testing::AssertionFailure() << "no file in front: " << status.message();
  return refused(status, kBad, parts);
}

std::string nested(std::size_t levels, std::string_view open, std::string_view close, std::string_view inside = "") {
  std::string text;
  for (std::size_t i = 0; i < levels; ++i) text += open;
  text += inside;
  for (std::size_t i = 0; i < levels; ++i) text += close;
  return text;
}

double seconds_of(std::string_view text, bool accepted = true) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse(text).ok(), accepted);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Json, HoldsWhatItSays) {
  const auto document = parse(R"( {"a": 1, "b": [true, false, null, -2, 0.5, "x\u00e9\n"], "c": {"d": {}}, "e": []} )");
  ASSERT_TRUE(document.ok()) << document.status().message();
  EXPECT_EQ(document->dump(), R"({"a":1,"b":[true,false,null,-2,0.5,"xé\n"],"c":{"d":{}},"e":[]})");
  EXPECT_EQ(document->at("a"), 1);
  EXPECT_EQ(document->at("b").at(5), "xé\n");
  EXPECT_TRUE(document->at("c").at("d").is_object());
}

TEST(Json, ADocumentMayBeAnyValue) {
  EXPECT_EQ(parse("null")->dump(), "null");
  EXPECT_EQ(parse(" -7\n")->dump(), "-7");
  EXPECT_EQ(parse(R"("a")")->dump(), R"("a")");
  EXPECT_EQ(parse("[]")->dump(), "[]");
  EXPECT_EQ(parse("{}")->dump(), "{}");
  EXPECT_EQ(parse("[[],[{}]]")->dump(), "[[],[{}]]");
}

TEST(Json, TheOrderOfTheFileIsKept) {
  const std::string text = R"({"z":1,"a":{"y":[{"q":0,"b":0}],"x":2},"m":3,"B":4,"":5})";
  EXPECT_EQ(parse(text)->dump(), text);
}

TEST(Json, NumbersKeepTheirValues) {
  EXPECT_EQ(parse("9223372036854775807")->get<std::int64_t>(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse("-9223372036854775808")->get<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(parse("18446744073709551615")->get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(parse("18446744073709551616")->is_number_float());
  EXPECT_TRUE(parse("1.0")->is_number_float());
  EXPECT_EQ(parse("[1e-05,1e-06,0.1,10000.0]")->dump(), "[1e-05,1e-06,0.1,10000.0]");
}

TEST(Json, AKeyTwiceIsRefused) {
  EXPECT_TRUE(bad(R"({"a":1,"a":1})", {"has the key 'a' twice"}));
  EXPECT_TRUE(bad(R"({"a":1,"b":2,"c":3,"a":{}})", {"has the key 'a' twice"}));
  EXPECT_TRUE(bad(R"({"":1,"":1})", {"has the key '' twice"}));
  EXPECT_TRUE(bad(R"([{"x":{"y":{"k":1,"k":2}}}])", {"has the key 'k' twice"}));
  EXPECT_TRUE(bad(R"({"\u001b[0m":1,"\u001b[0m":1})", {R"(has the key '\x1b[0m' twice)"}));
}

TEST(Json, AKeyTwiceAfterUnescapingIsRefused) {
  EXPECT_TRUE(bad(R"({"a":1,"\u0061":2})", {"has the key 'a' twice"}));
  EXPECT_TRUE(bad(R"({"\u0061":1,"a":2})", {"has the key 'a' twice"}));
  EXPECT_TRUE(bad(R"({"/":1,"\/":2})", {"has the key '/' twice"}));
  EXPECT_TRUE(bad(R"({"\u00e9":1,"é":2})", {"has the key 'é' twice"}));
  EXPECT_TRUE(bad(R"({"\ud83d\ude00":1,"😀":2})", {"twice"}));
  EXPECT_TRUE(bad(R"({"\n":1,"\u000A":2})", {"twice"}));
}

TEST(Json, KeysThatOnlyLookEqualAreNot) {
  EXPECT_TRUE(parse(R"({"a":1,"A":2,"a ":3,"\\u0061":4,"é":5,"e\u0301":6})").ok());
  EXPECT_TRUE(parse(R"({"a":{"a":{"a":1}},"b":[{"a":1},{"a":2}]})").ok());
}

TEST(Json, KeysWithAnEscapedZeroAreWhole) {
  EXPECT_TRUE(parse(R"({"a\u0000b":1,"a\u0000c":2,"a":3})").ok());
  EXPECT_TRUE(bad(R"({"a\u0000b":1,"a\u0000b":2})", {R"('a\x00b' twice)"}));
}

TEST(Json, SixtyFourLevelsAreTheMost) {
  EXPECT_TRUE(parse(nested(64, "[", "]")).ok());
  EXPECT_TRUE(parse(nested(64, R"({"a":)", "}", "1")).ok());
  EXPECT_TRUE(bad(nested(65, "[", "]"), {"is nested deeper than 64 levels"}));
  EXPECT_TRUE(bad(nested(65, R"({"a":)", "}", "1"), {"is nested deeper than 64 levels"}));
  EXPECT_TRUE(bad(nested(33, R"({"a":[)", "]}"), {"is nested deeper than 64 levels"}));
  EXPECT_TRUE(bad(std::string(50'000'000, '['), {"is nested deeper than 64 levels"}));
}

TEST(Json, AZeroByteIsRefused) {
  using namespace std::string_view_literals;
  EXPECT_TRUE(bad("{}\0"sv, {"byte 2", "a zero byte"}));
  EXPECT_TRUE(bad("\0{}"sv, {"byte 0", "a zero byte"}));
  EXPECT_TRUE(bad("{\"a\0\":1}"sv, {"byte 3", "a zero byte"}));
  EXPECT_TRUE(bad("{}\0{\"a\":1}"sv, {"byte 2", "a zero byte"}));
}

TEST(Json, NothingMayFollow) {
  EXPECT_TRUE(parse("{} \t\r\n").ok());
  EXPECT_TRUE(bad("{}{}", {"is not JSON at byte 3"}));
  EXPECT_TRUE(bad("{} x", {"is not JSON at byte 4"}));
  EXPECT_TRUE(bad("1 2", {"is not JSON"}));
  EXPECT_TRUE(bad("{},", {"is not JSON"}));
  EXPECT_TRUE(bad("[]]", {"is not JSON"}));
  EXPECT_TRUE(bad("{}// a comment", {"is not JSON"}));
}

TEST(Json, InvalidUtf8IsRefused) {
  for (const std::string_view bytes :
       {"\xff", "\x80", "\xc0\xaf", "\xc3", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80"}) {
    EXPECT_TRUE(bad(fmt::format("{{\"{}\":1}}", bytes), {"is not JSON at byte"}));
    EXPECT_TRUE(bad(fmt::format("[\"{}\"]", bytes), {"is not JSON at byte"}));
    EXPECT_TRUE(bad(bytes, {"is not JSON at byte"}));
  }
}

TEST(Json, EscapesThatNameNoCharacterAreRefused) {
  for (const std::string_view text :
       {R"("\ud800")", R"("\udc00")", R"("\ud800\u0061")", R"("\u12")", R"("\u12g4")", R"("\x41")", R"("\)"})
    EXPECT_TRUE(bad(text, {"is not JSON at byte"})) << text;
}

TEST(Json, WhatIsNoJsonIsRefused) {
  for (const std::string_view text :
       {"",           " ",        "{",        "}",    "[",        "[1,]",      R"({"a":1,})", R"({"a"})",
        R"({"a" 1})", R"({a:1})", R"({1:1})", "'a'",  "01",       "+1",        ".5",          "1.",
        "0x10",       "1e",       "-",        "NaN",  "Infinity", "-Infinity", "tru",         "True",
        R"("a)",      "\"a\nb\"", "[1 2]",    "[,1]", "{,}",      "/**/{}",    "# {}"})
    EXPECT_TRUE(bad(text, {"is not JSON at byte"})) << text;
}

TEST(Json, ANumberBeyondDoubleIsRefusedInOurWords) {
  EXPECT_TRUE(bad(R"({"a":1e999})", {"is not JSON at byte 10", "1e999"}));
  EXPECT_EQ(parse("1e999").status().message().find("exception"), std::string_view::npos);
  EXPECT_EQ(parse("{]").status().message().find("exception"), std::string_view::npos);
}

TEST(Json, SentencesArePrintable) {
  const Status status = io::parse_json("[\"\x1b]0;x\"]", "a\x1b[0m.json").status();
  EXPECT_TRUE(refused(status, kBad, {R"(a\x1b[0m.json: )"}));
  EXPECT_EQ(status.message().find('\x1b'), std::string_view::npos);
  EXPECT_LT(parse("\"" + std::string(1'000'000, 'a')).status().message().size(), 500u);
}

TEST(Json, ThreeHundredThousandKeysAreQuick) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += fmt::format("\"model.layers.{}.mlp.experts.weight\":\"s{}\",", i, i % 100);
  text.back() = '}';
  // 0.3 s here; looking through all keys for each of them takes minutes.
  EXPECT_LT(seconds_of(text), 20);
  text.back() = ',';
  EXPECT_LT(seconds_of(text + R"("model.layers.0.mlp.experts.weight":1})", false), 20);
}

TEST(Json, LargeMembersAreNotCopiedWhenTheirObjectGrows) {
  // A quarter of a million values in the innermost of 60 objects, each of which grows to 9 members behind it.
  std::string inside = "[";
  for (int i = 0; i < 250'000; ++i) inside += R"("a",)";
  inside.back() = ']';
  const std::string text = nested(60, R"({"a":)", R"(,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0,"i":0})", inside);
  // 0.1 s here, 6 s where each growth copies.
  const double flat = seconds_of(inside);
  EXPECT_LT(seconds_of(text), 10 * flat + 0.5);
}

TEST(Json, ThereIsAMostOfValues) {
  const auto list = [](std::size_t values) {
    std::string text = "[";
    for (std::size_t i = 1; i < values; ++i) text += "0,";
    text.back() = ']';
    return text;
  };
  EXPECT_TRUE(parse(list(io::kMaxJsonValues)).ok());
  EXPECT_TRUE(bad(list(io::kMaxJsonValues + 1), {"has more than 2000000 values"}));
  std::string objects = "[";
  for (std::size_t i = 0; i < io::kMaxJsonValues; ++i) objects += "{},";
  objects.back() = ']';
  EXPECT_TRUE(bad(objects, {"has more than 2000000 values"}));
}

}  // namespace
}  // namespace kvant::tests
