// UTF-8: every character there and back, and every sequence that is none.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace kvant::tests {
namespace {

TEST(Utf8, EveryCharacterThereAndBack) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string text;
    base::append_utf8(text, c);
    const base::CodePoint read = base::first_code_point(text + "x");
    if (c >= 0xD800 && c <= 0xDFFF) {
      EXPECT_EQ(read.bytes, 0u) << static_cast<unsigned>(c);
      continue;
    }
    ASSERT_EQ(read.value, c);
    ASSERT_EQ(read.bytes, text.size()) << static_cast<unsigned>(c);
    ASSERT_EQ(text.size(), c < 0x80 ? 1u : c < 0x800 ? 2u : c < 0x10000 ? 3u : 4u);
  }
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(base::valid_utf8_bytes(""), 0u);
  EXPECT_EQ(base::valid_utf8_bytes("aé漢😀"), 10u);
  for (const std::string_view bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x80\x80", "\xE2\x82", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3(", "\xE2\x82("})
    EXPECT_EQ(base::valid_utf8_bytes("aé" + std::string(bad)), 3u) << testing::PrintToString(bad);
}

}  // namespace
}  // namespace kvant::tests
