#include "cli/report/html.h"

#include <fmt/core.h>

#include <cmath>

namespace kvant::cli {
namespace {

constexpr std::size_t kMaxCharacters = 200;  // of html_text()
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the character of UTF-8 at the front of `text`; 0 where its first byte is invalid.
std::size_t character_bytes(std::string_view text, char32_t& value) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  value = lead;
  if (lead < 0x80) return 1;
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC0 || lead > 0xF4 || text.size() < bytes) return 0;
  value = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = (value << 6) | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kMin[] = {0, 0, 0x80, 0x800, 0x10000};
  return value < kMin[bytes] || (value >= 0xD800 && value <= 0xDFFF) || value > 0x10FFFF ? 0 : bytes;
}

bool reorders(char32_t c) {
  return c == 0x200E || c == 0x200F || c == 0x061C || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// The text of an entity; empty: the character stands for itself.
std::string_view entity(char32_t c) {
  switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return {};
  }
}

// Takes a character off the front of `text`, which is not empty.
std::string next_visible(std::string_view& text) {
  char32_t c = 0;
  const std::size_t bytes = character_bytes(text, c);
  const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
  text.remove_prefix(character.size());
  if (bytes == 0 || reorders(c) || (c >= 0x80 && c <= 0x9F)) return std::string(kReplacement);
  // U+2400 and on: a picture for each control character.
  if (c < 0x20) return {'\xE2', '\x90', static_cast<char>(0x80 + c)};
  if (c == 0x7F) return "\xE2\x90\xA1";
  const std::string_view escaped = entity(c);
  return std::string(escaped.empty() ? character : escaped);
}

}  // namespace

std::string html_whole_text(std::string_view text) {
  std::string html;
  while (!text.empty()) html += next_visible(text);
  return html;
}

std::string html_text(std::string_view text) {
  std::size_t characters = 0;
  for (std::string_view rest = text; !rest.empty() && characters <= kMaxCharacters; ++characters) next_visible(rest);
  if (characters <= kMaxCharacters) return html_whole_text(text);
  std::string html;
  for (std::size_t i = 0; i < kMaxCharacters / 2; ++i) html += next_visible(text);
  // The end of it, from the beginning of a character on.
  std::size_t end = text.size();
  for (std::size_t i = 0; i < kMaxCharacters / 2 - 1 && end > 0; ++i) {
    const std::size_t last = end--;
    while (end > 0 && last - end < 4 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  return html + "…" + html_whole_text(text.substr(end));
}

std::string html_attribute(std::string_view text) {
  std::string html;
  while (!text.empty()) {
    char32_t c = 0;
    const std::size_t bytes = character_bytes(text, c);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    text.remove_prefix(character.size());
    if (bytes == 0 || c == 0) {
      html += kReplacement;
    } else if (c < 0x20) {
      html += fmt::format("&#{};", static_cast<unsigned>(c));
    } else {
      const std::string_view escaped = entity(c);
      html += escaped.empty() ? character : escaped;
    }
  }
  return html;
}

std::string exact_number(double value) {
  if (std::isnan(value)) return "nan";
  return fmt::format("{}", value);
}

std::string short_number(double value, int digits) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  return fmt::format("{:.{}g}", value, digits);
}

}  // namespace kvant::cli
