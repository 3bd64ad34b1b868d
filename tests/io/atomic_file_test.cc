// Files that appear whole or not at all: what is in the folder before, between and after the steps, and after each
// failure of one.
#include "io/atomic_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvant/export.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

// What the calls below are told to do. They stand before the C library's, for failures that no disk has on demand.
namespace {
std::atomic<std::size_t> g_most_bytes{std::numeric_limits<std::size_t>::max()};  // of one pwrite
std::atomic<int> g_interruptions{0};                                             // of the next pwrites and fsyncs
std::atomic<int> g_write_error{0};
std::atomic<int> g_file_flush_error{0};
std::atomic<int> g_folder_flush_error{0};
std::atomic<int> g_file_flushes{0};
std::atomic<int> g_folder_flushes{0};
std::atomic<int> g_renameat2_error{0};
std::atomic<int> g_renameat2_calls{0};

bool fails_with(int error) {
  if (error != 0) errno = error;
  return error != 0;
}

bool interrupted() {
  if (g_interruptions <= 0) return false;
  --g_interruptions;
  return fails_with(EINTR);
}
}  // namespace

extern "C" KVANT_API ssize_t pwrite(int descriptor, const void* from, size_t bytes, off_t offset) {
  static const auto next = reinterpret_cast<ssize_t (*)(int, const void*, size_t, off_t)>(dlsym(RTLD_NEXT, "pwrite"));
  if (interrupted() || fails_with(g_write_error)) return -1;
  return next(descriptor, from, std::min<std::size_t>(bytes, g_most_bytes), offset);
}

extern "C" KVANT_API int fsync(int descriptor) {
  static const auto next = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, "fsync"));
  if (interrupted()) return -1;
  struct stat facts {};
  const bool folder = fstat(descriptor, &facts) == 0 && S_ISDIR(facts.st_mode);
  ++(folder ? g_folder_flushes : g_file_flushes);
  if (fails_with(folder ? g_folder_flush_error : g_file_flush_error)) return -1;
  return next(descriptor);
}

extern "C" KVANT_API long syscall(long number, ...) noexcept {
  static const auto next = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_renameat2) {
    ++g_renameat2_calls;
    if (fails_with(g_renameat2_error)) return -1;
  }
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

namespace kvant::tests {
namespace {

using io::AtomicFile;
using io::write_file;
using Names = std::vector<std::string>;

constexpr StatusCode kInvalid = StatusCode::InvalidProblem;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    g_file_flushes = 0;
    g_folder_flushes = 0;
    g_renameat2_calls = 0;
  }
  ~AtomicFileTest() override {
    g_most_bytes = std::numeric_limits<std::size_t>::max();
    for (std::atomic<int>* told :
         {&g_interruptions, &g_write_error, &g_file_flush_error, &g_folder_flush_error, &g_renameat2_error})
      *told = 0;
  }

  // A new file with that text in it, not committed.
  AtomicFile started(std::string_view text, bool replace_partial = false) {
    Result<AtomicFile> file = AtomicFile::create(folder_ / "model", replace_partial);
    if (!file.ok()) throw std::runtime_error(std::string(file.status().message()));
    if (const Status status = file->write(bytes_of(text)); !status.ok())
      throw std::runtime_error(std::string(status.message()));
    return std::move(file).value();
  }
  Status create_status(std::string_view name, bool replace_partial) {
    return AtomicFile::create(folder_ / name, replace_partial).status();
  }

  ScratchFolder folder_;
};

// ---- The life of a file ---------------------------------------------------------------------------------------

TEST_F(AtomicFileTest, AppearsAtCommit) {
  const std::size_t descriptors = open_descriptors();
  {
    AtomicFile file = started("one ");
    EXPECT_EQ(file.final_path(), folder_ / "model");
    EXPECT_EQ(folder_.names(), Names{"model.partial"});
    EXPECT_TRUE(accepted(file.write(bytes_of("two"))));
    EXPECT_TRUE(accepted(file.write({})));
    EXPECT_EQ(folder_.names(), Names{"model.partial"});
    EXPECT_EQ(g_file_flushes, 0);
    EXPECT_TRUE(accepted(file.commit(false)));
    EXPECT_EQ(g_file_flushes, 1);
    EXPECT_EQ(g_folder_flushes, 1);
    EXPECT_EQ(folder_.names(), Names{"model"});
    EXPECT_EQ(open_descriptors(), descriptors);
  }
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(text_of(folder_ / "model"), "one two");
}

