// Times of linear layers, for demo and bench.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "kvant/status.h"
#include "kvant/stream.h"

namespace kvant::cli {

// The best time of a call, in seconds: as many calls as fit `budget` seconds, at least two.
Result<double> best_seconds(double budget, const std::function<Status()>& call);

struct LinearShape {
  std::int64_t rows, in, out;
  double macs() const { return static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out); }
};

// The W8A8 linear with a packed weight: f32 activations in, quantized per token inside, f32 out.
Result<double> time_w8a8_linear(const Stream& stream, const LinearShape& shape, double budget);
// The same layer in f32, with a packed weight too.
Result<double> time_f32_linear(const Stream& stream, const LinearShape& shape, double budget);

}  // namespace kvant::cli
