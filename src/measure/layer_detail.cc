#include "measure/layer_detail.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/divide_up.h"
#include "measure/block_sums.h"
#include "measure/median.h"
#include "measure/sqnr.h"

namespace kvant::measure {
namespace {

constexpr std::uint64_t kSampledWeights = std::uint64_t{1} << 15;
constexpr std::uint64_t kMinSampledRows = 64;

// Channels of one point, so that there are at most kPoints.
constexpr std::uint64_t span_of(std::uint64_t channels) {
  return std::max(base::parts_of(channels, kPoints), std::uint64_t{1});
}

double magnitude(const WeightError& e) { return std::abs(e.weight - e.value); }

bool is_larger(const WeightError& a, const WeightError& b) {
  const double x = magnitude(a), y = magnitude(b);
  if (x != y) return x > y;
  return std::tie(a.row, a.column) < std::tie(b.row, b.column);
}

// Keeps the largest, sorted.
void insert(std::vector<WeightError>& errors, const WeightError& error) {
  if (errors.size() == kLargestErrors) {
    if (!is_larger(error, errors.back())) return;
    errors.pop_back();
  }
  errors.insert(std::upper_bound(errors.begin(), errors.end(), error, is_larger), error);
}

// All of a grid of few numbers, else its ends and the powers of two; none of integers.
std::vector<double> numbers_to_draw(ElementKind code) {
  if (!has_float_grid(code)) return {};
  const FloatFormat& format = info(code).format;
  const auto max = static_cast<double>(format.max());
  std::vector<double> numbers = {max};
  for (int exponent = format.max_exponent(); exponent >= format.min_exponent(); --exponent) {
    const bool few = bits_per_element(code) <= 4;
    for (int step = few ? (1 << format.mantissa_bits) - 1 : 0; step >= 0; --step)
      numbers.push_back(std::ldexp(1.0 + std::ldexp(step, -format.mantissa_bits), exponent));
    if (few && exponent == format.min_exponent())
      numbers.push_back(std::ldexp(1.0, exponent - format.mantissa_bits));  // the subnormal one
  }
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  const std::size_t positive = numbers.size();
  for (std::size_t i = 0; i < positive; ++i) numbers.push_back(-numbers[i]);
  numbers.push_back(0);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

void round_all(std::vector<double>& values) {
  for (double& value : values)
    if (std::isfinite(value)) {
      char digits[32];
      const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific, 3).ptr;
      std::from_chars(digits, end, value);
    }
}

}  // namespace

void DetailCollector::begin(std::uint64_t rows, std::uint64_t columns, ElementKind code) {
  rows_ = rows;
  columns_ = columns;
  code_ = code;
  // The least number of the grid, or the power of two beyond it.
  first_code_ = has_float_grid(code) ? -(2 << info(code).format.max_exponent()) : code_range(code).min;
  bins_per_code_ = static_cast<double>(kHistogramBins) / (-2 * first_code_);
  row_stride_ = 1;
  const auto rows_at = [&](std::uint64_t stride) { return base::parts_of(rows, stride); };
  while (rows_at(row_stride_) > kSampledWeights / std::max(columns, std::uint64_t{1}) &&
         rows_at(2 * row_stride_) >= kMinSampledRows)
    row_stride_ *= 2;
  channel_span_ = span_of(rows);
  const auto points = static_cast<std::size_t>(base::parts_of(rows, channel_span_));
  cell_columns_ = std::min(std::bit_ceil(std::max(base::parts_of(columns, kStripColumns), std::uint64_t{1})), kBlock);
  cells_in_row_ = base::parts_of(columns, cell_columns_);
  // Who begins a block of a row makes its cells 0.
  errors_.resize(static_cast<std::size_t>(rows_at(row_stride_) * cells_in_row_));
  left_out_.resize(errors_.size());
  channels_.assign(points, {});
  next_row_ = 0;
  for (Worker& worker : workers_) {
    worker.counts.assign(ErrorSums::kGridTables * (kHistogramBins + 2), 0);
    worker.least.assign(points, std::numeric_limits<float>::infinity());
    worker.largest.assign(points, 0);
    worker.errors.clear();
  }
}

template <class T>
void DetailCollector::add(std::size_t worker_index, const Segment<T>& segment, const ErrorSums::Loss& loss) {
  Worker& worker = workers_[worker_index];
  const auto point = static_cast<std::size_t>(segment.row / channel_span_);
  worker.least[point] = std::min(worker.least[point], segment.codes.scale);
  worker.largest[point] = std::max(worker.largest[point], segment.codes.scale);
  add_errors(worker, segment, loss);
  if (segment.row % row_stride_ == 0) add_sample(worker, segment, loss.non_finite == 0);
}

template <class T>
void DetailCollector::add_errors(Worker& worker, const Segment<T>& segment, const ErrorSums::Loss& loss) const {
  if (loss.non_finite == segment.codes.count) return;
  const bool full = worker.errors.size() == kLargestErrors;
  // Nothing of the segment can be among them, unless its largest error is larger than the smallest of them, or as large
  // and in an earlier place.
  if (full) {
    const WeightError& smallest = worker.errors.back();
    const double bound = magnitude(smallest);
    if (loss.largest < bound ||
        (loss.largest == bound && std::tie(smallest.row, smallest.column) < std::tie(segment.row, segment.column)))
      return;
  }
  double bound = full ? magnitude(worker.errors.back()) : 0;
  double magnitudes[kBlock];
  sums_.error_magnitudes(segment.weights, segment.codes, magnitudes);
  for (std::size_t i = 0; i < segment.codes.count; ++i) {
    // An infinite weight has an infinite error, and a NaN none.
    if (!(magnitudes[i] >= bound) || magnitudes[i] == 0 || !std::isfinite(segment.weights[i])) continue;
    insert(worker.errors, {segment.row, segment.column + i, static_cast<double>(segment.weights[i]),
                           ErrorSums::value(segment.codes, i)});
    if (worker.errors.size() == kLargestErrors) bound = magnitude(worker.errors.back());
  }
}

template <class T>
void DetailCollector::add_sample(Worker& worker, const Segment<T>& segment, bool all_finite) {
  if (segment.column % kBlock == 0) {
    const auto first =
        static_cast<std::size_t>(segment.row / row_stride_ * cells_in_row_ + segment.column / cell_columns_);
    const auto cells =
        static_cast<std::size_t>(std::min(kBlock / cell_columns_, cells_in_row_ - segment.column / cell_columns_));
    std::fill_n(errors_.begin() + static_cast<std::ptrdiff_t>(first), cells, 0.0);
    std::fill_n(left_out_.begin() + static_cast<std::ptrdiff_t>(first), cells, 0u);
  }
  const auto add_finite = [&](std::size_t first, std::size_t count) {
    const T* const weights = segment.weights + first;
    const std::uint64_t column = segment.column + first;
    sums_.count_on_grid(weights, count, segment.codes.scale, segment.codes.zero_point, first_code_,
                        static_cast<float>(bins_per_code_), kHistogramBins, worker.counts.data());
    const auto cell = static_cast<std::size_t>(segment.row / row_stride_ * cells_in_row_ + column / cell_columns_);
    sums_.add_cell_errors(weights, segment.codes.from(first, count), static_cast<std::size_t>(column % cell_columns_),
                          static_cast<std::size_t>(cell_columns_), &errors_[cell]);
  };
  if (all_finite) return add_finite(0, segment.codes.count);
  for (std::size_t i = 0; i < segment.codes.count; ++i) {
    if (std::isfinite(segment.weights[i]))
      add_finite(i, 1);
    else
      ++left_out_[static_cast<std::size_t>(segment.row / row_stride_ * cells_in_row_ +
                                           (segment.column + i) / cell_columns_)];
  }
}

void DetailCollector::add_row(const ErrorSums::Sums& sums, std::uint64_t finite) {
  Channels& channels = channels_[static_cast<std::size_t>(next_row_++ / channel_span_)];
  channels.sums += sums;
  channels.finite += finite;
}

LayerDetail DetailCollector::finish() {
  LayerDetail detail;
  detail.row_stride = row_stride_;

  WeightHistogram& histogram = detail.histogram;
  histogram.first_code = first_code_;
  histogram.bins_per_code = bins_per_code_;
  histogram.numbers = numbers_to_draw(code_);
  histogram.counts.assign(kHistogramBins, 0);
  for (const Worker& worker : workers_)
    for (std::size_t table = 0; table < ErrorSums::kGridTables; ++table) {
      const auto counts = std::span(worker.counts).subspan(table * (kHistogramBins + 2), kHistogramBins + 2);
      histogram.below += counts.front();
      histogram.above += counts.back();
      for (std::size_t i = 0; i < kHistogramBins; ++i) histogram.counts[i] += counts[i + 1];
      for (const std::uint64_t count : counts) histogram.weights += count;
    }

  ChannelScales& channels = detail.channels;
  channels.span = channel_span_;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    float least = std::numeric_limits<float>::infinity(), largest = 0;
    for (const Worker& worker : workers_) {
      least = std::min(least, worker.least[i]);
      largest = std::max(largest, worker.largest[i]);
    }
    channels.least.push_back(static_cast<double>(least));
    channels.largest.push_back(static_cast<double>(largest));
    const auto& [sums, finite] = channels_[i];
    channels.sqnr_db.push_back(finite == 0 && columns_ > 0 ? std::numeric_limits<double>::quiet_NaN()
                                                           : sqnr_db(sums.weights, sums.errors));
  }

