#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "io/descriptor.h"
#include "io/posix.h"

namespace kvant::io {
namespace {

using base::invalid_problem;

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

int open_folder(const fs::path& folder) { return open_again(folder.c_str(), O_RDONLY | O_DIRECTORY); }

// 0, or the error.
int flush(int descriptor) {
  int result = 0;
  do {
    result = ::fsync(descriptor);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

// Some file systems have nothing to flush for a folder and say so.
int flush_folder(int descriptor) {
  const int error = flush(descriptor);
  return error == EINVAL || error == ENOTSUP || error == ENOSYS ? 0 : error;
}

// 0, or the error. On Linux a descriptor is gone after EINTR as well, and closing it again could hit another file.
int close_once(int descriptor) { return ::close(descriptor) == 0 || errno == EINTR ? 0 : errno; }

bool is_same(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

// Whether the name still means that file: another run may have taken the name for its own.
bool names(const fs::path& path, const struct stat& file) {
  struct stat facts {};
  return ::lstat(path.c_str(), &facts) == 0 && is_same(facts, file);
}

void remove_if_names(const fs::path& path, const struct stat& file) {
  if (names(path, file)) ::unlink(path.c_str());
}

// Gives the file its final name where that is free. 0, or the error: EEXIST where it is not.
int rename_to_free_name(const fs::path& from, const fs::path& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  // An old kernel, or a file system that does not know the flag.
  if (errno != ENOSYS && errno != EINVAL) return errno;
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  // Where this fails, a second name of the whole file is left over. The next run replaces it as any other.
  ::unlink(from.c_str());
  return 0;
}

// Removes what a killed run may have left, and nothing else.
Status remove_partial(const fs::path& partial) {
  struct stat facts {};
  if (::lstat(partial.c_str(), &facts) != 0) {
    if (errno == ENOENT) return {};
    return invalid_problem("{}: {}", printable_path(partial), error_text(errno));
  }
  if (!S_ISREG(facts.st_mode) && !S_ISLNK(facts.st_mode))
    return invalid_problem("{}: is {}, must be a regular file to be replaced", printable_path(partial),
                           kind_of_file(facts.st_mode));
  if (::unlink(partial.c_str()) != 0 && errno != ENOENT)
    return invalid_problem("{}: removing it: {}", printable_path(partial), error_text(errno));
  return {};
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const fs::path& final_path, bool replace_partial) {
  if (Status status = check_path(final_path); !status.ok()) return status;
  const fs::path name = final_path.filename();
  if (name.empty() || name == "." || name == "..")
    return invalid_problem("\"{}\": the path must end in a file name", printable_path(final_path));
  // Also because a folder that cannot be opened could not be flushed, which is better known before the work.
  const fs::path folder = folder_of(final_path);
  if (const Descriptor opened(open_folder(folder)); opened.get() < 0)
    return invalid_problem("{}: the folder {}: {}", printable_path(final_path), printable_path(folder),
                           error_text(errno));

  fs::path partial = partial_of(final_path);
  if (replace_partial)
    if (Status status = remove_partial(partial); !status.ok()) return status;

  AtomicFile file;
  file.final_path_ = final_path;
  file.descriptor_ = open_again(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  if (file.descriptor_ < 0) {
    const int error = errno;
    if (error == EEXIST)
      return invalid_problem("{}: already exists; a run is writing it, or was killed", printable_path(partial));
    return invalid_problem("{}: {}", printable_path(partial), error_text(error));
  }
  // Only now, as the destructor removes what has this name.
  file.partial_path_ = std::move(partial);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : final_path_(std::exchange(other.final_path_, {})),
      partial_path_(std::exchange(other.partial_path_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      position_(std::exchange(other.position_, 0)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  // Through a third, which then removes what this one was writing; an assignment to itself keeps the file.
  AtomicFile taken(std::move(other));
  std::swap(final_path_, taken.final_path_);
  std::swap(partial_path_, taken.partial_path_);
  std::swap(descriptor_, taken.descriptor_);
  std::swap(position_, taken.position_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  struct stat facts {};
  if (::fstat(descriptor_, &facts) == 0) remove_if_names(partial_path_, facts);
  ::close(descriptor_);
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  if (descriptor_ < 0) return invalid_problem("{}: the file is not open", printable_path(final_path_));
  if (Status status = check_range(partial_path_, position_, bytes.size()); !status.ok()) return status;
  const Written written = write_all(descriptor_, position_, bytes);
  position_ += written.bytes;
  if (written.error == 0) return {};
  return refuse_write(partial_path_, written.error, fmt::format("after {} bytes", position_));
}

Status AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (descriptor_ < 0) return invalid_problem("{}: the file is not open", printable_path(final_path_));
  return io::write_at(descriptor_, partial_path_, offset, bytes);
}

Status AtomicFile::commit(bool overwrite) {
  if (descriptor_ < 0) return invalid_problem("{}: the file is not open", printable_path(final_path_));
  // Whatever happens below, this object is done: what is not committed is removed here, while it is known by its
  // inode.
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0)
    return invalid_problem("{}: {}", printable_path(partial_path_), error_text(errno));
  const auto discard = [&](Status status) {
    remove_if_names(partial_path_, facts);
    return status;
  };
  const fs::path folder = folder_of(final_path_);
  // Before the rename, after which it would be too late to refuse.
  const Descriptor folder_descriptor(open_folder(folder));
  const int folder_error = folder_descriptor.get() < 0 ? errno : 0;
  const int flush_error = flush(descriptor_);
  const int close_error = close_once(std::exchange(descriptor_, -1));
  if (folder_error != 0)
    return discard(invalid_problem("{}: the folder {}: {}", printable_path(final_path_), printable_path(folder),
                                   error_text(folder_error)));
  if (flush_error != 0)
    return discard(
        invalid_problem("{}: flushing it to disk: {}", printable_path(partial_path_), error_text(flush_error)));
  if (close_error != 0)
    return discard(invalid_problem("{}: closing it: {}", printable_path(partial_path_), error_text(close_error)));
  // Another run that was told to replace the partial file has its own half-written one under this name.
  if (!names(partial_path_, facts))
    return invalid_problem("{}: was removed or replaced while it was written", printable_path(partial_path_));

  int error = 0;
  if (overwrite)
    error = ::rename(partial_path_.c_str(), final_path_.c_str()) == 0 ? 0 : errno;
  else
    error = rename_to_free_name(partial_path_, final_path_);
  if (error == EEXIST && !overwrite)
    return discard(invalid_problem("{}: already exists and is not overwritten", printable_path(final_path_)));
  if (error != 0)
    return discard(invalid_problem("{}: renaming {} to it: {}", printable_path(final_path_),
                                   printable_path(partial_path_), error_text(error)));

  error = flush_folder(folder_descriptor.get());
  if (error == 0) return {};
  // What was overwritten is gone, and its place is better kept by a whole file than by none.
  if (!overwrite) remove_if_names(final_path_, facts);
  return invalid_problem("{}: flushing the folder {}: {}", printable_path(final_path_), printable_path(folder),
                         error_text(error));
}

Status write_file(const fs::path& path, std::string_view text, bool overwrite) {
  Result<AtomicFile> file = AtomicFile::create(path, overwrite);
  if (!file.ok()) return file.status();
  if (Status status = file->write(std::as_bytes(std::span(text))); !status.ok()) return status;
  return file->commit(overwrite);
}

}  // namespace kvant::io
