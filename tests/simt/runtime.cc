// The runtime half of the CUDA backend (core/cuda_backend.h) for the executor.
#include <fmt/format.h>

#include "core/cuda_backend.h"
#include "tests/simt/machine.h"
#include "tests/simt/simt.h"

namespace kvant::cuda {

bool is_built() { return true; }

Result<detail::DeviceStream> open_stream(CUstream_st* stream) {
  return detail::DeviceStream{.handle = stream,
                              .device = simt::settings().device,
                              .multiprocessors = 2,
                              .max_blocks = simt::settings().max_blocks};
}

int current_device() { return simt::settings().device; }

Status launch_status(std::string_view who, int error) {
  if (error == 0) return {};
  return Status(StatusCode::Internal, fmt::format("{}: {}", who, simt::error_text(error)));
}

}  // namespace kvant::cuda
