// tokenizer.json from a GGUF's metadata: byte-level BPE by its pre-tokenizer, SentencePiece with merges from scores,
// and what cannot be said exactly and is refused.
#include "model/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

constexpr auto kBad = StatusCode::InvalidProblem;
constexpr auto kUnsupported = StatusCode::Unsupported;

using Texts = std::vector<std::string>;
using Types = std::vector<std::int32_t>;

class GgufTokenizerTest : public testing::Test {
 protected:
  io::GgufFile opened(const GgufWriter& writer) {
    put_text(folder_ / "m.gguf", writer.file());
    auto file = io::GgufFile::open(folder_ / "m.gguf");
    if (!file.ok()) throw std::runtime_error(std::string(file.status().message()));
    return std::move(file).value();
  }
  Result<io::Json> make(const GgufWriter& writer, std::uint64_t vocabulary = 8) {
    return model::gguf_tokenizer(opened(writer), vocabulary);
  }
  io::Json made(const GgufWriter& writer) {
    auto tokenizer = make(writer);
    if (!tokenizer.ok()) throw std::runtime_error(std::string(tokenizer.status().message()));
    return std::move(tokenizer).value();
  }
  ScratchFolder folder_;
};

GgufWriter byte_level() {
  GgufWriter writer;
  writer.set("tokenizer.ggml.model", gguf_value("gpt2"));
  writer.set("tokenizer.ggml.pre", gguf_value("smollm"));
  writer.set("tokenizer.ggml.tokens", gguf_value(Texts{"<|end|>", "a", "b", "\u0120", "ab", "\u0120ab", "<tool>"}));
  writer.set("tokenizer.ggml.token_type", gguf_value(Types{3, 1, 1, 1, 1, 1, 4}));
  writer.set("tokenizer.ggml.merges", gguf_value(Texts{"a b", "\u0120 ab"}));
  writer.set("tokenizer.ggml.bos_token_id", gguf_value(std::uint32_t{0}));
  writer.set("tokenizer.ggml.eos_token_id", gguf_value(std::uint32_t{0}));
  return writer;
}

GgufWriter sentence_piece() {
  GgufWriter writer;
  writer.set("tokenizer.ggml.model", gguf_value("llama"));
  writer.set("tokenizer.ggml.tokens",
             gguf_value(Texts{"<unk>", "<s>", "<0x0A>", "\u2581", "a", "aa", "\u2581aa", "aaa"}));
  writer.set("tokenizer.ggml.token_type", gguf_value(Types{2, 3, 6, 1, 1, 1, 1, 1}));
  writer.set("tokenizer.ggml.scores", gguf_value(std::vector<float>{0, 0, 0, -10, -11, -2, -1, -3}));
  writer.set("tokenizer.ggml.bos_token_id", gguf_value(std::uint32_t{1}));
  writer.set("tokenizer.ggml.unknown_token_id", gguf_value(std::uint32_t{0}));
  return writer;
}

TEST_F(GgufTokenizerTest, ByteLevel) {
  const io::Json json = made(byte_level());
  EXPECT_EQ(json["model"]["type"], "BPE");
  const io::Json vocabulary = {{"<|end|>", 0}, {"a", 1},        {"b", 2},     {"\u0120", 3},
                               {"ab", 4},      {"\u0120ab", 5}, {"<tool>", 6}};
  EXPECT_EQ(json["model"]["vocab"], vocabulary);
  EXPECT_EQ(json["model"]["merges"], (io::Json{"a b", "\u0120 ab"}));
  EXPECT_EQ(json["model"]["ignore_merges"], false);
  EXPECT_EQ(json["model"]["byte_fallback"], false);
  EXPECT_EQ(json["normalizer"], nullptr);
  ASSERT_EQ(json["added_tokens"].size(), 2u);
  EXPECT_EQ(json["added_tokens"][0]["content"], "<|end|>");
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["added_tokens"][1]["id"], 6);
  EXPECT_EQ(json["added_tokens"][1]["special"], false);
  const io::Json& pieces = json["pre_tokenizer"]["pretokenizers"];
  EXPECT_EQ(pieces[0], (io::Json{{"type", "Digits"}, {"individual_digits", true}}));
  EXPECT_EQ(pieces[1]["use_regex"], true);
  EXPECT_EQ(json["post_processor"]["type"], "ByteLevel");
  EXPECT_EQ(json["decoder"]["type"], "ByteLevel");
}

