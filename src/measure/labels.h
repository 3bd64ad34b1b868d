// Short names for checkpoints that are shown side by side.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvant::measure {

// For each path its last part, and as many before it as tell it from the others; a number for a path that is given
// twice.
std::vector<std::string> labels_of(const std::vector<std::filesystem::path>& paths);

}  // namespace kvant::measure
