// A regular expression of tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvant/status.h"
#include "model/tokenizer/pieces.h"

namespace kvant::model::tokenizer {

class Regex {
 public:
  // In Oniguruma's syntax. `place` begins refusals.
  static Result<Regex> compile(std::string_view pattern, std::string_view place);
  // For the text itself.
  static Result<Regex> compile_literal(std::string_view text, std::string_view place);

  // Appends all matches in valid UTF-8, one after the other. An empty match where the one before ended is none. Refuses
  // where a pattern takes more steps than any honest one.
  Status find_all(std::string_view text, std::vector<Range>& found) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  static Result<Regex> compile_pcre2(std::string_view pcre2, std::string_view shown, std::string_view place);

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace kvant::model::tokenizer
