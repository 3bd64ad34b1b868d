// Results go to stdout, everything else to stderr.
#pragma once

#include <string_view>

#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// To stdout. Whether it arrived is asked once, at the end.
void print(std::string_view text);
// A document and a newline. Names that are no UTF-8 get replacement characters.
void print_json(const io::Json& document);

// "kvant: " and the sentence, on stderr. Returns kFailed.
int fail(std::string_view sentence);
int fail(const Status& status);

// A line on stderr.
void tell(std::string_view line);

// Flushes stdout. An exit code: `code`, or kFailed where what was printed did not arrive. A reader that went away is
// told nothing.
int flush_results(int code);

}  // namespace kvant::cli
