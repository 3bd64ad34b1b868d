#include "model/tokenizer/merges.h"

#include <bit>
#include <string>
#include <string_view>
#include <utility>

#include "io/file.h"
#include "io/json.h"
#include "model/tokenizer/seeded_hash.h"

namespace kvant::model::tokenizer {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

std::optional<Pair> pair_of(const io::Json& merge) {
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return std::nullopt;
    return Pair(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string_view text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
  return Pair(text.substr(0, space), text.substr(space + 1));
}

}  // namespace

std::size_t Merges::place_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  const std::size_t mask = slots_.size() - 1;
  std::size_t place = mixed(key ^ hash_seed()) & mask;
  while (slots_[place].left >= 0 && (slots_[place].left != left || slots_[place].right != right))
    place = (place + 1) & mask;
  return place;
}

Result<Merges> Merges::read(const Section& model, const Vocabulary& vocabulary) {
  const io::Json* list = model.find("merges");
  if (list == nullptr || !list->is_array()) return model.wrong("merges", "a list");
  Merges merges;
  // So that a search always ends at an empty one.
  merges.slots_.resize(std::bit_ceil(2 * list->size() + 1));
  std::string whole;
  std::int32_t rank = 0;
  for (const io::Json& merge : *list) {
    // The first line of the file that such lists were once read from.
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto pair = pair_of(merge);
    if (!pair) return model.refuse("merges[{}] must be two tokens: \"a b\" or [\"a\", \"b\"]", rank);
    whole = pair->first;
    whole += pair->second;
    const auto id = [&](std::string_view token) -> Result<std::int32_t> {
      if (const auto known = vocabulary.id_of(token)) return *known;
      return model.refuse("merges[{}] joins '{}' and '{}', but '{}' is not in the vocabulary", rank,
                          io::printable(pair->first), io::printable(pair->second), io::printable(token));
    };
    const auto left = id(pair->first), right = id(pair->second), result = id(whole);
    for (const auto& known : {left, right, result})
      if (!known.ok()) return known.status();
    merges.slots_[merges.place_of(*left, *right)] = {*left, *right, {rank++, *result}};
  }
  return merges;
}

}  // namespace kvant::model::tokenizer
