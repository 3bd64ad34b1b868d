// What stdout and stderr are connected to, and what may be sent there.
#pragma once

#include <string>
#include <string_view>

namespace kvant::cli {

struct Terminal {
  bool is_terminal = false;
  bool moves = false;  // the cursor can go back to the start of a line: not with TERM=dumb
  bool color = false;  // also not with NO_COLOR

  // `descriptor` is 1 or 2.
  static Terminal of(int descriptor);
  // Columns by now; a window may change. 0: not a terminal, lines may be of any length.
  int width() const;

  std::string bold(std::string_view text) const { return styled(text, "1"); }
  std::string red(std::string_view text) const { return styled(text, "31"); }
  std::string green(std::string_view text) const { return styled(text, "32"); }
  std::string yellow(std::string_view text) const { return styled(text, "33"); }

  int descriptor = -1;

 private:
  std::string styled(std::string_view text, std::string_view code) const;
};

// Columns that a UTF-8 text takes on a screen: none for combining marks, two for East Asian wide characters and emoji.
int display_width(std::string_view text);

// At most `width` columns: of a longer text, "…" stands for the middle. Of the name of a tensor or a module its numbers
// stay, so that layers can be told apart: "mod…12.self_attn.q_proj", "…3…17…_proj".
std::string shortened(std::string_view text, int width);

// Words in lines of at most `width` columns, each but the first behind `indent` spaces.
std::string wrapped(std::string_view text, int width, int indent);

// A sentence or some, and a newline: lines that fit a terminal and are not tiring to read; elsewhere one line.
std::string paragraph(std::string_view text, const Terminal& terminal);

}  // namespace kvant::cli
