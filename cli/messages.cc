#include "cli/messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include "cli/terminal.h"
#include "io/json.h"
#include "io/posix.h"

namespace kvant::cli {
namespace {

// Of the first write to stdout that failed; later ones may say less.
int stdout_error = 0;

// Indented by two, but a list of numbers in one line: a report has lists of a thousand.
void append_json(const io::Json& value, std::size_t depth, std::string& text) {
  const bool is_object = value.is_object();
  const bool is_list =
      value.is_array() && std::ranges::any_of(value, [](const io::Json& element) { return element.is_structured(); });
  const bool is_texts = value.is_array() && !value.empty() &&
                        std::ranges::all_of(value, [](const io::Json& element) { return element.is_string(); });
  if ((!is_object && !is_list && !is_texts) || value.empty()) {
    text += value.dump(-1, ' ', false, io::Json::error_handler_t::replace);
    return;
  }
  text += is_object ? '{' : '[';
  const char* separator = "";
  for (auto element = value.begin(); element != value.end(); ++element) {
    text += separator;
    text += '\n';
    text.append(2 * (depth + 1), ' ');
    if (is_object) text += io::Json(element.key()).dump(-1, ' ', false, io::Json::error_handler_t::replace) + ": ";
    append_json(*element, depth + 1, text);
    separator = ",";
  }
  text += '\n';
  text.append(2 * depth, ' ');
  text += is_object ? '}' : ']';
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && stdout_error == 0) stdout_error = errno;
}

void print_json(const io::Json& document) {
  std::string text;
  append_json(document, 0, text);
  print(text + "\n");
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
