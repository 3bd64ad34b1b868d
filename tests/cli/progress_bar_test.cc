// The bar on a terminal, lines elsewhere, silence where it is asked for.
#include "cli/progress_bar.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace kvant::cli {
namespace {

using namespace std::chrono_literals;

struct Screen {
  std::vector<std::string> writes;
  ProgressBar::Clock::time_point time = ProgressBar::Clock::time_point(1h);
  int width = 100;

  ProgressBar::Surroundings surroundings(bool moves, bool quiet = false) {
    return {.write = [this](std::string_view text) { writes.emplace_back(text); },
            .now = [this] { return time; },
            .width = [this] { return width; },
            .moves = moves,
            .quiet = quiet};
  }
};

TEST(ProgressBar, PrintsLinesWhereThereIsNoTerminal) {
  Screen screen;
  {
    ProgressBar bar(screen.surroundings(false));
    bar.begin("quantizing", 2'000'000);
    for (int i = 0; i < 25; ++i) {
      screen.time += 1s;
      bar.advance(20'000);
    }
    bar.note("wrote model.safetensors");
    bar.finish();
    screen.time += 100s;
    bar.advance(1'000'000);  // a thread that was slow
  }
  EXPECT_EQ(screen.writes,
            (std::vector<std::string>{
                "quantizing: 2.00 MB\n", "quantizing: 10 % of 2.00 MB at 0.0 MB/s, 1 min 30 s left\n",
                "quantizing: 20 % of 2.00 MB at 0.0 MB/s, 1 min 20 s left\n", "wrote model.safetensors\n"}));
}

TEST(ProgressSentence, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_sentence("quantizing", 1'000'000'000, 2'000'000'000, base::Unit::bytes, 2.0),
            "quantizing: 50 % of 2.00 GB at 500 MB/s, 2.0 s left");
  EXPECT_EQ(progress_sentence("evaluating", 16384, 16384, base::Unit::tokens, 4.0),
            "evaluating: 100 % of 16,384 tokens at 4096 tokens/s");
  EXPECT_EQ(progress_sentence("reading", 0, 0, base::Unit::bytes, 0), "reading: 100 % of 0 B");
}

TEST(ProgressBar, IsSilentWhenAsked) {
  for (const bool moves : {false, true}) {
    Screen screen;
    {
      ProgressBar bar(screen.surroundings(moves, true));
      bar.begin("quantizing", 100);
      screen.time += 1s;
      bar.advance(50);
      bar.note("wrote something");
    }
    EXPECT_TRUE(screen.writes.empty());
  }
}

TEST(ProgressBar, DrawsAtMostTenTimesASecond) {
  Screen screen;
  ProgressBar bar(screen.surroundings(true));
  bar.begin("quantizing", 1'000'000);
  for (int i = 0; i < 1000; ++i) {
    screen.time += 1ms;
    bar.advance(1000);
  }
  EXPECT_EQ(screen.writes.size(), 10u);
  EXPECT_NE(screen.writes.back().find("100%"), std::string::npos) << screen.writes.back();
  for (const std::string& text : screen.writes) {
    EXPECT_TRUE(text.starts_with("\rquantizing "));
    EXPECT_TRUE(text.ends_with("\x1b[K"));
  }
}

TEST(ProgressBar, MakesRoomForNotesAndLeavesTheLineClean) {
  Screen screen;
  {
    ProgressBar bar(screen.surroundings(true));
    bar.begin("quantizing", 1000);
    bar.note("early");
    screen.time += 1s;
    bar.advance(500);
    bar.note("late");
    bar.finish();
    const std::size_t before = screen.writes.size();
    screen.time += 1s;
    bar.advance(500);  // a thread that was slow
    EXPECT_EQ(screen.writes.size(), before);
  }
  ASSERT_EQ(screen.writes.size(), 6u);
  EXPECT_EQ(screen.writes[0], "early\n");
  EXPECT_NE(screen.writes[1].find(" 50%"), std::string::npos);
  EXPECT_EQ(screen.writes[2], "\r\x1b[K");
  EXPECT_EQ(screen.writes[3], "late\n");
  EXPECT_EQ(screen.writes[4], screen.writes[1]);
  EXPECT_EQ(screen.writes[5], "\r\x1b[K");
}

TEST(ProgressBar, CountsWhatManyThreadsDo) {
  Screen screen;
  ProgressBar bar(screen.surroundings(true));
  bar.begin("quantizing", 8'000'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) bar.advance(1000);
    });
  for (std::thread& thread : threads) thread.join();
  screen.time += 1s;
  bar.advance(0);
  ASSERT_EQ(screen.writes.size(), 1u);
  EXPECT_NE(screen.writes[0].find("8.00 MB of 8.00 MB"), std::string::npos) << screen.writes[0];
}

TEST(ProgressLine, SaysHowFarHowFastAndHowLong) {
  EXPECT_EQ(progress_line("quantizing", 1'000'000'000, 2'000'000'000, base::Unit::bytes, 2.0, 120),
            "quantizing ━━━━━━━━━━━━━━━───────────────  50%  1.00 GB of 2.00 GB  500 MB/s  2.0 s left");
  // Neither a rate of nothing nor a guess from the first moment.
  EXPECT_EQ(progress_line("reading", 0, 0, base::Unit::bytes, 0, 60),
            "reading ━━━━━━━━━━━━━━━━━━━━━━━━━ 100%  0 B of 0 B  0.0 MB/s");
  EXPECT_EQ(progress_line("evaluating", 8192, 16384, base::Unit::tokens, 4.0, 120),
            "evaluating ━━━━━━━━━━━━━━━───────────────  50%  8,192 of 16,384 tokens  2048 tokens/s  4.0 s left");
  EXPECT_EQ(progress_line("reading", 5, 4, base::Unit::bytes, 0.1, 120).find("left"), std::string::npos);
}

TEST(ProgressLine, FitsAnyWidth) {
  for (int width = 1; width <= 150; ++width) {
    const std::string line =
        progress_line("a phase with quite a long name 層", 1'234'567'890, 9'876'543'210, base::Unit::bytes, 3.7, width);
    EXPECT_LE(display_width(line), width) << line;
  }
}

}  // namespace
}  // namespace kvant::cli
