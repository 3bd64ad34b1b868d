// What goes with codes that get another layout and stay what they are: scales that lie as they did, and single numbers.
#pragma once

#include "format/quantized_layers.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "kvant/status.h"
#include "quantize/shard_layout.h"

namespace kvant::quantize {

// Writes all of a layer but its codes, and scales and zero points that are stored turned (TensorStream does).
Status recode_parts(const io::Checkpoint& checkpoint, const ShardLayout::Entry& entry, const format::Scheme& scheme,
                    io::AtomicFile& file);

}  // namespace kvant::quantize
