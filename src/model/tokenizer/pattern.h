// {"Regex": …} or {"String": …}: what Split and Replace look for.
#pragma once

#include <string>

#include "kvant/status.h"
#include "model/tokenizer/regex.h"
#include "model/tokenizer/section.h"

namespace kvant::model::tokenizer {

struct Pattern {
  Regex regex;
  std::string literal;  // empty: it is an expression
};

Result<Pattern> read_pattern(const Section& section);

}  // namespace kvant::model::tokenizer
