// Text and numbers as HTML. Names come from checkpoints, which anybody may have written: nothing in them becomes
// markup.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace kvant::cli {

// For people, as content of an element or between double quotes: & < > " ' escaped; control characters as their
// pictures (␛), invalid UTF-8 and changes of direction as U+FFFD, so that they change nothing but this text. At most
// 200 characters: of longer ones, "…" stands for the middle.
std::string html_text(std::string_view text);
// All of it, whatever its length.
std::string html_whole_text(std::string_view text);
// For programs, between double quotes: what they read is the text itself; only U+0000, which HTML cannot hold, and
// invalid UTF-8 become U+FFFD.
std::string html_attribute(std::string_view text);

// The shortest text that is read back as the same number; "inf", "-inf", "nan". Safe without quotes.
std::string exact_number(double value);
// For people: `digits` significant ones; "∞", "NaN".
std::string short_number(double value, int digits = 4);

// Formatted text, at the end of a page.
template <class... Args>
void append(std::string& html, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(html), format, std::forward<Args>(args)...);
}

}  // namespace kvant::cli
