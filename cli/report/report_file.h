// Where the report goes: `--report`, the file, and the same document as JSON.
#pragma once

#include <filesystem>
#include <string_view>

#include "cli/report/evaluation_page.h"
#include "cli/report/page.h"
#include "io/json_fwd.h"
#include "kvant/status.h"
#include "measure/compare.h"

namespace kvant::cli {

// Whether the file is a report of kvant.
bool is_report(const std::filesystem::path& path);

// Refuses, before anything is computed, a path that a report cannot be written to: its folder is missing, or something
// is there that is neither empty nor a report of kvant. So no part of a checkpoint can be replaced by a mistyped name.
// `output` is what this run will write: as a folder it may be the report's, but not its name.
Status check_report_path(const std::filesystem::path& path, const std::filesystem::path& output = {});

// check_report_path() again, then writes the page whole or not at all.
Status write_page(const std::filesystem::path& path, std::string_view page);
// The page of a comparison.
Status write_report(const std::filesystem::path& path, const measure::Comparison& comparison, const ReportFacts& facts);

// What --json prints: measure::to_json() and the facts.
io::Json comparison_json(const measure::Comparison& comparison, const ReportFacts& facts);
io::Json evaluation_json(const measure::Evaluation& evaluation, const EvaluationFacts& facts);

}  // namespace kvant::cli
