#include "quantize/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/refuse.h"
#include "io/atomic_file.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/posix.h"
#include "quantize/manifest.h"

namespace kvant::quantize {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;
using State = OutputFolder::State;

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;

Status failed(const fs::path& path, std::string_view what, const std::error_code& error) {
  return invalid_problem("{}: {}: {}", io::printable_path(path), what, io::error_text(error.value()));
}

fs::path manifest_path(const fs::path& folder) { return folder / own_name(kManifestName); }

// The manifest of an earlier run; null if there is none that can be read.
io::Json old_manifest(const fs::path& folder) {
  const auto text = io::read_text(manifest_path(folder), kMaxManifestBytes);
  if (!text.ok()) return nullptr;
  auto parsed = io::parse_json(*text, manifest_path(folder).string());
  return parsed.ok() ? std::move(parsed).value() : io::Json();
}

// The folders between this one and a file in it, from above: "a" and "a/b" of "a/b/c".
std::vector<fs::path> folders_above(const fs::path& folder, const std::string& name) {
  std::vector<fs::path> folders;
  fs::path at = folder;
  for (const fs::path& part : fs::path(name).parent_path()) folders.push_back(at /= part);
  return folders;
}

// A name in this very folder or below it, where no link leads out of it.
bool is_own_name(const fs::path& folder, const std::string& name) {
  const fs::path path = name;
  if (path.empty() || path.is_absolute()) return false;
  for (const fs::path& part : path)
    if (part == "." || part == "..") return false;
  std::error_code error;
  return std::ranges::none_of(folders_above(folder, name),
                              [&](const fs::path& above) { return fs::is_symlink(fs::symlink_status(above, error)); });
}

// What an earlier run wrote, by its manifest.
std::set<std::string> outputs_of(const fs::path& folder, const io::Json& manifest) {
  std::set<std::string> names;
  if (!manifest.is_object() || !manifest.contains("outputs") || !manifest["outputs"].is_array()) return names;
  for (const io::Json& output : manifest["outputs"])
    if (output.is_string() && is_own_name(folder, output.get_ref<const std::string&>()))
      names.insert(output.get<std::string>());
  return names;
}

// Everything that the run may remove or write over, config.json and the index first, the manifest last.
std::vector<fs::path> touched(const OutputFolder::Request& request) {
  std::set<std::string> names = outputs_of(request.path, old_manifest(request.path));
  names.insert(request.files.begin(), request.files.end());
  const std::string manifest = own_name(kManifestName);
  names.insert(own_name(kSmoothingName));
  std::vector<std::string> ordered = {std::string(io::kConfigName), std::string(io::kIndexName)};
  for (const std::string& name : names)
    if (name != manifest && std::find(ordered.begin(), ordered.end(), name) == ordered.end()) ordered.push_back(name);
  ordered.push_back(manifest);
  std::vector<fs::path> paths;
  for (const std::string& name : ordered)
    for (const std::string_view suffix : {std::string_view(), io::kPartialSuffix})
      paths.push_back(request.path / (name + std::string(suffix)));
  return paths;
}

// So that what was made or removed in it survives a power cut.
Status flush(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return invalid_problem("{}: {}", io::printable_path(folder), io::error_text(errno));
  // Some file systems have no flushing of folders, and say so.
  const bool bad = ::fsync(descriptor) != 0 && errno != EINVAL && errno != ENOTSUP;
  const int error = errno;
  ::close(descriptor);
  return bad ? invalid_problem("{}: {}", io::printable_path(folder), io::error_text(error)) : Status();
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
  for (const fs::path& path : touched(request)) {
    const auto there = identity_of(path);
    if (there && inputs.contains(*there))
      return invalid_problem("{}: is a file of the input, which the output would replace; choose another folder",
                             io::printable_path(path));
  }
  return {};
}

// Where the run writes below the folder there are folders, or nothing yet: a link would lead out of it.
Status check_folders_below(const OutputFolder::Request& request) {
  std::set<fs::path> folders = {request.path / kOwnFolder};
  for (const std::string& name : request.files)
    for (fs::path& above : folders_above(request.path, name)) folders.insert(std::move(above));
  for (const fs::path& folder : folders) {
    std::error_code error;
    const auto kind = fs::symlink_status(folder, error).type();
    if (kind != fs::file_type::not_found && kind != fs::file_type::directory)
      return invalid_problem("{}: must be a folder, or must not exist", io::printable_path(folder));
  }
  return {};
}

Status check_force(const OutputFolder::Request& request, const std::vector<std::string>& names) {
  const std::set<std::string> old = outputs_of(request.path, old_manifest(request.path));
  for (const std::string& name : names) {
    const bool replaced =
        old.contains(name) || std::find(request.files.begin(), request.files.end(), name) != request.files.end();
    if (name.ends_with(".safetensors") && !replaced)
      return invalid_problem("{}: would stay next to the new checkpoint, and loaders would read it; remove it first",
                             io::printable_path(request.path / name));
  }
  return {};
}

Status remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  return error ? failed(path, "cannot be removed", error) : Status();
}

