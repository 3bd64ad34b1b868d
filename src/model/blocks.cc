#include "model/blocks.h"

#include <algorithm>

#include "format/module_name.h"

namespace kvant::model {

std::optional<std::string_view> fit(std::string_view text, std::string_view pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return text == pattern ? std::optional<std::string_view>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (text.size() <= before.size() + after.size() || !text.starts_with(before) || !text.ends_with(after))
    return std::nullopt;
  const std::string_view number = text.substr(before.size(), text.size() - before.size() - after.size());
  return format::is_number(number) ? std::optional(number) : std::nullopt;
}

std::string numbered(std::string_view pattern, std::uint64_t number) {
  std::string text(pattern);
  if (const std::size_t star = text.find('*'); star != std::string::npos) text.replace(star, 1, std::to_string(number));
  return text;
}

bool fits_one_of(std::string_view text, Names patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](std::string_view p) { return fit(text, p).has_value(); });
}

bool reads(const Edge& edge, std::string_view rest) {
  return std::any_of(edge.readers.begin(), edge.readers.end(), [&](const auto& set) { return fits_one_of(rest, set); });
}

std::string_view block_prefix(std::string_view module, const Edge& edge) {
  if (!module.ends_with(edge.norm)) return {};
  const std::string_view prefix = module.substr(0, module.size() - edge.norm.size());
  // Blocks may lie in blocks, and the modules of each are gone through: names of hundreds of numbers, as only an
  // attacker writes, would make that long.
  constexpr int kMaxNumbers = 4;
  int numbers = 0;
  bool ends_in_number = false;
  std::size_t begin = 0;
  for (std::size_t dot = prefix.find('.'); dot != std::string_view::npos; dot = prefix.find('.', begin)) {
    ends_in_number = format::is_number(prefix.substr(begin, dot - begin));
    numbers += ends_in_number ? 1 : 0;
    begin = dot + 1;
  }
  return ends_in_number && begin == prefix.size() && numbers <= kMaxNumbers ? prefix : std::string_view();
}

std::vector<std::string_view> below(const Modules& modules, std::string_view prefix) {
  std::vector<std::string_view> rest;
  for (auto it = modules.lower_bound(prefix); it != modules.end() && it->starts_with(prefix); ++it)
    rest.push_back(std::string_view(*it).substr(prefix.size()));
  return rest;
}

}  // namespace kvant::model
