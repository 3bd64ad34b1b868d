// A descriptor of the system that closes itself, and writing to one.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "kvant/status.h"

namespace kvant::io {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

inline int open_again(const char* path, int flags, mode_t mode = 0) {
  int descriptor = -1;
  do {
    descriptor = ::open(path, flags | O_CLOEXEC, mode);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// What a write came to: how many bytes, and 0 or the error that ended it.
struct Written {
  std::size_t bytes = 0;
  int error = 0;
};
Written write_all(int descriptor, std::uint64_t offset, std::span<const std::byte> bytes);

// `where` is "after 123 bytes" or "at byte 123".
Status refuse_write(const std::filesystem::path& path, int error, const std::string& where);
// Both: "model.safetensors.partial: no space left on device at byte 123".
Status write_at(int descriptor, const std::filesystem::path& path, std::uint64_t offset,
                std::span<const std::byte> bytes);

}  // namespace kvant::io
