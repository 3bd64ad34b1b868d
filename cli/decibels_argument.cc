#include "cli/decibels_argument.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "io/file.h"

namespace kvant::cli {

std::optional<double> decibels_in(const std::string& text) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string decibels_problem(const std::string& text) {
  return decibels_in(text) ? std::string() : fmt::format("'{}' is not a number of decibels", io::printable(text));
}

}  // namespace kvant::cli
