#include "recipes/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "core/refuse.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/posix.h"
#include "recipes/manifest.h"

namespace kvant::recipes {
namespace {

namespace fs = std::filesystem;
using core::invalid_problem;
using State = OutputFolder::State;

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;
constexpr std::string_view kPartial = ".partial";

std::string shown(const fs::path& path) { return io::printable(path.string()); }

Status failed(const fs::path& path, std::string_view what, const std::error_code& error) {
  return invalid_problem("{}: {}: {}", shown(path), what, io::error_text(error.value()));
}

fs::path manifest_path(const fs::path& folder) { return folder / kOwnFolder / kManifestName; }

// The manifest of an earlier run; null if there is none that can be read.
io::Json old_manifest(const fs::path& folder) {
  const auto text = io::read_text(manifest_path(folder), kMaxManifestBytes);
  if (!text.ok()) return nullptr;
  auto parsed = io::parse_json(*text, manifest_path(folder).string());
  return parsed.ok() ? std::move(parsed).value() : io::Json();
}

std::set<std::string> shards_of(const io::Json& manifest) {
  std::set<std::string> names;
  if (!manifest.is_object() || !manifest.contains("outputs") || !manifest["outputs"].is_array()) return names;
  for (const io::Json& shard : manifest["outputs"])
    if (shard.is_string()) names.insert(shard.get<std::string>());
  return names;
}

// Names in the folder, of anything.
Result<std::vector<std::string>> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  if (error) return failed(folder, "cannot be listed", error);
  std::sort(names.begin(), names.end());
  return names;
}

// Nothing that is read may be written over, whatever link or name leads there.
Status check_protected(const OutputFolder::Request& request) {
  std::set<FileIdentity> inputs;
  for (const fs::path& path : request.protected_files)
    if (const auto identity = identity_of(path)) inputs.insert(*identity);
  for (const std::string& name : request.files) {
    const auto there = identity_of(request.path / name);
    if (there && inputs.contains(*there))
      return invalid_problem("{}: is a file of the input: the output would replace it; choose another folder",
                             shown(request.path / name));
  }
  return {};
}

Status check_force(const OutputFolder::Request& request, const std::vector<std::string>& names) {
  const std::set<std::string> old = shards_of(old_manifest(request.path));
  for (const std::string& name : names) {
    const bool replaced =
        old.contains(name) || std::find(request.files.begin(), request.files.end(), name) != request.files.end();
    if (name.ends_with(".safetensors") && !replaced)
      return invalid_problem("{}: would stay beside the new checkpoint, and loaders would read it; remove it first",
                             shown(request.path / name));
  }
  return {};
}

// Removes what an earlier run left, so that at no moment the folder looks whole.
Status clear(const OutputFolder::Request& request) {
  std::vector<fs::path> doomed = {request.path / io::kConfigName, request.path / io::kIndexName};
  for (const std::string& name : shards_of(old_manifest(request.path)))
    if (name.find('/') == std::string::npos && name.ends_with(".safetensors")) doomed.push_back(request.path / name);
  for (const std::string& name : request.files) doomed.push_back(request.path / name);
  doomed.push_back(request.path / kOwnFolder / kSmoothingName);
  doomed.push_back(manifest_path(request.path));
  for (const fs::path& path : doomed) {
    std::error_code error;
    fs::remove(path, error);
    if (error) return failed(path, "cannot be removed", error);
  }
  return {};
}

}  // namespace

std::optional<FileIdentity> identity_of(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino)};
}

Result<State> OutputFolder::look(const Request& request) {
  std::error_code error;
  const fs::file_status status = fs::status(request.path, error);
  if (!fs::exists(status)) {
    if (fs::is_symlink(fs::symlink_status(request.path, error)))
      return invalid_problem("{}: is a symbolic link that leads nowhere", shown(request.path));
    return State::fresh;
  }
  if (!fs::is_directory(status)) return invalid_problem("{}: exists and is no folder", shown(request.path));
  const auto names = names_in(request.path);
  if (!names.ok()) return names.status();
  if (Status s = check_protected(request); !s.ok()) return s;
  // An own folder without a manifest is what a kill right after its making leaves.
  std::error_code ignored;
  const bool empty = names->empty() || (names->size() == 1 && names->front() == kOwnFolder &&
                                        !fs::exists(manifest_path(request.path), ignored));
  if (empty) return State::fresh;
  if (request.force) {
    if (Status s = check_force(request, *names); !s.ok()) return s;
    return State::fresh;
  }
  const io::Json before = old_manifest(request.path);
  const bool whole = fs::exists(request.path / io::kConfigName, ignored);
  if (!request.resume)
    return invalid_problem("{}: {}", shown(request.path),
                           before.is_null() ? "exists and is not empty; choose another folder, or --force to replace it"
                           : whole ? "holds a finished run already; choose another folder, or --force to replace it"
                                   : "holds an unfinished run; continue it with --resume, or start over with --force");
  if (before.is_null())
    return invalid_problem("{}: there is nothing to resume: it has no {}/{}; choose another folder or --force",
                           shown(request.path), kOwnFolder, kManifestName);
  if (const std::string difference = manifest_difference(before, request.manifest); !difference.empty())
    return invalid_problem("{}: cannot be resumed: {}; give the same input and options, or start over with --force",
                           shown(request.path), difference);
  return whole ? State::finished : State::unfinished;
}

Result<OutputFolder> OutputFolder::open(const Request& request) {
  std::error_code error;
  fs::create_directories(request.path, error);
  if (error) return failed(request.path, "cannot be made", error);
  const int lock = ::open(request.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return invalid_problem("{}: {}", shown(request.path), io::error_text(errno));
  OutputFolder folder(request.path, lock);
  // The lock dies with the process. Where the file system has none, two runs still meet at the temporary files.
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return invalid_problem("{}: another kvant is writing into it", shown(request.path));
  const auto state = look(request);
  if (!state.ok()) return state.status();
  folder.state_ = *state;
  if (folder.state_ != State::fresh) return folder;
  if (request.force)
    if (Status s = clear(request); !s.ok()) return s;
  fs::create_directory(request.path / kOwnFolder, error);
  if (error) return failed(request.path / kOwnFolder, "cannot be made", error);
  if (Status s = io::write_file(manifest_path(request.path), request.manifest.dump(2) + "\n", true); !s.ok()) return s;
  return folder;
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)), state_(other.state_) {}

OutputFolder::~OutputFolder() {
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace kvant::recipes
