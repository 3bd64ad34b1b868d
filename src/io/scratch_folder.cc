#include "io/scratch_folder.h"

#include <sys/file.h>

#include <cstdlib>
#include <system_error>
#include <vector>

#include "base/refuse.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/posix.h"

namespace kvant::io {
namespace {

namespace fs = std::filesystem;
using base::invalid_problem;

bool is_ours(std::string_view name) {
  if (name.ends_with(kPartialSuffix)) name.remove_suffix(kPartialSuffix.size());
  return name.ends_with(kScratchSuffix);
}

Result<std::vector<fs::path>> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    if (!is_ours(path.filename().native()) || !it->is_regular_file(error) || it->is_symlink(error))
      return invalid_problem("{}: holds {}, which is no scratch file; choose another folder with --scratch",
                             printable_path(folder), printable_path(path.filename()));
    files.push_back(path);
  }
  if (error) return invalid_problem("{}: {}", printable_path(folder), error_text(error.value()));
  return files;
}

Status remove_files(const fs::path& folder) {
  const auto files = files_in(folder);
  if (!files.ok()) return files.status();
  for (const fs::path& path : *files) {
    std::error_code error;
    fs::remove(path, error);
    if (error) return invalid_problem("{}: removing it: {}", printable_path(path), error_text(error.value()));
  }
  return {};
}

}  // namespace

Result<ScratchFolder> ScratchFolder::open(const fs::path& path, bool keep) {
  if (Status s = check_path(path); !s.ok()) return s;
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return invalid_problem("{}: cannot be made: {}", printable_path(path), error_text(error.value()));
  const int descriptor = open_again(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return invalid_problem("{}: {}", printable_path(path), error_text(errno));
  ScratchFolder folder(path, descriptor);
  // The lock dies with the process.
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return invalid_problem("{}: another kvant is using it; choose another folder with --scratch", printable_path(path));
  if (const auto files = files_in(path); !files.ok()) return files.status();
  if (!keep)
    if (Status s = remove_files(path); !s.ok()) return s;
  return folder;
}

fs::path ScratchFolder::file(std::string_view name) const {
  return path_ / (std::string(name) + std::string(kScratchSuffix));
}

Status ScratchFolder::remove() {
  if (Status s = remove_files(path_); !s.ok()) return s;
  std::error_code error;
  fs::remove(path_, error);
  return error ? invalid_problem("{}: removing it: {}", printable_path(path_), error_text(error.value())) : Status();
}

fs::path default_scratch_folder(std::string_view name) {
  const auto set = [](const char* variable) -> fs::path {
    const char* const value = std::getenv(variable);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  // The specification of base directories has relative paths ignored.
  fs::path cache = set("XDG_CACHE_HOME");
  if (!cache.is_absolute()) {
    const fs::path home = set("HOME");
    if (!home.is_absolute()) return {};
    cache = home / ".cache";
  }
  return cache / "kvant" / name;
}

}  // namespace kvant::io
