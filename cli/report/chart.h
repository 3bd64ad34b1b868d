// What all charts of the report are made of: a panel with two axes, ticks, and lines through points. Coordinates are
// whole units or tenths, and relative where that is shorter: a report holds hundreds of charts. Colours and fonts are
// in report.css.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvant::cli {

struct Tick {
  double value = 0;
  std::string label;  // HTML; may be empty
};

// From `first` (left or bottom) to `last`.
struct Axis {
  double first = 0;
  double last = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks;

  // 0 to 1; what lies outside, is infinite or NaN (taken for the least) is at the edge.
  double place(double value) const;
};

// Numbers that are so many times as large as others would hide them on a linear axis.
inline constexpr double kFar = 20;

// A difference of less than 1 dB, which is an eighth of the error, is not to look like a cliff: it takes at most a
// tenth of an axis.
inline constexpr double kLeastDecibels = 10;

// Collects what is to be seen, then makes an axis that ends at round numbers. Numbers that are not finite do not count.
class Extent {
 public:
  void add(double value);
  void add(std::span<const double> values);
  bool empty() const { return count_ == 0; }
  double least() const { return least_; }
  double largest() const { return largest_; }

  // About `count` ticks, at 1, 2 or 5 times a power of ten.
  Axis linear(int count) const;
  // Of the positive ones: whole powers of ten, not more than about `count` of them.
  Axis logarithmic(int count) const;
  // Linear, of decibels: at least kLeastDecibels from end to end.
  Axis decibels(int count) const;
  // From 0, or logarithmic where the largest is more than kFar times the least.
  Axis either(int count) const;

 private:
  std::size_t count_ = 0;
  double least_ = 0;
  double largest_ = 0;
  double least_positive_ = 0;
};

// Numbers from 0 below a chart of `count` things whose points stand for `span` of them each.
Axis counting_axis(std::size_t points, std::uint64_t span, std::uint64_t count);

// "0", "12", "0.05", "2e-05", "20k"
std::string tick_label(double value);

// A place for marks, in units of the svg.
struct Panel {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;

  double x(const Axis& axis, double value) const { return left + width * axis.place(value); }
  double y(const Axis& axis, double value) const { return top + height * (1 - axis.place(value)); }
};

// "12.3", "12", "-.5": tenths, without needless characters.
std::string coordinate(double value);

// `<svg class=… viewBox=… role=img aria-label="…">`; `attributes` are HTML.
std::string open_svg(std::string_view css_class, double width, double height, std::string_view label_html,
                     std::string_view attributes);
// The panel with its grid and the labels of its ticks. The caller closes the svg.
std::string axes(const Panel& panel, const Axis& x, const Axis& y);

// A line through points that are evenly spaced, each in the middle of its share of the panel.
std::string line(const Panel& panel, const Axis& y, std::span<const double> values, std::string_view css_class);
// What lies between two such lines, or the line that they are if they are the same.
std::string band(const Panel& panel, const Axis& y, std::span<const double> least, std::span<const double> largest,
                 std::string_view css_class);
// A bar for each value, side by side, as one shape.
std::string bars(const Panel& panel, const Axis& y, std::span<const double> values);

// "1 .25 inf": exact_number() of each, without a zero before the point.
std::string number_list(std::span<const double> values);

}  // namespace kvant::cli
