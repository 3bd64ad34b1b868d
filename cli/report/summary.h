// The top of the report: what was found, in one sentence, and the facts of each checkpoint.
#pragma once

#include <string>

#include "cli/report/content.h"

namespace kvant::cli {

// Which checkpoint lost least, or what was lost. HTML.
std::string finding(const ReportContent& content);

// The section with facts, what smoothing means for them, and warnings.
std::string summary_section(const ReportContent& content);

}  // namespace kvant::cli
