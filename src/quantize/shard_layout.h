// Where everything goes in a new shard, before a byte of it is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "kvant/status.h"
#include "quantize/checkpoint_plan.h"
#include "quantize/tensor_stream.h"

namespace kvant::quantize {

// A shard as it will be: its header, and for each tensor of the plan where its outputs go.
struct ShardLayout {
  struct Entry {
    const TensorPlan* plan = nullptr;
    TensorStream::Places places;
    // Positions in the file, where there are any.
    std::uint64_t weight_shape = 0, global_scale = 0, input_scale = 0, input_zero_point = 0, input_global_scale = 0;
  };
  std::string header;
  std::uint64_t file_bytes = 0;
  std::vector<Entry> entries;
  std::vector<std::string> names;
  std::uint64_t tensor_bytes = 0;
};

// Tensors with wide elements come first, so that every one is aligned to its own width. `with_config`: a single file
// has "quantization_config" in its metadata.
Result<ShardLayout> lay_out_shard(const io::Checkpoint& checkpoint, std::size_t shard, const CheckpointPlan& plan,
                                  bool with_config);

// Is a shard there with this header and so many bytes? Its name is final, so its data were on the disk before it.
Result<bool> is_shard_there(const std::filesystem::path& path, std::string_view header, std::uint64_t file_bytes);

}  // namespace kvant::quantize
