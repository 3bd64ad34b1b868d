// A part of tokenizer.json with its place, so that refusals say where: "tokenizer.json: pre_tokenizer: …".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/refuse.h"
#include "io/file.h"
#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::model::tokenizer {

class Section {
 public:
  Section(const io::Json& json, std::string place) : json_(&json), place_(std::move(place)) {}

  const io::Json& json() const { return *json_; }
  const std::string& place() const { return place_; }

  // The value of a key; nullptr where there is none, or null.
  const io::Json* find(std::string_view key) const;

  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string_view otherwise) const;
  Result<bool> flag_or(std::string_view key, bool otherwise) const;
  Result<std::string> type() const { return text("type"); }
  // The objects of a list.
  Result<std::vector<Section>> sections(std::string_view key) const;

  template <class... Args>
  Status refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return base::invalid_problem("{}: {}", place_, base::text(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  Status unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return base::unsupported("{}: {}", place_, base::text(format, std::forward<Args>(args)...));
  }
  // "value 3 of 'lowercase' is no flag"
  Status wrong(std::string_view key, std::string_view wanted) const;

 private:
  const io::Json* json_;
  std::string place_;
};

// A section of a type that no row of `kinds` has.
template <class Kinds>
Status unknown_type(const Section& section, std::string_view type, const Kinds& kinds) {
  std::string known;
  for (const auto& kind : kinds) known += base::text("{}, ", kind.type);
  return section.unsupported("type \"{}\" is not supported; supported are {}Sequence", io::printable(type), known);
}

// An id in a file: a whole number from 0 to kMaxTokenId.
Result<std::int32_t> token_id(const Section& where, std::string_view token, const io::Json& value);

}  // namespace kvant::model::tokenizer
