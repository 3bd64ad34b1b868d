// Activation statistics: a safetensors file of what is known of the input of each linear, over the calibration data.
// "<module>.<statistic>" is one of the rows of the table in activation_stats.cc; none of them must be there.
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
// A module is a linear, or the keys or values of an attention layer (kv_cache.h), which have an absmax.
//
// Of linears that read the same input, the first has histogram and hessian; the others point to it in the file's
// metadata: "<module>.same_input_as" is the first one's module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
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
inline constexpr std::size_t kStatistics = static_cast<std::size_t>(Statistic::hessian) + 1;
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

// What statistics are read from: a safetensors file, or another one that is seen as such.
struct StatisticsSource {
  std::filesystem::path path;
  std::vector<io::TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  // Bytes [offset, offset + to.size()) of a tensor of the list.
  std::function<Status(std::size_t tensor, std::uint64_t offset, std::span<std::byte> to)> read;
};

class ActivationStats {
 public:
  // Refuses a tensor of another form than its row of the table; one that is no row must be F32 of one dimension.
  // Refuses a module that reads the input of one that is not there, or that points further.
  static Result<ActivationStats> open(const std::filesystem::path& path);
  static Result<ActivationStats> make(StatisticsSource source);
  // For the modules of this checkpoint. Whoever collected statistics may have seen the model inside another: where
  // there are none of the modules by their names, those with one of the known prefixes more or less are taken.
  void find_prefix(const io::Checkpoint& checkpoint);

  // Those that have statistics, in the order of the file.
  std::vector<std::string> modules() const;
  // What the statistics of channels, or the Hessian, say. Nothing: there are none.
  std::optional<std::uint64_t> in_features(std::string_view module) const;
  // The module whose input this one reads; null: it has what there is of its own.
  const std::string* same_input_as(std::string_view module) const;
  // Whether any module has a range: an imatrix has none.
  bool has_ranges() const;

  // How many of the checkpoint's modules have statistics.
  std::size_t count_known(const io::Checkpoint& checkpoint) const;
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

  // Of the module itself, or of the one whose input it reads. Null: none.
  const io::TensorInfo* find(std::string_view module, Statistic statistic) const;

  const std::filesystem::path& path() const { return source_.path; }
  const std::vector<io::TensorInfo>& tensors() const { return source_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return source_.metadata; }

 private:
  explicit ActivationStats(StatisticsSource source);
  const io::TensorInfo* find(std::string_view name) const;
  Result<const io::TensorInfo*> need(std::string_view module, Statistic statistic) const;
  template <class T>
  Result<std::vector<T>> read(const io::TensorInfo& tensor) const;
  Status read(const io::TensorInfo& tensor, std::uint64_t offset, std::span<std::byte> to) const;
  std::string shown_path() const { return io::printable_path(source_.path); }
  std::string name_in_file(std::string_view module) const;

  StatisticsSource source_;
  std::vector<std::uint32_t> by_name_;  // indices, sorted by name
  // What the names of the file have in front of the model's, and what they lack of it. One of them is empty.
  std::string more_, less_;
};

}  // namespace kvant::format
