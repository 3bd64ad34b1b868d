// Formatted text. fmt's own header is cheap to include; the code behind it is compiled once, in text.cc, and becomes
// part of the library, so that a program that links kvant needs no fmt. (Header-only fmt cost every file 4 s.)
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace kvant::base {

std::string formatted(fmt::string_view format, fmt::format_args args);

// fmt::format(), checked when compiling.
template <class... Args>
std::string text(fmt::format_string<Args...> format, Args&&... args) {
  return formatted(format, fmt::make_format_args(args...));
}

// The items as text with the separator between them. (fmt::join() needs fmt/format.h, a second of every file.)
template <class Range>
std::string joined(const Range& items, std::string_view separator) {
  std::string all;
  bool first = true;
  for (const auto& item : items) {
    if (!first) all += separator;
    all += text("{}", item);
    first = false;
  }
  return all;
}

// "[2, 3]": a shape as sentences and tables show it.
template <class Range>
std::string bracketed(const Range& items) {
  return text("[{}]", joined(items, ", "));
}

}  // namespace kvant::base
