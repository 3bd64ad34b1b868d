#include "model/layer_kind.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>

#include "format/module_name.h"
#include "model/families.h"

namespace kvant::model {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A piece of a name: a run of digits, or of anything else.
std::string_view first_piece(std::string_view text) {
  std::size_t end = 1;
  while (end < text.size() && is_digit(text[end]) == is_digit(text[0])) ++end;
  return text.substr(0, end);
}

// Digits as a number of any length.
int compare_numbers(std::string_view a, std::string_view b) {
  a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
  b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

// Below 0: a comes first. 0: they differ in leading zeros at most.
int compare_names(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const std::string_view x = first_piece(a), y = first_piece(b);
      if (const int order = compare_numbers(x, y); order != 0) return order;
      a.remove_prefix(x.size());
      b.remove_prefix(y.size());
      continue;
    }
    if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]) ? -1 : 1;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.empty() && b.empty()) return 0;
  return a.empty() ? -1 : 1;
}

}  // namespace

std::string_view name(LayerKind kind) {
  switch (kind) {
    case LayerKind::q: return "q";
    case LayerKind::k: return "k";
    case LayerKind::v: return "v";
    case LayerKind::qkv: return "qkv";
    case LayerKind::o: return "o";
    case LayerKind::gate: return "gate";
    case LayerKind::up: return "up";
    case LayerKind::gate_up: return "gate_up";
    case LayerKind::down: return "down";
    case LayerKind::other: return "other";
  }
  return "other";
}

LayerKind kind_of(std::string_view module) {
  const ModuleName* const known = find_module_name(module);
  return known == nullptr ? LayerKind::other : known->kind;
}

std::optional<std::uint64_t> block_of(std::string_view module) {
  while (true) {
    const std::size_t dot = module.find('.');
    const std::string_view component = module.substr(0, dot);
    if (format::is_number(component)) {
      std::uint64_t block = 0;
      const char* const end = component.data() + component.size();
      if (std::from_chars(component.data(), end, block).ec != std::errc()) return std::nullopt;
      return block;
    }
    if (dot == std::string_view::npos) return std::nullopt;
    module.remove_prefix(dot + 1);
  }
}

std::string_view stack_of(std::string_view module) {
  if (!block_of(module)) return {};
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = module.find('.', begin);
    if (format::is_number(module.substr(begin, dot == std::string_view::npos ? dot : dot - begin)))
      return module.substr(0, begin);
    begin = dot + 1;
  }
}

bool stands_before(std::string_view a, std::string_view b) {
  const auto block_a = block_of(a), block_b = block_of(b);
  if (block_a.has_value() != block_b.has_value()) return block_a.has_value();
  if (const int order = compare_names(stack_of(a), stack_of(b)); order != 0) return order < 0;
  if (block_a != block_b) return *block_a < *block_b;
  if (const LayerKind x = kind_of(a), y = kind_of(b); x != y) return x < y;
  if (const int order = compare_names(a, b); order != 0) return order < 0;
  return a < b;
}

}  // namespace kvant::model
