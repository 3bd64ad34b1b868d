// Progress as a person sees it. On a terminal: one line that is drawn again and again, with percent, rate and time
// left. Elsewhere: a line where a phase begins, one every ten seconds, and the notes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "cli/terminal.h"

namespace kvant::cli {

class ProgressBar : public base::Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // On stderr.
  explicit ProgressBar(bool quiet);
  // For tests: where text goes, what time it is, how wide a line is.
  struct Surroundings {
    std::function<void(std::string_view)> write;
    std::function<Clock::time_point()> now;
    std::function<int()> width;
    bool moves = false;
    bool quiet = false;
  };
  explicit ProgressBar(Surroundings surroundings);
  ~ProgressBar() override { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  using Progress::begin;
  void begin(std::string_view phase, std::uint64_t total, base::Unit unit, std::uint64_t steps) override;
  // Draws at most ten times a second; says where it is every ten seconds where nothing can be drawn. A thread that
  // finds another one drawing goes on with its work.
  void advance(std::uint64_t count) override;
  void note(std::string_view line) override;

  // What is said if the person stops the program while the bar is there. Empty: nothing.
  static void set_last_words(std::string_view words);

  // Takes the bar off the screen, so that what is printed next has a line of its own. Nothing is drawn after it, until
  // a phase begins.
  void finish();

 private:
  void draw();   // under the lock
  void erase();  // under the lock
  std::int64_t now_ns() const;

  Surroundings around_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::int64_t> next_draw_ns_{0};
  std::atomic<bool> in_phase_{false};
  std::mutex drawing_;
  std::string phase_;
  std::uint64_t total_ = 0;
  base::Unit unit_ = base::Unit::bytes;
  std::uint64_t steps_ = 1;  // of a unit
  std::int64_t begin_ns_ = 0;
  bool on_screen_ = false;
};

// "quantizing ━━━━━━━━━━────────── 50%  1.00 GB of 2.00 GB  812 MB/s  1.2 s left", in at most `width` columns: what
// does not fit is left out from the right, the bar itself last.
std::string progress_line(std::string_view phase, std::uint64_t done, std::uint64_t total, base::Unit unit,
                          double seconds, int width);

// "quantizing: 50 % of 2.00 GB at 812 MB/s, 1.2 s left"
std::string progress_sentence(std::string_view phase, std::uint64_t done, std::uint64_t total, base::Unit unit,
                              double seconds);

}  // namespace kvant::cli