  // Cells of a row are parts of a block; of a row of many blocks, some make one cell of the strip.
  ErrorStrip& strip = detail.strip;
  const std::uint64_t sampled = base::parts_of(rows_, row_stride_);
  const std::uint64_t rows_each = std::max(base::parts_of(sampled, kStripRows), std::uint64_t{1});
  const std::uint64_t cells_each = std::max(
      std::bit_ceil(std::max(base::parts_of(cells_in_row_, kStripColumns), std::uint64_t{1})), std::uint64_t{1});
  strip.row_span = row_stride_ * rows_each;
  strip.column_span = cell_columns_ * cells_each;
  strip.rows = static_cast<std::size_t>(base::parts_of(sampled, rows_each));
  strip.columns = static_cast<std::size_t>(base::parts_of(cells_in_row_, cells_each));
  std::vector<double> errors(strip.rows * strip.columns);
  std::vector<std::uint64_t> left_out(errors.size());
  const auto cell_at = [&](std::uint64_t sampled_row, std::uint64_t column) {
    return static_cast<std::size_t>(sampled_row / rows_each * strip.columns + column / strip.column_span);
  };
  for (std::uint64_t r = 0; r < sampled; ++r)
    for (std::uint64_t c = 0; c < cells_in_row_; ++c) {
      const std::size_t cell = cell_at(r, c * cell_columns_);
      errors[cell] += errors_[static_cast<std::size_t>(r * cells_in_row_ + c)];
      left_out[cell] += left_out_[static_cast<std::size_t>(r * cells_in_row_ + c)];
    }
  for (std::uint64_t r = 0; r < strip.rows; ++r)
    for (std::uint64_t c = 0; c < strip.columns; ++c) {
      const auto cell = static_cast<std::size_t>(r * strip.columns + c);
      const std::uint64_t rows = std::min(rows_each, sampled - r * rows_each);
      const std::uint64_t columns = std::min(strip.column_span, columns_ - c * strip.column_span);
      const std::uint64_t weights = rows * columns - left_out[cell];
      strip.rms.push_back(weights == 0 ? 0 : std::sqrt(errors[cell] / static_cast<double>(weights)));
    }

