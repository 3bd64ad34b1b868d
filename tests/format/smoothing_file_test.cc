// The vectors of smoothing, written and read back.
#include "format/smoothing_file.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/support/refusals.h"
#include "tests/support/scratch.h"

namespace kvant::tests {
namespace {

using format::SmoothingFile;

TEST(SmoothingFile, IsReadBack) {
  const ScratchFolder scratch;
  const std::vector<std::string> linears = {"q", "k"}, others = {"up"};
  const std::vector<float> s = {1, 2, 3, 4}, nan = {1, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<format::SmoothingVector> vectors = {{"norm", linears, s}, {"bad", others, nan}};
  for (int times = 0; times < 2; ++times)
    ASSERT_TRUE(format::write_smoothing_file(scratch / "s.safetensors", vectors).ok());
  const auto file = SmoothingFile::open(scratch / "s.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (const std::string& linear : linears) {
    const auto vector = file->vector_of(linear, 4);
    ASSERT_TRUE(vector.ok()) << vector.status().message();
    EXPECT_EQ(*vector, file->find("norm"));
  }
  std::vector<float> got(2);
  ASSERT_TRUE(file->read(*file->find("norm"), 1, got).ok());
  EXPECT_EQ(got, (std::vector<float>{2, 3}));
  EXPECT_EQ(file->find("q"), nullptr);
  EXPECT_EQ(file->vector_of("down", 4).value(), nullptr);
  EXPECT_TRUE(refused(file->vector_of("q", 5).status(), StatusCode::InvalidProblem,
                      {"tensor 'norm' is F32 [4], must be F32 [5] for layer 'q'"}));
  EXPECT_TRUE(refused(file->read(*file->find("bad"), 0, got), StatusCode::InvalidProblem,
                      {"element 1 of 'bad' is nan, must be finite"}));
  EXPECT_FALSE(SmoothingFile::open(scratch / "none").ok());
}

}  // namespace
}  // namespace kvant::tests
