#include "measure/usual_sqnr.h"

#include <algorithm>
#include <cmath>

namespace kvant::measure {
namespace {

struct Usual {
  ElementKind code;
  bool asymmetric;
  std::uint64_t weights_per_scale;
  double normal;   // dB of weights of a normal distribution
  double laplace;  // and of one with long tails: those of trained weights lie between the two
};

// Measured by tools/usual_sqnr.py on random weights, with scales that come from the largest weight. Rows of a code by
// the number of weights that share a scale. The two of e2m1 are those of nvfp4, whose scales are e4m3, and of mxfp4,
// whose scales are powers of two.
constexpr Usual kUsual[] = {
    {ElementKind::s8, false, 32, 45.4, 43.4},     {ElementKind::s8, false, 128, 43.8, 41.0},
    {ElementKind::s8, false, 512, 42.6, 39.1},    {ElementKind::s8, false, 2048, 41.6, 37.5},
    {ElementKind::s8, false, 8192, 40.8, 36.1},   {ElementKind::s8, false, 32768, 40.2, 35.0},
    {ElementKind::s4, false, 16, 21.4, 19.9},     {ElementKind::s4, false, 32, 20.3, 18.3},
    {ElementKind::s4, false, 64, 19.4, 17.0},     {ElementKind::s4, false, 128, 18.6, 15.9},
    {ElementKind::s4, false, 512, 17.4, 14.0},    {ElementKind::s4, false, 2048, 16.5, 12.5},
    {ElementKind::s4, false, 8192, 15.7, 11.2},   {ElementKind::s4, true, 16, 23.2, 22.3},
    {ElementKind::s4, true, 32, 21.9, 20.5},      {ElementKind::s4, true, 64, 20.8, 19.0},
    {ElementKind::s4, true, 128, 20.0, 17.7},     {ElementKind::s4, true, 512, 18.6, 15.6},
    {ElementKind::s4, true, 2048, 17.5, 13.8},    {ElementKind::s4, true, 8192, 16.7, 12.5},
    {ElementKind::e4m3, false, 32, 32.4, 33.0},   {ElementKind::e4m3, false, 128, 31.8, 32.1},
    {ElementKind::e4m3, false, 1024, 31.6, 31.7}, {ElementKind::e2m1, false, 16, 20.4, 20.7},
    {ElementKind::e2m1, false, 32, 18.8, 17.9},
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
  const double normal = between(fewer->normal, more->normal, share);
  const double laplace = between(fewer->laplace, more->laplace, share);
  return UsualSqnr{std::min(normal, laplace) - kSpread, std::max(normal, laplace) + kSpread};
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
