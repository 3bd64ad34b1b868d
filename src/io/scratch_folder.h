// A folder for what a long run must not lose while it works: locked by the run that uses it, kept when the run ends
// early, removed when it has done its work. All files in it end in kScratchSuffix; a folder with anything else is not
// ours and is refused.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/descriptor.h"
#include "kvant/status.h"

namespace kvant::io {

inline constexpr std::string_view kScratchSuffix = ".scratch";

class ScratchFolder {
 public:
  // Makes the folder where it is missing. `keep`: what an earlier run left stays; otherwise it is removed.
  static Result<ScratchFolder> open(const std::filesystem::path& path, bool keep);

  const std::filesystem::path& path() const { return path_; }
  // "FOLDER/NAME.scratch"
  std::filesystem::path file(std::string_view name) const;

  // Removes its files, and the folder.
  Status remove();

 private:
  ScratchFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::filesystem::path path_;
  Descriptor lock_;
};

// Where a run that is told nothing else keeps its scratch folder: "kvant/NAME" in $XDG_CACHE_HOME or ~/.cache. Empty
// where the environment names neither.
std::filesystem::path default_scratch_folder(std::string_view name);

}  // namespace kvant::io
