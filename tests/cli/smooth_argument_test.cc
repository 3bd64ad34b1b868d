// --smooth takes a number or nothing, and never the checkpoint.
#include "cli/smooth_argument.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvant::cli {
namespace {

using Words = std::vector<std::string>;

TEST(SmoothArgument, TakesANumberAndNothingElse) {
  const struct {
    Words line, joined;
  } cases[] = {{{"quantize", "--smooth", "model", "-o", "out"}, {"quantize", "--smooth=auto", "model", "-o", "out"}},
               {{"quantize", "model", "-o", "out", "--smooth"}, {"quantize", "model", "-o", "out", "--smooth=auto"}},
               {{"quantize", "--smooth", "0.7", "model"}, {"quantize", "--smooth=0.7", "model"}},
               {{"quantize", "--smooth", ".5", "model"}, {"quantize", "--smooth=.5", "model"}},
               {{"quantize", "--smooth", "1", "model"}, {"quantize", "--smooth=1", "model"}},
               {{"quantize", "--smooth", "-1", "model"}, {"quantize", "--smooth=-1", "model"}},
               {{"quantize", "--smooth=0.7", "model"}, {"quantize", "--smooth=0.7", "model"}},
               {{"quantize", "--smooth", "--stats", "s"}, {"quantize", "--smooth=auto", "--stats", "s"}},
               {{"quantize", "--smooth", "7b"}, {"quantize", "--smooth=auto", "7b"}},
               {{"quantize", "--smooth", "0.7/model"}, {"quantize", "--smooth=auto", "0.7/model"}},
               {{"quantize", "--smooth", "inf"}, {"quantize", "--smooth=auto", "inf"}},
               {{"quantize", "--smooth", "nan"}, {"quantize", "--smooth=auto", "nan"}},
               {{"quantize", "--smooth", "-"}, {"quantize", "--smooth=auto", "-"}},
               {{"quantize", "--smooth", "."}, {"quantize", "--smooth=auto", "."}},
               {{"quantize", "--smooth", ""}, {"quantize", "--smooth=auto", ""}},
               {{"quantize", "--smooth-groups", "llama"}, {"quantize", "--smooth-groups", "llama"}},
               {{"-v", "quantize", "--smooth", "m"}, {"-v", "quantize", "--smooth=auto", "m"}},
               {{"quantize", "--", "--smooth"}, {"quantize", "--", "--smooth"}},
               {{"inspect", "--smooth", "m"}, {"inspect", "--smooth", "m"}},
               {{}, {}}};
  for (const auto& c : cases) EXPECT_EQ(join_smooth_argument(c.line), c.joined);
}

}  // namespace
}  // namespace kvant::cli
