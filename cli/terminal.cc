#include "cli/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "format/module_name.h"

namespace kvant::cli {
namespace {

struct Span {
  std::uint32_t first, last;
};

// Combining marks, joiners and variation selectors, in the scripts where they are common.
constexpr Span kNoWidth[] = {{0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x0610, 0x061A},  {0x064B, 0x065F},
                             {0x0900, 0x0902}, {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF}, {0x200B, 0x200F},  {0x20D0, 0x20FF},
                             {0x3099, 0x309A}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xE0100, 0xE01EF}};
constexpr Span kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0x33FF},  {0x3400, 0x4DBF},
                          {0x4E00, 0x9FFF},   {0xA000, 0xA4CF},   {0xAC00, 0xD7A3},  {0xF900, 0xFAFF},
                          {0xFE30, 0xFE4F},   {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},  {0x1F300, 0x1F64F},
                          {0x1F680, 0x1F6FF}, {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};

template <std::size_t kCount>
bool is_in(std::uint32_t code, const Span (&spans)[kCount]) {
  return std::any_of(std::begin(spans), std::end(spans),
                     [&](const Span& span) { return code >= span.first && code <= span.last; });
}

struct Character {
  std::size_t bytes;
  int width;
};

// The character at the start of a text that is not empty. A byte that is no UTF-8 counts as one column.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t bytes = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (bytes == 1 || bytes > text.size()) return {1, 1};
  std::uint32_t code = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {1, 1};
    code = code << 6 | (next & 0x3Fu);
  }
  return {bytes, is_in(code, kNoWidth) ? 0 : is_in(code, kWide) ? 2 : 1};
}

bool set_and_not_empty(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// The numbers among the components of a tensor's name, one after the other, and where the last one ends.
struct Numbers {
  std::vector<std::string_view> all;
  std::size_t begin = 0, end = 0;  // of all that is between the first and the last
};

Numbers numbers_in(std::string_view name) {
  Numbers numbers;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view component = name.substr(at, dot - at);
    if (format::is_number(component)) {
      if (numbers.all.empty()) numbers.begin = at;
      numbers.all.push_back(component);
      numbers.end = dot;
    }
    at = dot + 1;
  }
  return numbers;
}

// The last characters of a text, in at most `width` columns.
std::string_view tail_of(std::string_view text, int width) {
  int left = display_width(text);
  while (left > width || (!text.empty() && first_character(text).width == 0)) {
    left -= first_character(text).width;
    text.remove_prefix(first_character(text).bytes);
  }
  return text;
}

// The first ones.
std::string_view head_of(std::string_view text, int width) {
  std::size_t bytes = 0;
  for (int used = 0; bytes < text.size();) {
    const Character character = first_character(text.substr(bytes));
    if (used + character.width > width) break;
    used += character.width;
    bytes += character.bytes;
  }
  return text.substr(0, bytes);
}

// "mod…12.self_attn.q_proj", "…12…q_proj", "…3…17.up_proj": of a name the numbers say which of many it is, and the end
// says what it is. What is left is for its beginning. Empty where there are no numbers, or no room for them and a bit
// of the end.
std::string shortened_name(std::string_view name, int width) {
  constexpr int kMinEnd = 4;
  const Numbers numbers = numbers_in(name);
  if (numbers.all.empty()) return {};
  std::string rest = fmt::format("…{}", name.substr(numbers.begin));
  if (display_width(rest) > width) {
    rest.clear();
    for (const std::string_view number : numbers.all) rest += fmt::format("…{}", number);
    const std::string_view end = name.substr(numbers.end);
    const int left = width - display_width(rest);
    if (display_width(end) > left && left < 1 + kMinEnd) return {};
    rest += display_width(end) <= left ? std::string(end) : fmt::format("…{}", tail_of(end, left - 1));
  }
  return fmt::format("{}{}", head_of(name.substr(0, numbers.begin), width - display_width(rest)), rest);
}

}  // namespace

Terminal Terminal::of(int descriptor) {
  Terminal terminal;
  terminal.descriptor = descriptor;
  terminal.is_terminal = isatty(descriptor) == 1;
  const char* const kind = std::getenv("TERM");
  terminal.moves = terminal.is_terminal && kind != nullptr && std::string_view(kind) != "dumb";
  terminal.color = terminal.moves && !set_and_not_empty("NO_COLOR");
  return terminal;
}

int Terminal::width() const {
  if (!is_terminal) return 0;
  winsize size = {};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  if (const char* const columns = std::getenv("COLUMNS")) {
    const std::string_view text = columns;
    int value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc() && value > 0) return value;
  }
  return 80;
}

std::string Terminal::styled(std::string_view text, std::string_view code) const {
  return color ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    width += character.width;
    text.remove_prefix(character.bytes);
  }
  return width;
}

std::string shortened(std::string_view text, int width) {
  if (display_width(text) <= width) return std::string(text);
  if (width <= 0) return {};
  if (std::string name = shortened_name(text, width); !name.empty()) return name;
  // The end of a tensor's name tells more than its beginning, so it gets the odd column.
  const int head_width = (width - 1) / 2;
  const int tail_width = width - 1 - head_width;
  const std::string_view head = head_of(text, head_width);
  return fmt::format("{}…{}", head, tail_of(text.substr(head.size()), tail_width));
}

std::string wrapped(std::string_view text, int width, int indent) {
  std::string result;
  int column = 0;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    const int word_width = display_width(word);
    if (column > 0 && column + 1 + word_width > width) {
      result += '\n' + std::string(static_cast<std::size_t>(indent), ' ');
      column = indent;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word_width;
  }
  return result;
}

std::string paragraph(std::string_view text, const Terminal& terminal) {
  constexpr int kMaxWidth = 100;
  const int width = terminal.width();
  return (width == 0 ? std::string(text) : wrapped(text, std::min(width, kMaxWidth), 0)) + '\n';
}

}  // namespace kvant::cli
