// The vectors s of SmoothQuant that a checkpoint was smoothed with, as a safetensors file beside it: for each smoothed
// norm a tensor of its name, F32 [channels]; the metadata lead from linears to norms.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "kvant/status.h"

namespace kvant::format {

class SmoothingFile {
 public:
  static Result<SmoothingFile> open(const std::filesystem::path& path);

  // The vector of a norm; null: there is none.
  const io::TensorInfo* find(std::string_view norm) const { return file_.find(norm); }
  // The vector that a linear of so many columns was multiplied by; null: it was not smoothed. Refuses one that is
  // missing or of another form.
  Result<const io::TensorInfo*> vector_of(const std::string& linear, std::uint64_t columns) const;
  // Values from `column` on. Refuses what is not finite.
  Status read(const io::TensorInfo& s, std::uint64_t column, std::span<float> to) const;

 private:
  explicit SmoothingFile(io::SafetensorsFile file) : file_(std::move(file)) {}
  std::string path() const;
  io::SafetensorsFile file_;
};

struct SmoothingVector {
  std::string_view norm;
  std::span<const std::string> linears;
  std::span<const float> s;
};
// Replaces a file that is there.
Status write_smoothing_file(const std::filesystem::path& path, std::span<const SmoothingVector> vectors);

}  // namespace kvant::format
