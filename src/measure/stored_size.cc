#include "measure/stored_size.h"

#include <fmt/core.h>

namespace kvant::measure {

std::uint64_t tensor_bytes(const io::Checkpoint& checkpoint) {
  std::uint64_t bytes = 0;
  for (const io::SafetensorsFile& shard : checkpoint.shards())
    for (const io::TensorInfo& tensor : shard.tensors()) bytes += tensor.bytes();
  return bytes;
}

double bits_per_weight(const model::Weights& weights, const model::Network& network) {
  const io::Checkpoint& checkpoint = weights.checkpoint();
  double bytes = 0, count = 0;
  const auto add = [&](const io::TensorInfo& info) { bytes += static_cast<double>(info.bytes()); };
  const auto add_linear = [&](const model::LinearModule& linear) {
    if (const format::QuantizedLayer* const layer = weights.quantized(linear.module)) {
      add(checkpoint.at(layer->codes));
      add(checkpoint.at(layer->scales));
      if (layer->zero_points) add(checkpoint.at(*layer->zero_points));
    } else if (const io::TensorInfo* const info = checkpoint.find(fmt::format("{}.weight", linear.module))) {
      add(*info);
    } else {
      return;  // whoever runs it will say so
    }
    count += static_cast<double>(linear.in) * static_cast<double>(linear.out);
  };
  for (const model::Block& block : network.blocks)
    for (const model::Step& step : block.steps)
      for (const model::LinearModule* const linear : model::linears_of(step)) add_linear(*linear);
  return count == 0 ? 0 : 8 * bytes / count;
}

}  // namespace kvant::measure
