// Positioned reads: what is read, what is refused and in which words; and the names in those words.
#include "io/file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvant/export.h"
#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace {
std::atomic<std::size_t> g_most_bytes{std::numeric_limits<std::size_t>::max()};  // of one pread
std::atomic<int> g_interruptions{0};                                             // of the next ones
std::atomic<int> g_error{0};                                                     // of all
}  // namespace

// Stands before the C library's: what a disk does once in a year is done to every test that asks for it.
extern "C" KVANT_API ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset) {
  static const auto next = reinterpret_cast<ssize_t (*)(int, void*, size_t, off_t)>(dlsym(RTLD_NEXT, "pread"));
  if (g_interruptions > 0) {
    --g_interruptions;
    errno = EINTR;
    return -1;
  }
  if (g_error != 0) {
    errno = g_error;
    return -1;
  }
  return next(descriptor, to, std::min<std::size_t>(bytes, g_most_bytes), offset);
}

namespace kvant::tests {
namespace {

using io::InputFile;
using io::printable;

constexpr StatusCode kInvalid = StatusCode::InvalidProblem;
constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();

class FileTest : public testing::Test {
 protected:
  ~FileTest() override {
    g_most_bytes = std::numeric_limits<std::size_t>::max();
    g_interruptions = 0;
    g_error = 0;
  }
  ScratchFolder folder_;
};

std::string read_text(const InputFile& file, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '#');
  const Status status = file.read(offset, std::as_writable_bytes(std::span(text)));
  return status.ok() ? text : std::string(status.message());
}

Status read_status(const InputFile& file, std::uint64_t offset, std::size_t bytes) {
  std::vector<std::byte> to(bytes);
  return file.read(offset, to);
}

// ---- Reads ----------------------------------------------------------------------------------------------------

TEST_F(FileTest, ReadsRanges) {
  const fs::path path = folder_ / "ten";
  put_text(path, "0123456789");
  const auto file = InputFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(file->size(), 10u);
  EXPECT_EQ(read_text(*file, 0, 10), "0123456789");
  EXPECT_EQ(read_text(*file, 3, 4), "3456");
  EXPECT_EQ(read_text(*file, 9, 1), "9");
  EXPECT_EQ(read_text(*file, 10, 0), "");
  EXPECT_EQ(read_text(*file, 0, 0), "");
}

TEST_F(FileTest, KnowsWhichFileItIs) {
  const fs::path path = folder_ / "file";
  put_text(path, "text");
  const timespec times[2] = {{1, 0}, {1'700'000'000, 123'456'789}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  fs::create_hard_link(path, folder_ / "second name");
  put_text(folder_ / "other", "text");
  const auto a = InputFile::open(path), b = InputFile::open(folder_ / "second name"),
             c = InputFile::open(folder_ / "other");
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  struct stat facts {};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(a->device(), facts.st_dev);
  EXPECT_EQ(a->inode(), facts.st_ino);
  EXPECT_EQ(a->modified_ns(), 1'700'000'000'123'456'789);
  EXPECT_EQ(b->inode(), a->inode());
  EXPECT_NE(c->inode(), a->inode());
}

TEST_F(FileTest, RefusesToReadPastTheEnd) {
  put_text(folder_ / "hundred", patterned(100));
  const auto file = InputFile::open(folder_ / "hundred");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(refused(read_status(*file, 50, 200), kInvalid, {"hundred: ends at byte 100, wanted 200 bytes from 50"}));
  EXPECT_TRUE(refused(read_status(*file, 100, 1), kInvalid, {"ends at byte 100, wanted 1 bytes from 100"}));
  EXPECT_TRUE(refused(read_status(*file, 5000, 7), kInvalid, {"ends at byte 100, wanted 7 bytes from 5000"}));
}

TEST_F(FileTest, RefusesOffsetsThatNoCallCanName) {
  put_text(folder_ / "file", "text");
  const auto file = InputFile::open(folder_ / "file");
  ASSERT_TRUE(file.ok());
  constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  EXPECT_TRUE(refused(read_status(*file, kMaxOffset - 3, 4), kInvalid, {"file: ", "9223372036854775804"}));
  EXPECT_TRUE(refused(read_status(*file, kMaxOffset - 3, 5), kInvalid,
                      {"file: 5 bytes from 9223372036854775804 end beyond the largest offset 9223372036854775807"}));
  EXPECT_TRUE(
      refused(read_status(*file, kMaxOffset + 1, 0), kInvalid, {"0 bytes from 9223372036854775808 end beyond"}));
  EXPECT_TRUE(refused(read_status(*file, kAll, 4), kInvalid, {"4 bytes from 18446744073709551615 end beyond"}));
}

TEST_F(FileTest, RefusesAFileThatShrank) {
  put_text(folder_ / "file", patterned(100));
  const auto file = InputFile::open(folder_ / "file");
  ASSERT_TRUE(file.ok());
  fs::resize_file(folder_ / "file", 60);
  EXPECT_EQ(file->size(), 100u);
  EXPECT_EQ(read_text(*file, 0, 60), patterned(60));
  EXPECT_TRUE(refused(read_status(*file, 50, 50), kInvalid,
                      {"file: ends at byte 60 now and at 100 when it was opened, wanted 50 bytes from 50"}));
  EXPECT_TRUE(refused(read_status(*file, 90, 10), kInvalid, {"ends at byte 60 now", "wanted 10 bytes from 90"}));
}

TEST_F(FileTest, ReadsOnAfterShortReadsAndInterruptions) {
  put_text(folder_ / "file", patterned(1000));
  const auto file = InputFile::open(folder_ / "file");
  ASSERT_TRUE(file.ok());
  g_most_bytes = 7;
  g_interruptions = 3;
  EXPECT_EQ(read_text(*file, 100, 900), patterned(1000).substr(100));
  EXPECT_EQ(g_interruptions, 0);
  EXPECT_TRUE(refused(read_status(*file, 0, 1001), kInvalid, {"ends at byte 1000, wanted 1001 bytes from 0"}));
}

TEST_F(FileTest, ReportsADiskThatFails) {
  put_text(folder_ / "file", patterned(100));
  const auto file = InputFile::open(folder_ / "file");
  ASSERT_TRUE(file.ok());
  g_error = EIO;
  EXPECT_TRUE(
      refused(read_status(*file, 20, 30), kInvalid, {"file: reading 30 bytes from 20: input/output error at byte 20"}));
}

TEST_F(FileTest, ManyThreadsRead) {
  constexpr std::size_t kBytes = 1 << 16, kThreads = 8, kReads = 200;
  const std::string all = patterned(kBytes);
  put_text(folder_ / "file", all);
  const auto file = InputFile::open(folder_ / "file");
  ASSERT_TRUE(file.ok());
  g_most_bytes = 1000;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < kReads; ++i) {
        const std::size_t offset = (t * 7919 + i * 104729) % kBytes;
        const std::size_t bytes = std::min<std::size_t>(kBytes - offset, 1 + i * 31);
        if (read_text(*file, offset, bytes) != all.substr(offset, bytes)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// ---- Opening --------------------------------------------------------------------------------------------------

TEST_F(FileTest, RefusesWhatIsMissing) {
  EXPECT_TRUE(
      refused(InputFile::open(folder_ / "no\x1bne").status(), kInvalid, {"/no\\x1bne: no such file or directory"}));
  EXPECT_TRUE(refused(InputFile::open("").status(), kInvalid, {"no such file or directory"}));
  put_text(folder_ / "file", "text");
  EXPECT_TRUE(refused(InputFile::open(folder_ / "file/below").status(), kInvalid, {"file/below: not a directory"}));
}

TEST_F(FileTest, RefusesANulInThePath) {
  put_text(folder_ / "file", "text");
  const std::string path = (folder_ / "file").string();
  EXPECT_TRUE(refused(InputFile::open(path + std::string("\0.safetensors", 13)).status(), kInvalid,
                      {"file\\x00.safetensors: the path has a NUL at byte " + std::to_string(path.size())}));
}

TEST_F(FileTest, RefusesWhatIsNoRegularFile) {
  const std::size_t descriptors = open_descriptors();
  EXPECT_TRUE(refused(InputFile::open(folder_.path()).status(), kInvalid, {"is a directory, must be a regular file"}));
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0666), 0);
  EXPECT_TRUE(refused(InputFile::open(folder_ / "fifo").status(), kInvalid, {"fifo: is a fifo, must be a regular"}));
  EXPECT_TRUE(refused(InputFile::open("/dev/null").status(), kInvalid, {"/dev/null: is a device, must be a regular"}));
  fs::create_symlink("/dev/zero", folder_ / "zero");
  EXPECT_TRUE(refused(InputFile::open(folder_ / "zero").status(), kInvalid, {"zero: is a device"}));

  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = folder_ / "socket";
  ASSERT_LT(name.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(refused(InputFile::open(name).status(), kInvalid, {"socket: no such device or address"}));
  close(listener);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST_F(FileTest, FollowsSymbolicLinks) {
  fs::create_directory(folder_ / "blobs");
  put_text(folder_ / "blobs/0a1b", "text");
  fs::create_symlink("blobs/0a1b", folder_ / "model.safetensors");
  const auto file = InputFile::open(folder_ / "model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->path().filename(), "model.safetensors");
  EXPECT_EQ(read_text(*file, 0, 4), "text");
  fs::create_symlink("nowhere", folder_ / "dangling");
  EXPECT_TRUE(refused(InputFile::open(folder_ / "dangling").status(), kInvalid, {"dangling: no such file"}));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_TRUE(refused(InputFile::open(folder_ / "loop").status(), kInvalid, {"loop: too many levels of symbolic"}));
}

TEST_F(FileTest, RefusesAnUnreadableFile) {
  put_text(folder_ / "secret", "text");
  ASSERT_EQ(chmod((folder_ / "secret").c_str(), 0), 0);
  bool lowered = false;
  Status status;
  std::thread([&] {
    lowered = lower_privileges();
    if (lowered) status = InputFile::open(folder_ / "secret").status();
  }).join();
  if (!lowered) GTEST_SKIP() << "root reads everything";
  EXPECT_TRUE(refused(status, kInvalid, {"secret: permission denied"}));
}

TEST_F(FileTest, IsNotInheritedByPrograms) {
  put_text(folder_ / "file", "text");
  const auto file = InputFile::open(folder_ / "file");
  ASSERT_TRUE(file.ok());
  int found = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    struct stat facts {};
    if (fstat(descriptor, &facts) != 0 || facts.st_ino != file->inode() || facts.st_dev != file->device()) continue;
    ++found;
    EXPECT_EQ(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(FileTest, MovesAndCloses) {
  put_text(folder_ / "a", "text a");
  put_text(folder_ / "b", "text b!");
  const std::size_t descriptors = open_descriptors();
  {
    auto a = InputFile::open(folder_ / "a"), b = InputFile::open(folder_ / "b");
    ASSERT_TRUE(a.ok() && b.ok());
    InputFile moved = std::move(*a);
    EXPECT_EQ(read_text(moved, 0, 6), "text a");
    EXPECT_EQ(a->size(), 0u);  // NOLINT(bugprone-use-after-move): what is left is part of the contract
    EXPECT_EQ(a->path(), "");
    EXPECT_TRUE(refused(read_status(*a, 0, 1), kInvalid, {"the file is not open"}));
    EXPECT_TRUE(refused(read_status(*a, 0, 0), kInvalid, {"the file is not open"}));
    moved = std::move(*b);
    EXPECT_EQ(open_descriptors(), descriptors + 1);
    EXPECT_EQ(moved.size(), 7u);
    EXPECT_EQ(moved.path(), folder_ / "b");
    EXPECT_EQ(read_text(moved, 0, 7), "text b!");
    InputFile& same = moved;
    moved = std::move(same);
    EXPECT_EQ(read_text(moved, 0, 7), "text b!");
    *a = std::move(moved);
    EXPECT_EQ(read_text(*a, 5, 2), "b!");
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

// ---- Names ----------------------------------------------------------------------------------------------------

TEST(PrintableTest, EscapesWhatIsNotText) {
  using namespace std::string_view_literals;
  const struct {
    std::string_view text, printed;
  } cases[] = {
      {"", ""},
      {"model.safetensors", "model.safetensors"},
      {"a b~!", "a b~!"},
      {"model\x1b[0m", R"(model\x1b[0m)"},
      {"two\nlines", R"(two\nlines)"},
      {"\r\t\a"sv, R"(\x0d\x09\x07)"},
      {"\0end"sv, R"(\x00end)"},
      {"\x1f\x7f", R"(\x1f\x7f)"},
      {R"("a" 'b' \n)", R"(\"a\" \'b\' \\n)"},
      {"ä ß 模型 🙂 \u00a0", "ä ß 模型 🙂 \u00a0"},
      {"\u0080\u009b\u009f", R"(\xc2\x80\xc2\x9b\xc2\x9f)"},  // C1
      {"\u200d\u2010", "\u200d\u2010"},                       // beside the marks
      {"\u200e\u200f", R"(\xe2\x80\x8e\xe2\x80\x8f)"},
      {"\u2029|\u202a\u202e|\u202f",
       "\u2029|"
       R"(\xe2\x80\xaa\xe2\x80\xae)"
       "|\u202f"},
      {"\u2065|\u2066\u2069|\u206a",
       "\u2065|"
       R"(\xe2\x81\xa6\xe2\x81\xa9)"
       "|\u206a"},
      {"\x80", R"(\x80)"},                                          // nothing before it
      {"\xff\xfe", R"(\xff\xfe)"},                                  // never part of UTF-8
      {"\xc3", R"(\xc3)"},                                          // cut off
      {"\xc3(", R"(\xc3()"},                                        // not followed
      {"\xe6\xa8", R"(\xe6\xa8)"},                                  //
      {"\xe6\xa8ok", R"(\xe6\xa8ok)"},                              //
      {"\xf0\x9f\x99", R"(\xf0\x9f\x99)"},                          //
      {"\xc0\xaf", R"(\xc0\xaf)"},                                  // longer than needed
      {"\xc1\xbf", R"(\xc1\xbf)"},                                  //
      {"\xe0\x9f\xbf", R"(\xe0\x9f\xbf)"},                          //
      {"\xf0\x8f\xbf\xbf", R"(\xf0\x8f\xbf\xbf)"},                  //
      {"\xed\xa0\x80\xed\xbf\xbf", R"(\xed\xa0\x80\xed\xbf\xbf)"},  // surrogates
      {"\xed\x9f\xbf\xee\x80\x80", "\xed\x9f\xbf\xee\x80\x80"},     // beside them
      {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},                     // the last character
      {"\xf4\x90\x80\x80", R"(\xf4\x90\x80\x80)"},                  // beyond it
      {"\xf8\x88\x80\x80\x80", R"(\xf8\x88\x80\x80\x80)"},
      {"\xf8\x90\x80\x80", R"(\xf8\x90\x80\x80)"},
      {"\xc3\xa4\xa4",
       "ä"
       R"(\xa4)"},
  };
  for (const auto& c : cases) EXPECT_EQ(printable(c.text), c.printed);
}

TEST(PrintableTest, CutsLongTextInTheMiddle) {
  const auto repeated = [](std::string_view text, std::size_t times) {
    std::string all;
    for (std::size_t i = 0; i < times; ++i) all += text;
    return all;
  };
  EXPECT_EQ(printable(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(printable(std::string(100, 'a') + std::string(101, 'b')),
            std::string(100, 'a') + "…" + std::string(99, 'b'));
  EXPECT_EQ(printable(std::string(100, 'a') + std::string(5000, '-') + std::string(99, 'b')),
            std::string(100, 'a') + "…" + std::string(99, 'b'));
  // Characters are counted, not bytes, and none is cut in two.
  EXPECT_EQ(printable(repeated("模", 200)), repeated("模", 200));
  EXPECT_EQ(printable(repeated("模", 201)), repeated("模", 100) + "…" + repeated("模", 99));
  // An escape counts as it is printed, and is not cut in two either.
  EXPECT_EQ(printable(std::string(50, '\x01')), repeated("\\x01", 50));
  EXPECT_EQ(printable(std::string(51, '\x01')), repeated("\\x01", 25) + "…" + repeated("\\x01", 24));
  EXPECT_EQ(printable("abc" + std::string(1000, '\n')), "abc" + repeated("\\n", 48) + "…" + repeated("\\n", 50));
  EXPECT_EQ(printable(repeated("\u202e", 17)), repeated("\\xe2\\x80\\xae", 8) + "…" + repeated("\\xe2\\x80\\xae", 8));
  EXPECT_EQ(printable(std::string(100, 'a') + "\x01" + std::string(99, 'b')),
            std::string(100, 'a') + "…" + std::string(99, 'b'));
}

}  // namespace
}  // namespace kvant::tests
