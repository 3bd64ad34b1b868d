// tokenizer.json files that are damaged, hostile or not supported: each is refused with a sentence that names the
// place.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/limits.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/fuzz/corpus.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

constexpr StatusCode kInvalid = StatusCode::InvalidProblem, kUnsupported = StatusCode::Unsupported;

struct Case {
  std::string json;
  StatusCode code;
  std::vector<std::string_view> parts;
};

void expect_refused(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const Status status = model::Tokenizer::parse(one.json, "tokenizer.json").status();
    EXPECT_TRUE(refused(status, one.code, {"tokenizer.json: "})) << one.json.substr(0, 300);
    for (const std::string_view part : one.parts)
      EXPECT_TRUE(refused(status, one.code, {part})) << one.json.substr(0, 300);
  }
}

// A file with this model.
std::string with_model(std::string_view model) { return "{\"model\": " + std::string(model) + "}"; }
// A file with a good model and this besides.
std::string with(std::string_view key, std::string_view value) {
  return "{\"" + std::string(key) + "\": " + std::string(value) +
         R"(, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})";
}

TEST(TokenizerRefusals, Models) {
  const auto bpe = [](std::string_view rest) { return with_model(R"({"type": "BPE", )" + std::string(rest) + "}"); };
  expect_refused({
      {"", kInvalid, {"is not JSON"}},
      {"[]", kInvalid, {"\"model\""}},
      {"{}", kInvalid, {"has no \"model\""}},
      {R"({"model": []})", kInvalid, {"\"model\" is a list"}},
      {with_model(R"({"type": "Unigram", "vocab": [["a", -1.5]]})"),
       kUnsupported,
       {"tokenizer.json: model type \"Unigram\" is not supported; supported are BPE and WordPiece"}},
      {with_model(R"({"type": "WordLevel", "vocab": {}})"), kUnsupported, {"\"WordLevel\""}},
      {with_model(R"({"vocab": {}})"), kUnsupported, {"model type \"\""}},
      {with_model(R"({"type": 3})"), kInvalid, {"\"type\" is 3, must be a text"}},
      {bpe(R"("merges": [])"), kInvalid, {"model: has no \"vocab\""}},
      {bpe(R"("vocab": [], "merges": [])"), kInvalid, {"\"vocab\" is a list"}},
      {bpe(R"("vocab": {}, "merges": [])"), kInvalid, {"\"vocab\" is empty"}},
      {bpe(R"("vocab": {"a": 0})"), kInvalid, {"has no \"merges\""}},
      {bpe(R"("vocab": {"a": 0}, "merges": {})"), kInvalid, {"\"merges\""}},
      {bpe(R"("vocab": {"a": 0}, "merges": [], "dropout": 0.1)"), kUnsupported, {"\"dropout\" is 0.1"}},
      {bpe(R"("vocab": {"a": 0}, "merges": [], "dropout": "x")"), kUnsupported, {"\"dropout\""}},
      {bpe(R"("vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>")"), kUnsupported, {"'</w>'"}},
      {bpe(R"("vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "##")"), kUnsupported, {"'##'"}},
      {bpe(R"("vocab": {"a": 0}, "merges": [], "fuse_unk": 1)"), kInvalid, {"\"fuse_unk\" is 1"}},
      {bpe(R"("vocab": {"a": 0}, "merges": [], "unk_token": 1)"), kInvalid, {"\"unk_token\" is 1"}},
      {with_model(R"({"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": -1})"),
       kInvalid,
       {"max_input_chars_per_word", "-1", "from 0 to 1000"}},
      {with_model(R"({"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 1000000000000})"),
       kInvalid,
       {"1000000000000"}},
  });
}

TEST(TokenizerRefusals, Ids) {
  const auto vocab = [](std::string_view entries) {
    return with_model(R"({"type": "BPE", "merges": [], "vocab": {)" + std::string(entries) + "}}");
  };
  expect_refused({
      {vocab(R"("a": -1)"), kInvalid, {"the id of 'a' is -1, must be from 0 to 2097151"}},
      {vocab(R"("a": 0, "b": 2097152)"), kInvalid, {"'b' is 2097152"}},
      {vocab(R"("a": 2147483648)"), kInvalid, {"2147483648"}},
      {vocab(R"("a": 18446744073709551615)"), kInvalid, {"18446744073709551615"}},
      {vocab(R"("a": -9223372036854775808)"), kInvalid, {"-9223372036854775808"}},
      {vocab(R"("a": 99999999999999999999)"), kInvalid, {"'a' is no whole number"}},
      {vocab(R"("a": 1.0)"), kInvalid, {"'a' is no whole number"}},
      {vocab(R"("a": "0")"), kInvalid, {"'a' is no whole number"}},
      {vocab(R"("a": null)"), kInvalid, {"'a' is no whole number"}},
      {vocab(R"("a": 5, "b\n": 5)"), kInvalid, {"'a' and 'b\\n' both have the id 5"}},
      {vocab(R"("a": 0, "\u0061": 1)"), kInvalid, {"the key 'a' twice"}},
  });
  EXPECT_TRUE(model::Tokenizer::parse(vocab(R"("a": 2097151)"), "tokenizer.json").ok());
}

