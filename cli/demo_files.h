// The model of the demo and its texts, as they are in data/demo_model/: part of the program, so that it needs no file.
#pragma once

#include <span>
#include <string_view>

namespace kvant::cli {

struct DemoFile {
  std::string_view name;
  std::string_view bytes;
};

// What belongs into the model's folder, config.json last: it vouches for the others.
std::span<const DemoFile> demo_model_files();
// A text that the model did not learn from, and another one for its statistics.
DemoFile demo_held_out_text();
DemoFile demo_calibration_text();

}  // namespace kvant::cli
