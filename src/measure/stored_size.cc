#include "measure/stored_size.h"

#include <fmt/core.h>

namespace kvant::measure {

double bits_per_weight(const model::Weights& weights, const model::Network& network) {
  double bytes = 0, count = 0;
  const auto add_linear = [&](const model::LinearModule& linear) {
    if (const format::QuantizedLayer* const layer = weights.quantized(linear.module)) {
      const auto add = [&](const io::TensorPlace& place) {
        bytes += static_cast<double>(weights.checkpoint().at(place).bytes());
      };
      add(layer->codes);
      add(layer->scales);
      if (layer->zero_points) add(*layer->zero_points);
    } else {
      bytes += static_cast<double>(weights.stored_bytes(fmt::format("{}.weight", linear.module)));
    }
    count += static_cast<double>(linear.in) * static_cast<double>(linear.out);
  };
  for (const model::Block& block : network.blocks)
    for (const model::Step& step : block.steps)
      for (const model::LinearModule* const linear : model::linears_of(step)) add_linear(*linear);
  return count == 0 ? 0 : 8 * bytes / count;
}

}  // namespace kvant::measure
