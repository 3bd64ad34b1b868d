#include "cli/report/layer_charts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cli/report/html.h"
#include "cli/report/png.h"

namespace kvant::cli {
namespace {

using measure::LayerDetail;

constexpr double kWidth = 360;
constexpr double kHeight = 190;
constexpr Panel kPlot{.left = 40, .top = 8, .width = 312, .height = 160};
// Two panels over each other.
constexpr Panel kUpper{.left = 40, .top = 8, .width = 312, .height = 76};
constexpr Panel kLower{.left = 40, .top = 98, .width = 312, .height = 70};

// Viridis: as bright as it is large, for people who cannot tell colours apart and for printers without them.
constexpr std::array<std::uint32_t, 9> kHeat = {0x440154, 0x472d7b, 0x3b528b, 0x2c728e, 0x21918c,
                                                0x28ae80, 0x5ec962, 0xaddc30, 0xfde725};

// A number of a chart's caption, for people who only look: how many channels one point stands for.
std::string of_span(std::uint64_t span) {
  return span == 1 ? std::string() : fmt::format(" A point: {} channels.", span);
}

std::string figure(std::string_view title, std::string_view chart, std::string_view caption) {
  return fmt::format("<figure><figcaption>{}</figcaption>{}<p class=note>{}<p class=readout aria-live=polite></figure>",
                     title, chart, caption);
}

std::string histogram_figure(const measure::WeightHistogram& histogram, std::uint64_t row_stride, const Axis& counts) {
  std::vector<double> values(histogram.counts.begin(), histogram.counts.end());
  const double per_code = histogram.bins_per_code > 0 ? histogram.bins_per_code : 1;
  const double codes = static_cast<double>(values.size()) / per_code;
  const double first = histogram.first_code;
  Axis x{first - 0.5, first - 0.5 + std::max(codes, 1.0), false, {}};
  // Of a few codes every one has its line; of many every 16th, and the ends.
  const bool few = codes <= 32;
  const int last_code = histogram.first_code + static_cast<int>(codes) - 1;
  if (histogram.numbers.empty())
    for (int code = histogram.first_code; code <= last_code; ++code) {
      const bool end = code == histogram.first_code || code == last_code;
      if (!few && code % 16 != 0 && !end) continue;
      const bool labelled = few ? code % 2 == 0 || end : (code % 64 == 0 || end) && code != histogram.first_code + 1;
      x.ticks.push_back({static_cast<double>(code), labelled ? fmt::format("{}", code) : std::string()});
    }
  // Numbers of a floating-point grid lie closer and closer towards 0, where labels would lie over each other.
  const double least_label = codes / 32;
  for (const double number : histogram.numbers)
    x.ticks.push_back(
        {number, number == 0 || std::abs(number) >= least_label ? fmt::format("{:g}", number) : std::string()});
  std::string lines;
  std::string labels;
  for (const Tick& tick : x.ticks) {
    const std::string at = coordinate(kPlot.x(x, tick.value));
    lines += fmt::format("M{} {}v{}", at, coordinate(kPlot.top), coordinate(kPlot.height));
    if (tick.label.empty()) continue;
    labels += fmt::format("<text x={} y={}>{}</text>", at, coordinate(kPlot.top + kPlot.height + 15), tick.label);
  }
  std::string svg = open_svg(
      "histogram", kWidth, kHeight, "Histogram of weights over the grid of codes",
      fmt::format("data-first={} data-per={} data-counts=\"{}\"", histogram.first_code, per_code, number_list(values)));
  svg += axes(kPlot, {x.first, x.last, false, {}}, counts) + bars(kPlot, counts, values);
  // The grid lies over the weights.
  svg += fmt::format("<path class=codes d=\"{}\" /><g class=tx>{}</g></svg>", lines, labels);

  const std::string beyond =
      histogram.below + histogram.above == 0
          ? "None lie beyond the codes."
          : fmt::format("Beyond the codes: {} below, {} above.", histogram.below, histogram.above);
  const std::string rows = row_stride == 1 ? std::string() : fmt::format(" One row in {}.", row_stride);
  return figure("Weights on the grid of codes", svg,
                fmt::format("{} {} weights, logarithmic.{}",
                            few ? "Lines are codes; weights between two are rounded to the nearer."
                                : "Each bar is one code; a line every 16.",
                            histogram.weights, rows) +
                    " " + beyond);
}

// What has no place on an axis of decibels, in words.
std::string exact_or_broken(const std::vector<double>& sqnr_db) {
  std::size_t exact = 0, broken = 0;
  for (const double value : sqnr_db) {
    if (std::isfinite(value)) continue;
    ++(value > 0 ? exact : broken);
  }
  std::string text;
  if (exact > 0) text += exact == sqnr_db.size() ? " All are exact." : fmt::format(" Gaps: {} exact.", exact);
  if (broken > 0) text += fmt::format(" {} without a number.", broken);
  return text;
}

std::string channels_figure(const measure::ChannelScales& channels, std::uint64_t rows, const LayerAxes& common) {
  const Axis x = counting_axis(channels.largest.size(), channels.span, rows);
  std::string svg = open_svg(
      "channels", kWidth, kHeight, "Scale and SQNR of each output channel",
      fmt::format("data-span={} data-n={} data-least=\"{}\" data-largest=\"{}\" data-sqnr_db=\"{}\"", channels.span,
                  rows, number_list(channels.least), number_list(channels.largest), number_list(channels.sqnr_db)));
  Axis above = x;
  for (Tick& tick : above.ticks) tick.label.clear();
  svg += axes(kUpper, above, common.scales);
  svg += band(kUpper, common.scales, channels.least, channels.largest, "own");
  svg += axes(kLower, x, common.sqnr_db);
  svg += line(kLower, common.sqnr_db, channels.sqnr_db, "own");
  return figure("Output channels: scale, and SQNR in dB", svg + "</svg>",
                "Above: the scale, which is one step of the codes. Below: SQNR." + exact_or_broken(channels.sqnr_db) +
                    of_span(channels.span));
}

// 0 for no error; from 1 for the least of the scale to 255 for the largest and what is beyond all numbers.
std::uint8_t heat_level(double rms, const LayerAxes& common) {
  if (rms == 0) return 0;
  if (!std::isfinite(rms)) return 255;
  const double share = std::log(rms / common.least_rms) / std::log(common.largest_rms / common.least_rms);
  return static_cast<std::uint8_t>(1 + std::lround(254 * std::clamp(share, 0.0, 1.0)));
}

std::string strip_figure(const measure::ErrorStrip& strip, std::uint64_t rows, std::uint64_t columns,
                         const LayerAxes& common) {
  if (strip.rows == 0 || strip.columns == 0 || strip.rms.size() != strip.rows * strip.columns) return {};
  // Beyond all numbers is the brightest, and the legend says so.
  const bool overflows =
      std::any_of(strip.rms.begin(), strip.rms.end(), [](double rms) { return !std::isfinite(rms); });
  std::vector<std::uint8_t> levels;
  for (const double rms : strip.rms) levels.push_back(heat_level(rms, common));
  return fmt::format(
      "<figure class=strip data-rows={} data-columns={} data-least={} data-largest={} data-rs={} data-cs={} data-n={} "
      "data-m={}>"
      "<figcaption>Where in the matrix the error is</figcaption>"
      "<div class=heat><span class=ylab>output channels</span><img alt=\"Error by output and input channels\" "
      "src=\"data:image/png;base64,{}\"><span class=xlab>input channels</span></div>"
      "<p class=note>RMS error: {} <i class=ramp></i> {}, logarithmic. {} × {} channels a cell.<p class=readout "
      "aria-live=polite></figure>",
      strip.rows, strip.columns, exact_number(common.least_rms), exact_number(common.largest_rms), strip.row_span,
      strip.column_span, rows, columns, base64(grey_png(strip.columns, strip.rows, levels)),
      short_number(common.least_rms, 3), overflows ? "∞" : short_number(common.largest_rms, 3), strip.row_span,
      strip.column_span);
}

std::string inputs_figure(const measure::InputChannels& inputs, std::uint64_t columns, const Axis& y) {
  std::string svg =
      open_svg("inputs", kWidth, kHeight, "Largest activation of each input channel, before and after smoothing",
               fmt::format("data-span={} data-n={} data-before=\"{}\" data-after=\"{}\"", inputs.span, columns,
                           number_list(inputs.before), number_list(inputs.after)));
  svg += axes(kPlot, counting_axis(inputs.before.size(), inputs.span, columns), y);
  svg += line(kPlot, y, inputs.before, "origin") + line(kPlot, y, inputs.after, "own") + "</svg>";
  const bool smoothed = !inputs.after.empty();
  std::string note = fmt::format("The largest channel is {} times the median", short_number(inputs.ratio_before, 3));
  if (smoothed)
    note +=
        fmt::format(" before smoothing <i class=\"patch origin\"></i>, {} times after it <i class=\"patch own\"></i>",
                    short_number(inputs.ratio_after, 3));
  return figure(smoothed ? "Input channels: range before and after smoothing" : "Input channels: range of activations",
                svg, note + "." + of_span(inputs.span));
}

std::string smoothing_figure(const measure::InputChannels& inputs, std::uint64_t columns, const Axis& y) {
  std::string svg =
      open_svg("smoothing", kWidth, kHeight, "Smoothing factor of each input channel",
               fmt::format("data-span={} data-n={} data-least=\"{}\" data-largest=\"{}\"", inputs.span, columns,
                           number_list(inputs.smoothing_least), number_list(inputs.smoothing_largest)));
  svg += axes(kPlot, counting_axis(inputs.smoothing_largest.size(), inputs.span, columns), y);
  svg += band(kPlot, y, inputs.smoothing_least, inputs.smoothing_largest, "own") + "</svg>";
  return figure("Input channels: smoothing", svg,
                "Weights are multiplied by it, activations divided." + of_span(inputs.span));
}

std::string errors_table(const std::vector<measure::WeightError>& errors) {
  if (errors.empty()) return {};
  std::string html =
      "<figure><figcaption>Largest errors</figcaption><div class=scroll><table "
      "class=errors><thead><tr><th>row<th>column<th>weight"
      "<th>became<th>error<tbody>";
  const auto cell = [](double value) {
    return fmt::format("<td data-v={}>{}", exact_number(value), short_number(value, 4));
  };
  for (const measure::WeightError& error : errors)
    html += fmt::format("<tr><td>{}<td>{}", error.row, error.column) + cell(error.weight) + cell(error.value) +
            cell(error.weight - error.value);
  return html + "</table></div></figure>";
}

}  // namespace

LayerAxes::LayerAxes(const measure::LayerDetails& layer) {
  Extent count_extent;
  Extent scale_extent;
  Extent sqnr_extent;
  Extent input_extent;
  Extent smoothing_extent;
  double least = std::numeric_limits<double>::infinity();
  count_extent.add(1);
  count_extent.add(10);
  smoothing_extent.add(1);
  for (const auto& detail : layer.quantized) {
    if (!detail) continue;
    for (const std::uint64_t count : detail->histogram.counts) count_extent.add(static_cast<double>(count));
    scale_extent.add(detail->channels.least);
    scale_extent.add(detail->channels.largest);
    sqnr_extent.add(detail->channels.sqnr_db);
    for (const double rms : detail->strip.rms) {
      if (!std::isfinite(rms) || !(rms > 0)) continue;
      least = std::min(least, rms);
      largest_rms = std::max(largest_rms, rms);
    }
    input_extent.add(detail->inputs.before);
    input_extent.add(detail->inputs.after);
    smoothing_extent.add(detail->inputs.smoothing_least);
    smoothing_extent.add(detail->inputs.smoothing_largest);
  }
  counts = count_extent.logarithmic(5);
  // Below one weight there is none: a bar of 1 is to be seen.
  counts.first = 0.5;
  scales = scale_extent.either(3);
  sqnr_db = sqnr_extent.decibels(3);
  // One decade at least, so that an even error looks even; not more than three, or a single small cell takes them all.
  least_rms = std::clamp(std::min(least, largest_rms), largest_rms / 1000, largest_rms / 10);
  inputs = input_extent.logarithmic(4);
  smoothing = smoothing_extent.logarithmic(4);
}

std::string layer_charts(const LayerDetail& detail, const LayerAxes& common, std::uint64_t rows,
                         std::uint64_t columns) {
  std::string html = histogram_figure(detail.histogram, detail.row_stride, common.counts);
  html += channels_figure(detail.channels, rows, common);
  html += strip_figure(detail.strip, rows, columns, common);
  if (!detail.inputs.before.empty()) html += inputs_figure(detail.inputs, columns, common.inputs);
  if (!detail.inputs.smoothing_least.empty()) html += smoothing_figure(detail.inputs, columns, common.smoothing);
  return html + errors_table(detail.largest_errors);
}

std::string heat_filter() {
  std::string functions;
  for (const auto& [channel, shift] : {std::pair{'R', 16}, {'G', 8}, {'B', 0}}) {
    std::string values;
    for (const std::uint32_t colour : kHeat)
      values += fmt::format("{}{:.3g}", values.empty() ? "" : " ", ((colour >> shift) & 0xFF) / 255.0);
    functions += fmt::format("<feFunc{} type=table tableValues=\"{}\" />", channel, values);
  }
  return fmt::format(
      "<svg class=hidden width=0 height=0 aria-hidden=true><filter id=heat color-interpolation-filters=sRGB>"
      "<feComponentTransfer>{}</feComponentTransfer></filter></svg>",
      functions);
}

std::string heat_gradient() {
  std::string colours;
  for (const std::uint32_t colour : kHeat) colours += fmt::format(",#{:06x}", colour);
  return "linear-gradient(90deg" + colours + ")";
}

}  // namespace kvant::cli
