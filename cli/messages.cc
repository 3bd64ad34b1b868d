#include "cli/messages.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

#include "cli/terminal.h"
#include "io/posix.h"

namespace kvant::cli {
namespace {

// Of the first write to stdout that failed; later ones may say less.
int stdout_error = 0;

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && stdout_error == 0) stdout_error = errno;
}

void print_json(const io::Json& document) {
  print(document.dump(2, ' ', false, io::Json::error_handler_t::replace) + "\n");
}

int fail(std::string_view sentence) {
  tell(fmt::format("{} {}", Terminal::of(2).red("kvant:"), sentence));
  return kFailed;
}

int fail(const Status& status) { return fail(status.message()); }

void tell(std::string_view line) {
  // Where both streams go to one place, what was said first stands first.
  if (std::fflush(stdout) != 0 && stdout_error == 0) stdout_error = errno;
  // In one piece: other programs may write to the same terminal.
  const std::string whole = fmt::format("{}\n", line);
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

int flush_results(int code) {
  if (std::fflush(stdout) != 0 && stdout_error == 0) stdout_error = errno;
  if (stdout_error == 0) return code;
  if (stdout_error != EPIPE) fail(fmt::format("standard output: {}", io::error_text(stdout_error)));
  return code == kDone ? kFailed : code;
}

}  // namespace kvant::cli
