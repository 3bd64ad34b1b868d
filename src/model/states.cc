#include "model/states.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/refuse.h"
#include "io/posix.h"

namespace kvant::model {
namespace {

// After the states.
struct Mark {
  std::array<char, 16> magic;
  std::uint64_t key;
  std::uint64_t rows, hidden;
  std::uint64_t done;
  std::uint64_t states_hash;
  std::uint64_t mark_hash;  // of all above
};
constexpr std::array<char, 16> kMagic = {'k', 'v', 'a', 'n', 't', ' ', 's', 't', 'a', 't', 'e', 's', ' ', '1'};

std::span<const std::byte> bytes_of(const Mark& mark) { return std::as_bytes(std::span(&mark, 1)); }

std::uint64_t hash_of(const Mark& mark) {
  io::Hash hash;
  hash.add(bytes_of(mark).first(offsetof(Mark, mark_hash)));
  return hash.value();
}

}  // namespace

std::filesystem::path States::path(int file) const {
  return options_.folder->file(options_.stem + (file == 0 ? "-a" : "-b"));
}

std::optional<std::uint64_t> States::read_mark(const io::InputFile& file, std::uint64_t& hash) const {
  Mark mark;
  if (file.size() != bytes() + sizeof mark) return std::nullopt;
  if (!file.read(bytes(), std::as_writable_bytes(std::span(&mark, 1))).ok()) return std::nullopt;
  if (mark.magic != kMagic || mark.mark_hash != hash_of(mark) || mark.key != options_.key ||
      mark.rows != static_cast<std::uint64_t>(rows_) || mark.hidden != static_cast<std::uint64_t>(hidden_))
    return std::nullopt;
  hash = mark.states_hash;
  return mark.done;
}

Result<bool> States::take(int file) {
  auto input = io::InputFile::open(path(file));
  if (!input.ok()) return false;
  std::uint64_t expected = 0;
  const auto done = read_mark(*input, expected);
  if (!done) return false;
  io::Hash hash;
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 22;
  std::vector<std::byte> piece;
  for (std::uint64_t at = 0; at < bytes(); at += kPiece) {
    const std::uint64_t count = std::min(kPiece, bytes() - at);
    std::span<std::byte> to;
    if (options_.in_memory) {
      to = std::as_writable_bytes(std::span(memory_)).subspan(at, count);
    } else {
      piece.resize(count);
      to = piece;
    }
    if (!input->read(at, to).ok()) return false;
    hash.add(to);
  }
  if (hash.value() != expected) return false;
  done_ = done;
  current_ = file;
  if (!options_.in_memory) input_ = std::move(input).value();
  return true;
}

Result<States> States::make(std::int64_t rows, std::int64_t hidden, Options options) {
  States states(rows, hidden, std::move(options));
  if (states.options_.in_memory) states.memory_.resize(static_cast<std::size_t>(rows * hidden));
  if (states.options_.folder == nullptr || !states.options_.resume) return states;
  // The one that is further first.
  std::array<std::optional<std::uint64_t>, 2> done;
  for (const int file : {0, 1}) {
    const auto input = io::InputFile::open(states.path(file));
    std::uint64_t hash = 0;
    if (input.ok()) done[static_cast<std::size_t>(file)] = states.read_mark(*input, hash);
  }
  const int further = done[1] > done[0] ? 1 : 0;
  for (const int file : {further, 1 - further}) {
    const auto taken = states.take(file);
    if (!taken.ok()) return taken.status();
    if (*taken) break;
  }
  return states;
}

Status States::begin_pass() {
  put_ = 0;
  if (options_.folder == nullptr) return {};
  const std::filesystem::path next = path(1 - current_);
  output_ = io::Descriptor(io::open_again(next.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW, 0600));
  if (output_.get() < 0) return base::invalid_problem("{}: {}", io::printable_path(next), io::error_text(errno));
  // Shorter than with its mark.
  if (::ftruncate(output_.get(), static_cast<off_t>(bytes())) != 0)
    return io::refuse_write(next, errno, base::text("at byte {}", bytes()));
  hash_ = io::Hash();
  return {};
}

Result<float*> States::rows(std::int64_t first, std::int64_t count) {
  first_ = first;
  count_ = count;
  if (options_.in_memory) return memory_.data() + first * hidden_;
  memory_.resize(static_cast<std::size_t>(count * hidden_));
  if (done_)
    if (Status s = input_->read(static_cast<std::uint64_t>(first * hidden_) * sizeof(float),
                                std::as_writable_bytes(std::span(memory_)));
        !s.ok())
      return s;
  return memory_.data();
}

Status States::put_back() {
  if (put_ == 0)
    if (Status s = begin_pass(); !s.ok()) return s;
  if (first_ != put_)
    return Status(StatusCode::Internal, base::text("rows from {} were put back, must be from {}", first_, put_));
  put_ += count_;
  if (options_.folder == nullptr) return {};
  const float* const values = memory_.data() + (options_.in_memory ? first_ * hidden_ : 0);
  const auto bytes = std::as_bytes(std::span(values, static_cast<std::size_t>(count_ * hidden_)));
  hash_.add(bytes);
  return io::write_at(output_.get(), path(1 - current_), static_cast<std::uint64_t>(first_ * hidden_) * sizeof(float),
                      bytes);
}

Status States::finish_pass() {
  if (put_ != rows_)
    return Status(StatusCode::Internal, base::text("{} rows were put back, must be all {}", put_, rows_));
  put_ = 0;
  done_ = done_ ? *done_ + 1 : 0;
  if (options_.folder == nullptr) return {};
  Mark mark{.magic = kMagic,
            .key = options_.key,
            .rows = static_cast<std::uint64_t>(rows_),
            .hidden = static_cast<std::uint64_t>(hidden_),
            .done = *done_,
            .states_hash = hash_.value(),
            .mark_hash = 0};
  mark.mark_hash = hash_of(mark);
  current_ = 1 - current_;
  if (Status s = io::write_at(output_.get(), path(current_), bytes(), bytes_of(mark)); !s.ok()) return s;
  output_ = {};
  if (options_.in_memory) return {};
  auto input = io::InputFile::open(path(current_));
  if (!input.ok()) return input.status();
  input_ = std::move(input).value();
  return {};
}

}  // namespace kvant::model
