// Parts on threads: each once, and of several refusals the one of the smallest part.
#include "base/for_each_part.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace kvant::tests {
namespace {

TEST(ForEachPart, CallsEachOnce) {
  for (const int threads : {1, 4})
    for (const std::uint64_t first : {0u, 5u})
      for (const std::uint64_t count : {0u, 1u, 3u, 100u}) {
        std::vector<std::atomic<int>> seen(first + count);
        const Stream stream = Stream::cpu(threads);
        const Status done = base::for_each_part(stream, first, first + count, [&](std::size_t worker, std::uint64_t i) {
          EXPECT_LT(worker, static_cast<std::size_t>(threads));
          ++seen[i];
          return Status();
        });
        EXPECT_TRUE(done.ok());
        for (std::uint64_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i < first ? 0 : 1);
      }
}

TEST(ForEachPart, StopsAtARefusal) {
  std::atomic<int> calls = 0;
  const auto refuse_from_3 = [&](std::size_t, std::uint64_t i) {
    ++calls;
    return i < 3 ? Status() : Status(StatusCode::InvalidProblem, "part " + std::to_string(i));
  };
  const Status one = base::for_each_part(Stream::cpu(1), 0, 1000, refuse_from_3);
  EXPECT_EQ(one.message(), "part 3");
  EXPECT_EQ(calls, 4);
  const Status four = base::for_each_part(Stream::cpu(4), 0, 1000, refuse_from_3);
  EXPECT_EQ(four.message(), "part 3");
  EXPECT_LT(calls, 20);
}

}  // namespace
}  // namespace kvant::tests
