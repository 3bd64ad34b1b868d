// An evaluation as a table, for eval and demo.
#pragma once

#include <string>

#include "cli/terminal.h"
#include "measure/evaluate.h"

namespace kvant::cli {

// The table, and below it a sentence on what its columns mean.
std::string evaluation_text(const measure::Evaluation& evaluation, const Terminal& terminal);

}  // namespace kvant::cli
