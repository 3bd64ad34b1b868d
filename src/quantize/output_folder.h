// The folder that a run writes into: new, or one whose replacement was asked for, or one to go on with. Locked while
// the run lasts.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <optional>

#include <string>
#include <vector>

#include "io/json.h"
#include "kvant/status.h"

namespace kvant::quantize {

inline constexpr const char* kOwnFolder = "kvant";
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kChecksumsName = "checksums.json";
inline constexpr const char* kSmoothingName = "smoothing.safetensors";

// "kvant/manifest.json": its name from the folder's point of view.
inline std::string own_name(const char* name) { return (std::filesystem::path(kOwnFolder) / name).string(); }

// A file by what it is, whatever its name.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};
// Nothing there: nothing.
std::optional<FileIdentity> identity_of(const std::filesystem::path& path);

// Makes the folders between `folder` and the file that will have this name in it, and flushes what they were made in.
Status make_folders_of(const std::filesystem::path& folder, const std::string& name);

class OutputFolder {
 public:
  struct Request {
    std::filesystem::path path;
    bool resume = false;
    bool force = false;
    io::Json manifest;
    std::vector<std::string> files;                      // all names that the run writes, relative to the folder
    std::vector<std::filesystem::path> protected_files;  // what it reads
  };

  enum class State : std::uint8_t {
    fresh,       // nothing of this run is there
    unfinished,  // this very run was interrupted
    finished,    // this very run had come to its end: it has a config.json
  };

  // Looks and refuses, and touches nothing.
  static Result<State> look(const Request& request);
  // look() again under the lock, then makes the folder, removes what `force` gives up (config.json and the index
  // first), and writes the manifest. A finished run becomes an unfinished one: it loses its config.json.
  static Result<OutputFolder> open(const Request& request);

  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

  State state() const { return state_; }
  std::filesystem::path own(const char* name) const { return path_ / own_name(name); }

 private:
  OutputFolder(std::filesystem::path path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::filesystem::path path_;
  int lock_ = -1;
  State state_ = State::fresh;
};

}  // namespace kvant::quantize