TEST(TokenizerRefusals, Merges) {
  const auto merges = [](std::string_view list) {
    return with_model(R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [)" + std::string(list) + "]}");
  };
  expect_refused({
      {merges(R"("a b", "a c")"), kInvalid, {"merges[1] joins 'a' and 'c', but 'c' is not in the vocabulary"}},
      {merges(R"("b a")"), kInvalid, {"'ba' is not in the vocabulary"}},
      {merges(R"("ab ab")"), kInvalid, {"'abab' is not"}},
      {merges(R"("ab")"), kInvalid, {"merges[0] must be two tokens"}},
      {merges(R"("a b ab")"), kInvalid, {"merges[0]"}},
      {merges(R"("")"), kInvalid, {"merges[0]"}},
      {merges(R"(" ")"), kInvalid, {"'' is not in the vocabulary"}},
      {merges(R"(" a")"), kInvalid, {"'' is not in the vocabulary"}},
      {merges(R"(["a"])"), kInvalid, {"merges[0]"}},
      {merges(R"(["a", 1])"), kInvalid, {"merges[0]"}},
      {merges(R"(["a", "b", "ab"])"), kInvalid, {"merges[0]"}},
      {merges("0"), kInvalid, {"merges[0]"}},
  });
  EXPECT_TRUE(model::Tokenizer::parse(merges(R"("#version: 0.2", "a b", ["a", "b"])"), "tokenizer.json").ok());
}

TEST(TokenizerRefusals, Normalizers) {
  const auto normalizer = [](std::string_view value) { return with("normalizer", value); };
  expect_refused({
      {normalizer("[]"), kInvalid, {"normalizer: has no \"type\""}},
      {normalizer(R"({"type": "Nmt"})"),
       kUnsupported,
       {"type \"Nmt\" is not supported; supported are NFC", "Sequence"}},
      {normalizer(R"({"type": "Precompiled", "precompiled_charsmap": ""})"), kUnsupported, {"\"Precompiled\""}},
      {normalizer(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "X\u001b"}]})"),
       kUnsupported,
       {"normalizers[1]", "X\\x1b"}},
      {normalizer(R"({"type": "Sequence", "normalizers": [1]})"), kInvalid, {"normalizers[0]: is no object"}},
      {normalizer(R"({"type": "Sequence"})"), kInvalid, {"has no \"normalizers\""}},
      {normalizer(R"({"type": "Prepend"})"), kInvalid, {"has no \"prepend\""}},
      {normalizer(R"({"type": "Prepend", "prepend": ")" + std::string(1025, 'x') + "\"}"), kInvalid, {"1025", "1024"}},
      {normalizer(R"({"type": "Replace", "pattern": "a", "content": "b"})"), kInvalid, {"\"pattern\" must be"}},
      {normalizer(R"({"type": "Replace", "pattern": {"String": ""}, "content": "b"})"), kInvalid, {"is empty"}},
      {normalizer(R"({"type": "Replace", "pattern": {"String": "a"}})"), kInvalid, {"has no \"content\""}},
      {normalizer(R"({"type": "Replace", "pattern": {"Other": "a"}, "content": ""})"), kInvalid, {"\"String\""}},
      {normalizer(R"({"type": "BertNormalizer", "lowercase": "yes"})"), kInvalid, {"\"lowercase\" is \\\"yes\\\""}},
  });
}

TEST(TokenizerRefusals, PreTokenizers) {
  const auto pre = [](std::string_view value) { return with("pre_tokenizer", value); };
  const auto split = [&](std::string_view regex) {
    return pre(R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": ")" + std::string(regex) + "\"}}");
  };
  expect_refused({
      {pre(R"({"type": "UnicodeScripts"})"), kUnsupported, {"pre_tokenizer: type \"UnicodeScripts\""}},
      {pre(R"({"type": "Split", "pattern": {"String": "a"}})"), kUnsupported, {"behavior \"\"", "MergedWithNext"}},
      {pre(R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "removed"})"), kUnsupported, {"\"removed\""}},
      {pre(R"({"type": "Metaspace"})"), kInvalid, {"has no \"replacement\""}},
      {pre(R"({"type": "Metaspace", "replacement": "ab"})"), kInvalid, {"must be one character"}},
      {pre(R"({"type": "Metaspace", "replacement": ""})"), kInvalid, {"must be one character"}},
      {pre(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"), kInvalid, {"\\\"last\\\""}},
      {pre(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false})"),
       kInvalid,
       {"\"add_prefix_space\" is false and \"prepend_scheme\" is \"first\""}},
      {split("(a"), kUnsupported, {"pre_tokenizer: pattern: the pattern '(a' is not supported: missing"}},
      {split("\\\\p{Klingon}"), kUnsupported, {"unknown property"}},
      {split("a{2}+"), kUnsupported, {"a '+' after a repetition at byte 1"}},
      {split("[a[b]]"), kUnsupported, {"a list inside a list at byte 2"}},
      {split(std::string(65537, 'x')), kInvalid, {"65537", "65536"}},
      {split(std::string(5000, '(') + std::string(5000, ')')), kUnsupported, {"nested"}},
  });
}

