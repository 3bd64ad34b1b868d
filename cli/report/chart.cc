#include "cli/report/chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/report/html.h"

namespace kvant::cli {
namespace {

// Moves to the middle of shares and scales them to the panel; heights stay in units.
std::string transform(const Panel& panel, std::size_t count, bool middle) {
  const double step = panel.width / static_cast<double>(std::max<std::size_t>(count, 1));
  return fmt::format("transform=\"translate({} {})scale({:.5g} 1)\"",
                     coordinate(panel.left + (middle && count > 1 ? step / 2 : 0)), coordinate(panel.top), step);
}

int height_of(const Panel& panel, const Axis& y, double value) {
  return static_cast<int>(std::lround(panel.height * (1 - y.place(value))));
}

// " 3" or "-3": a sign separates numbers as well as a space does.
void append_number(std::string& path, long value) {
  if (value >= 0) path += ' ';
  path += fmt::format("{}", value);
}

// "1-3 1 2": from the first height to the others.
void append_steps(std::string& path, const std::vector<int>& heights, int direction) {
  path += 'l';
  for (std::size_t i = 1; i < heights.size(); ++i) {
    if (i == 1 || direction < 0)
      path += fmt::format("{}", direction);
    else
      append_number(path, direction);
    append_number(path, heights[i] - heights[i - 1]);
  }
}

std::vector<int> heights_of(const Panel& panel, const Axis& y, std::span<const double> values) {
  std::vector<int> heights;
  for (const double value : values) heights.push_back(height_of(panel, y, value));
  return heights;
}

}  // namespace

double Axis::place(double value) const {
  if (std::isnan(value)) return 0;
  double low = first;
  double high = last;
  if (logarithmic) {
    if (!(value > 0)) return 0;
    low = std::log10(low);
    high = std::log10(high);
    value = std::log10(value);
  }
  if (!(high != low)) return 0.5;
  return std::clamp((value - low) / (high - low), 0.0, 1.0);
}

void Extent::add(double value) {
  if (!std::isfinite(value)) return;
  least_ = count_ == 0 ? value : std::min(least_, value);
  largest_ = count_ == 0 ? value : std::max(largest_, value);
  if (value > 0) least_positive_ = least_positive_ == 0 ? value : std::min(least_positive_, value);
  ++count_;
}

void Extent::add(std::span<const double> values) {
  for (const double value : values) add(value);
}

Axis Extent::linear(int count) const {
  if (empty()) return {0, 1, false, {}};
  double low = least_;
  double high = largest_;
  // A span that is lost in rounding is none.
  if (!(high - low > 1e-9 * std::max(std::abs(low), std::abs(high)))) {
    const double around = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= around;
    high += around;
  }
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
  if (!std::isfinite(step) || !(step > 0))
    return {low, high, false, {{low, tick_label(low)}, {high, tick_label(high)}}};
  const double begin = std::floor(low / step);
  const double end = std::ceil(high / step);
  Axis axis{begin * step, end * step, false, {}};
  for (double i = begin; i <= end && axis.ticks.size() < 50; ++i)
    axis.ticks.push_back({i * step, tick_label(i * step)});
  return axis;
}

Axis Extent::decibels(int count) const {
  Extent wide = *this;
  if (const double missing = kLeastDecibels - (largest_ - least_); !empty() && missing > 0) {
    wide.add(least_ - missing / 2);
    wide.add(largest_ + missing / 2);
  }
  return wide.linear(count);
}

Axis Extent::logarithmic(int count) const {
  if (!(least_positive_ > 0)) return {0.1, 1, true, {}};
  // Powers that are numbers of full precision.
  const double begin = std::max(std::floor(std::log10(least_positive_)), -300.0);
  const double end = std::clamp(std::ceil(std::log10(largest_)), begin + 1, 308.0);
  const double step = std::max(1.0, std::ceil((end - begin) / count));
  Axis axis{std::pow(10, begin), std::pow(10, end), true, {}};
  for (double i = begin; i <= end; i += step) axis.ticks.push_back({std::pow(10, i), tick_label(std::pow(10, i))});
  return axis;
}

Axis Extent::either(int count) const {
  if (least_ > 0 && largest_ > kFar * least_) return logarithmic(count);
  Extent from_zero = *this;
  from_zero.add(0);
  return from_zero.linear(count);
}

Axis counting_axis(std::size_t points, std::uint64_t span, std::uint64_t count) {
  const double most = static_cast<double>(points) * static_cast<double>(span);
  Axis axis{0, most > 0 ? most : 1, false, {}};
  if (count <= 1) {
    axis.ticks.push_back({0.5, "0"});
    return axis;
  }
  Extent extent;
  extent.add(0.0);
  extent.add(static_cast<double>(count - 1));
  for (const Tick& tick : extent.linear(4).ticks)
    if (tick.value < most * 0.97 && tick.value == std::floor(tick.value)) axis.ticks.push_back(tick);
  return axis;
}

std::string tick_label(double value) {
  if (std::abs(value) < 1e-300) return "0";
  if (std::abs(value) >= 1e6 && std::abs(value) < 1e9) return fmt::format("{:.3g}M", value / 1e6);
  if (std::abs(value) >= 1e4 && std::abs(value) < 1e6) return fmt::format("{:.3g}k", value / 1e3);
  if (std::abs(value) >= 1e3 && std::abs(value) < 1e4) return fmt::format("{:.4g}", value);
  std::string label = fmt::format("{:.3g}", value);
  // Short enough for the margin.
  if (std::abs(value) < 1e-3) {
    const double power = std::floor(std::log10(std::abs(value)) + 1e-9);
    return fmt::format("{:.3g}e{:.0f}", value / std::pow(10, power), power);
  }
  // "1e-05" → "1e-5"
  const std::size_t e = label.find('e');
  if (e != std::string::npos && e + 2 < label.size() && label[e + 2] == '0') label.erase(e + 2, 1);
  return label;
}

std::string coordinate(double value) {
  const long tenths = std::lround(value * 10);
  if (tenths % 10 == 0) return fmt::format("{}", tenths / 10);
  return fmt::format("{}{}.{}", tenths < 0 ? "-" : "",
                     std::abs(tenths) / 10 == 0 ? "" : fmt::format("{}", std::abs(tenths) / 10), std::abs(tenths) % 10);
}

std::string open_svg(std::string_view css_class, double width, double height, std::string_view label_html,
                     std::string_view attributes) {
  return fmt::format("<svg class={} viewBox=\"0 0 {} {}\" role=img aria-label=\"{}\"{}{}>", css_class,
                     coordinate(width), coordinate(height), label_html, attributes.empty() ? "" : " ", attributes);
}

std::string axes(const Panel& panel, const Axis& x, const Axis& y) {
  std::string svg = fmt::format("<rect class=plot x={} y={} width={} height={} />", coordinate(panel.left),
                                coordinate(panel.top), coordinate(panel.width), coordinate(panel.height));
  std::string grid;
  std::string labels;
  for (const Tick& tick : y.ticks) {
    const std::string at = coordinate(panel.y(y, tick.value));
    grid += fmt::format("M{} {}h{}", coordinate(panel.left), at, coordinate(panel.width));
    if (!tick.label.empty())
      labels += fmt::format("<text x={} y={}>{}</text>", coordinate(panel.left - 6), at, tick.label);
  }
  std::string across;
  for (const Tick& tick : x.ticks) {
    const std::string at = coordinate(panel.x(x, tick.value));
    grid += fmt::format("M{} {}v{}", at, coordinate(panel.top), coordinate(panel.height));
    if (!tick.label.empty())
      across += fmt::format("<text x={} y={}>{}</text>", at, coordinate(panel.top + panel.height + 15), tick.label);
  }
  if (!grid.empty()) svg += fmt::format("<path class=grid d=\"{}\" />", grid);
  if (!labels.empty()) svg += fmt::format("<g class=ty>{}</g>", labels);
  if (!across.empty()) svg += fmt::format("<g class=tx>{}</g>", across);
  return svg;
}

std::string line(const Panel& panel, const Axis& y, std::span<const double> values, std::string_view css_class) {
  // What is no number has no place: there the line has a gap.
  const std::vector<int> heights = heights_of(panel, y, values);
  std::string path;
  for (std::size_t i = 0; i < values.size();) {
    if (!std::isfinite(values[i])) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < values.size() && std::isfinite(values[end])) ++end;
    path += fmt::format("M{} {}", i, heights[i]);
    if (end - i == 1)
      path += values.size() == 1 ? "h1" : "h.3";
    else
      append_steps(
          path, {heights.begin() + static_cast<std::ptrdiff_t>(i), heights.begin() + static_cast<std::ptrdiff_t>(end)},
          1);
    i = end;
  }
  if (path.empty()) return {};
  return fmt::format("<path class=\"line {}\" {} d=\"{}\" />", css_class, transform(panel, values.size(), true), path);
}

