// Patterns of tokenizer.json are in Oniguruma's syntax. PCRE2 compiles them after the few words that mean something
// else there are put in its own.
#pragma once

#include <string>
#include <string_view>

#include "kvant/status.h"

namespace kvant::model::tokenizer {

// Refuses, without naming a file, what has no counterpart: "has a list inside a list at byte 3, …".
Result<std::string> pcre2_pattern(std::string_view oniguruma);

}  // namespace kvant::model::tokenizer
