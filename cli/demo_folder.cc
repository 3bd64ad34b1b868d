#include "cli/demo_folder.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "base/refuse.h"
#include "cli/report/report_file.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"
#include "io/scratch_folder.h"
#include "quantize/output_folder.h"

namespace kvant::cli {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

// The demo's own config.json has its name in it, and quantized checkpoints keep that.
bool is_marked(const fs::path& checkpoint) {
  const fs::path config = checkpoint / io::kConfigName;
  const auto text = io::read_text(config, 1'000'000);
  if (!text.ok()) return false;
  const auto document = io::parse_json(*text, config.string());
  return document.ok() && document->is_object() && document->value("_name_or_path", io::Json()) == "kvant demo";
}

bool is_regular(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error));
}

bool holds(const fs::path& path, std::string_view bytes) {
  if (!is_regular(path)) return false;
  const auto text = io::read_text(path, bytes.size());
  return text.ok() && *text == bytes;
}

// Before there is a config.json there is only what kvant quantize writes first.
bool is_demo_checkpoint(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return false;
  if (fs::is_empty(folder, error)) return true;
  if (!fs::exists(folder / io::kConfigName, error)) return fs::is_directory(folder / quantize::kOwnFolder, error);
  return is_marked(folder);
}

// Without a config.json, as a demo that was killed leaves it, the model's files must be those of this demo.
bool is_demo_model(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(folder, error))) return false;
  const bool marked = is_marked(folder);
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path path = entries->path();
    const auto files = demo_model_files();
    const bool known = std::ranges::any_of(files, [&](const DemoFile& file) {
      const fs::path own = folder / file.name;
      return path == io::partial_of(own) || (path == own && (marked || holds(path, file.bytes)));
    });
    if (!known || !is_regular(path)) return false;
  }
  return !error;
}

Status make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return invalid_problem("{}: cannot be made: {}", io::printable_path(folder), error.message());
  return {};
}

}  // namespace

Status check_demo_folder(const DemoFolder& folder, std::span<const std::string_view> checkpoints) {
  std::error_code error;
  const fs::file_status status = fs::status(folder.path, error);
  if (!fs::exists(status)) return {};
  const std::string shown = io::printable_path(folder.path);
  if (!fs::is_directory(status)) return invalid_problem("{}: is not a folder; choose another with --output", shown);
  const bool model_is_ours = is_marked(folder.model());
  const auto is_ours = [&](const fs::path& path) {
    const std::string name = path.filename().string();
    if (std::ranges::find(checkpoints, name) != checkpoints.end()) return is_demo_checkpoint(path);
    if (path == folder.model()) return is_demo_model(path);
    if (is_report(path)) return true;
    // What a calibration that was killed leaves; calibrate() itself refuses anything else in there.
    if (name == folder.stats().filename().string() + std::string(io::kScratchSuffix))
      return model_is_ours && fs::is_directory(fs::symlink_status(path, error));
    for (const fs::path& own : {folder.report(), folder.evaluation()})
      if (path == io::partial_of(own)) return model_is_ours && is_regular(path);
    for (const fs::path& own : {folder.stats(), folder.held_out_text(), folder.calibration_text()})
      if (path == own || path == io::partial_of(own)) return model_is_ours && is_regular(path);
    return false;
  };
  fs::directory_iterator entries(folder.path, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error))
    if (!is_ours(entries->path()))
      return invalid_problem("{}: holds {}, which the demo did not write; choose another folder with --output", shown,
                             io::printable_path(entries->path().filename()));
  if (error) return invalid_problem("{}: {}", shown, error.message());
  return {};
}

Status write_demo_files(const DemoFolder& folder) {
  const auto files = demo_model_files();
  // Files that were written anew are other files to the manifest of a quantized checkpoint, whatever is in them.
  const bool is_there = std::ranges::all_of(files, [&](const DemoFile& file) {
    std::error_code error;
    const fs::path path = folder.model() / file.name;
    return holds(path, file.bytes) && !fs::exists(fs::symlink_status(io::partial_of(path), error));
  });
  if (Status s = make_folders(folder.model()); !s.ok()) return s;
  if (!is_there) {
    // An older config.json must not vouch for files that are half replaced.
    std::error_code ignored;
    fs::remove(folder.model() / io::kConfigName, ignored);
    for (const DemoFile& file : files)
      if (Status s = io::write_file(folder.model() / file.name, file.bytes, true); !s.ok()) return s;
  }
  for (const DemoFile& text : {demo_held_out_text(), demo_calibration_text()})
    if (Status s = io::write_file(folder.path / text.name, text.bytes, true); !s.ok()) return s;
  return {};
}

}  // namespace kvant::cli
