#include "model/config_fields.h"

#include <cmath>

#include "base/refuse.h"
#include "io/checkpoint.h"
#include "io/file.h"
#include "io/json.h"

namespace kvant::model {
namespace {

using base::invalid_problem;

// A value as config.json writes it, cut where it is long.
std::string shown(const io::Json& value) {
  constexpr std::size_t kMax = 60;
  std::string text = value.dump(-1, ' ', true, io::Json::error_handler_t::replace);
  return text.size() <= kMax ? text : text.substr(0, kMax) + "…";
}

Status missing(std::string_view key) { return invalid_problem("{}: {} is missing", io::kConfigName, key); }

}  // namespace

ConfigFields::ConfigFields(const io::Json& config) : config_(&config) {
  if (const auto inner = config.find("text_config"); inner != config.end() && inner->is_object()) config_ = &*inner;
}

const io::Json* ConfigFields::find(std::string_view key) const {
  const auto found = config_->find(key);
  return found == config_->end() || found->is_null() ? nullptr : &*found;
}

Result<std::int64_t> ConfigFields::integer(std::string_view key, std::int64_t min, std::int64_t max,
                                           std::optional<std::int64_t> otherwise) const {
  const io::Json* const value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) return missing(key);
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<std::uint64_t>() <= static_cast<std::uint64_t>(max));
  if (!fits || value->get<std::int64_t>() < min || value->get<std::int64_t>() > max)
    return invalid_problem("{}: {} is {}, must be an integer from {} to {}", io::kConfigName, key, shown(*value), min,
                           max);
  return value->get<std::int64_t>();
}

Result<double> ConfigFields::positive(std::string_view key, std::optional<double> otherwise) const {
  const io::Json* const value = find(key);
  if (value == nullptr && otherwise) return *otherwise;
  if (value == nullptr) return missing(key);
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0)
    return invalid_problem("{}: {} is {}, must be a positive number", io::kConfigName, key, shown(*value));
  return value->get<double>();
}

Result<bool> ConfigFields::flag(std::string_view key, bool otherwise) const {
  const io::Json* const value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean())
    return invalid_problem("{}: {} is {}, must be true or false", io::kConfigName, key, shown(*value));
  return value->get<bool>();
}

Result<std::string> ConfigFields::text(std::string_view key) const {
  const io::Json* const value = find(key);
  if (value == nullptr) return std::string();
  if (!value->is_string())
    return invalid_problem("{}: {} is {}, must be a string", io::kConfigName, key, shown(*value));
  return value->get<std::string>();
}

}  // namespace kvant::model
