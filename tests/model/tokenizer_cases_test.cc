// Ids beside those that Hugging Face's `tokenizers` made (tests/interop/make_tokenizer_cases.py): every step, every
// behaviour, every option that is supported, with small vocabularies.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(TokenizerCases, GiveTheIdsOfTokenizers) {
  const std::filesystem::path path = std::filesystem::path(KVANT_SOURCE_DIR) / "tests/model/tokenizer_cases.json";
  const auto file = io::parse_json(text_of(path), path.native());
  ASSERT_TRUE(file.ok()) << file.status().message();
  const io::Json& cases = file->at("cases");
  ASSERT_GE(cases.size(), 100u);
  for (const io::Json& one : cases) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    io::Json json = one.at("rest");
    json["model"] = file->at("models").at(one.at("model").get<std::size_t>());
    const auto tokenizer = model::Tokenizer::parse(json.dump(), "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (const io::Json& text : one.at("texts"))
      for (const bool special : {false, true}) {
        const auto ids = tokenizer->encode(text.at("text").get<std::string>(), special);
        ASSERT_TRUE(ids.ok()) << ids.status().message();
        EXPECT_EQ(*ids, text.at(special ? "special" : "plain").get<Ids>()) << text.at("text") << " special " << special;
      }
  }
}

}  // namespace
}  // namespace kvant::tests
