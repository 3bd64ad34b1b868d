// Activation statistics: a safetensors file with, for the input of each linear, "<module>.absmax" F32 [in], and where
// known "<module>.min" and "<module>.max" F32 [in]: the ranges over the calibration data, channel by channel.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "kvant/status.h"

namespace kvant::format {

class ActivationStats {
 public:
  // Refuses a tensor that is not F32 of one dimension.
  static Result<ActivationStats> open(const std::filesystem::path& path);

  bool has_absmax(std::string_view module) const;
  bool has_min_max(std::string_view module) const;

  // in_features values. Refuses what is missing, has another length, is not finite, or is negative.
  Result<std::vector<float>> absmax(std::string_view module, std::uint64_t in_features) const;
  struct MinMax {
    std::vector<float> min, max;
  };
  // Refuses also min > max.
  Result<MinMax> min_max(std::string_view module, std::uint64_t in_features) const;

  const io::SafetensorsFile& file() const { return file_; }

 private:
  explicit ActivationStats(io::SafetensorsFile file) : file_(std::move(file)) {}
  Result<std::vector<float>> read(std::string_view module, std::string_view what, std::uint64_t in_features) const;
  io::SafetensorsFile file_;
};

}  // namespace kvant::format
