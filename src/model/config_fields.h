// Fields of config.json by their names, with the sentences for what is missing or makes no sense.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/json_fwd.h"
#include "kvant/status.h"

namespace kvant::model {

class ConfigFields {
 public:
  // `config` is an object and outlives this. Models that see pictures keep the fields of their language model in
  // "text_config".
  explicit ConfigFields(const io::Json& config);

  // Null: it is missing or null.
  const io::Json* find(std::string_view key) const;

  // An integer of min to max. Refuses a missing one if there is no default.
  Result<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max,
                               std::optional<std::int64_t> otherwise = std::nullopt) const;
  // Finite and positive.
  Result<double> positive(std::string_view key, std::optional<double> otherwise = std::nullopt) const;
  Result<bool> flag(std::string_view key, bool otherwise) const;
  // Empty where it is missing.
  Result<std::string> text(std::string_view key) const;

 private:
  const io::Json* config_;
};

}  // namespace kvant::model
