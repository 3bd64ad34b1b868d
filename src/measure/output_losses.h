// What the outputs of linears lose, measured on activations: of the demonstration model, which has some.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kvant/status.h"
#include "kvant/stream.h"
#include "model/demo_model.h"

namespace kvant::measure {

// How well a linear of a quantized checkpoint does on activations: y = x W^T of the original in f64 beside the W8A8
// linear (dynamic per token) on the same input, which passes the checkpoint's own norm where one feeds the linear.
struct OutputLoss {
  std::string module;
  double sqnr_db = 0;
};
Result<std::vector<OutputLoss>> output_losses(const model::DemoModel& model, const std::filesystem::path& original,
                                              const std::filesystem::path& quantized, const Stream& stream);

}  // namespace kvant::measure
