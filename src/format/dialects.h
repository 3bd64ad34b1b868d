// Checkpoints that are quantized already, in the dialects that loaders read: which of their tensors hold codes, and
// what these stand for.
//
//   compressed-tensors  as kvant writes it (compressed_tensors.h)
//   fp8                 DeepSeek's: X.weight F8_E4M3 [out, in], X.weight_scale_inv F32 [ceil(out / 128), ceil(in /
//   128)],
//                       a scale, whatever its name says
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/quantized_layers.h"
#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::format {

struct QuantizedWeights {
  std::string description;  // "w8a8", "FP8 in blocks of 128 x 128 (DeepSeek)"
  std::vector<QuantizedLayer> layers;
  std::set<std::string, std::less<>> tensors;  // that hold the layers' codes and what goes with them
  bool fp8_kv_cache = false;
};

// Nothing where the checkpoint says nothing of quantization. Refuses other dialects by their name, and tensors that do
// not agree.
Result<std::optional<QuantizedWeights>> find_quantized_weights(const io::Checkpoint& checkpoint);

}  // namespace kvant::format
