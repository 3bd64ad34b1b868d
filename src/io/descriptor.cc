#include "io/descriptor.h"

#include <algorithm>

#include "base/refuse.h"
#include "io/posix.h"

namespace kvant::io {

using base::invalid_problem;

Status refuse_write(const std::filesystem::path& path, int error, const std::string& where) {
  switch (error) {
    case ENOSPC: return invalid_problem("{}: no space left on device {}", printable_path(path), where);
    case EDQUOT: return invalid_problem("{}: disk quota exceeded {}", printable_path(path), where);
    case EFBIG:
      return invalid_problem("{}: file too large for the file system or for the limit of the process {}",
                             printable_path(path), where);
    default: return invalid_problem("{}: writing: {} {}", printable_path(path), error_text(error), where);
  }
}

Written write_all(int descriptor, std::uint64_t offset, std::span<const std::byte> bytes) {
  Written written;
  while (written.bytes < bytes.size()) {
    const std::span<const std::byte> rest = bytes.subspan(written.bytes);
    const ssize_t count =
        ::pwrite(descriptor, rest.data(), std::min(rest.size(), kMaxChunk), static_cast<off_t>(offset + written.bytes));
    if (count > 0) {
      written.bytes += static_cast<std::size_t>(count);
    } else if (count == 0) {
      // No file system does this; asking forever would be worse than a wrong word.
      written.error = EIO;
      return written;
    } else if (errno != EINTR) {
      written.error = errno;
      return written;
    }
  }
  return written;
}

Status write_at(int descriptor, const std::filesystem::path& path, std::uint64_t offset,
                std::span<const std::byte> bytes) {
  if (Status status = check_range(path, offset, bytes.size()); !status.ok()) return status;
  const Written written = write_all(descriptor, offset, bytes);
  if (written.error == 0) return {};
  return refuse_write(path, written.error, base::text("at byte {}", offset + written.bytes));
}

}  // namespace kvant::io
