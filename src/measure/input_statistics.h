// What is kept of the rows that one linear reads, or several that read the same: format/activation_stats.h says what
// becomes of it. All sums are formed in order of rows, so that batches and threads do not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/activation_stats.h"
#include "io/atomic_file.h"
#include "kvant/dynamic_range.h"
#include "kvant/error_sums.h"
#include "kvant/network_steps.h"
#include "kvant/observer.h"
#include "kvant/status.h"
#include "kvant/stream.h"
#include "measure/hessian_sum.h"

namespace kvant::measure {

// What the statistics of one input after the other are made with.
struct StatisticsTools {
  Stream stream;
  NetworkSteps steps;
  ErrorSums errors;
  // For the codes of a batch.
  std::vector<std::byte> workspace;
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  std::vector<std::int32_t> zero_points;
  HessianBuffers hessian;

  static Result<StatisticsTools> select(const Stream& stream);
};

class InputStatistics {
 public:
  static Result<InputStatistics> make(std::int64_t in, bool with_hessian);

  Status add(StatisticsTools& tools, const float* x, std::int64_t stride, std::int64_t rows);
  // After the last row.
  Status finish(StatisticsTools& tools);

  std::int64_t rows() const { return rows_; }
  // The first channel with a number that is not finite; nothing: there is none.
  std::optional<std::size_t> channel_not_finite() const;

  // The tensors of a file, in this order, and their bytes. `is_first`: with those that linears of the same input share.
  std::vector<io::TensorInfo> tensors(const std::string& module, bool is_first) const;
  Status write(bool is_first, io::AtomicFile& file) const;

 private:
  InputStatistics(std::int64_t in, Observer observer)
      : in_(static_cast<std::size_t>(in)), observer_(std::move(observer)) {}
  Status add_channels(const StatisticsTools& tools, const float* x, std::int64_t stride, std::int64_t rows);
  Status add_errors(StatisticsTools& tools, DynamicRangeMode mode, const float* x, std::int64_t stride,
                    std::int64_t rows, std::vector<double>& errors);
  std::vector<float> channels(format::Statistic statistic) const;

  std::size_t in_;
  std::int64_t rows_ = 0;
  std::vector<float> min_, max_;
  std::vector<double> squares_;
  std::vector<double> errors_, asymmetric_errors_;  // squares of them
  Observer observer_;                               // for its histogram
  std::optional<HessianSum> hessian_;
};

}  // namespace kvant::measure
