// The tensors of a checkpoint against what its config.json says of the network.
#pragma once

#include <vector>

#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "measure/verify.h"

namespace kvant::measure {

// Every linear and norm of every block is there with the shape that follows from config.json. Where kvant does not know
// the network, or config.json does not say enough, that is what was not checked. `layers` are the quantized ones.
void check_network_shapes(const io::Checkpoint& checkpoint, const std::vector<format::QuantizedLayer>& layers,
                          Verification& verification);

}  // namespace kvant::measure