TEST(TokenizerRefusals, AddedTokens) {
  const auto added = [](std::string_view list) { return with("added_tokens", "[" + std::string(list) + "]"); };
  expect_refused({
      {with("added_tokens", "{}"), kInvalid, {"\"added_tokens\""}},
      {added("1"), kInvalid, {"added_tokens[0]: is no object"}},
      {added(R"({"content": "x"})"), kInvalid, {"has no \"id\""}},
      {added(R"({"id": 2})"), kInvalid, {"has no \"content\""}},
      {added(R"({"id": -1, "content": "x"})"), kInvalid, {"added_tokens[0]: the id of 'x' is -1"}},
      {added(R"({"id": 4000000000, "content": "x"})"), kInvalid, {"4000000000"}},
      {added(R"({"id": 3, "content": "x"})"), kInvalid, {"'x' has the id 3, but the next id that is free is 2"}},
      {added(R"({"id": 0, "content": "b"})"), kInvalid, {"'b' has the id 0, but the model's vocabulary gives it 1"}},
      {added(R"({"id": 1, "content": "b"}, {"id": 1, "content": "b"})"),
       kInvalid,
       {"added_tokens[1]: 'b' is there twice"}},
      {added(R"({"id": 2, "content": "x", "special": "no"})"), kInvalid, {"\"special\""}},
      {added(R"({"id": 2, "content": ")" + std::string(1025, 'x') + "\"}"), kInvalid, {"1025", "1024"}},
      {R"({"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}, "model": {"type": "BPE",
           "vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 1, "content": " ", "normalized": true}]})",
       kInvalid,
       {"the added token ' ' has 0 bytes after it is normalized"}},
  });
}

TEST(TokenizerRefusals, PostProcessors) {
  const auto post = [](std::string_view value) { return with("post_processor", value); };
  constexpr std::string_view kText = R"({"Sequence": {"id": "A"}})";
  const auto single = [&](std::string_view pieces) {
    return post(R"({"type": "TemplateProcessing", "single": [)" + std::string(pieces) +
                R"(], "pair": [], "special_tokens": {"x": {"ids": [2]}, "y": {"ids": 1}, "z": {"ids": [-1]}}})");
  };
  expect_refused({
      {post(R"({"type": "Other"})"), kUnsupported, {"post_processor: type \"Other\""}},
      {post(R"({"type": "TemplateProcessing"})"), kInvalid, {"has no \"single\""}},
      {single(""), kInvalid, {"no place for the text"}},
      {single(R"({"Sequence": {"id": "B"}})"), kInvalid, {"single[0]", "the sequence \"A\", once"}},
      {single(std::string(kText) + "," + std::string(kText)), kInvalid, {"single[1]"}},
      {single(R"({"Sequence": 1})"), kInvalid, {"has no \"id\""}},
      {single(R"({})"), kInvalid, {"\"SpecialToken\" or a \"Sequence\""}},
      {single(R"({"SpecialToken": {"id": "w"}})"), kInvalid, {"no \"ids\" for 'w'"}},
      {single(R"({"SpecialToken": {"id": "x"}})"), kInvalid, {"the id of 'x' is 2, but ids are below 2"}},
      {single(R"({"SpecialToken": {"id": "y"}})"), kInvalid, {"no \"ids\" for 'y'"}},
      {single(R"({"SpecialToken": {"id": "z"}})"), kInvalid, {"-1"}},
      {post(R"({"type": "BertProcessing", "cls": ["a", 0]})"), kInvalid, {"has no \"sep\""}},
      {post(R"({"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 7]})"), kInvalid, {"'b' is 7"}},
      {post(R"({"type": "Sequence", "processors": [{"type": "BertProcessing", "cls": ["a", 0], "sep": ["b", 1]},
                {"type": "RobertaProcessing", "cls": ["a", 0], "sep": ["b", 1]}]})"),
       kUnsupported,
       {"processors[1]", "only one"}},
  });
}

TEST(TokenizerRefusals, Corpus) { EXPECT_GE(run_corpus("tokenizer"), 10); }

}  // namespace
}  // namespace kvant::tests
