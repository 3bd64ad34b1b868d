// Classes of characters where the tables of `tokenizers` are older than ICU's, and where its lists are its own.
// tests/interop/tokenizer_equality.py compares all characters.
#include <gtest/gtest.h>

#include <string>

#include "model/tokenizer/characters.h"

namespace kvant::tests {
namespace {

namespace tokenizer = model::tokenizer;

TEST(TokenizerCharacters, ClassesOfOldTables) {
  // Moved to other classes since.
  EXPECT_TRUE(tokenizer::is_punctuation(0x166D));
  EXPECT_TRUE(tokenizer::is_punctuation(0x111C9));
  EXPECT_TRUE(tokenizer::is_nonspacing_mark(0x1734));
  for (const char32_t c : {0x1885, 0x1886, 0xA9BD, 0x111C9}) EXPECT_FALSE(tokenizer::is_nonspacing_mark(c));
  EXPECT_TRUE(tokenizer::is_mark(0x1CF2));
  EXPECT_FALSE(tokenizer::is_mark(0x111C9));
  // Younger than the tables, which are of Unicode 8 and 9.
  EXPECT_FALSE(tokenizer::is_punctuation(0x2E43));
  EXPECT_FALSE(tokenizer::is_nonspacing_mark(0x8D4));
  EXPECT_TRUE(tokenizer::is_mark(0x8D4));
  EXPECT_FALSE(tokenizer::is_mark(0x7FD));
  EXPECT_FALSE(tokenizer::is_other(0x8E2));
  // The usual ones.
  EXPECT_TRUE(tokenizer::is_nonspacing_mark(0x301));
  EXPECT_TRUE(tokenizer::is_mark(0x903));
  EXPECT_FALSE(tokenizer::is_nonspacing_mark(0x903));
  for (const char32_t c : {0, 0x7F, 0x85, 0xAD, 0x200D, 0xE000}) EXPECT_TRUE(tokenizer::is_other(c));
  EXPECT_FALSE(tokenizer::is_other(0x1F979));
}

TEST(TokenizerCharacters, PunctuationHasAllSignsOfAscii) {
  for (const char c : std::string("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    EXPECT_TRUE(tokenizer::is_punctuation(static_cast<char32_t>(c))) << c;
  for (const char c : std::string("aZ09 \n\x7F"))
    EXPECT_FALSE(tokenizer::is_punctuation(static_cast<char32_t>(c))) << c;
  EXPECT_TRUE(tokenizer::is_punctuation(0x3002));
  EXPECT_FALSE(tokenizer::is_punctuation(0x20AC));
}

TEST(TokenizerCharacters, SpacesNumbersAndWords) {
  for (const char32_t c : {0x9, 0xB, 0x20, 0x85, 0xA0, 0x2003, 0x3000}) EXPECT_TRUE(tokenizer::is_space(c));
  for (const char32_t c : {0x0, 0x1C, 0x180E, 0x200B, 0xFEFF}) EXPECT_FALSE(tokenizer::is_space(c));
  for (const char32_t c : {0x30, 0xB2, 0x664, 0x2167, 0x2460}) EXPECT_TRUE(tokenizer::is_number(c));
  EXPECT_FALSE(tokenizer::is_number(0x4E00));
  for (const char32_t c : {0x41, 0x5F, 0x301, 0x664, 0x200D, 0x203F, 0x24B6, 0x4E00})
    EXPECT_TRUE(tokenizer::is_word(c));
  for (const char32_t c : {0x2D, 0xB2, 0x20AC, 0x200B}) EXPECT_FALSE(tokenizer::is_word(c));
}

TEST(TokenizerCharacters, ChineseIsBertsList) {
  for (const char32_t c : {0x3400, 0x4DBF, 0x4E00, 0x9FFF, 0x2B81F, 0x2B920, 0x2CEAF, 0xFAFF, 0x2F800})
    EXPECT_TRUE(tokenizer::is_chinese(c));
  for (const char32_t c : {0x3007, 0x33FF, 0x4DC0, 0x2B820, 0x2B91F, 0x3042, 0xAC00})
    EXPECT_FALSE(tokenizer::is_chinese(c));
}

TEST(TokenizerCharacters, LowerCaseLooksAtNothingAround) {
  std::string text;
  for (const char32_t c : {0x41, 0x3A3, 0x130, 0x1E9E, 0x10400, 0x69}) tokenizer::append_lower(text, c);
  EXPECT_EQ(text, "aσi\u0307ß𐐨i");
}

}  // namespace
}  // namespace kvant::tests
