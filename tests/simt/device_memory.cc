#include "tests/simt/device_memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/simt/simt.h"

namespace kvant::simt {
namespace {

constexpr std::align_val_t kAlignment{256};

}  // namespace

// The allocation ends with the region, so that AddressSanitizer sees what goes beyond.
DeviceBuffer::DeviceBuffer(std::size_t bytes, std::size_t shift)
    : allocation_(static_cast<std::byte*>(::operator new(shift + bytes, kAlignment))),
      data_(allocation_ + shift),
      size_(bytes) {
  register_region(data_, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  unregister_region(data_);
  ::operator delete(allocation_, kAlignment);
}

void DeviceBuffer::upload(std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(data_, from.data(), from.size());
}

void DeviceBuffer::download(std::span<std::byte> to) const {
  if (!to.empty()) std::memcpy(to.data(), data_, to.size());
}

void DeviceBuffer::fill(std::byte value) { std::fill(data_, data_ + size_, value); }

}  // namespace kvant::simt
