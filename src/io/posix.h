// What the files of this folder share: the words of the system in kvant's sentences.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "base/refuse.h"
#include "io/file.h"
#include "kvant/status.h"

namespace kvant::io {

// What a system call can be given as an offset.
inline constexpr auto kMaxOffset = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());

// A call moves at most this much; Linux itself stops a little below 2 GiB.
inline constexpr std::size_t kMaxChunk = std::size_t{1} << 30;

// "no such file or directory" for ENOENT.
inline std::string error_text(int error) {
  std::string text = std::generic_category().message(error);
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

inline std::string_view kind_of_file(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a fifo";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "of an unknown kind";
}

// The system would take the text before a NUL for the whole path, and so another file.
inline Status check_path(const std::filesystem::path& path) {
  const std::size_t place = path.native().find('\0');
  if (place == std::string::npos) return {};
  return base::invalid_problem("{}: the path has a NUL at byte {}", printable_path(path), place);
}

// Refuses a range whose end no offset can name.
inline Status check_range(const std::filesystem::path& path, std::uint64_t offset, std::size_t bytes) {
  if (offset <= kMaxOffset && bytes <= kMaxOffset - offset) return {};
  return base::invalid_problem("{}: {} bytes from {} end beyond the largest offset {}", printable_path(path), bytes,
                               offset, kMaxOffset);
}

}  // namespace kvant::io
