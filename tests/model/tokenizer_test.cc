// What small cases with ids do not show: pieces, sizes, long words, many threads, texts that are no UTF-8.
#include "model/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "model/tokenizer/word_cache.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using Ids = std::vector<std::int32_t>;

model::Tokenizer parsed(std::string_view json) {
  auto tokenizer = model::Tokenizer::parse(json, "tokenizer.json");
  if (!tokenizer.ok()) throw std::runtime_error(std::string(tokenizer.status().message()));
  return std::move(tokenizer).value();
}

// Pairs of "a" merge again and again.
constexpr std::string_view kDoubling = R"({"model": {"type": "BPE",
  "vocab": {"a": 0, "aa": 1, "aaaa": 2, "b": 3, "ab": 4},
  "merges": ["a a", ["aa", "aa"], "a b"]},
  "added_tokens": [{"id": 3, "content": "b"}, {"id": 5, "content": "<s>", "special": true}]})";

TEST(Tokenizer, KnowsItsTokens) {
  const model::Tokenizer tokenizer = parsed(kDoubling);
  EXPECT_EQ(tokenizer.size(), 6);
  EXPECT_EQ(tokenizer.id_of("aaaa"), 2);
  EXPECT_EQ(tokenizer.id_of("<s>"), 5);
  EXPECT_EQ(tokenizer.id_of("c"), std::nullopt);
  EXPECT_EQ(tokenizer.piece(2), "aaaa");
  EXPECT_EQ(tokenizer.piece(5), "<s>");
  for (const std::int32_t none : {-1, 6, INT32_MAX, INT32_MIN}) EXPECT_EQ(tokenizer.piece(none), "") << none;
  const model::Tokenizer holes = parsed(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 7}, "merges": []}})");
  EXPECT_EQ(holes.size(), 8);
  EXPECT_EQ(holes.piece(3), "");
}

TEST(Tokenizer, TakesTheSpecialOneOfTokensThatAreNormalizedAlike) {
  // As `tokenizers` 0.22; 0.23 takes either.
  const model::Tokenizer tokenizer = parsed(R"({"normalizer": {"type": "Lowercase"},
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    "added_tokens": [{"id": 1, "content": "AB", "normalized": true}, {"id": 2, "content": "aB", "normalized": true,
    "special": true}, {"id": 3, "content": "Ab", "normalized": true, "special": true}]})");
  EXPECT_EQ(tokenizer.encode("abAB", false).value(), (Ids{2, 2}));
}

TEST(Tokenizer, IsReadFromAFile) {
  const ScratchFolder folder;
  put_text(folder / "tokenizer.json", kDoubling);
  const auto tokenizer = model::Tokenizer::open(folder / "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->encode("aaaaaaa<s>b", false).value(), (Ids{2, 1, 0, 5, 3}));
  put_text(folder / "tokenizer.json", "{");
  EXPECT_TRUE(refused(model::Tokenizer::open(folder / "tokenizer.json").status(), StatusCode::InvalidProblem,
                      {"tokenizer.json", "is not JSON"}));
  EXPECT_TRUE(
      refused(model::Tokenizer::open(folder / "other.json").status(), StatusCode::InvalidProblem, {"other.json"}));
}

TEST(Tokenizer, ShowsBytesOfByteLevelTokens) {
  const model::Tokenizer tokenizer = parsed(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "model": {"type": "BPE", "vocab": {"Ġ": 0, "Ã": 1, "Ċ": 2, "Ġa": 3, "漢": 4}, "merges": []}})");
  EXPECT_EQ(tokenizer.piece(0), " ");
  EXPECT_EQ(tokenizer.piece(1), "\xC3");
  EXPECT_EQ(tokenizer.piece(2), "\n");
  EXPECT_EQ(tokenizer.piece(3), " a");
  EXPECT_EQ(tokenizer.piece(4), "漢");  // not of the alphabet: itself
}

TEST(Tokenizer, ShowsSpacesAndBytesOfSentencePieces) {
  constexpr std::string_view kModel = R"("model": {"type": "BPE", "byte_fallback": true, "merges": [],
    "vocab": {"▁": 0, "▁a▁": 1, "<0x0A>": 2, "<0xFF>": 3, "<0x0a>": 4, "<0x0AB": 5}})";
  const std::string by_normalizer =
      R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, )";
  const std::string by_cut = R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}, )";
  for (const std::string& front : {by_normalizer, by_cut}) {
    const model::Tokenizer tokenizer = parsed(front + std::string(kModel) + "}");
    EXPECT_EQ(tokenizer.piece(0), " ");
    EXPECT_EQ(tokenizer.piece(1), " a ");
    EXPECT_EQ(tokenizer.piece(2), "\n");
    EXPECT_EQ(tokenizer.piece(3), "\xFF");
    EXPECT_EQ(tokenizer.piece(4), "<0x0a>");
    EXPECT_EQ(tokenizer.piece(5), "<0x0AB");
  }
}

