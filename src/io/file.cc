#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/refuse.h"
#include "base/utf8.h"
#include "io/posix.h"

namespace kvant::io {
namespace {

using base::invalid_problem;

constexpr std::size_t kMaxCharacters = 200;  // of printable()

// ---- Text -----------------------------------------------------------------------------------------------------

// C0, DEL, and C1: a terminal may take U+009B for the beginning of a command.
bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7F && c <= 0x9F); }

// Marks, embeddings, overrides and isolates, which reorder the text around them.
bool is_direction(char32_t c) {
  return c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// What is printed for one character or one invalid byte; it is kept or left out as a whole.
struct Piece {
  std::string text;
  std::size_t characters = 0;
};

Piece escaped(std::string_view bytes) {
  Piece piece;
  for (const char c : bytes) piece.text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  piece.characters = piece.text.size();
  return piece;
}

// Takes it off the front of `text`.
Piece next_piece(std::string_view& text) {
  const base::CodePoint c = base::first_code_point(text);
  const std::string_view bytes = text.substr(0, std::max<std::size_t>(c.bytes, 1));
  text.remove_prefix(bytes.size());
  if (c.bytes == 0) return escaped(bytes);
  if (c.value == '\n') return {"\\n", 2};
  if (c.value == '"' || c.value == '\'' || c.value == '\\') return {std::string{'\\', bytes[0]}, 2};
  if (is_control(c.value) || is_direction(c.value)) return escaped(bytes);
  return {std::string(bytes), 1};
}

// ---- Files ----------------------------------------------------------------------------------------------------

int open_for_reading(const char* path) {
  // Without O_NONBLOCK a fifo nobody writes to would hold the caller; regular files do not mind.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int descriptor = -1;
  do {
    descriptor = ::open(path, kFlags);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

std::int64_t nanoseconds(const timespec& time) {
  // Unsigned, as the times of files may be any: beyond the year 2262 they wrap, and still tell files apart.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u +
                                   static_cast<std::uint64_t>(time.tv_nsec));
}

}  // namespace

bool is_utf8(std::string_view text) { return base::valid_utf8_bytes(text) == text.size(); }

std::string printable(std::string_view text) {
  // The head is fixed once it is half of what is allowed; of what follows, the last pieces are kept. So a name of
  // 100 MB costs time, and no memory.
  std::string head;
  std::size_t head_characters = 0;
  std::deque<Piece> tail;
  std::size_t tail_characters = 0;
  bool cut = false;
  while (!text.empty()) {
    Piece piece = next_piece(text);
    if (tail.empty() && head_characters + piece.characters <= kMaxCharacters / 2) {
      head += piece.text;
      head_characters += piece.characters;
      continue;
    }
    tail_characters += piece.characters;
    tail.push_back(std::move(piece));
    if (head_characters + tail_characters > kMaxCharacters) cut = true;
    while (cut && head_characters + 1 + tail_characters > kMaxCharacters) {
      tail_characters -= tail.front().characters;
      tail.pop_front();
    }
  }
  if (cut) head += "…";
  for (const Piece& piece : tail) head += piece.text;
  return head;
}

Result<InputFile> InputFile::open(const std::filesystem::path& path) {
  if (Status status = check_path(path); !status.ok()) return status;
  InputFile file;
  file.opened_.path = path;
  file.opened_.descriptor = open_for_reading(path.c_str());
  if (file.opened_.descriptor < 0) return invalid_problem("{}: {}", printable_path(path), error_text(errno));
  struct stat facts {};
  if (::fstat(file.opened_.descriptor, &facts) != 0)
    return invalid_problem("{}: {}", printable_path(path), error_text(errno));
  if (!S_ISREG(facts.st_mode))
    return invalid_problem("{}: is {}, must be a regular file", printable_path(path), kind_of_file(facts.st_mode));
  file.opened_.size = static_cast<std::uint64_t>(facts.st_size);
  file.opened_.device = facts.st_dev;
  file.opened_.inode = facts.st_ino;
  file.opened_.modified_ns = nanoseconds(facts.st_mtim);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept : opened_(std::exchange(other.opened_, {})) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  // Through a third, so that an assignment to itself keeps the file.
  InputFile taken(std::move(other));
  std::swap(opened_, taken.opened_);
  return *this;
}

InputFile::~InputFile() {
  if (opened_.descriptor >= 0) ::close(opened_.descriptor);
}

Status InputFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  if (opened_.descriptor < 0) return invalid_problem("{}: the file is not open", printable_path(opened_.path));
  if (Status status = check_range(opened_.path, offset, to.size()); !status.ok()) return status;
  std::size_t done = 0;
  while (done < to.size()) {
    const std::uint64_t position = offset + done;
    const ssize_t count = ::pread(opened_.descriptor, to.data() + done, std::min(to.size() - done, kMaxChunk),
                                  static_cast<off_t>(position));
    if (count < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      return invalid_problem("{}: reading {} bytes from {}: {} at byte {}", printable_path(opened_.path), to.size(),
                             offset, error_text(error), position);
    }
    if (count == 0) {
      // The read may have begun after the end; the file may also have grown since, but it ended here or before.
      std::uint64_t end = position;
      struct stat facts {};
      if (::fstat(opened_.descriptor, &facts) == 0) end = std::min(end, static_cast<std::uint64_t>(facts.st_size));
      const std::string change =
          end < opened_.size ? fmt::format(" now and at {} when it was opened", opened_.size) : "";
      return invalid_problem("{}: ends at byte {}{}, wanted {} bytes from {}", printable_path(opened_.path), end,
                             change, to.size(), offset);
    }
    done += static_cast<std::size_t>(count);
  }
  return {};
}

Status InputFile::check_unchanged() const {
  struct stat facts {};
  if (::fstat(opened_.descriptor, &facts) != 0)
    return invalid_problem("{}: {}", printable_path(opened_.path), error_text(errno));
  if (static_cast<std::uint64_t>(facts.st_size) == opened_.size && nanoseconds(facts.st_mtim) == opened_.modified_ns)
    return {};
  return invalid_problem("{}: was changed while it was read (it had {} bytes and has {})", printable_path(opened_.path),
                         opened_.size, facts.st_size);
}

}  // namespace kvant::io
