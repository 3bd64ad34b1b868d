// Activation statistics: a safetensors file of what is known of the input of each linear, over the calibration data.
// "<module>.<statistic>" is one of the rows of the table in activation_stats.cc; only absmax must be there.
//
//   absmax, min, max          F32 [in]        of each channel
//   mean_square               F32 [in]        E[x²]
//   int8_error                F32 [in]        E[(x - xq)²], xq the value of the symmetric int8 code of x, of each token
//   int8_asymmetric_error     F32 [in]        the same with a zero point for each token
//   count                     I64 [1]         rows that were seen
//   histogram                 I64 [bins + 1]  how many x lie in each of `bins` equal bins over [-limit, limit], all
//                                             channels together; the last number counts the zeros, which no bin does
//   histogram_limit           F64 [1]         a power of two above all |x|
//   hessian                   F32 [in, in]    Σ x xᵀ over the rows
//
// Of linears that read the same input, the first has histogram and hessian; the others point to it in the file's
// metadata: "<module>.same_input_as" is the first one's module.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "kvant/dynamic_range.h"
#include "kvant/status.h"

namespace kvant::format {

// In the order of the table.
enum class Statistic : std::uint8_t {
  absmax,
  min,
  max,
  mean_square,
  int8_error,
  int8_asymmetric_error,
  count,
  histogram,
  histogram_limit,
  hessian,
};
std::string_view name(Statistic statistic);
std::string statistic_name(std::string_view module, Statistic statistic);
// The tensor of a new file; `bins` of its histogram.
io::TensorInfo statistic_tensor(std::string_view module, Statistic statistic, std::uint64_t in, std::uint64_t bins);
// The key of the metadata that says whose input a module reads.
std::string same_input_key(std::string_view module);
// What quantizing activations to int8 by the range of each token costs.
constexpr Statistic error_of(DynamicRangeMode mode) {
  return mode == DynamicRangeMode::symmetric ? Statistic::int8_error : Statistic::int8_asymmetric_error;
}

class ActivationStats {
 public:
  // Refuses a tensor of another form than its row of the table; one that is no row must be F32 of one dimension.
  // Refuses a module that reads the input of one that is not there, or that points further.
  static Result<ActivationStats> open(const std::filesystem::path& path);

  bool has(std::string_view module, Statistic statistic) const { return find(module, statistic) != nullptr; }
  bool has_absmax(std::string_view module) const { return has(module, Statistic::absmax); }
  bool has_min_max(std::string_view module) const { return has(module, Statistic::min) && has(module, Statistic::max); }

  // A statistic of channels: in_features values. Refuses what is missing, has another length, or is not finite; and
  // what is negative, but for min and max.
  Result<std::vector<float>> channels(std::string_view module, Statistic statistic, std::uint64_t in_features) const;
  Result<std::vector<float>> absmax(std::string_view module, std::uint64_t in_features) const {
    return channels(module, Statistic::absmax, in_features);
  }
  struct MinMax {
    std::vector<float> min, max;
  };
  // Refuses also min > max.
  Result<MinMax> min_max(std::string_view module, std::uint64_t in_features) const;

  // Rows that were seen. Refuses less than 1.
  Result<std::int64_t> count(std::string_view module) const;

  struct Histogram {
    double limit = 0;
    std::vector<std::int64_t> counts;  // of equal bins over [-limit, limit]
    std::int64_t zeros = 0;
  };
  // Refuses negative counts, and a limit that is not a power of two.
  Result<Histogram> histogram(std::string_view module) const;

  // Rows of Σ x xᵀ from `row` on: whole ones, of in_features values each. Refuses values that are not finite.
  Status read_hessian(std::string_view module, std::uint64_t in_features, std::uint64_t row, std::span<float> to) const;

  const io::SafetensorsFile& file() const { return file_; }

 private:
  explicit ActivationStats(io::SafetensorsFile file) : file_(std::move(file)) {}
  // Of the module itself, or of the one whose input it reads. Null: none.
  const io::TensorInfo* find(std::string_view module, Statistic statistic) const;
  Result<const io::TensorInfo*> need(std::string_view module, Statistic statistic) const;
  template <class T>
  Result<std::vector<T>> read(const io::TensorInfo& tensor) const;
  std::string path() const;

  io::SafetensorsFile file_;
};

}  // namespace kvant::format
