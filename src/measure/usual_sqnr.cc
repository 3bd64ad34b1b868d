#include "measure/usual_sqnr.h"

#include <algorithm>
#include <cmath>

namespace kvant::measure {
namespace {

struct Usual {
  ElementKind code;
  bool asymmetric;
  std::uint64_t weights_per_scale;
  // In dB, of weights of a normal distribution and of one with long tails: those of trained weights lie between them.
  double least, most;
};

// Measured by tools/usual_sqnr.py on random weights, with scales of the range, and for four bits also with those that a
// search finds. Rows of a code by the number of weights that share a scale. The two of e2m1 are those of nvfp4, whose
// scales are e4m3, and of mxfp4, whose scales are powers of two.
constexpr Usual kUsual[] = {
    {ElementKind::s8, false, 32, 43.4, 45.4},     {ElementKind::s8, false, 128, 41.0, 43.8},
    {ElementKind::s8, false, 512, 39.1, 42.6},    {ElementKind::s8, false, 2048, 37.5, 41.6},
    {ElementKind::s8, false, 8192, 36.1, 40.8},   {ElementKind::s8, false, 32768, 35.0, 40.2},
    {ElementKind::s4, false, 16, 19.9, 22.4},     {ElementKind::s4, false, 32, 18.3, 21.2},
    {ElementKind::s4, false, 64, 17.0, 20.4},     {ElementKind::s4, false, 128, 15.9, 19.9},
    {ElementKind::s4, false, 512, 14.0, 19.4},    {ElementKind::s4, false, 2048, 12.5, 19.3},
    {ElementKind::s4, false, 8192, 11.2, 19.2},   {ElementKind::s4, true, 16, 22.3, 23.4},
    {ElementKind::s4, true, 32, 20.5, 22.1},      {ElementKind::s4, true, 64, 19.0, 21.2},
    {ElementKind::s4, true, 128, 17.7, 20.4},     {ElementKind::s4, true, 512, 15.6, 19.6},
    {ElementKind::s4, true, 2048, 13.8, 19.3},    {ElementKind::s4, true, 8192, 12.5, 19.3},
    {ElementKind::e4m3, false, 32, 32.4, 33.0},   {ElementKind::e4m3, false, 128, 31.8, 32.1},
    {ElementKind::e4m3, false, 1024, 31.6, 31.7}, {ElementKind::e2m1, false, 16, 20.4, 21.2},
    {ElementKind::e2m1, false, 32, 18.0, 19.0},
};

// What a layer may differ from them without being unusual: the spread of rows, and of fewer weights than were measured.
constexpr double kSpread = 1;

double between(double a, double b, double share) { return a + (b - a) * share; }

}  // namespace

std::optional<UsualSqnr> usual_sqnr_db(ElementKind code, bool asymmetric, std::uint64_t weights_per_scale) {
  // The rows on either side.
  const Usual* fewer = nullptr;
  const Usual* more = nullptr;
  for (const Usual& usual : kUsual) {
    if (usual.code != code || usual.asymmetric != asymmetric) continue;
    if (usual.weights_per_scale <= weights_per_scale) fewer = &usual;
    if (usual.weights_per_scale >= weights_per_scale && more == nullptr) more = &usual;
  }
  if (fewer == nullptr && more == nullptr) return std::nullopt;
  if (fewer == nullptr) fewer = more;
  if (more == nullptr) more = fewer;
  const auto log = [](std::uint64_t n) { return std::log2(static_cast<double>(n)); };
  // Nearly straight over the logarithm: the largest of n weights grows so.
  const double share = fewer == more ? 0
                                     : (log(weights_per_scale) - log(fewer->weights_per_scale)) /
                                           (log(more->weights_per_scale) - log(fewer->weights_per_scale));
  return UsualSqnr{between(fewer->least, more->least, share) - kSpread,
                   between(fewer->most, more->most, share) + kSpread};
}

std::optional<UsualSqnr> usual_sqnr_db(const ModelLoss& loss) {
  std::optional<UsualSqnr> all;
  for (const LayerLoss& layer : loss.layers) {
    const format::ScaleSpan span = format::span_of(layer.weights, layer.rows, layer.columns);
    const auto usual = usual_sqnr_db(layer.weights.code, layer.weights.asymmetric,
                                     std::min(span.rows, layer.rows) * std::min(span.columns, layer.columns));
    if (!usual) return std::nullopt;
    all = all ? UsualSqnr{std::min(all->least, usual->least), std::max(all->most, usual->most)} : *usual;
  }
  return all;
}

}  // namespace kvant::measure