  for (const Worker& worker : workers_)
    for (const WeightError& error : worker.errors) insert(detail.largest_errors, error);
  return detail;
}

InputChannels input_channels(std::span<const float> absmax, std::span<const float> s) {
  InputChannels inputs;
  const std::size_t columns = std::max(absmax.size(), s.size());
  inputs.span = span_of(columns);
  const auto span = static_cast<std::size_t>(inputs.span);
  std::vector<double> after(absmax.begin(), absmax.end());
  if (!s.empty())
    for (std::size_t j = 0; j < after.size(); ++j) after[j] /= static_cast<double>(s[j]);
  for (std::size_t j = 0; j < columns; j += span) {
    const std::size_t count = std::min(span, columns - j);
    if (!absmax.empty()) inputs.before.push_back(static_cast<double>(std::ranges::max(absmax.subspan(j, count))));
    if (s.empty()) continue;
    if (!absmax.empty()) inputs.after.push_back(std::ranges::max(std::span(after).subspan(j, count)));
    inputs.smoothing_least.push_back(static_cast<double>(std::ranges::min(s.subspan(j, count))));
    inputs.smoothing_largest.push_back(static_cast<double>(std::ranges::max(s.subspan(j, count))));
  }
  const auto ratio = [](std::vector<double> ranges) {
    if (ranges.empty()) return 0.0;
    const double largest = std::ranges::max(ranges), middle = median(ranges);
    if (middle == 0) return largest == 0 ? 1.0 : std::numeric_limits<double>::infinity();
    return largest / middle;
  };
  inputs.ratio_before = ratio({absmax.begin(), absmax.end()});
  if (!s.empty()) inputs.ratio_after = ratio(after);
  return inputs;
}

void round_for_drawing(LayerDetail& detail) {
  for (std::vector<double>* values :
       {&detail.channels.least, &detail.channels.largest, &detail.channels.sqnr_db, &detail.strip.rms,
        &detail.inputs.before, &detail.inputs.after, &detail.inputs.smoothing_least, &detail.inputs.smoothing_largest})
    round_all(*values);
  std::vector<double> ratios = {detail.inputs.ratio_before, detail.inputs.ratio_after};
  round_all(ratios);
  detail.inputs.ratio_before = ratios[0];
  detail.inputs.ratio_after = ratios[1];
}

template void DetailCollector::add(std::size_t, const Segment<float>&, const ErrorSums::Loss&);
template void DetailCollector::add(std::size_t, const Segment<double>&, const ErrorSums::Loss&);

}  // namespace kvant::measure
