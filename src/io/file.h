// A file that is read at positions. Not a memory map: where a file shrinks while it is read, or a disk fails, that is
// an error with a sentence and not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::io {

// Sizes and offsets in a file: what the system's calls can name.
inline constexpr std::uint64_t kMaxFileBytes = std::numeric_limits<std::int64_t>::max();

// "model.safetensors" or "model\x1b[0m": names from outside, with control characters, quotes, backslashes, changes of
// direction and invalid UTF-8 escaped, so that printing them changes nothing but the screen's text. At most 200
// characters: of longer ones, "…" stands for the middle.
std::string printable(std::string_view text);
bool is_utf8(std::string_view text);
// Not an overload: a std::string would fit both.
inline std::string printable_path(const std::filesystem::path& path) { return printable(path.native()); }

class InputFile {
 public:
  // Follows symbolic links (the Hugging Face cache is made of them). Refuses what is not a regular file.
  static Result<InputFile> open(const std::filesystem::path& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return opened_.path; }
  // When it was opened.
  std::uint64_t size() const { return opened_.size; }
  // Which file it is, whatever its name.
  std::uint64_t device() const { return opened_.device; }
  std::uint64_t inode() const { return opened_.inode; }
  std::int64_t modified_ns() const { return opened_.modified_ns; }

  // Fills all of `to` from `offset` on, or refuses: "model.safetensors: ends at byte 100, wanted 200 bytes from 50".
  // May be called from many threads.
  Status read(std::uint64_t offset, std::span<std::byte> to) const;

  // Refuses a file whose size or time of modification is no longer what it was when it was opened.
  Status check_unchanged() const;

 private:
  InputFile() = default;
  // Moves as one.
  struct Opened {
    std::filesystem::path path;
    int descriptor = -1;
    std::uint64_t size = 0;
    std::uint64_t device = 0, inode = 0;
    std::int64_t modified_ns = 0;
  };
  Opened opened_;
};

}  // namespace kvant::io
