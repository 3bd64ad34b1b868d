#include "cli/progress_bar.h"

#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "cli/sizes.h"

namespace kvant::cli {
namespace {

constexpr std::int64_t kDrawEvery = 100'000'000;
constexpr std::int64_t kTellEvery = 10'000'000'000;  // where nothing can be drawn
constexpr std::string_view kErase = "\r\x1b[K";

// Read by the handler of signals: whether stderr's last line is a bar.
volatile sig_atomic_t bar_on_screen = 0;

// Written by the handler: what the person should know who stops the program.
std::array<char, 512> last_words;
volatile sig_atomic_t last_words_size = 0;

// The shell's prompt should not begin behind a bar. Then the signal does what it always does.
void end_line_and_die(int signal) {
  if (bar_on_screen != 0) (void)!write(2, "\n", 1);
  if (last_words_size > 0) (void)!write(2, last_words.data(), static_cast<std::size_t>(last_words_size));
  raise(signal);
}

void watch_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    // One that is ignored, as under nohup, stays so.
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    action = {};
    action.sa_handler = end_line_and_die;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
    sigaction(signal, &action, nullptr);
  }
}

void write_to_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

namespace {

// "1.00 GB", "16,384 tokens"
std::string amount(std::uint64_t count, base::Unit unit) {
  return unit == base::Unit::bytes ? byte_size(count) : fmt::format("{} tokens", grouped_digits(count));
}

std::string speed_of(double per_second, base::Unit unit) {
  return unit == base::Unit::bytes ? rate(per_second) : fmt::format("{:.0f} tokens/s", per_second);
}

}  // namespace

std::string progress_line(std::string_view phase, std::uint64_t done, std::uint64_t total, base::Unit unit,
                          double seconds, int width) {
  const double share = total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double speed = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const std::string percent = fmt::format("{:3.0f}%", share * 100);
  std::string tail = "  " + fmt::format("{} of {}",
                                        unit == base::Unit::bytes ? byte_size(std::min(done, total))
                                                                  : grouped_digits(std::min(done, total)),
                                        amount(total, unit));
  std::string speed_text = "  " + speed_of(speed, unit);
  // A guess from the first moments would be wild.
  std::string left;
  if (seconds >= 0.5 && speed > 0 && done < total)
    left = fmt::format("  {} left", duration(static_cast<double>(total - done) / speed));
  std::string name = shortened(phase, 24);

  constexpr int kMinBar = 10, kMaxBar = 30;
  const auto columns = [&] {
    return display_width(name) + 1 + kMinBar + 1 + display_width(percent) + display_width(tail) +
           display_width(speed_text) + display_width(left);
  };
  if (columns() > width) tail.clear();
  if (columns() > width) speed_text.clear();
  if (columns() > width) left.clear();
  if (columns() > width) return shortened(fmt::format("{} {}", name, percent), width);
  const int bar = std::min(kMaxBar, kMinBar + width - columns());
  const int full = static_cast<int>(share * bar);
  std::string line = name + " ";
  for (int i = 0; i < bar; ++i) line += i < full ? "━" : "─";
  return line + " " + percent + tail + speed_text + left;
}

std::string progress_sentence(std::string_view phase, std::uint64_t done, std::uint64_t total, base::Unit unit,
                              double seconds) {
  done = std::min(done, total);
  const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  std::string text = fmt::format("{}: {:.0f} % of {}", phase, share * 100, amount(total, unit));
  if (seconds > 0) text += fmt::format(" at {}", speed_of(static_cast<double>(done) / seconds, unit));
  if (done > 0 && done < total)
    text += fmt::format(", {} left", duration(seconds * static_cast<double>(total - done) / static_cast<double>(done)));
  return text;
}

ProgressBar::ProgressBar(bool quiet)
    : ProgressBar(Surroundings{.write = write_to_stderr,
                               .now = [] { return Clock::now(); },
                               .width = [] { return Terminal::of(2).width(); },
                               .moves = Terminal::of(2).moves,
                               .quiet = quiet}) {
  if (!quiet) watch_signals();
}

ProgressBar::ProgressBar(Surroundings surroundings) : around_(std::move(surroundings)) {}

std::int64_t ProgressBar::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(around_.now().time_since_epoch()).count();
}

void ProgressBar::set_last_words(std::string_view words) {
  last_words_size = 0;
  const std::size_t count = std::min(words.size(), last_words.size() - 1);
  if (count == 0) return;
  std::copy_n(words.begin(), count, last_words.begin());
  last_words[count] = '\n';
  last_words_size = static_cast<sig_atomic_t>(count + 1);
}

void ProgressBar::begin(std::string_view phase, std::uint64_t total, base::Unit unit, std::uint64_t steps) {
  if (around_.quiet) return;
  const std::lock_guard lock(drawing_);
  phase_ = phase;
  total_ = total;
  unit_ = unit;
  steps_ = std::max<std::uint64_t>(steps, 1);
  done_ = 0;
  begin_ns_ = now_ns();
  if (!around_.moves) {
    around_.write(fmt::format("{}: {}\n", phase_, amount(total / steps_, unit)));
    in_phase_ = true;
    next_draw_ns_ = begin_ns_ + kTellEvery;
    return;
  }
  in_phase_ = true;
  // What is done at once needs no bar.
  next_draw_ns_ = begin_ns_ + kDrawEvery;
}

void ProgressBar::advance(std::uint64_t count) {
  if (around_.quiet) return;
  done_.fetch_add(count, std::memory_order_relaxed);
  if (now_ns() < next_draw_ns_.load(std::memory_order_relaxed)) return;
  const std::unique_lock lock(drawing_, std::try_to_lock);
  if (!lock.owns_lock() || !in_phase_) return;
  const std::int64_t now = now_ns();
  if (now < next_draw_ns_) return;  // another thread drew while this one came here
  next_draw_ns_ = now + (around_.moves ? kDrawEvery : kTellEvery);
  if (around_.moves)
    draw();
  else
    around_.write(
        progress_sentence(phase_, done_ / steps_, total_ / steps_, unit_, static_cast<double>(now - begin_ns_) * 1e-9) +
        "\n");
}

void ProgressBar::note(std::string_view line) {
  if (around_.quiet) return;
  const std::lock_guard lock(drawing_);
  const bool was_on_screen = on_screen_;
  erase();
  around_.write(fmt::format("{}\n", line));
  if (was_on_screen) draw();
}

void ProgressBar::finish() {
  const std::lock_guard lock(drawing_);
  in_phase_ = false;
  erase();
}

void ProgressBar::draw() {
  const double seconds = static_cast<double>(now_ns() - begin_ns_) * 1e-9;
  // A line that fills the last column wraps on some terminals.
  const int width = std::max(20, around_.width()) - 1;
  on_screen_ = true;
  // Before the bar is there: a signal between the two would find a bar that nobody told it of.
  bar_on_screen = 1;
  around_.write(
      fmt::format("\r{}\x1b[K", progress_line(phase_, done_ / steps_, total_ / steps_, unit_, seconds, width)));
}

void ProgressBar::erase() {
  if (!on_screen_) return;
  around_.write(kErase);
  on_screen_ = false;
  bar_on_screen = 0;
}

}  // namespace kvant::cli
