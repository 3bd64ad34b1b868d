// The report's table of layers: a row each, a column for each number.
#pragma once

#include <string>

#include "cli/report/content.h"

namespace kvant::cli {

// The section with search field and table.
std::string layer_table(const ReportContent& content);

// Styles that belong to it: of the columns of several checkpoints, those of the chosen number are shown.
std::string layer_table_styles(const ReportContent& content);

}  // namespace kvant::cli