std::string band(const Panel& panel, const Axis& y, std::span<const double> least, std::span<const double> largest,
                 std::string_view css_class) {
  std::vector<int> upper = heights_of(panel, y, largest);
  std::vector<int> lower = heights_of(panel, y, least);
  if (upper.empty() || upper.size() != lower.size()) return {};
  if (upper == lower) return line(panel, y, largest, css_class);
  std::string path = fmt::format("M0 {}", upper[0]);
  if (upper.size() == 1) {
    path += fmt::format("h1V{}H0z", lower[0]);
  } else {
    append_steps(path, upper, 1);
    path += fmt::format("V{}", lower.back());
    std::reverse(lower.begin(), lower.end());
    append_steps(path, lower, -1);
    path += 'z';
  }
  return fmt::format("<path class=\"band {}\" {} d=\"{}\" />", css_class, transform(panel, least.size(), true), path);
}

std::string bars(const Panel& panel, const Axis& y, std::span<const double> values) {
  const int floor = static_cast<int>(std::lround(panel.height));
  std::string path = fmt::format("M0 {}", floor);
  int at = floor;
  std::size_t run = 0;
  for (const double value : values) {
    // Nothing at all is no bar; anything is at least one unit high.
    const int top = value > 0 ? std::min(height_of(panel, y, value), floor - 1) : floor;
    if (top != at) {
      if (run > 0) path += fmt::format("h{}", run);
      path += fmt::format("v{}", top - at);
      at = top;
      run = 0;
    }
    ++run;
  }
  path += fmt::format("h{}V{}z", run, floor);
  return fmt::format("<path class=bars {} d=\"{}\" />", transform(panel, values.size(), false), path);
}

std::string number_list(std::span<const double> values) {
  std::string text;
  for (const double value : values) {
    if (!text.empty()) text += ' ';
    const std::string number = exact_number(value);
    text += std::string_view(number).substr(number.starts_with("0.") ? 1 : 0);
  }
  return text;
}

}  // namespace kvant::cli
