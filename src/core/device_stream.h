// What a plan knows of a GPU's stream, without any of CUDA's headers.
#pragma once

#include <cstdint>

namespace kvant::detail {

struct DeviceStream {
  void* handle = nullptr;        // the cudaStream_t
  int device = 0;                // that it belongs to
  int multiprocessors = 1;       // of the device
  std::int64_t max_blocks = 64;  // a grid has at most so many blocks and strides over the rest of its work
};

}  // namespace kvant::detail
