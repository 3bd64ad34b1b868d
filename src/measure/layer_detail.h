// What is drawn of a layer: how its weights lie on the grid of codes, the scale of every channel, where in the matrix
// the error is, the largest errors, and what smoothing did to the ranges of its input. Collected in the one pass that
// compare() makes.
//
// Charts have at most kPoints points, so that a report stays small: a point stands for a span of neighbouring channels.
// What takes every weight (histogram, strip) is made of whole rows, every row_stride-th from row 0 on: all rows of a
// layer up to 2^15 weights, then fewer, but never less than 64. Scales, SQNR of channels and the largest errors are of
// all rows. Numbers for drawing (scales, SQNR of channels, errors in the strip, ranges) are rounded to 4 significant
// digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvant/element.h"
#include "kvant/error_sums.h"

namespace kvant::measure {

inline constexpr std::size_t kPoints = 64;          // of a chart along channels
inline constexpr std::size_t kHistogramBins = 256;  // of either width of codes
inline constexpr std::size_t kStripRows = 24;       // cells of the strip, at most
inline constexpr std::size_t kStripColumns = 64;
inline constexpr std::size_t kLargestErrors = 8;

// Weights in steps of their own scale: x = w / scale + zero_point, so that the grid of every channel lies on the same
// numbers. Bin i holds x in [first_code - 1/2 + i / bins_per_code, … + 1 / bins_per_code).
struct WeightHistogram {
  int first_code = -128;              // -8 of 4-bit codes, -512 of floating-point codes of 8 bits
  double bins_per_code = 1;           // 16 of 4-bit codes, 1/4 of those
  std::vector<double> numbers;        // of a floating-point grid: those to draw, of many the powers of two; else empty
  std::vector<std::uint64_t> counts;  // kHistogramBins
  std::uint64_t below = 0;            // beyond the first and the last bin
  std::uint64_t above = 0;
  std::uint64_t weights = 0;  // that were looked at and are finite
};

// Output channels. Point i is of rows [i * span, (i + 1) * span).
struct ChannelScales {
  std::uint64_t span = 1;
  std::vector<double> least;  // of the scales of these rows
  std::vector<double> largest;
  std::vector<double> sqnr_db;  // of these rows; infinite where they lost nothing, NaN where no weight is finite
};

// The root mean square of the error over cells of row_span rows and column_span columns.
struct ErrorStrip {
  std::uint64_t row_span = 1;
  std::uint64_t column_span = 1;
  std::size_t rows = 0;  // cells
  std::size_t columns = 0;
  std::vector<double> rms;  // rows * columns
};

struct WeightError {
  std::uint64_t row = 0;
  std::uint64_t column = 0;
  double weight = 0;  // after smoothing
  double value = 0;   // what the code stands for
};

// Of each input channel of a layer: E[x²], and E[(x - xq)²] for how the scheme quantizes activations, 0 where it leaves
// them. Both for x / s, where the layer is smoothed.
struct InputErrors {
  std::vector<float> squares, errors;
};

// Input channels. Point j is of columns [j * span, (j + 1) * span); without statistics, `before` and `after` are empty,
// without smoothing `smoothing_*` and `after`.
struct InputChannels {
  std::uint64_t span = 1;
  std::vector<double> before;           // the largest max|X_j| of these columns, from the statistics
  std::vector<double> after;            // of max|X_j| / s_j
  std::vector<double> smoothing_least;  // of s_j
  std::vector<double> smoothing_largest;
  // The largest max|X_j| over the median of all: how much of the range of a token's codes one channel takes.
  double ratio_before = 0;
  double ratio_after = 0;

  bool empty() const { return before.empty() && smoothing_least.empty(); }
};

struct LayerDetail {
  std::uint64_t row_stride = 1;  // of the rows that histogram and strip are made of
  WeightHistogram histogram;
  ChannelScales channels;
  ErrorStrip strip;
  std::vector<WeightError> largest_errors;  // at most kLargestErrors, none of 0, the largest first; ties by place
  InputChannels inputs;
};

// Collects the detail of one layer after another while their tiles pass by, on many threads. The result does not depend
// on who saw which tile, nor when.
class DetailCollector {
 public:
  // A stretch of one row whose weights share a scale, within one block of kBlock columns.
  template <class T>
  struct Segment {
    const T* weights;
    ErrorSums::Codes codes;
    std::uint64_t row;
    std::uint64_t column;  // of the first
  };

  DetailCollector(int workers, const ErrorSums& sums) : workers_(static_cast<std::size_t>(workers)), sums_(sums) {}

  void begin(std::uint64_t rows, std::uint64_t columns, ElementKind code);

  // By one worker at a time; `loss` is that of the segment.
  template <class T>
  void add(std::size_t worker, const Segment<T>& segment, const ErrorSums::Loss& loss);
  // Whole rows in their order, from one thread; `finite` weights of the row are in its sums.
  void add_row(const ErrorSums::Sums& sums, std::uint64_t finite);

  // With numbers as they are; round_for_drawing() is for those that stay.
  LayerDetail finish();

 private:
  struct Worker {
    std::vector<std::uint64_t>
        counts;  // ErrorSums::kGridTables of kHistogramBins and what is beyond them on either side
    std::vector<float> least, largest;  // scales, by point
    std::vector<WeightError> errors;    // sorted, the largest first
  };
  struct Channels {
    ErrorSums::Sums sums;
    std::uint64_t finite = 0;
  };
  template <class T>
  void add_errors(Worker& worker, const Segment<T>& segment, const ErrorSums::Loss& loss) const;
  template <class T>
  void add_sample(Worker& worker, const Segment<T>& segment, bool all_finite);

  std::vector<Worker> workers_;
  ErrorSums sums_;
  std::uint64_t rows_ = 0, columns_ = 0;
  ElementKind code_ = ElementKind::s8;
  int first_code_ = 0;
  double bins_per_code_ = 1;
  std::uint64_t row_stride_ = 1;
  std::uint64_t channel_span_ = 1;
  std::uint64_t cell_columns_ = 1;  // of what is summed together in a row: a part of a block
  std::uint64_t cells_in_row_ = 0;
  std::vector<double> errors_;           // squares, summed in each cell of each row that is sampled
  std::vector<std::uint32_t> left_out_;  // weights of a cell that are not finite
  std::vector<Channels> channels_;       // by point
  std::uint64_t next_row_ = 0;
};

// max|X_j| of the input, where statistics have it, and s_j, where the layer is smoothed; either may be empty.
InputChannels input_channels(std::span<const float> absmax, std::span<const float> s);

// To 4 significant digits.
void round_for_drawing(LayerDetail& detail);

}  // namespace kvant::measure
