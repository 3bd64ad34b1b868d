// report.css and report.js, as they are in the source tree.
#pragma once

#include <string_view>

namespace kvant::cli {

extern const std::string_view kReportCss;
extern const std::string_view kReportJs;

}  // namespace kvant::cli
