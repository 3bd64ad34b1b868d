// How much room a checkpoint takes in its files.
#pragma once

#include <cstdint>

#include "io/checkpoint.h"
#include "model/network.h"
#include "model/weights.h"

namespace kvant::measure {

// Of all tensors, without the headers of the files.
std::uint64_t tensor_bytes(const io::Checkpoint& checkpoint);

// What the weights of the linears in the network's blocks take as they are stored, in bits, divided by their number:
// codes with their padding, scales and zero points of quantized ones, the elements of others. Embeddings, the head,
// norms, biases and scales of activations do not count: what is left of them says nothing about a scheme. 0 for a
// network without blocks.
double bits_per_weight(const model::Weights& weights, const model::Network& network);

}  // namespace kvant::measure
