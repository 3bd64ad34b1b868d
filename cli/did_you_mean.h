// What a person may have wanted to type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

// "; did you mean '--scheme'?" where a known word is near; else nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace kvant::cli