TEST(Tokenizer, ShowsWordPiecesWithoutTheirPrefix) {
  const model::Tokenizer tokenizer =
      parsed(R"({"model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "##s": 1, "a": 2, "##": 3}}})");
  EXPECT_EQ(tokenizer.piece(1), "s");
  EXPECT_EQ(tokenizer.piece(2), "a");
  EXPECT_EQ(tokenizer.piece(3), "##");
}

TEST(Tokenizer, DecodesToTextThatPeopleCanRead) {
  // Characters whose bytes are several tokens become whole; parts of them are bytes.
  const model::Tokenizer bytes = parsed(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "added_tokens": [{"id": 5, "content": "<|end|>", "special": true}],
    "model": {"type": "BPE", "vocab": {"Ġa": 0, "Ã": 1, "©": 2, "Ċ": 3, "b": 4}, "merges": []}})");
  EXPECT_EQ(bytes.decode(Ids{4, 1, 2, 0, 3, 5}), "bé a\n<|end|>");
  EXPECT_EQ(bytes.decode(Ids{2, 4, 1}), "<0xA9>b<0xC3>");
  EXPECT_EQ(bytes.decode(Ids{1, 1, 2}), "<0xC3>é");
  EXPECT_EQ(bytes.decode(Ids{-1, 0, 99}), " a");
  EXPECT_EQ(bytes.decode(Ids{}), "");

  const model::Tokenizer fallback = parsed(R"({"normalizer": {"type": "Replace", "pattern": {"String": " "},
    "content": "▁"}, "model": {"type": "BPE", "byte_fallback": true, "merges": [],
    "vocab": {"▁the": 0, "<0xE2>": 1, "<0x98>": 2, "<0x83>": 3, "▁": 4}}})");
  EXPECT_EQ(fallback.decode(Ids{0, 4, 1, 2, 3}), " the ☃");
  EXPECT_EQ(fallback.decode(Ids{0, 1, 2}), " the<0xE2><0x98>");

  const model::Tokenizer words = parsed(R"({"added_tokens": [{"id": 0, "content": "[CLS]", "special": true}],
    "model": {"type": "WordPiece", "vocab": {"[CLS]": 0, "[UNK]": 1, "un": 2, "##able": 3, ",": 4}}})");
  EXPECT_EQ(words.decode(Ids{0, 2, 3, 4, 2}), "[CLS] unable , un");
}

TEST(Tokenizer, TakesLongWordsInLittleTime) {
  // A million letters are one word here. Steps that grow with the square would take an hour.
  const model::Tokenizer tokenizer = parsed(kDoubling);
  constexpr std::size_t kLetters = 1'000'003;
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(std::string(kLetters, 'a'), false);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  ASSERT_EQ(ids->size(), kLetters / 4 + 2);
  EXPECT_EQ(ids->front(), 2);
  EXPECT_EQ((Ids(ids->end() - 3, ids->end())), (Ids{2, 1, 0}));
}

TEST(Tokenizer, TakesLongRunsOfSpacesInLittleTime) {
  // Llama 3's pattern, of which two alternatives walk back over them.
  const model::Tokenizer tokenizer = parsed(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
    "model": {"type": "BPE", "vocab": {" ": 0, "  ": 1, "x": 2}, "merges": [[" ", " "]]}})");
  const auto ids = tokenizer.encode(std::string(1'000'001, ' ') + "x", false);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  Ids wanted(500'000, 1);
  wanted.insert(wanted.end(), {0, 2});
  EXPECT_EQ(*ids, wanted);
}

TEST(Tokenizer, TakesSpacesThatAreTokensInLittleTime) {
  // Each strips those that follow it.
  const model::Tokenizer tokenizer = parsed(R"({"model": {"type": "BPE", "vocab": {" ": 0, "x": 1}, "merges": []},
    "added_tokens": [{"id": 0, "content": " ", "rstrip": true}]})");
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(std::string(300'000, ' ') + "x", false);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  Ids wanted(300'000, 0);
  wanted.push_back(1);
  EXPECT_EQ(*ids, wanted);
}

TEST(WordCache, GivesEachWordItsOwnIds) {
  // More words than it has places for, all of one length.
  constexpr std::int32_t kWords = 100'000;
  model::tokenizer::WordCache cache;
  int made = 0;
  const auto ids_of = [&](std::int32_t i) {
    Ids ids{-1};
    const Status status = cache.encode(std::to_string(kWords + i), ids, [&](std::string_view, Ids& to) -> Status {
      ++made;
      to.insert(to.end(), {i, i});
      return {};
    });
    EXPECT_TRUE(status.ok());
    return ids;
  };
  for (int round = 0; round < 2; ++round)
    for (std::int32_t i = 0; i < kWords; ++i) ASSERT_EQ(ids_of(i), (Ids{-1, i, i}));
  EXPECT_GT(made, kWords);
  EXPECT_LE(made, 2 * kWords);
  made = 0;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ids_of(7), (Ids{-1, 7, 7}));
  EXPECT_LE(made, 1);
}

