#include "cli/report/quality_charts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cli/report/chart.h"
#include "cli/report/html.h"
#include "cli/report/series.h"
#include "cli/sizes.h"
#include "cli/terminal.h"

namespace kvant::cli {
namespace {

// Two of them stand beside each other.
constexpr double kSizesWidth = 548;
constexpr double kSizesHeight = 322;
constexpr Panel kSizes{.left = 62, .top = 12, .width = 448, .height = 280};
constexpr double kPositionsWidth = 1000;
constexpr double kPositionsHeight = 300;
constexpr Panel kPositions{.left = 62, .top = 12, .width = 922, .height = 248};
constexpr std::size_t kMaxPoints = 100;
constexpr double kLineHeight = 16;  // of labels
constexpr int kMaxLabel = 28;       // characters, so that it stays in the panel

// They repeat after so many checkpoints.
constexpr std::string_view kShapes[] = {"M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z", "M-4.5-4.5h9v9h-9z",
                                        "M0-6.2L6.2 0 0 6.2-6.2 0z", "M0-6L6 4.6h-12z", "M0 6L6-4.6h-12z"};

std::string_view shape(std::size_t series) { return kShapes[series % std::size(kShapes)]; }

// A label beside a point, on the side with more room.
struct Label {
  double x, y;
  bool is_left;
  std::string text;
};

// Moves labels of one side apart where they would lie on each other.
void spread(std::vector<Label>& labels, bool is_left) {
  std::vector<Label*> side;
  for (Label& label : labels)
    if (label.is_left == is_left) side.push_back(&label);
  std::stable_sort(side.begin(), side.end(), [](const Label* a, const Label* b) { return a->y < b->y; });
  double free = kSizes.top;
  for (Label* const label : side) {
    label->y = std::max(label->y, free);
    free = label->y + kLineHeight;
  }
  // What was moved out at the bottom goes back up.
  double end = kSizes.top + kSizes.height - 4;
  for (auto label = side.rbegin(); label != side.rend(); ++label) {
    (*label)->y = std::min((*label)->y, end);
    end = (*label)->y - kLineHeight;
  }
}

Axis size_axis(const std::vector<SizePoint>& points) {
  Extent extent;
  for (const SizePoint& point : points) extent.add(point.bytes);
  Axis axis = extent.either(4);
  for (Tick& tick : axis.ticks) tick.label = tick.value > 0 ? byte_size(static_cast<std::uint64_t>(tick.value)) : "0";
  return axis;
}

}  // namespace

std::string series_marker(std::size_t series) {
  return fmt::format(
      "<svg class=\"mark {}\" viewBox=\"-7 -7 14 14\" aria-hidden=true><path class=point d=\"{}\" /></svg>",
      series_class(series), shape(series));
}

std::string size_chart(std::string_view name, const std::vector<SizePoint>& points,
                       const std::vector<SizeBound>& bounds) {
  const Axis x = size_axis(points);
  Extent extent;
  for (const SizePoint& point : points) {
    extent.add(point.value);
    extent.add(point.value + point.error);
    if (point.value > point.error) extent.add(point.value - point.error);
  }
  if (!bounds.empty()) extent.add(bounds.front().value);
  const bool is_near = bounds.empty() && !(extent.largest() > kFar * extent.least());
  const Axis y = is_near ? extent.linear(4) : extent.either(4);
  std::string svg = open_svg("\"chart sizes\"", kSizesWidth, kSizesHeight, name, {});
  svg += axes(kSizes, x, y);
  for (const SizeBound& bound : bounds)
    if (bound.value >= y.first && bound.value <= y.last) {
      const double at = kSizes.y(y, bound.value);
      append(svg, "<path class=bound d=\"M{} {}h{}\" /><g class=bounds><text x={} y={}>{}</text></g>",
             coordinate(kSizes.left), coordinate(at), coordinate(kSizes.width),
             coordinate(kSizes.left + kSizes.width - 6), coordinate(at - 5), bound.name);
    }
  std::vector<Label> labels;
  for (const SizePoint& point : points) {
    const double px = kSizes.x(x, point.bytes), py = kSizes.y(y, point.value);
    const bool is_left = px > kSizes.left + kSizes.width * 0.6;
    append(svg, "<g class={} data-bytes={} data-v={}><title>{}: {}, {}</title>",
           point.is_original ? "origin" : series_class(point.series), exact_number(point.bytes),
           exact_number(point.value), html_text(point.label), byte_size(static_cast<std::uint64_t>(point.bytes)),
           short_number(point.value));
    if (point.error > 0)
      append(svg, "<path class=error d=\"M{} {}V{}\" />", coordinate(px),
             coordinate(kSizes.y(y, point.value - point.error)), coordinate(kSizes.y(y, point.value + point.error)));
    append(svg, "<path class=point transform=\"translate({} {})\" d=\"{}\" /></g>", coordinate(px), coordinate(py),
           shape(point.is_original ? 0 : point.series));
    labels.push_back({px + (is_left ? -11 : 11), py, is_left, html_text(shortened(point.label, kMaxLabel))});
  }
  for (const bool is_left : {false, true}) {
    spread(labels, is_left);
    append(svg, "<g class=\"{}\">", is_left ? "labels before" : "labels");
    for (const Label& label : labels)
      if (label.is_left == is_left)
        append(svg, "<text x={} y={}>{}</text>", coordinate(label.x), coordinate(label.y), label.text);
    svg += "</g>";
  }
  return svg + "</svg>";
}

std::size_t position_span(std::size_t positions) {
  return std::max<std::size_t>((positions + kMaxPoints - 1) / kMaxPoints, 1);
}

std::string position_chart(std::string_view name, const std::vector<PositionLine>& lines) {
  std::size_t positions = 0;
  for (const PositionLine& line : lines) positions = std::max(positions, line.values.size());
  const std::size_t span = position_span(positions);
  const std::size_t count = (positions + span - 1) / span;
  std::vector<std::vector<double>> means;
  Extent extent;
  for (const PositionLine& line : lines) {
    means.emplace_back();
    for (std::size_t first = 0; first < line.values.size(); first += span) {
      const auto part = line.values.subspan(first, std::min(span, line.values.size() - first));
      double sum = 0;
      for (const double value : part) sum += value;
      means.back().push_back(sum / static_cast<double>(part.size()));
    }
    extent.add(means.back());
  }
  const Axis x = counting_axis(count, span, positions);
  const Axis y = extent.either(4);
  std::string svg = open_svg("\"chart positions\"", kPositionsWidth, kPositionsHeight, name, {});
  svg += axes(kPositions, x, y);
  append(svg, "<g class=\"tx ty\"><text x={} y={}>position</text></g>", coordinate(kPositions.left - 8),
         coordinate(kPositions.top + kPositions.height + 15));
  for (std::size_t i = 0; i < lines.size(); ++i) svg += line(kPositions, y, means[i], series_class(i));
  // What a pointer is told.
  const double step = kPositions.width / static_cast<double>(std::max<std::size_t>(count, 1));
  for (std::size_t p = 0; p < count; ++p) {
    const std::size_t last = std::min((p + 1) * span, positions) - 1;
    append(svg, "<rect class=hit x={} y={} width={} height={}><title>{}",
           coordinate(kPositions.left + step * static_cast<double>(p)), coordinate(kPositions.top), coordinate(step),
           coordinate(kPositions.height),
           last > p * span ? fmt::format("positions {}–{}", p * span, last) : fmt::format("position {}", last));
    for (std::size_t i = 0; i < lines.size(); ++i)
      if (p < means[i].size()) append(svg, "\n{}: {}", html_text(lines[i].label), short_number(means[i][p], 3));
    svg += "</title></rect>";
  }
  return svg + "</svg>";
}

}  // namespace kvant::cli
