#include "model/tokenizer/pattern.h"

#include "io/json.h"

namespace kvant::model::tokenizer {

Result<Pattern> read_pattern(const Section& section) {
  const io::Json* value = section.find("pattern");
  if (value == nullptr || !value->is_object() || value->size() != 1)
    return section.refuse("\"pattern\" must be an object of one \"Regex\" or one \"String\"");
  const Section pattern(*value, section.place() + ": pattern");
  if (pattern.find("Regex") != nullptr) {
    const auto text = pattern.text("Regex");
    if (!text.ok()) return text.status();
    auto regex = Regex::compile(*text, pattern.place());
    if (!regex.ok()) return regex.status();
    return Pattern{std::move(regex).value(), ""};
  }
  const auto text = pattern.text("String");
  if (!text.ok()) return text.status();
  if (text->empty()) return pattern.refuse("\"String\" is empty");
  auto regex = Regex::compile_literal(*text, pattern.place());
  if (!regex.ok()) return regex.status();
  return Pattern{std::move(regex).value(), *text};
}

}  // namespace kvant::model::tokenizer