TEST_F(GgufTokenizerTest, PreTokenizers) {
  GgufWriter writer = byte_level();
  for (const char* const pre : {"gpt-2", "default"}) {
    writer.set("tokenizer.ggml.pre", gguf_value(pre));
    const io::Json json = made(writer);
    EXPECT_EQ(json["pre_tokenizer"]["type"], "ByteLevel") << pre;
    EXPECT_EQ(json["pre_tokenizer"]["use_regex"], true) << pre;
  }
  writer.set("tokenizer.ggml.pre", gguf_value("llama-bpe"));
  const io::Json llama = made(writer);
  const std::string split = llama["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  EXPECT_NE(split.find(R"(|\p{N}{1,3}|)"), std::string::npos) << split;
  EXPECT_EQ(llama["pre_tokenizer"]["pretokenizers"][1]["use_regex"], false);
  EXPECT_EQ(llama["model"]["ignore_merges"], true);
  // A Llama 3 begins its texts with a token although the file does not say so.
  EXPECT_EQ(llama["post_processor"]["processors"][1]["single"][0]["SpecialToken"]["id"], "<|end|>");
  writer.set("tokenizer.ggml.add_bos_token", gguf_value(false));
  EXPECT_EQ(made(writer)["post_processor"]["type"], "ByteLevel");
  writer.set("tokenizer.ggml.pre", gguf_value("qwen2"));
  const io::Json qwen = made(writer);
  EXPECT_EQ(qwen["normalizer"], (io::Json{{"type", "NFC"}}));
  EXPECT_EQ(qwen["model"]["ignore_merges"], false);
  writer.set("tokenizer.ggml.pre", gguf_value("tekken"));
  EXPECT_TRUE(refused(make(writer).status(), kUnsupported, {"pre-tokenizer \"tekken\"", "smollm", "qwen2"}));
}

TEST_F(GgufTokenizerTest, SentencePiece) {
  const io::Json json = made(sentence_piece());
  // By score: "▁aa" (-1), "aa" (-2), "aaa" (-3), of which the longer left part comes first.
  EXPECT_EQ(json["model"]["merges"], (io::Json{"\u2581 aa", "a a", "aa a", "a aa"}));
  EXPECT_EQ(json["model"]["byte_fallback"], true);
  EXPECT_EQ(json["model"]["fuse_unk"], true);
  EXPECT_EQ(json["model"]["unk_token"], "<unk>");
  EXPECT_EQ(json["normalizer"]["normalizers"][0], (io::Json{{"type", "Prepend"}, {"prepend", "\u2581"}}));
  EXPECT_EQ(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  EXPECT_EQ(json["post_processor"]["special_tokens"]["<s>"]["ids"], io::Json::array({1}));
  EXPECT_EQ(json["decoder"]["decoders"].size(), 4u);
  GgufWriter without = sentence_piece();
  without.set("tokenizer.ggml.add_space_prefix", gguf_value(false));
  without.set("tokenizer.ggml.add_bos_token", gguf_value(false));
  const io::Json plain = made(without);
  EXPECT_EQ(plain["normalizer"]["normalizers"].size(), 1u);
  EXPECT_EQ(plain["decoder"]["decoders"].size(), 3u);
  EXPECT_EQ(plain["post_processor"], nullptr);
}

TEST_F(GgufTokenizerTest, Refusals) {
  const auto refusal = [&](GgufWriter writer, const char* key, std::string value, Parts parts, StatusCode code = kBad) {
    writer.set(key, std::move(value));
    return refused(make(writer).status(), code, parts);
  };
  const Texts seven = {"a", "b", "c", "d", "e", "f", "g"};
  EXPECT_TRUE(refused(make(GgufWriter()).status(), kBad, {"has no tokenizer"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.model", gguf_value("bert"), {"\"bert\"", "gpt2"}, kUnsupported));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens", gguf_value(true), {"tokens", "an array of strings"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens", gguf_value(Texts{"a"}), {"7 types for 1 tokens"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens", gguf_value(Texts(9, "a")), {"9 tokens for 8 rows"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens", gguf_value(Texts{"a", "b", "a", "c", "d", "e", "f"}),
                      {"token \"a\" is there twice, as 0 and 2"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens", gguf_value(Texts{"a", "\xFF", "b", "c", "d", "e", "f"}),
                      {"token 1 \"\\xff\" is not UTF-8"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens",
                      gguf_value(Texts{"a", std::string(2000, 'x'), "b", "c", "d", "e", "f"}), {"token 1 has 2000"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.tokens", gguf_value(seven), {"merge 0 \"a b\"", "make a third"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.merges", gguf_value(Texts{"ab"}), {"merge 0 \"ab\""}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.token_type", gguf_value(std::vector<float>(7)), {"array of f32"}));
  EXPECT_TRUE(refusal(byte_level(), "tokenizer.ggml.bos_token_id", gguf_value(std::uint32_t{7}),
                      {"bos_token_id\" is 7, there are 7 tokens"}));
  EXPECT_TRUE(
      refusal(sentence_piece(), "tokenizer.ggml.scores", gguf_value(std::vector<float>{1, 2}), {"2 scores for 8"}));
  EXPECT_TRUE(refusal(sentence_piece(), "tokenizer.ggml.scores",
                      gguf_value(std::vector<float>{0, 0, 0, -10, -11, -2, -2, -3}),
                      {"\"aa\" and \"\u2581aa\"", "same score -2"}, kUnsupported));
}

TEST_F(GgufTokenizerTest, Config) {
  GgufWriter writer = sentence_piece();
  writer.set("tokenizer.ggml.padding_token_id", gguf_value(std::uint32_t{99}));
  writer.set("tokenizer.chat_template", gguf_value("{{ messages }}"));
  const io::Json config = model::gguf_tokenizer_config(opened(writer), 2048);
  EXPECT_EQ(config, (io::Json{{"clean_up_tokenization_spaces", false},
                              {"model_max_length", 2048},
                              {"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"bos_token", "<s>"},
                              {"unk_token", "<unk>"},
                              {"chat_template", "{{ messages }}"}}));
}

}  // namespace
}  // namespace kvant::tests