// Takes from a folder what makes it look whole, before anything else in it changes.
Status open_up(const fs::path& folder) {
  for (const std::string_view name : {io::kConfigName, io::kIndexName})
    if (Status s = remove_file(folder / name); !s.ok()) return s;
  return flush(folder);
}

// Removes what an earlier run left, so that at no moment the folder looks whole.
Status clear(const OutputFolder::Request& request) {
  if (Status s = open_up(request.path); !s.ok()) return s;
  const std::set<std::string> old = outputs_of(request.path, old_manifest(request.path));
  for (const fs::path& path : touched(request))
    if (Status s = remove_file(path); !s.ok()) return s;
  // The folders that it made, where nobody else put anything into them: the innermost first.
  std::error_code ignored;
  for (const std::string& name : old) {
    const std::vector<fs::path> above = folders_above(request.path, name);
    for (auto it = above.rbegin(); it != above.rend(); ++it)
      if (fs::is_empty(*it, ignored)) fs::remove(*it, ignored);
  }
  return {};
}

}  // namespace

std::optional<FileIdentity> identity_of(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino)};
}

Status make_folders_of(const fs::path& folder, const std::string& name) {
  for (const fs::path& above : folders_above(folder, name)) {
    std::error_code error;
    if (!fs::create_directory(above, error) && !error) continue;
    if (error) return failed(above, "cannot be made", error);
    if (Status s = flush(above.parent_path()); !s.ok()) return s;
  }
  return {};
}

Result<State> OutputFolder::look(const Request& request) {
  std::error_code error;
  const fs::file_status status = fs::status(request.path, error);
  if (!fs::exists(status)) {
    if (fs::is_symlink(fs::symlink_status(request.path, error)))
      return invalid_problem("{}: is a broken symbolic link", io::printable_path(request.path));
    return State::fresh;
  }
  if (!fs::is_directory(status))
    return invalid_problem("{}: exists and is not a folder", io::printable_path(request.path));
  const auto names = names_in(request.path);
  if (!names.ok()) return names.status();
  if (Status s = check_folders_below(request); !s.ok()) return s;
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
    return invalid_problem("{}: {}", io::printable_path(request.path),
                           before.is_null()
                               ? "exists and is not empty; choose another folder, or use --force to replace it"
                           : whole ? "already holds a finished run; choose another folder, or use --force to replace it"
                                   : "holds an unfinished run; continue it with --resume, or start over with --force");
  if (before.is_null())
    return invalid_problem("{}: there is nothing to resume: it has no {}/{}; choose another folder or use --force",
                           io::printable_path(request.path), kOwnFolder, kManifestName);
  if (const std::string difference = manifest_difference(before, request.manifest); !difference.empty())
    return invalid_problem("{}: cannot be resumed: {}; give the same input and options, or start over with --force",
                           io::printable_path(request.path), difference);
  return whole ? State::finished : State::unfinished;
}

Result<OutputFolder> OutputFolder::open(const Request& request) {
  std::error_code error;
  fs::create_directories(request.path, error);
  if (error) return failed(request.path, "cannot be made", error);
  const int lock = ::open(request.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock < 0) return invalid_problem("{}: {}", io::printable_path(request.path), io::error_text(errno));
  OutputFolder folder(request.path, lock);
  // The lock dies with the process. Where the file system has none, two runs still meet at the temporary files.
  if (::flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return invalid_problem("{}: another kvant is writing to it", io::printable_path(request.path));
  const auto state = look(request);
  if (!state.ok()) return state.status();
  folder.state_ = *state;
  if (folder.state_ == State::finished) {
    if (Status s = open_up(request.path); !s.ok()) return s;
    folder.state_ = State::unfinished;
  }
  if (folder.state_ == State::unfinished) return folder;
  if (request.force)
    if (Status s = clear(request); !s.ok()) return s;
  fs::create_directory(request.path / kOwnFolder, error);
  if (error) return failed(request.path / kOwnFolder, "cannot be made", error);
  if (Status s = flush(request.path); !s.ok()) return s;
  if (Status s = flush(fs::absolute(request.path).lexically_normal().parent_path()); !s.ok()) return s;
  if (Status s = io::write_file(manifest_path(request.path), request.manifest.dump(2) + "\n", true); !s.ok()) return s;
  return folder;
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)), state_(other.state_) {}

OutputFolder::~OutputFolder() {
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace kvant::quantize
