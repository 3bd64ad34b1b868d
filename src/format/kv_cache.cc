#include "format/kv_cache.h"

#include "base/text.h"
#include "format/module_name.h"

namespace kvant::format {
namespace {

constexpr std::string_view kScaleSuffix = "_scale";

constexpr std::string_view letter(CacheHalf half) { return half == CacheHalf::keys ? "k" : "v"; }

std::optional<OfCache> of_cache(std::string_view name, std::string_view suffix) {
  const std::string_view attention = parent_of(name);
  std::string_view last = last_component(name);
  if (last_component(attention) != kCachedAttention || !last.ends_with(suffix)) return std::nullopt;
  last.remove_suffix(suffix.size());
  for (const CacheHalf half : kCacheHalves)
    if (last == letter(half)) return OfCache{attention, half};
  return std::nullopt;
}

}  // namespace

std::string cache_scale_name(std::string_view attention, CacheHalf half) {
  return base::text("{}.{}{}", attention, letter(half), kScaleSuffix);
}

std::string cache_statistics_module(std::string_view attention, CacheHalf half) {
  return base::text("{}.{}", attention, letter(half));
}

std::optional<OfCache> cache_scale_of(std::string_view tensor) { return of_cache(tensor, kScaleSuffix); }

std::optional<OfCache> cache_statistics_of(std::string_view module) { return of_cache(module, {}); }

}  // namespace kvant::format
