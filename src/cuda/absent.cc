// The CUDA backend of a build without CUDA.
#include "base/refuse.h"
#include "core/cuda_backend.h"

namespace kvant::cuda {

bool is_built() { return false; }

Result<detail::DeviceStream> open_stream(CUstream_st*) {
  return base::unsupported(
      "cuda: this build of kvant has no CUDA; build it with -DKVANT_CUDA=ON on a machine with nvcc");
}

Status launch_status(std::string_view, int) { return {}; }
int current_device() { return -1; }

detail::KernelSet kernel_set() { return {ArchSku::sm_80, {}}; }

}  // namespace kvant::cuda
