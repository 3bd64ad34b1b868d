#include "model/tokenizer/byte_level.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/utf8.h"

namespace kvant::model::tokenizer {
namespace {

constexpr char32_t kFirstOther = 256;

// Bytes that are printable in Latin-1 are themselves; the others follow from U+0100 on.
constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t other = kFirstOther;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    characters[byte] = is_printable ? byte : other++;
  }
  return characters;
}();
// 68 bytes are not printable.
constexpr std::size_t kAlphabetEnd = kFirstOther + 68;
static_assert(kCharacters[0xAD] == kAlphabetEnd - 1);

constexpr std::array<std::int16_t, kAlphabetEnd> kBytes = [] {
  std::array<std::int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (std::size_t byte = 0; byte < kCharacters.size(); ++byte)
    bytes[kCharacters[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}();

}  // namespace

void append_byte_level(std::string& text, std::string_view bytes) {
  for (const char byte : bytes) base::append_utf8(text, kCharacters[static_cast<unsigned char>(byte)]);
}

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const base::CodePoint c = base::first_code_point(token.substr(at));
    if (c.bytes == 0 || c.value >= kAlphabetEnd || kBytes[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(static_cast<unsigned char>(kBytes[c.value]));
    at += c.bytes;
  }
  return bytes;
}

}  // namespace kvant::model::tokenizer
