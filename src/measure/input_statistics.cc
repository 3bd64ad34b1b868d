#include "measure/input_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "base/divide_up.h"
#include "base/float_environment.h"
#include "base/for_each_part.h"

namespace kvant::measure {
namespace {

using format::Statistic;

constexpr std::array kOfEach = {Statistic::count,
                                Statistic::absmax,
                                Statistic::min,
                                Statistic::max,
                                Statistic::mean_square,
                                Statistic::int8_error,
                                Statistic::int8_asymmetric_error};
// Finer than any code of eight bits by a factor of sixteen; 32 KiB.
constexpr int kBins = 4096;

// f(first channel, channels) for stretches of channels on the stream's threads.
Status for_channels(const Stream& stream, std::size_t in, const std::function<void(std::size_t, std::size_t)>& f) {
  constexpr std::size_t kChannels = 256;
  return base::for_each_part(stream, 0, base::parts_of(in, kChannels),
                             [&](std::size_t /*worker*/, std::uint64_t part) -> Status {
                               const base::DefaultFloatEnvironment environment;
                               const std::size_t first = part * kChannels;
                               f(first, std::min(kChannels, in - first));
                               return {};
                             });
}

template <class T>
Status write_values(io::AtomicFile& file, std::span<const T> values) {
  return file.write(std::as_bytes(values));
}

}  // namespace

Result<StatisticsTools> StatisticsTools::select(const Stream& stream) {
  const auto steps = NetworkSteps::select(stream);
  if (!steps.ok()) return steps.status();
  const auto errors = ErrorSums::select(stream);
  if (!errors.ok()) return errors.status();
  return StatisticsTools{stream, *steps, *errors, {}, {}, {}, {}, {}};
}

Result<InputStatistics> InputStatistics::make(std::int64_t in, bool with_hessian) {
  auto observer = Observer::create({.kind = ObserverKind::percentile, .bins = kBins});
  if (!observer.ok()) return observer.status();
  InputStatistics made(in, std::move(observer).value());
  made.min_.assign(made.in_, std::numeric_limits<float>::infinity());
  made.max_.assign(made.in_, -std::numeric_limits<float>::infinity());
  made.squares_.assign(made.in_, 0.0);
  made.errors_.assign(made.in_, 0.0);
  made.asymmetric_errors_.assign(made.in_, 0.0);
  if (with_hessian) made.hessian_.emplace(made.in_);
  return made;
}

Status InputStatistics::add(StatisticsTools& tools, const float* x, std::int64_t stride, std::int64_t rows) {
  rows_ += rows;
  if (Status s = add_channels(tools, x, stride, rows); !s.ok()) return s;
  if (Status s = add_errors(tools, DynamicRangeMode::symmetric, x, stride, rows, errors_); !s.ok()) return s;
  if (Status s = add_errors(tools, DynamicRangeMode::asymmetric, x, stride, rows, asymmetric_errors_); !s.ok())
    return s;
  const TensorRef<float> batch(x, {rows, static_cast<std::int64_t>(in_)}, stride);
  if (Status s = observer_.observe(tools.stream, batch); !s.ok()) return s;
  return hessian_ ? hessian_->add(tools.stream, tools.steps, x, stride, rows, tools.hessian) : Status();
}

Status InputStatistics::finish(StatisticsTools& tools) {
  return hessian_ ? hessian_->finish(tools.stream, tools.steps, tools.hessian) : Status();
}

Status InputStatistics::add_channels(const StatisticsTools& tools, const float* x, std::int64_t stride,
                                     std::int64_t rows) {
  return for_channels(tools.stream, in_, [&](std::size_t first, std::size_t count) {
    for (std::int64_t r = 0; r < rows; ++r)
      tools.steps.add_channels(x + r * stride + first, count, min_.data() + first, max_.data() + first,
                               squares_.data() + first);
  });
}

Status InputStatistics::add_errors(StatisticsTools& tools, DynamicRangeMode mode, const float* x, std::int64_t stride,
                                   std::int64_t rows, std::vector<double>& errors) {
  const auto in = static_cast<std::int64_t>(in_);
  const auto plan = DynamicRangeQuantizePlan<float, std::int8_t>::select(
      tools.stream, {.shape = {rows, in}, .scope = PerToken{}, .mode = mode});
  if (!plan.ok()) return plan.status();
  const auto tokens = static_cast<std::size_t>(rows);
  tools.workspace.resize(std::max(tools.workspace.size(), plan->workspace_size()));
  tools.codes.resize(std::max(tools.codes.size(), tokens * in_));
  tools.scales.resize(std::max(tools.scales.size(), tokens));
  tools.zero_points.resize(std::max(tools.zero_points.size(), tokens));
  if (Status s = plan->run(tools.stream, {tools.workspace.data(), tools.workspace.size()},
                           {.input = {x, {rows, in}, stride},
                            .output = {tools.codes.data(), {rows, in}},
                            .scale_out = {tools.scales.data(), {rows}},
                            .zero_point_out = {tools.zero_points.data(), {rows}}});
      !s.ok())
    return s;
  return for_channels(tools.stream, in_, [&](std::size_t first, std::size_t count) {
    for (std::size_t r = 0; r < tokens; ++r)
      tools.errors.add_cell_errors(x + static_cast<std::int64_t>(r) * stride + first,
                                   {.codes = tools.codes.data() + r * in_ + first,
                                    .count = count,
                                    .scale = tools.scales[r],
                                    .zero_point = tools.zero_points[r]},
                                   0, 1, errors.data() + first);
  });
}

std::optional<std::size_t> InputStatistics::channel_not_finite() const {
  for (std::size_t i = 0; i < in_; ++i)
    if (!std::isfinite(squares_[i])) return i;
  return std::nullopt;
}

std::vector<io::TensorInfo> InputStatistics::tensors(const std::string& module, bool is_first) const {
  std::vector<io::TensorInfo> tensors;
  const auto add = [&](Statistic statistic) {
    tensors.push_back(format::statistic_tensor(module, statistic, in_, kBins));
  };
  for (const Statistic statistic : kOfEach) add(statistic);
  if (!is_first) return tensors;
  add(Statistic::histogram);
  add(Statistic::histogram_limit);
  if (hessian_) add(Statistic::hessian);
  return tensors;
}

std::vector<float> InputStatistics::channels(Statistic statistic) const {
  const auto mean_of = [&](const std::vector<double>& sums) {
    std::vector<float> means(in_);
    std::ranges::transform(sums, means.begin(),
                           [&](double sum) { return static_cast<float>(sum / static_cast<double>(rows_)); });
    return means;
  };
  if (statistic == Statistic::min) return min_;
  if (statistic == Statistic::max) return max_;
  if (statistic == Statistic::mean_square) return mean_of(squares_);
  if (statistic == Statistic::int8_error) return mean_of(errors_);
  if (statistic == Statistic::int8_asymmetric_error) return mean_of(asymmetric_errors_);
  std::vector<float> absmax(in_);
  std::ranges::transform(min_, max_, absmax.begin(),
                         [](float a, float b) { return std::max(std::fabs(a), std::fabs(b)); });
  return absmax;
}

Status InputStatistics::write(bool is_first, io::AtomicFile& file) const {
  const base::DefaultFloatEnvironment environment;
  for (const Statistic statistic : kOfEach) {
    const Status s = statistic == Statistic::count ? write_values(file, std::span(&rows_, 1))
                                                   : write_values(file, std::span<const float>(channels(statistic)));
    if (!s.ok()) return s;
  }
  if (!is_first) return {};
  auto histogram = observer_.histogram();
  if (!histogram.ok()) return histogram.status();
  histogram->counts.push_back(histogram->zeros);
  if (Status s = write_values(file, std::span<const std::int64_t>(histogram->counts)); !s.ok()) return s;
  const double limit = std::ldexp(1.0, histogram->exponent);
  if (Status s = write_values(file, std::span(&limit, 1)); !s.ok() || !hessian_) return s;
  std::vector<float> rows(HessianSum::kTile * in_);
  for (std::size_t first = 0; first < in_; first += HessianSum::kTile) {
    const std::size_t count = std::min(HessianSum::kTile, in_ - first);
    hessian_->read(first, count, rows.data());
    if (Status s = write_values(file, std::span<const float>(rows).first(count * in_)); !s.ok()) return s;
  }
  return {};
}

}  // namespace kvant::measure
