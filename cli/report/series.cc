#include "cli/report/series.h"

#include <fmt/core.h>

namespace kvant::cli {
namespace {

constexpr std::size_t kColors = 8;  // report.css has them

}  // namespace

std::string series_class(std::size_t series) { return fmt::format("s-{}", series % kColors); }

std::string series_patch(std::size_t series) { return fmt::format("<i class=\"patch {}\"></i>", series_class(series)); }

}  // namespace kvant::cli
