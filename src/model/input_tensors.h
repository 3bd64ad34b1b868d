// What a checkpoint holds, as quantizing takes it: its tensors, but in place of codes the weights that they stand for,
// and in place of a stack of experts the Linears that it is made of, under the names that loaders want.
//
//   experts.gate_up_proj [E, 2I, H]  becomes  experts.0.gate_proj.weight [I, H], experts.0.up_proj.weight, …
//   experts.down_proj    [E, H, I]   becomes  experts.0.down_proj.weight [H, I], …
//
// Some families store the matrices turned, [E, H, 2I] and [E, I, H] (families.h). Codes of a whole stack, as gpt-oss
// has them, become the stack of its family: X_blocks [E, out, in / 32, 16] and X_scales become X [E, in, out].
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/weight_source.h"
#include "io/checkpoint.h"
#include "kvant/status.h"

namespace kvant::model {

struct InputTensor {
  io::TensorInfo info;    // name, dtype and shape; of decoded weights the dtype of the model
  std::size_t shard = 0;  // that it is stored in
  std::uint64_t stored_bytes = 0;
  std::optional<format::WeightSource> source = std::nullopt;  // nothing: the tensor of that name as it is
  bool is_decoded() const { return source && source->codes; }
};

struct InputTensors {
  std::vector<InputTensor> tensors;  // shard by shard, in the order of the data
  std::string quantized_as;          // of what is quantized already; empty: nothing is
  bool is_compressed_tensors = false;
  bool fp8_kv_cache = false;
};

Result<InputTensors> input_tensors(const io::Checkpoint& checkpoint);

}  // namespace kvant::model
