// Device memory for tests that run on the executor (device_memory.cc) and on a GPU (device_memory_cuda.cu).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvant::simt {

// Nothing is registered before data() or behind data() + size(). Where CUDA refuses, these throw std::runtime_error.
class DeviceBuffer {
 public:
  // data() is `shift` bytes behind a multiple of 256.
  explicit DeviceBuffer(std::size_t bytes, std::size_t shift = 0);
  explicit DeviceBuffer(std::span<const std::byte> content, std::size_t shift = 0)
      : DeviceBuffer(content.size(), shift) {
    upload(content);
  }
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // The first bytes, as many as the span has.
  void upload(std::span<const std::byte> from);
  void download(std::span<std::byte> to) const;
  std::vector<std::byte> download() const {
    std::vector<std::byte> bytes(size_);
    download(bytes);
    return bytes;
  }
  void fill(std::byte value);

 private:
  std::byte* allocation_;
  std::byte* data_;
  std::size_t size_;
};

}  // namespace kvant::simt
