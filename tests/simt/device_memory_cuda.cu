#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "tests/simt/device_memory.h"

namespace kvant::simt {
namespace {

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

// cudaMalloc aligns to 256.
DeviceBuffer::DeviceBuffer(std::size_t bytes, std::size_t shift) : allocation_(nullptr), data_(nullptr), size_(bytes) {
  void* p = nullptr;
  require(cudaMalloc(&p, std::max<std::size_t>(shift + bytes, 1)), "cudaMalloc");
  allocation_ = static_cast<std::byte*>(p);
  data_ = allocation_ + shift;
}

DeviceBuffer::~DeviceBuffer() { cudaFree(allocation_); }

// Copies wait for the kernels of every stream, whichever the test uses.
void DeviceBuffer::upload(std::span<const std::byte> from) {
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  require(cudaMemcpy(data_, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void DeviceBuffer::download(std::span<std::byte> to) const {
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  require(cudaMemcpy(to.data(), data_, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
}

void DeviceBuffer::fill(std::byte value) {
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  require(cudaMemset(data_, std::to_integer<int>(value), size_), "cudaMemset");
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace kvant::simt
