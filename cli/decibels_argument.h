// A number of decibels on the command line.
#pragma once

#include <optional>
#include <string>

namespace kvant::cli {

// Nothing: it is none, or not finite.
std::optional<double> decibels_in(const std::string& text);
// For Argument::check.
std::string decibels_problem(const std::string& text);

}  // namespace kvant::cli
