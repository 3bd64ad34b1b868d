// The folder of a long run: what it takes, keeps, removes and refuses.
#include "io/scratch_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

TEST(ScratchFolder, IsMadeAndRemovedWithItsFiles) {
  const ScratchFolder scratch;
  auto folder = io::ScratchFolder::open(scratch / "a/b", false);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(folder->file("states"), scratch / "a/b/states.scratch");
  put_text(folder->file("states"), "x");
  put_text(scratch / "a/b/block.scratch.partial", "x");
  EXPECT_TRUE(folder->remove().ok());
  EXPECT_FALSE(fs::exists(scratch / "a/b"));
}

TEST(ScratchFolder, KeepsWhatAnEarlierRunLeft) {
  const ScratchFolder scratch;
  put_text(scratch / "one.scratch", "x");
  { ASSERT_TRUE(io::ScratchFolder::open(scratch.path(), true).ok()); }
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"one.scratch"});
  ASSERT_TRUE(io::ScratchFolder::open(scratch.path(), false).ok());
  EXPECT_EQ(scratch.names(), std::vector<std::string>{});
}

TEST(ScratchFolder, RefusesWhatIsNotItsOwn) {
  const ScratchFolder scratch;
  put_text(scratch / "one.scratch", "x");
  put_text(scratch / "thesis.doc", "x");
  const auto folder = io::ScratchFolder::open(scratch.path(), false);
  EXPECT_TRUE(refused(folder.status(), StatusCode::InvalidProblem, {"holds thesis.doc, which is no scratch file"}));
  EXPECT_EQ(scratch.names(), (std::vector<std::string>{"one.scratch", "thesis.doc"}));
  fs::remove(scratch / "thesis.doc");
  fs::create_symlink("/etc/passwd", scratch / "link.scratch");
  EXPECT_TRUE(refused(io::ScratchFolder::open(scratch.path(), false).status(), StatusCode::InvalidProblem,
                      {"holds link.scratch"}));
  put_text(scratch / "file", "x");
  EXPECT_TRUE(refused(io::ScratchFolder::open(scratch / "file", false).status(), StatusCode::InvalidProblem, {"file"}));
}

TEST(ScratchFolder, BelongsToOneRun) {
  const ScratchFolder scratch;
  {
    const auto first = io::ScratchFolder::open(scratch / "a", false);
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(refused(io::ScratchFolder::open(scratch / "a", true).status(), StatusCode::InvalidProblem,
                        {"another kvant is using it"}));
  }
  EXPECT_TRUE(io::ScratchFolder::open(scratch / "a", true).ok());
}

TEST(ScratchFolder, TheDefaultIsInTheCache) {
  ASSERT_EQ(setenv("HOME", "/home/ada", 1), 0);
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "/var/cache/ada", 1), 0);
  EXPECT_EQ(io::default_scratch_folder("eval-1"), "/var/cache/ada/kvant/eval-1");
  ASSERT_EQ(setenv("XDG_CACHE_HOME", "relative", 1), 0);
  EXPECT_EQ(io::default_scratch_folder("eval-1"), "/home/ada/.cache/kvant/eval-1");
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
  EXPECT_EQ(io::default_scratch_folder("eval-1"), "/home/ada/.cache/kvant/eval-1");
  ASSERT_EQ(unsetenv("HOME"), 0);
  EXPECT_EQ(io::default_scratch_folder("eval-1"), "");
}

}  // namespace
}  // namespace kvant::tests