TEST(WordCache, ForgetsWhatWasRefused) {
  model::tokenizer::WordCache cache;
  Ids ids;
  const auto refusal = [](std::string_view, Ids&) { return Status(StatusCode::InvalidProblem, "no"); };
  EXPECT_FALSE(cache.encode("word", ids, refusal).ok());
  EXPECT_FALSE(cache.encode("word", ids, refusal).ok());
}

TEST(Tokenizer, IsOneForManyThreads) {
  const model::Tokenizer tokenizer = parsed(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": " ?\\p{L}+"}}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2, "ab": 3, " a": 4},
    "merges": ["a b", [" ", "a"]]}})");
  const auto text_of_seed = [](unsigned seed) {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += "ab a ba "[(seed = seed * 1664525u + 1013904223u) >> 29];
    return text;
  };
  std::vector<Ids> wanted;
  for (unsigned seed = 0; seed < 8; ++seed) wanted.push_back(tokenizer.encode(text_of_seed(seed), false).value());
  std::vector<std::thread> threads;
  std::vector<int> differ(8);
  for (unsigned seed = 0; seed < 8; ++seed)
    threads.emplace_back([&, seed] {
      for (int i = 0; i < 20; ++i)
        if (tokenizer.encode(text_of_seed(seed), false).value() != wanted[seed]) ++differ[seed];
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differ, std::vector<int>(8));
}

TEST(Tokenizer, RefusesTextThatIsNoUtf8) {
  const model::Tokenizer tokenizer = parsed(kDoubling);
  struct Case {
    std::string text;
    std::string_view place;
  };
  const Case cases[] = {
      {"\xFF", "at byte 0 of 1"},         {"aé\xC3", "at byte 3 of 4"},           {"ab\xC0\x80", "at byte 2 of 4"},
      {"\xED\xA0\x80", "at byte 0 of 3"}, {"\xF4\x90\x80\x80", "at byte 0 of 4"}, {"a\x80", "at byte 1 of 2"}};
  for (const Case& one : cases)
    EXPECT_TRUE(
        refused(tokenizer.encode(one.text, true).status(), StatusCode::InvalidProblem, {"no UTF-8", one.place}));
}

TEST(Tokenizer, RefusesUnknownCharactersWithoutAnUnknownToken) {
  const model::Tokenizer bpe =
      parsed(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"}})");
  EXPECT_TRUE(refused(bpe.encode("ax", false).status(), StatusCode::InvalidProblem, {"'x'", "'<unk>'"}));
  EXPECT_EQ(bpe.encode("aa", false).value(), (Ids{0, 0}));
  const model::Tokenizer word_piece = parsed(R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})");
  EXPECT_TRUE(refused(word_piece.encode("x", false).status(), StatusCode::InvalidProblem, {"'x'", "'[UNK]'"}));
}

TEST(Tokenizer, StopsPatternsThatNeverEnd) {
  const model::Tokenizer tokenizer = parsed(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
    "pattern": {"Regex": "(a+)+[cd]"}}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  EXPECT_TRUE(refused(tokenizer.encode(std::string(60, 'a'), false).status(), StatusCode::InvalidProblem,
                      {"pre_tokenizer: pattern", "(a+)+[cd]", "gave up", "60 bytes"}));
  EXPECT_EQ(tokenizer.encode("aa", false).value(), (Ids{0, 0}));
}

TEST(Tokenizer, StopsTextsThatGrowWithoutEnd) {
  // A thousandfold, three times.
  const std::string step =
      R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")" + std::string(1000, 'a') + "\"}";
  const model::Tokenizer by_normalizer = parsed(R"({"normalizer": {"type": "Sequence", "normalizers": [)" + step + "," +
                                                step + "," + step + R"(]}, "model": {"type": "BPE", "vocab": {"a": 0},
    "merges": []}})");
  EXPECT_TRUE(refused(by_normalizer.encode("a", false).status(), StatusCode::InvalidProblem,
                      {"normalizers[2]", "grows beyond 67108864 bytes"}));
  // Fourfold.
  const model::Tokenizer by_cuts = parsed(R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "𐀀"},
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  EXPECT_TRUE(refused(by_cuts.encode(std::string(17'000'000, ' '), false).status(), StatusCode::InvalidProblem,
                      {"grows beyond 67108864 bytes"}));
}

}  // namespace
}  // namespace kvant::tests
