// A file that appears whole or not at all: written under a temporary name in its folder, then flushed to the disk,
// renamed, and the folder flushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "kvant/status.h"

namespace kvant::io {

// What the name of a temporary file ends in.
inline constexpr std::string_view kPartialSuffix = ".partial";
inline std::filesystem::path partial_of(std::filesystem::path final_path) { return final_path += kPartialSuffix; }

class AtomicFile {
 public:
  // The temporary file is "<name>.partial" beside the final one, made new (O_EXCL; a symbolic link is not followed).
  // `replace_partial`: one that is left over from a run that was killed is removed first; otherwise it is refused.
  static Result<AtomicFile> create(const std::filesystem::path& final_path, bool replace_partial);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  // Removes the temporary file unless commit() succeeded.
  ~AtomicFile();

  // Appends to what write() wrote before. A full disk is "model.safetensors.partial: no space left on device after 123
  // bytes". The limit of the process on file sizes is a refusal too, if SIGXFSZ is ignored; else it is that signal.
  Status write(std::span<const std::byte> bytes);
  // At a position; the file grows to hold it. May be called from many threads, for ranges that do not overlap.
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Flushes, renames and flushes the folder. `overwrite` false: refused if the final name exists by now, without a gap
  // in which it could appear (renameat2 with RENAME_NOREPLACE, or link and unlink where that is missing). A refusal
  // removes the temporary file and leaves no final name, or the one that was there. Only where the folder cannot be
  // flushed after something was overwritten does the new file stay. Either way the object is done.
  Status commit(bool overwrite);

  const std::filesystem::path& final_path() const { return final_path_; }

 private:
  AtomicFile() = default;
  std::filesystem::path final_path_;
  std::filesystem::path partial_path_;
  int descriptor_ = -1;
  std::uint64_t position_ = 0;
};

// Writes a small file in one call. `overwrite` is also for a temporary file that is left over.
Status write_file(const std::filesystem::path& path, std::string_view text, bool overwrite);

}  // namespace kvant::io
