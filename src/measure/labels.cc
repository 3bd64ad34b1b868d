#include "measure/labels.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <system_error>

namespace kvant::measure {

namespace fs = std::filesystem;

std::vector<std::string> labels_of(const std::vector<fs::path>& paths) {
  std::vector<std::vector<std::string>> parts;
  for (const fs::path& path : paths) {
    std::error_code error;
    parts.emplace_back();
    for (const fs::path& part : fs::absolute(path, error).lexically_normal())
      if (!part.empty()) parts.back().push_back(part.string());
  }
  const auto tail = [&](std::size_t path, std::size_t count) {
    fs::path joined;
    for (std::size_t i = parts[path].size() - std::min(count, parts[path].size()); i < parts[path].size(); ++i)
      joined /= parts[path][i];
    return joined.string();
  };
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    std::size_t count = 1;
    const auto is_shared = [&] {
      for (std::size_t j = 0; j < paths.size(); ++j)
        if (parts[j] != parts[i] && tail(j, count) == tail(i, count)) return true;
      return false;
    };
    while (count < parts[i].size() && is_shared()) ++count;
    const auto before =
        static_cast<std::size_t>(std::count(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), parts[i]));
    labels.push_back(tail(i, count) + (before == 0 ? "" : fmt::format(" ({})", before + 1)));
  }
  return labels;
}

}  // namespace kvant::measure
