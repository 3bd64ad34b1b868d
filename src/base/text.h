// Formatted text. fmt's own header is cheap to include; the code behind it is compiled once, in text.cc, and becomes
// part of the library, so that a program that links kvant needs no fmt. (Header-only fmt cost every file 4 s.)
#pragma once

#include <fmt/core.h>

#include <string>

namespace kvant::base {

std::string formatted(fmt::string_view format, fmt::format_args args);

// fmt::format(), checked when compiling.
template <class... Args>
std::string text(fmt::format_string<Args...> format, Args&&... args) {
  return formatted(format, fmt::make_format_args(args...));
}

}  // namespace kvant::base
