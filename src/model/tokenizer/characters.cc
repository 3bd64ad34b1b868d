#include "model/tokenizer/characters.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "base/utf8.h"

namespace kvant::model::tokenizer {
namespace {

UChar32 point(char32_t c) { return static_cast<UChar32>(c); }

// The general category as a bit, of any version.
std::uint32_t category(char32_t c) { return U_GET_GC_MASK(point(c)); }

// A character whose category is not what it was.
struct Moved {
  char32_t character;
  std::uint32_t category;
};

// A library's table, and its version of Unicode.
struct Table {
  std::uint8_t version;
  std::span<const Moved> moved;

  bool has(char32_t c, std::uint32_t categories) const {
    if (c < 0x80) return (category(c) & categories) != 0;
    const auto found = std::find_if(moved.begin(), moved.end(), [c](const Moved& m) { return m.character == c; });
    if (found != moved.end()) return (found->category & categories) != 0;
    if ((category(c) & categories) == 0) return false;
    UVersionInfo age;
    u_charAge(point(c), age);
    return age[0] <= version;
  }
};

constexpr Moved kMovedSince8[] = {{0x166D, U_GC_PO_MASK}, {0x1734, U_GC_MN_MASK}, {0x1885, U_GC_LO_MASK},
                                  {0x1886, U_GC_LO_MASK}, {0xA9BD, U_GC_MC_MASK}, {0x111C9, U_GC_PO_MASK}};
constexpr Table kUnicodeCategories = {8, kMovedSince8};
constexpr Moved kMovedSince9[] = {{0x1CF2, U_GC_MC_MASK}, {0x1CF3, U_GC_MC_MASK}, {0x111C9, U_GC_PO_MASK}};
constexpr Table kUnicodeNormalization = {9, kMovedSince9};

struct Block {
  char32_t first, last;
};
// BERT's own list; the second of the extensions begins at 2B920 there.
constexpr Block kChinese[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                              {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return u_isUWhiteSpace(point(c)) != 0;
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return (category(c) & U_GC_N_MASK) != 0;
}

bool is_word(char32_t c) {
  return (category(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 || u_isUAlphabetic(point(c)) != 0 ||
         u_hasBinaryProperty(point(c), UCHAR_JOIN_CONTROL) != 0;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && u_isalnum(point(c)) == 0;
  return kUnicodeCategories.has(c, U_GC_P_MASK);
}

bool is_mark(char32_t c) { return kUnicodeNormalization.has(c, U_GC_M_MASK); }

bool is_nonspacing_mark(char32_t c) { return kUnicodeCategories.has(c, U_GC_MN_MASK); }

bool is_other(char32_t c) { return kUnicodeCategories.has(c, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK); }

bool is_chinese(char32_t c) {
  return std::any_of(std::begin(kChinese), std::end(kChinese),
                     [c](const Block& block) { return c >= block.first && c <= block.last; });
}

void append_lower(std::string& text, char32_t c) {
  constexpr char32_t kCapitalIWithDot = 0x130, kDotAbove = 0x307;
  if (c == kCapitalIWithDot) {
    text += 'i';
    base::append_utf8(text, kDotAbove);
  } else {
    base::append_utf8(text, static_cast<char32_t>(u_tolower(point(c))));
  }
}

}  // namespace kvant::model::tokenizer
