#include "cli/report/report_file.h"

#include <fstream>
#include <string>
#include <system_error>

#include "base/refuse.h"
#include "cli/report/frame.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/json.h"

namespace kvant::cli {

namespace fs = std::filesystem;
using base::invalid_problem;

namespace {

// What a file begins with, as far as it goes.
std::string start_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(kReportStart.size(), '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
}

// Whether they are one place, whatever exists of it by now.
bool is_same_place(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::weakly_canonical(fs::absolute(a, error), error) == fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace

bool is_report(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && start_of(path) == kReportStart;
}

Status check_report_path(const fs::path& path, const fs::path& output) {
  std::error_code error;
  const std::string shown = io::printable_path(path);
  if (!output.empty() && is_same_place(path, output))
    return invalid_problem("{}: is the output; choose another name with --report", shown);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const bool is_to_come = !output.empty() && is_same_place(folder, output);
  if (!fs::is_directory(folder, error) && !is_to_come)
    return invalid_problem("{}: the folder {} does not exist; create it, or choose another name with --report", shown,
                           io::printable_path(folder));
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return {};
  if (fs::is_directory(status)) return invalid_problem("{}: is a folder; --report needs a file name", shown);
  if (!fs::is_regular_file(status))
    return invalid_problem("{}: is not a regular file; choose another name with --report", shown);
  if (fs::file_size(path, error) > 0 && !is_report(path))
    return invalid_problem("{}: exists and is not a kvant report; choose another name with --report", shown);
  return {};
}

Status write_page(const fs::path& path, std::string_view page) {
  if (Status s = check_report_path(path); !s.ok()) return s;
  return io::write_file(path, page, true);
}

Status write_report(const fs::path& path, const measure::Comparison& comparison, const ReportFacts& facts) {
  return write_page(path, report_page(comparison, facts));
}

io::Json comparison_json(const measure::Comparison& comparison, const ReportFacts& facts) {
  io::Json document = measure::to_json(comparison);
  document["command"] = io::json_name(facts.command);
  for (const std::string& warning : facts.warnings) document["warnings"].push_back(warning);
  return document;
}

io::Json evaluation_json(const measure::Evaluation& evaluation, const EvaluationFacts& facts) {
  io::Json document = measure::to_json(evaluation, facts.tokenizer);
  document["command"] = io::json_name(facts.command);
  return document;
}

}  // namespace kvant::cli
