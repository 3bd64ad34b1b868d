// Characters of UTF-8, strictly: what is longer than needed, a surrogate or beyond Unicode is none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvant::base {

// A character of UTF-8 at the front of a text. `bytes` 0: there is none, the first byte is invalid.
struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;
};

inline CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC0 || lead > 0xF4 || text.size() < bytes) return {};
  char32_t value = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  // Longer than needed, a surrogate, or beyond Unicode.
  constexpr char32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kMin[bytes] || (value >= 0xD800 && value <= 0xDFFF) || value > 0x10FFFF) return {};
  return {value, bytes};
}

// Where the first invalid byte is; the size of the text where there is none.
inline std::size_t valid_utf8_bytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const CodePoint c = first_code_point(text.substr(at));
    if (c.bytes == 0) break;
    at += c.bytes;
  }
  return at;
}

// `c` must be a character.
inline void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  const auto tail = [&](int shift) { put(0x80u | ((c >> shift) & 0x3Fu)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0u | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    put(0xE0u | (c >> 12));
    tail(6);
    tail(0);
  } else {
    put(0xF0u | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace kvant::base
