// The folder that the demo writes: where things are in it, and whether an earlier demo made what is there.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "cli/demo_files.h"
#include "kvant/status.h"

namespace kvant::cli {

struct DemoFolder {
  std::filesystem::path path;

  std::filesystem::path model() const { return path / "model"; }
  std::filesystem::path stats() const { return path / "stats.safetensors"; }
  std::filesystem::path report() const { return path / "report.html"; }
  std::filesystem::path evaluation() const { return path / "evaluation.html"; }
  std::filesystem::path held_out_text() const { return path / demo_held_out_text().name; }
  std::filesystem::path calibration_text() const { return path / demo_calibration_text().name; }
};

// Refuses a folder that holds anything that no demo wrote. `checkpoints` are the names of the quantized ones.
Status check_demo_folder(const DemoFolder& folder, std::span<const std::string_view> checkpoints);

// Writes the model and the texts, unless just these are there already.
Status write_demo_files(const DemoFolder& folder);

}  // namespace kvant::cli
