// What codes give back of activations, as loaders define it, in plain loops: the range of each row or group, its scale,
// the code of each number and what it stands for. One row has the scale of its "tensor".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/scheme.h"
#include "tests/support/float_grid_reference.h"
#include "tests/support/plain_scales.h"

namespace kvant::tests {

struct PlainActivations {
  format::ActivationScheme scheme;
  float scale = 1;  // stored: of static ones, or the global scale of local ones
  int zero_point = 0;

  std::vector<float> row(const std::vector<float>& x) const {
    std::vector<float> back(x.size());
    const std::size_t group = scheme.group_size > 0 ? static_cast<std::size_t>(scheme.group_size) : x.size();
    for (std::size_t first = 0; first < x.size(); first += group)
      segment(x, first, std::min(first + group, x.size()), back);
    return back;
  }

 private:
  void segment(const std::vector<float>& x, std::size_t first, std::size_t last, std::vector<float>& back) const {
    float low = 0, high = 0;
    for (std::size_t i = first; i < last; ++i)
      if (std::isfinite(x[i])) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
      }
    const float largest = std::max(high, -low);
    float step = scale;
    int zero = zero_point;
    if (scheme.dynamic == format::Dynamic::local) {
      step = static_cast<float>(plain_scale_under(scale, static_cast<double>(largest), scheme.code).value);
    } else if (scheme.dynamic == format::Dynamic::yes && scheme.scale_code == ElementKind::e8m0) {
      step = static_cast<float>(plain_power(static_cast<double>(largest), scheme.code).value);
    } else if (scheme.dynamic == format::Dynamic::yes && scheme.asymmetric) {
      const auto [least, most] = code_range(scheme.code);
      step = low == high ? 1 : (high - low) / static_cast<float>(most - least);
      zero = low == high ? 0 : std::clamp(least - static_cast<int>(std::nearbyint(low / step)), least, most);
    } else if (scheme.dynamic == format::Dynamic::yes) {
      step = largest == 0 ? 1 : largest / static_cast<float>(largest_of(scheme.code));
    }
    for (std::size_t i = first; i < last; ++i) back[i] = one(x[i], step, zero);
  }

  float one(float x, float step, int zero) const {
    if (has_float_grid(scheme.code)) {
      const GridReference& grid = grid_reference(scheme.code);
      return static_cast<float>(grid.number_of(grid.code_of(static_cast<double>(x / step), true))) * step;
    }
    const auto [least, most] = code_range(scheme.code);
    // Without codes in between, as static activations are made, NaN stays NaN.
    if (std::isnan(x)) return scheme.dynamic == format::Dynamic::no ? x : 0;
    const float code = std::nearbyint(x / step) + static_cast<float>(zero);
    return (std::clamp(code, static_cast<float>(least), static_cast<float>(most)) - static_cast<float>(zero)) * step;
  }
};

}  // namespace kvant::tests