TEST_F(AtomicFileTest, IsRemovedWithoutCommit) {
  const std::size_t descriptors = open_descriptors();
  { const AtomicFile file = started("text"); }
  EXPECT_EQ(folder_.names(), Names{});
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(AtomicFileTest, TakesNothingAfterCommit) {
  AtomicFile file = started("text");
  ASSERT_TRUE(accepted(file.commit(false)));
  EXPECT_TRUE(refused(file.write(bytes_of("more")), kInvalid, {"model: the file is not open"}));
  EXPECT_TRUE(refused(file.write_at(0, bytes_of("more")), kInvalid, {"model: the file is not open"}));
  EXPECT_TRUE(refused(file.commit(true), kInvalid, {"model: the file is not open"}));
  EXPECT_EQ(text_of(folder_ / "model"), "text");
}

TEST_F(AtomicFileTest, CommitsAnEmptyFile) {
  ASSERT_TRUE(accepted(started("").commit(false)));
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(fs::file_size(folder_ / "model"), 0u);
}

TEST_F(AtomicFileTest, PermissionsFollowTheUmask) {
  const mode_t before = umask(027);
  const Status first = write_file(folder_ / "a", "text", false);
  umask(0);
  const Status second = write_file(folder_ / "b", "text", false);
  umask(before);
  ASSERT_TRUE(accepted(first));
  ASSERT_TRUE(accepted(second));
  struct stat facts {};
  ASSERT_EQ(stat((folder_ / "a").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0640u);
  ASSERT_EQ(stat((folder_ / "b").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0666u);
}

TEST_F(AtomicFileTest, IsNotInheritedByPrograms) {
  const AtomicFile file = started("text");
  struct stat partial {};
  ASSERT_EQ(stat((folder_ / "model.partial").c_str(), &partial), 0);
  int found = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    struct stat facts {};
    if (fstat(descriptor, &facts) != 0 || facts.st_ino != partial.st_ino || facts.st_dev != partial.st_dev) continue;
    ++found;
    EXPECT_EQ(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(AtomicFileTest, Moves) {
  std::optional<AtomicFile> a = started("text a");
  AtomicFile moved = std::move(*a);
  EXPECT_TRUE(refused(a->write(bytes_of("x")), kInvalid, {"the file is not open"}));
  EXPECT_TRUE(refused(a->write_at(0, bytes_of("x")), kInvalid, {"the file is not open"}));
  EXPECT_TRUE(refused(a->commit(true), kInvalid, {"the file is not open"}));
  EXPECT_EQ(a->final_path(), "");
  a.reset();
  EXPECT_EQ(folder_.names(), Names{"model.partial"});
  AtomicFile& same = moved;
  moved = std::move(same);
  EXPECT_TRUE(accepted(moved.write(bytes_of("!"))));

  auto other = AtomicFile::create(folder_ / "other", false);
  ASSERT_TRUE(other.ok());
  const std::size_t descriptors = open_descriptors();
  *other = std::move(moved);
  EXPECT_EQ(open_descriptors(), descriptors - 1);
  EXPECT_EQ(folder_.names(), Names{"model.partial"});  // what it was writing before is gone
  EXPECT_TRUE(accepted(other->commit(false)));
  EXPECT_EQ(text_of(folder_ / "model"), "text a!");
}

TEST_F(AtomicFileTest, WorksInTheCurrentFolder) {
  std::error_code error;
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  const Status status = write_file("bare", "text", false);
  fs::current_path(before, error);
  ASSERT_TRUE(accepted(status));
  EXPECT_EQ(text_of(folder_ / "bare"), "text");
}

// ---- Names that are taken -------------------------------------------------------------------------------------

TEST_F(AtomicFileTest, RefusesOrReplacesAPartialFile) {
  put_text(folder_ / "model.partial", "left over, and longer");
  EXPECT_TRUE(refused(create_status("model", false), kInvalid, {"model.partial: already exists", "killed"}));
  EXPECT_EQ(text_of(folder_ / "model.partial"), "left over, and longer");
  AtomicFile file = started("text", true);
  EXPECT_TRUE(accepted(file.commit(false)));
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(text_of(folder_ / "model"), "text");
  EXPECT_TRUE(accepted(create_status("fresh", true)));  // nothing to replace
}

TEST_F(AtomicFileTest, DoesNotFollowALinkAsPartialFile) {
  for (const std::string_view target : {"precious", "missing"}) {
    put_text(folder_ / "precious", "precious");
    fs::create_symlink(target, folder_ / "model.partial");
    EXPECT_TRUE(refused(create_status("model", false), kInvalid, {"model.partial: already exists"}));
    EXPECT_TRUE(fs::is_symlink(folder_ / "model.partial"));
    AtomicFile file = started("text", true);
    EXPECT_FALSE(fs::is_symlink(folder_ / "model.partial"));
    EXPECT_TRUE(accepted(file.commit(true)));
    EXPECT_EQ(folder_.names(), (Names{"model", "precious"}));
    EXPECT_EQ(text_of(folder_ / "precious"), "precious");
    EXPECT_EQ(text_of(folder_ / "model"), "text");
  }
}

TEST_F(AtomicFileTest, DoesNotTouchAHardLinkedPartialFile) {
  put_text(folder_ / "precious", "precious");
  fs::create_hard_link(folder_ / "precious", folder_ / "model.partial");
  EXPECT_TRUE(accepted(started("text", true).commit(false)));
  EXPECT_EQ(text_of(folder_ / "precious"), "precious");
}

TEST_F(AtomicFileTest, ReplacesNothingButFilesAndLinks) {
  fs::create_directory(folder_ / "model.partial");
  EXPECT_TRUE(refused(create_status("model", false), kInvalid, {"model.partial: already exists"}));
  EXPECT_TRUE(refused(create_status("model", true), kInvalid, {"model.partial: is a directory, must be a regular"}));
  ASSERT_EQ(mkfifo((folder_ / "other.partial").c_str(), 0666), 0);
  EXPECT_TRUE(refused(create_status("other", false), kInvalid, {"other.partial: already exists"}));
  EXPECT_TRUE(refused(create_status("other", true), kInvalid, {"other.partial: is a fifo, must be a regular"}));
  EXPECT_EQ(folder_.names(), (Names{"model.partial", "other.partial"}));
}

// With each way to take a free name: the call, and its substitute on old kernels and on other file systems.
class FreeNameTest : public AtomicFileTest, public testing::WithParamInterface<int> {
 protected:
  FreeNameTest() { g_renameat2_error = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(, FreeNameTest, testing::Values(0, ENOSYS, EINVAL));

TEST_P(FreeNameTest, IsTaken) {
  EXPECT_TRUE(accepted(started("text").commit(false)));
  EXPECT_EQ(g_renameat2_calls, 1);
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(text_of(folder_ / "model"), "text");
  struct stat facts {};
  ASSERT_EQ(stat((folder_ / "model").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_nlink, 1u);
}

TEST_P(FreeNameTest, IsNotFree) {
  {
    AtomicFile file = started("new");
    put_text(folder_ / "model", "old");  // between create and commit
    EXPECT_TRUE(refused(file.commit(false), kInvalid, {"model: already exists and is not overwritten"}));
  }
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(text_of(folder_ / "model"), "old");
}

TEST_P(FreeNameTest, IsNotFreeForALinkToNothing) {
  fs::create_symlink("nothing", folder_ / "model");
  EXPECT_TRUE(refused(started("new").commit(false), kInvalid, {"model: already exists and is not overwritten"}));
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_TRUE(fs::is_symlink(folder_ / "model"));
}

TEST_F(AtomicFileTest, Overwrites) {
  put_text(folder_ / "model", "old, and longer");
  AtomicFile file = started("new");
  EXPECT_EQ(text_of(folder_ / "model"), "old, and longer");
  EXPECT_TRUE(accepted(file.commit(true)));
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(text_of(folder_ / "model"), "new");
  EXPECT_TRUE(accepted(write_file(folder_ / "fresh", "text", true)));  // nothing to overwrite
}

TEST_F(AtomicFileTest, OverwritesALinkAndNotItsTarget) {
  put_text(folder_ / "target", "old");
  fs::create_symlink("target", folder_ / "model");
  EXPECT_TRUE(accepted(started("new").commit(true)));
  EXPECT_FALSE(fs::is_symlink(folder_ / "model"));
  EXPECT_EQ(text_of(folder_ / "model"), "new");
  EXPECT_EQ(text_of(folder_ / "target"), "old");
}

TEST_F(AtomicFileTest, DoesNotOverwriteAFolder) {
  fs::create_directory(folder_ / "model");
  EXPECT_TRUE(refused(started("new").commit(true), kInvalid, {"model: renaming ", "model.partial", "is a directory"}));
  EXPECT_TRUE(refused(started("new").commit(false), kInvalid, {"model: already exists"}));
  EXPECT_EQ(folder_.names(), Names{"model"});
}

TEST_F(AtomicFileTest, LeavesThePartialFileOfAnotherRun) {
  std::optional<AtomicFile> first = started("first");
  AtomicFile second = started("sec", true);
  // The name is the second one's now: the first must not commit or remove what the second is still writing.
  EXPECT_TRUE(refused(first->commit(true), kInvalid, {"model.partial: was removed or replaced while it was written"}));
  first.reset();
  EXPECT_EQ(folder_.names(), Names{"model.partial"});
  {
    AtomicFile third = started("third", true);
    EXPECT_TRUE(accepted(second.write(bytes_of("ond"))));
    second = std::move(third);  // the old second is destroyed, and leaves the third's file alone
  }
  EXPECT_TRUE(accepted(second.commit(false)));
  EXPECT_EQ(text_of(folder_ / "model"), "third");
}

// ---- Writing --------------------------------------------------------------------------------------------------

TEST_F(AtomicFileTest, WritesOnAfterShortWritesAndInterruptions) {
  g_most_bytes = 7;
  g_interruptions = 3;
  AtomicFile file = started(patterned(500));
  EXPECT_EQ(g_interruptions, 0);
  EXPECT_TRUE(accepted(file.write_at(500, bytes_of(patterned(1000)).subspan(500))));
  g_interruptions = 2;
  EXPECT_TRUE(accepted(file.commit(false)));
  EXPECT_EQ(g_interruptions, 0);
  EXPECT_EQ(g_file_flushes, 1);
  EXPECT_EQ(text_of(folder_ / "model"), patterned(1000));
}

TEST_F(AtomicFileTest, WritesAtPositions) {
  AtomicFile file = started("head");
  EXPECT_TRUE(accepted(file.write_at(10, bytes_of("tail"))));
  EXPECT_TRUE(accepted(file.write(bytes_of("er"))));  // behind "head", not behind "tail"
  EXPECT_TRUE(accepted(file.write_at(3, bytes_of("D"))));
  EXPECT_TRUE(accepted(file.commit(false)));
  using namespace std::string_literals;
  EXPECT_EQ(text_of(folder_ / "model"), "heaDer\0\0\0\0tail"s);
}

TEST_F(AtomicFileTest, ManyThreadsWrite) {
  constexpr std::size_t kThreads = 8, kPart = 10'007, kPiece = 501;
  const std::string all = patterned(kThreads * kPart);
  g_most_bytes = 200;
  AtomicFile file = started("");
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kPart; i += kPiece) {
        const std::size_t offset = t * kPart + i;
        if (!file.write_at(offset, bytes_of(all).subspan(offset, std::min(kPiece, kPart - i))).ok()) ++failed;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(accepted(file.commit(false)));
  EXPECT_EQ(text_of(folder_ / "model"), all);
}

TEST_F(AtomicFileTest, RefusesOffsetsThatNoCallCanName) {
  AtomicFile file = started("text");
  constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(refused(file.write_at(kMaxOffset - 1, bytes_of("two")), kInvalid,
                      {"model.partial: 3 bytes from 9223372036854775806 end beyond the largest offset"}));
  EXPECT_TRUE(refused(file.write_at(std::numeric_limits<std::uint64_t>::max(), bytes_of("two")), kInvalid,
                      {"3 bytes from 18446744073709551615 end beyond"}));
  EXPECT_EQ(fs::file_size(folder_ / "model.partial"), 4u);
}

// ---- Failures -------------------------------------------------------------------------------------------------

TEST_F(AtomicFileTest, SaysWhatEndedAWrite) {
  const std::pair<int, std::string_view> cases[] = {
      {ENOSPC, "model.partial: no space left on device "},
      {EDQUOT, "model.partial: disk quota exceeded "},
      {EFBIG, "model.partial: file too large for the file system or for the limit of the process "},
      {EIO, "model.partial: writing: input/output error "},
  };
  for (const auto& [error, words] : cases) {
    {
      AtomicFile file = started("four");
      g_write_error = error;
      EXPECT_TRUE(refused(file.write(bytes_of("more")), kInvalid, {std::string(words) + "after 4 bytes"}));
      EXPECT_TRUE(refused(file.write_at(70, bytes_of("more")), kInvalid, {std::string(words) + "at byte 70"}));
      g_write_error = 0;
    }
    EXPECT_EQ(folder_.names(), Names{});
  }
}

TEST_F(AtomicFileTest, StopsWhereNothingIsWritten) {
  AtomicFile file = started("four");
  g_most_bytes = 0;
  EXPECT_TRUE(refused(file.write(bytes_of("more")), kInvalid, {"input/output error after 4 bytes"}));
}

TEST_F(AtomicFileTest, FillsADisk) {
  // In a mount namespace of a thread, which takes the disk with it.
  bool mounted = false;
  fs::create_directory(folder_ / "disk");
  std::thread([&] {
    mounted = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              mount("kvant", (folder_ / "disk").c_str(), "tmpfs", 0, "size=64k") == 0;
    if (!mounted) return;
    {
      auto file = AtomicFile::create(folder_ / "disk/model", false);
      ASSERT_TRUE(file.ok()) << file.status().message();
      EXPECT_TRUE(accepted(file->write(bytes_of(patterned(1000)))));
      EXPECT_TRUE(refused(file->write(bytes_of(patterned(100'000))), kInvalid,
                          {"disk/model.partial: no space left on device after 65536 bytes"}));
      EXPECT_TRUE(refused(file->write_at(1 << 20, bytes_of("x")), kInvalid,
                          {"disk/model.partial: no space left on device at byte 1048576"}));
    }
    EXPECT_TRUE(fs::is_empty(folder_ / "disk"));
    EXPECT_TRUE(refused(write_file(folder_ / "disk/text", patterned(100'000), false), kInvalid,
                        {"disk/text.partial: no space left on device after 65536 bytes"}));
    EXPECT_TRUE(fs::is_empty(folder_ / "disk"));
    EXPECT_TRUE(accepted(write_file(folder_ / "disk/text", patterned(60'000), false)));
  }).join();
  if (!mounted) GTEST_SKIP() << "mounting needs root";
}

TEST_F(AtomicFileTest, MeetsTheLimitOfTheProcess) {
  const auto before = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit low{10'000, limit.rlim_max};
  Status status;
  {
    AtomicFile file = started("four");
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
    status = file.write(bytes_of(patterned(20'000)));
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  signal(SIGXFSZ, before);
  EXPECT_TRUE(refused(status, kInvalid, {"model.partial: file too large", "after 10000 bytes"}));
  EXPECT_EQ(folder_.names(), Names{});
}

TEST_F(AtomicFileTest, AFlushThatFailsLeavesNothing) {
  for (const bool overwrite : {false, true}) {
    g_file_flush_error = ENOSPC;
    AtomicFile file = started("text");
    EXPECT_TRUE(
        refused(file.commit(overwrite), kInvalid, {"model.partial: flushing it to disk: no space left on device"}));
    EXPECT_EQ(folder_.names(), Names{});
    g_file_flush_error = 0;
    EXPECT_TRUE(refused(file.commit(overwrite), kInvalid, {"the file is not open"}));
  }
  EXPECT_EQ(folder_.names(), Names{});
}

TEST_F(AtomicFileTest, AFolderThatCannotBeFlushed) {
  g_folder_flush_error = EIO;
  EXPECT_TRUE(refused(started("new").commit(false), kInvalid, {"model: flushing the folder ", "input/output error"}));
  EXPECT_EQ(folder_.names(), Names{});
  put_text(folder_ / "model", "old");
  EXPECT_TRUE(refused(started("new").commit(true), kInvalid, {"model: flushing the folder ", "input/output error"}));
  EXPECT_EQ(folder_.names(), Names{"model"});
  EXPECT_EQ(text_of(folder_ / "model"), "new");
  // A file system that has nothing to flush.
  g_folder_flush_error = EINVAL;
  EXPECT_TRUE(accepted(started("newer").commit(true)));
}

TEST_F(AtomicFileTest, ARenameThatFailsLeavesNothing) {
  g_renameat2_error = EIO;
  EXPECT_TRUE(
      refused(started("new").commit(false), kInvalid, {"model: renaming ", "model.partial to it: input/output error"}));
  EXPECT_EQ(folder_.names(), Names{});
}

TEST_F(AtomicFileTest, RefusesAFolderThatIsMissing) {
  EXPECT_TRUE(refused(create_status("no\x1bne/model", false), kInvalid,
                      {"no\\x1bne/model: the folder ", "no\\x1bne: no such file or directory"}));
  put_text(folder_ / "file", "text");
  EXPECT_TRUE(refused(create_status("file/model", true), kInvalid, {"file/model: the folder ", "not a directory"}));
}

TEST_F(AtomicFileTest, RefusesAFolderThatIsNotWritable) {
  ASSERT_EQ(chmod(folder_.path().c_str(), 0555), 0);
  bool lowered = false;
  Status created, written;
  std::thread([&] {
    lowered = lower_privileges();
    if (!lowered) return;
    created = create_status("model", false);
    written = write_file(folder_ / "text", "text", true);
  }).join();
  if (!lowered) GTEST_SKIP() << "root writes everywhere";
  EXPECT_TRUE(refused(created, kInvalid, {"model.partial: permission denied"}));
  EXPECT_TRUE(refused(written, kInvalid, {"text.partial: permission denied"}));
  EXPECT_EQ(folder_.names(), Names{});
}

TEST_F(AtomicFileTest, RefusesAPathThatNamesNoFile) {
  for (const std::string_view name : {"", ".", "..", "folder/", "folder/.", "folder/.."})
    EXPECT_TRUE(refused(AtomicFile::create(name, true).status(), kInvalid,
                        {"\"" + std::string(name) + "\": the path must end in a file name"}));
  EXPECT_TRUE(refused(create_status(std::string_view("a\0b", 3), true), kInvalid, {"a\\x00b: the path has a NUL"}));
  EXPECT_TRUE(refused(create_status(std::string(250, 'a'), true), kInvalid, {"file name too long"}));
  EXPECT_EQ(folder_.names(), Names{});
}

// ---- Small files ----------------------------------------------------------------------------------------------

TEST_F(AtomicFileTest, WritesASmallFile) {
  using namespace std::string_literals;
  EXPECT_TRUE(accepted(write_file(folder_ / "text", "one\0two\n"s, false)));
  EXPECT_EQ(text_of(folder_ / "text"), "one\0two\n"s);
  EXPECT_TRUE(refused(write_file(folder_ / "text", "other", false), kInvalid, {"text: already exists"}));
  EXPECT_EQ(text_of(folder_ / "text"), "one\0two\n"s);
  put_text(folder_ / "text.partial", "left over");
  EXPECT_TRUE(refused(write_file(folder_ / "text", "other", false), kInvalid, {"text.partial: already exists"}));
  EXPECT_TRUE(accepted(write_file(folder_ / "text", "other", true)));
  EXPECT_EQ(text_of(folder_ / "text"), "other");
  EXPECT_EQ(folder_.names(), Names{"text"});
  EXPECT_TRUE(accepted(write_file(folder_ / "empty", "", false)));
  EXPECT_EQ(fs::file_size(folder_ / "empty"), 0u);
}

}  // namespace
}  // namespace kvant::tests
