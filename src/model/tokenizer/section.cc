#include "model/tokenizer/section.h"

#include <cstddef>

#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/limits.h"

namespace kvant::model::tokenizer {

const io::Json* Section::find(std::string_view key) const {
  if (!json_->is_object()) return nullptr;
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

Status Section::wrong(std::string_view key, std::string_view wanted) const {
  const io::Json* value = find(key);
  if (value == nullptr) return refuse("has no \"{}\", which must be {}", key, wanted);
  if (value->is_structured()) return refuse("\"{}\" is a list or an object, must be {}", key, wanted);
  return refuse("\"{}\" is {}, must be {}", key, io::printable(value->dump(-1, ' ', true)), wanted);
}

Result<std::string> Section::text(std::string_view key) const {
  const io::Json* value = find(key);
  if (value == nullptr || !value->is_string()) return wrong(key, "a text");
  return value->get<std::string>();
}

Result<std::string> Section::text_or(std::string_view key, std::string_view otherwise) const {
  if (find(key) == nullptr) return std::string(otherwise);
  return text(key);
}

Result<bool> Section::flag_or(std::string_view key, bool otherwise) const {
  const io::Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

Result<std::vector<Section>> Section::sections(std::string_view key) const {
  const io::Json* value = find(key);
  if (value == nullptr || !value->is_array()) return wrong(key, "a list");
  std::vector<Section> sections;
  sections.reserve(value->size());
  for (std::size_t i = 0; i < value->size(); ++i) {
    sections.emplace_back((*value)[i], base::text("{}: {}[{}]", place_, key, i));
    if (!(*value)[i].is_object()) return sections.back().refuse("is no object");
  }
  return sections;
}

Result<std::int32_t> token_id(const Section& where, std::string_view token, const io::Json& value) {
  if (!value.is_number_integer()) return where.refuse("the id of '{}' is no whole number", io::printable(token));
  // Unsigned 64-bit numbers above the signed ones are their own kind.
  if (value.is_number_unsigned() ? value.get<std::uint64_t>() > std::uint64_t{kMaxTokenId} : true)
    return where.refuse("the id of '{}' is {}, must be from 0 to {}", io::printable(token), value.dump(), kMaxTokenId);
  return value.get<std::int32_t>();
}

}  // namespace kvant::model::tokenizer
