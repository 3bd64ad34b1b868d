// The device behind a stream, and what its errors are called.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/refuse.h"
#include "core/cuda_backend.h"

namespace kvant::cuda {
namespace {

// CUDA's own reason, with the name that a search engine knows.
Status unavailable(cudaError_t error) {
  (void)cudaGetLastError();  // it is told here, and not once more by the host program's next call
  return base::refuse(StatusCode::DeviceUnavailable, "cuda: {} ({})", cudaGetErrorString(error),
                      cudaGetErrorName(error));
}

}  // namespace

bool is_built() { return true; }

Result<detail::DeviceStream> open_stream(CUstream_st* stream) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) return unavailable(error);
  int device = 0, major = 0, multiprocessors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return unavailable(error);
  if (stream != nullptr)
    if (const cudaError_t error = cudaStreamGetDevice(stream, &device); error != cudaSuccess) return unavailable(error);
  if (const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      error != cudaSuccess)
    return unavailable(error);
  if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return unavailable(error);
  constexpr int kMinMajor = 8;
  if (major < kMinMajor)
    return base::refuse(StatusCode::DeviceUnavailable, "cuda: device {} has compute capability {}.x, kvant needs {}.0",
                        device, major, kMinMajor);
  // Enough blocks to even out their ends; the kernels stride over the rest.
  constexpr std::int64_t kBlocksPerMultiprocessor = 32;
  return detail::DeviceStream{stream, device, multiprocessors, std::max(1, multiprocessors) * kBlocksPerMultiprocessor};
}

int current_device() {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) return device;
  (void)cudaGetLastError();
  return -1;
}

Status launch_status(std::string_view who, int error) {
  if (error == cudaSuccess) return {};
  const auto code = static_cast<cudaError_t>(error);
  return base::refuse(StatusCode::Internal, "{}: CUDA refused the launch: {} ({})", who, cudaGetErrorString(code),
                      cudaGetErrorName(code));
}

}  // namespace kvant::cuda
