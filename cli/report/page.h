// The report: one HTML file that shows what each layer lost. It needs nothing from outside: styles (report.css), a
// little JavaScript for sorting, filtering and hovering (report.js) and drawings (SVG) are in it. Without JavaScript it
// shows the same.
#pragma once

#include <string>
#include <vector>

#include "measure/compare.h"

namespace kvant::cli {

// What the comparison itself does not know.
struct ReportFacts {
  std::string command;                // "kvant compare ./Llama ./Llama-w8a8 --report loss.html"
  std::vector<std::string> warnings;  // of the run that made the checkpoint, beside warnings_of()
};

// The whole page. Names are escaped: nothing in a checkpoint can become markup.
std::string report_page(const measure::Comparison& comparison, const ReportFacts& facts);

}  // namespace kvant::cli
