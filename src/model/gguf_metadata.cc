#include "model/gguf_metadata.h"

#include <charconv>

#include "base/refuse.h"

namespace kvant::model {
namespace {

using base::invalid_problem;

// What is an integer and not negative.
std::optional<std::uint64_t> count_of(const io::GgufEntry& entry) {
  const auto* const number = std::get_if<io::GgufNumber>(&entry.value);
  if (number == nullptr) return std::nullopt;
  if (const auto* const value = std::get_if<std::uint64_t>(number)) return *value;
  const auto* const value = std::get_if<std::int64_t>(number);
  if (value == nullptr || *value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

double shortest(double value, io::GgufValueType type) {
  if (type != io::GgufValueType::f32) return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(value)).ptr;
  double again = value;
  std::from_chars(text, end, again);
  return again;
}

}  // namespace

Status GgufMetadata::refuse(const io::GgufEntry& entry, std::string_view wanted) const {
  const auto* const array = std::get_if<io::GgufArray>(&entry.value);
  return invalid_problem("{}: \"{}\" is {}{}, must be {}", file_name(), io::printable(entry.key),
                         array == nullptr ? "of type " : "an array of ",
                         name(array == nullptr ? entry.type : array->element), wanted);
}

Result<std::optional<std::uint64_t>> GgufMetadata::count(const std::string& key) const {
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return std::optional<std::uint64_t>();
  const auto value = count_of(*entry);
  if (!value) return refuse(*entry, "an integer that is not negative");
  return value;
}

Result<std::optional<double>> GgufMetadata::number(const std::string& key) const {
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return std::optional<double>();
  if (const auto* const number = std::get_if<io::GgufNumber>(&entry->value))
    if (const auto* const value = std::get_if<double>(number)) return std::optional(shortest(*value, entry->type));
  return refuse(*entry, "a number in floating point");
}

Result<std::optional<bool>> GgufMetadata::flag(const std::string& key) const {
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return std::optional<bool>();
  if (const auto* const number = std::get_if<io::GgufNumber>(&entry->value))
    if (const auto* const value = std::get_if<bool>(number)) return std::optional(*value);
  return refuse(*entry, "a boolean");
}

Result<std::optional<std::string>> GgufMetadata::text(const std::string& key) const {
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return std::optional<std::string>();
  const auto* const value = std::get_if<std::string>(&entry->value);
  if (value == nullptr) return refuse(*entry, "a string");
  if (!io::is_utf8(*value)) return invalid_problem("{}: \"{}\" is not UTF-8", file_name(), io::printable(key));
  return std::optional(*value);
}

Result<const io::GgufArray*> GgufMetadata::strings(const std::string& key) const {
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return nullptr;
  const auto* const array = std::get_if<io::GgufArray>(&entry->value);
  if (array == nullptr || array->element != io::GgufValueType::string) return refuse(*entry, "an array of strings");
  return array;
}

Result<std::vector<std::int64_t>> GgufMetadata::integers(const std::string& key) const {
  std::vector<std::int64_t> values;
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return values;
  const auto* const array = std::get_if<io::GgufArray>(&entry->value);
  if (array == nullptr || array->element != io::GgufValueType::i32) return refuse(*entry, "an array of i32");
  for (std::size_t i = 0; i < array->size(); ++i) values.push_back(std::get<std::int64_t>(array->number(i)));
  return values;
}

Result<std::vector<double>> GgufMetadata::numbers(const std::string& key) const {
  std::vector<double> values;
  const io::GgufEntry* const entry = file_.find_entry(key);
  if (entry == nullptr) return values;
  const auto* const array = std::get_if<io::GgufArray>(&entry->value);
  if (array == nullptr || array->element != io::GgufValueType::f32) return refuse(*entry, "an array of f32");
  for (std::size_t i = 0; i < array->size(); ++i) values.push_back(std::get<double>(array->number(i)));
  return values;
}

Result<std::uint64_t> GgufMetadata::count_between(const std::string& key, std::uint64_t least,
                                                  std::uint64_t most) const {
  if (!has(key)) return invalid_problem("{}: \"{}\" is missing", file_name(), io::printable(key));
  return count_or(key, least, least, most);
}

Result<std::uint64_t> GgufMetadata::count_or(const std::string& key, std::uint64_t otherwise, std::uint64_t least,
                                             std::uint64_t most) const {
  const auto value = count(key);
  if (!value.ok()) return value.status();
  const std::uint64_t number = value->value_or(otherwise);
  if (number < least || number > most)
    return invalid_problem("{}: \"{}\" is {}, must be from {} to {}", file_name(), io::printable(key), number, least,
                           most);
  return number;
}

}  // namespace kvant::model
