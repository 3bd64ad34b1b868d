#include "cli/report/depth_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/report/chart.h"
#include "cli/report/html.h"
#include "measure/usual_sqnr.h"

namespace kvant::cli {
namespace {

using measure::Judged;
using measure::LayerLoss;
using measure::ModelLoss;
using model::LayerKind;

// Alone it has the whole width of the page, beside others half of it.
constexpr double kAlone = 900;
constexpr double kBeside = 520;
constexpr double kDepthHeight = 332;
constexpr double kEdge = 44;  // a row for what has no place on the axis: exact at the top, NaN at the bottom
constexpr double kRight = 38;
constexpr Panel kDepthPlot{.left = 62, .top = 12, .width = kAlone, .height = 290};

// About 9 units wide. People who cannot tell the colours apart can tell these.
std::string_view shape(LayerKind kind) {
  switch (kind) {
    case LayerKind::q: return "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z";
    case LayerKind::k: return "M-4-4h8v8h-8z";
    case LayerKind::v: return "M0-5.8L5.8 0 0 5.8-5.8 0z";
    case LayerKind::qkv: return "M-5 0l2.5-4.5h5L5 0 2.5 4.5h-5z";
    case LayerKind::o: return "M0-5.5L5.5 4.2h-11z";
    case LayerKind::gate: return "M0 5.5L5.5-4.2h-11z";
    case LayerKind::up: return "M-1.6-5.4h3.2v3.8h3.8v3.2h-3.8v3.8h-3.2v-3.8h-3.8v-3.2h3.8z";
    case LayerKind::gate_up: return "M-5.5-2.5h11v5h-11z";
    case LayerKind::down: return "M0-2.3L3-5.3 5.3-3 2.3 0 5.3 3 3 5.3 0 2.3-3 5.3-5.3 3-2.3 0-5.3-3-3-5.3z";
    case LayerKind::other: return "M-2.5-5.5h5v11h-5z";
  }
  return {};
}

}  // namespace

std::string kind_marker(LayerKind kind) {
  return fmt::format("<svg class=\"mark k-{0}\" viewBox=\"-7 -7 14 14\" aria-hidden=true><use href=\"#m-{0}\" /></svg>",
                     name(kind));
}

DepthChart::DepthChart(const std::vector<ModelLoss>& models, const std::vector<Judged>& judged) : plot_(kDepthPlot) {
  if (models.size() > 1) plot_.width = kBeside;
  std::array<bool, model::kLayerKinds> there{};
  Extent extent;
  for (const ModelLoss& model : models) {
    for (const LayerLoss& layer : model.layers) {
      there[static_cast<std::size_t>(layer.kind)] = true;
      if (layer.block)
        blocks_.emplace_back(model::stack_of(layer.module), *layer.block);
      else
        outside_ = true;
      for (const Judged by : judged) {
        const std::optional<double> sqnr_db = sqnr_db_of(layer, by);
        if (!sqnr_db) continue;
        exact_ = exact_ || (std::isinf(*sqnr_db) && *sqnr_db > 0);
        broken_ = broken_ || std::isnan(*sqnr_db);
        extent.add(*sqnr_db);
      }
    }
    if (const auto usual = measure::usual_sqnr_db(model)) extent.add(std::array{usual->least, usual->most});
  }
  for (std::size_t i = 0; i < there.size(); ++i)
    if (there[i]) kinds_.push_back(static_cast<LayerKind>(i));
  std::sort(blocks_.begin(), blocks_.end());
  blocks_.erase(std::unique(blocks_.begin(), blocks_.end()), blocks_.end());
  decibels_ = extent.decibels(5);
}

double DepthChart::x(const LayerLoss& layer) const {
  const auto places = static_cast<double>(std::max<std::size_t>(blocks_.size() + (outside_ ? 1 : 0), 1));
  const auto place =
      static_cast<double>(layer.block ? std::lower_bound(blocks_.begin(), blocks_.end(),
                                                         Place(model::stack_of(layer.module), *layer.block)) -
                                            blocks_.begin()
                                      : static_cast<std::ptrdiff_t>(blocks_.size()));
  // Kinds beside each other, so that they do not hide each other; a third of the place stays free.
  const auto kind = static_cast<double>(std::find(kinds_.begin(), kinds_.end(), layer.kind) - kinds_.begin());
  const double beside = ((kind + 0.5) / static_cast<double>(kinds_.size()) - 0.5) * 0.66;
  return plot_.left + plot_.width * (place + 0.5 + beside) / places;
}

double DepthChart::y(double sqnr_db) const {
  const double top = plot_.top + (exact_ ? kEdge : 0);
  const double bottom = plot_.top + plot_.height - (broken_ ? kEdge : 0);
  if (std::isnan(sqnr_db)) return bottom + kEdge / 2;
  if (std::isinf(sqnr_db)) return sqnr_db > 0 ? plot_.top + kEdge / 2 : bottom;
  return bottom - (bottom - top) * decibels_.place(sqnr_db);
}

std::string DepthChart::shapes() const {
  std::string svg = "<svg class=hidden width=0 height=0 aria-hidden=true><defs>";
  for (const LayerKind kind : kinds_) svg += fmt::format("<path id=m-{} d=\"{}\" />", name(kind), shape(kind));
  return svg + "</defs></svg>";
}

std::string DepthChart::svg(const ModelLoss& model, Judged by, std::size_t number,
                            const std::vector<std::size_t>& rows) const {
  std::string svg =
      open_svg("depth", plot_.left + plot_.width + kRight, kDepthHeight,
               fmt::format("SQNR of the {} of {} layers of {} by block", by == Judged::weights ? "weights" : "outputs",
                           model.layers.size(), html_text(model.label)),
               fmt::format("data-q={} data-key={}", number, sqnr_key(by)));
  // The grid: lines of dB are this chart's own, for the two rows at the edges.
  Axis across{0, 1, false, {}};
  const std::size_t places = blocks_.size() + (outside_ ? 1 : 0);
  constexpr std::size_t kMaxLabels = 16;
  // "outside" is wide: a number beside it would touch it.
  const auto near_the_end = [&](std::size_t i) {
    return outside_ && static_cast<double>(blocks_.size() - i) / static_cast<double>(places) * plot_.width < 66;
  };
  std::size_t every = 1;
  while (blocks_.size() > every * kMaxLabels) every *= 2;
  for (std::size_t i = 0; i < places; ++i) {
    const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(places);
    if (i == blocks_.size())
      across.ticks.push_back({at, "outside"});
    else if (i % every == 0)
      across.ticks.push_back({at, near_the_end(i) ? std::string() : fmt::format("{}", blocks_[i].second)});
  }
  std::string labels;
  std::string grid;
  const auto label_row = [&](double at, std::string_view text) {
    grid += fmt::format("M{} {}h{}", coordinate(plot_.left), coordinate(at), coordinate(plot_.width));
    labels += fmt::format("<text x={} y={}>{}</text>", coordinate(plot_.left - 8), coordinate(at), text);
  };
  for (const Tick& tick : decibels_.ticks) label_row(y(tick.value), tick.label);
  if (exact_) label_row(y(INFINITY), "exact");
  if (broken_) label_row(y(NAN), "NaN");
  // What the numbers below are, before the first of them.
  const std::string below = fmt::format("<g class=\"tx ty\"><text x={} y={}>block</text></g>",
                                        coordinate(plot_.left - 8), coordinate(plot_.top + plot_.height + 15));
  svg += axes(plot_, across, Axis{0, 1, false, {}});
  if (const auto usual = by == Judged::weights ? measure::usual_sqnr_db(model) : std::nullopt) {
    const double top = y(usual->most);
    svg +=
        fmt::format("<rect class=usual x={} y={} width={} height={} /><g class=usual><text x={} y={}>usual</text></g>",
                    coordinate(plot_.left), coordinate(top), coordinate(plot_.width), coordinate(y(usual->least) - top),
                    coordinate(plot_.left + plot_.width - 6), coordinate(top - 9));
  }
  svg += fmt::format("<path class=grid d=\"{}\" /><g class=ty>{}</g>{}", grid, labels, blocks_.empty() ? "" : below);

  for (const LayerKind kind : kinds_) {
    std::string points;
    struct Mean {
      double sum = 0;  // of finite SQNR
      double count = 0;
      std::string_view stack = {};
    };
    std::map<double, Mean> means;  // by x
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const LayerLoss& layer = model.layers[i];
      const std::optional<double> sqnr_db = sqnr_db_of(layer, by);
      if (layer.kind != kind || !sqnr_db) continue;
      points += fmt::format("<use href=\"#m-{}\" x={} y={} data-i={} />", name(kind), coordinate(x(layer)),
                            coordinate(y(*sqnr_db)), rows[i]);
      if (!layer.block || !std::isfinite(*sqnr_db)) continue;
      Mean& mean = means[x(layer)];
      mean.sum += *sqnr_db;
      ++mean.count;
      mean.stack = model::stack_of(layer.module);
    }
    if (points.empty()) continue;
    svg += fmt::format("<g class=k-{0} data-kind={0}>", name(kind));
    if (means.size() > 1) {
      std::string path;
      std::optional<std::string_view> stack;
      for (const auto& [at, mean] : means) {
        path += fmt::format("{}{} {}", stack == mean.stack ? " " : "M", coordinate(at),
                            coordinate(y(mean.sum / mean.count)));
        stack = mean.stack;
      }
      svg += fmt::format("<path class=trend d=\"{}\" />", path);
    }
    svg += points + "</g>";
  }
  return svg + "</svg>";
}

}  // namespace kvant::cli
